/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_fallback.c - --fallback go: a guest that may be taken back, and its disks until then
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      overlays of its disks, in a folder of both hosts    -> the QEMU there writes to them
 *              completed there     -> committed into the images that the guest had here:
 *                                     move_commit.c
 *              the QEMU there dies -> x-rdma-postcopy-take-back: the lease ends, record, fence;
 *                                     then the overlays are dropped
 *
 * Ownership    overlays are this program's, which makes and removes them. They are in no record of
 *              the agent there: until they are committed they are the only place of what the guest
 *              has written, also when it has ended.
 * Invariants   1. An overlay is removed only when the guest is here, or once it is committed.
 *              2. A guest is called nowhere only where the QEMU here has tried the fence: it has
 *                 its record then, and connects no more. Any other refusal may be of a guest that
 *                 goes on there.
 *              3. A guest of which the agent there, or the list of its host, says that it has shut
 *                 itself down is not taken back: it would run again. Where the agent is lost, one
 *                 look of at most 5 s decides: a host that does not answer says nothing.
 * Failure      killed, this program leaves overlays behind, and the guest there writes to them.
 *              Where it does not know that the guest is here, or there for good, a note names them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "defaults.h"
#include "move.h"
#include "rundir.h"

#define RUN_LIMIT_MS 30000 /* of a program that takes 10 ms */
#define NOT_TAKING_MS 10000 /* of a source that is between two states */

/* --- options --- */

/* In a folder that outlives a restart of this host, which is made; NULL: there is none */
static char *default_record(void)
{
    FF_AUTO_FREE char *dir = rundir_make_lasting_base(NULL), *name = defaults_id("move");

    return dir ? xprintf("%s/%s.taken-back", dir, name) : NULL;
}

int move_fallback_options(struct move *m, const char *given, char **out, struct ff_error *why)
{
    const struct move_fallback *b = &m->back;

    if (!b->go && (b->fence || b->record || b->overlays))
        return ff_error_set(why, EINVAL, "--fence, --record and --overlays are for --fallback go");
    if (!b->go) {
        *out = given ? xstrdup(given) : NULL;
        return 0;
    }
    if (!b->fence)
        return ff_error_set(why, EINVAL,
                            "--fallback go: want --fence PROGRAM, which ends the QEMU there");
    m->record = b->record ? defaults_absolute_path(b->record) : default_record();
    if (!m->record)
        return ff_error_set(why, EINVAL, "--fallback go: want --record FILE, since neither "
                            "XDG_STATE_HOME nor HOME is set");
    m->overlays = b->overlays ? defaults_absolute_path(b->overlays) : NULL;
    FF_AUTO_FREE char *fence = defaults_absolute_path(b->fence);
    *out = xprintf("%s%sfallback=go,lease=%u,fence=%s,record=%s", given ? given : "",
                   given ? "," : "", b->lease_s, fence, m->record);
    return 0;
}

/* --- disks --- */

static struct clone_place place_there(const struct move *m)
{
    return (struct clone_place){.scratch = m->overlays};
}

int move_fallback_argv(struct move *m, const struct disks_input *in, struct ff_error *why)
{
    int rc = disks_plan(in, &m->plan, why);

    if (rc)
        return rc;
    if (disks_count(m->plan) && !m->overlays)
        return ff_error_set(why, EINVAL,
                            "--fallback go: want --overlays DIR, a folder that both hosts have, "
                            "for what the guest writes there until the move is complete");
    const struct clone_place p = place_there(m);
    FF_AUTO_JSON json_t *argv = disks_count(m->plan) ? disks_child_argv(m->plan, &p, 1)
                                                     : json_incref((json_t *)in->argv);
    strv_add_json(&m->argv, argv);
    return 0;
}

int move_fallback_make(struct move *m, struct ff_error *why)
{
    const struct clone_place p = place_there(m);

    if (!m->plan || !disks_count(m->plan))
        return 0;
    FF_AUTO_JSON json_t *steps = disks_child_steps(m->plan, &p, 1);
    FF_AUTO_JSON json_t *files = disks_child_files(m->plan, &p, 1);
    size_t i;
    json_t *step;
    int rc = 0;

    json_array_foreach(steps, i, step) {
        const char *file = json_string_value(json_array_get(files, i));
        FF_AUTO_CLOSE int fd = -1;
        rc = overlay_records_create(file, NULL, &fd, why);
        if (!rc) {
            strv_add(&m->made, "%s", file);
            rc = overlay_records_fill(fd, file, json_object_get(step, "argv"), RUN_LIMIT_MS, why);
        }
        if (rc)
            return ff_error_context(why, "overlays");
    }
    return 0;
}

void move_fallback_drop(struct move *m)
{
    for (size_t i = 0; i < m->made.n; i++)
        if (unlink(m->made.v[i]) < 0)
            session_note(&m->s, "remove %s: %s", m->made.v[i], strerror(errno));
}

void move_fallback_keep(struct move *m)
{
    static const char has[] = "may have what the guest has written since it moved: keep it.";

    for (size_t i = 0; i < m->made.n; i++)
        if (m->outcome == MOVE_ENDED)
            session_note(&m->s,
                     "%s has what the guest wrote before it shut itself down: once no QEMU on %s "
                     "has it open, write it back by qemu-img commit, then remove it",
                     m->made.v[i], move_host(m)->node->host);
        else if (m->outcome == MOVE_LOST)
            session_note(&m->s,
                     "%s %s Before you start the guest from its disks, write it back by qemu-img "
                     "commit; if there is a file %s, the guest was taken back: remove it instead",
                     m->made.v[i], has, m->record);
        else
            session_note(&m->s,
                     "%s %s When the QEMU on %s says completed, and not before, commit it by "
                     "block-commit there, or by qemu-img commit once that QEMU has ended, then "
                     "remove it. If the guest runs here again, remove it without that",
                     m->made.v[i], has, move_host(m)->node->host);
}

/* --- taking back --- */

/* Where the process beside a QEMU was lost nobody writes that down; but a QEMU that was lost does not end so */
bool move_may_have_shut_down(struct move *m)
{
    const struct vm *k = move_child(m);

    return m->via == VIA_ATTACH && k->state == VM_FAILED && k->ended_well;
}

/* Its agent has seen it end; or nobody has heard of its host for as long as a lease. Not one whose
 * guest never ran, or has ended, or may have */
static bool is_lost_there(struct move *m)
{
    const struct vm *k = move_child(m);

    if (move_host(m)->state == HOST_FAILED && !m->lost_ms)
        m->lost_ms = ff_now_ms();
    if (move_host(m)->state == HOST_FAILED &&
        ff_now_ms() > m->lost_ms + m->back.lease_s * 1000ull)
        move_look(m, true);
    if (move_host(m)->state != HOST_FAILED || k->never_ran || k->shut_down || k->end_unclear)
        m->lost_ms = 0;
    if (k->never_ran || k->shut_down || k->end_unclear || move_may_have_shut_down(m))
        return false;
    return m->lost_ms ? ff_now_ms() > m->lost_ms + m->back.lease_s * 1000ull
                      : k->state == VM_FAILED;
}

bool move_take_back(struct move *m)
{
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:%u", move_host(m)->address, m->port);
    bool left = m->s.interrupted && !m->visit; /* a signal calls a guest that visits home */
    struct ff_error why;

    if (m->taking_ms || !m->back.go || m->refused || left)
        return m->taking_ms;
    if (!is_lost_there(m))
        return m->lost_ms; /* wait for that */
    int rc = qmp_command(m->s.qmp, "x-rdma-postcopy-take-back", json_pack("{ss}", "uri", uri), NULL,
                         &why);
    if (rc) {
        session_note(&m->s, "the QEMU here was told to take the guest back: %s", why.text);
        m->refused = true; /* once is enough */
        return false;
    }
    m->taking_ms = ff_now_ms();
    m->not_taking_ms = 0;
    return true;
}

/* A RdmaPostcopyTakeBack of qapi/migration.json; "": the source has a link, or does not say */
static const char *take_back_state(const json_t *info)
{
    return text_of(json_object_get(info, "x-rdma-postcopy"), "take-back");
}

/* A QEMU of before has taking-back in that one's place, which is false a moment before it says the reason, and before
 * it says that the guest is back */
bool move_take_back_failed(struct move *m, const json_t *info)
{
    const char *state = take_back_state(info);

    if (*state)
        return strcmp(state, "waiting") != 0;
    if (!json_is_false(json_object_get(json_object_get(info, "x-rdma-postcopy"), "taking-back")))
        m->not_taking_ms = 0;
    else if (!m->not_taking_ms)
        m->not_taking_ms = ff_now_ms();
    return m->not_taking_ms && ff_now_ms() >= m->not_taking_ms + NOT_TAKING_MS;
}

/* What the source says of it: its reason comes last, and may be long. A state that is not known here means least */
void move_end_not_taken_back(struct move *m, const json_t *info)
{
    const char *host = move_host(m)->node->host, *reason = text_of(info, "error-desc");
    const char *state = take_back_state(info);
    const struct vm *k = move_child(m);

    if (!strcmp(state, "fence-failed"))
        move_end_with(m, MOVE_UNCLEAR,
                 "the guest is to be taken back from %s, and runs nowhere: make sure that its QEMU "
                 "there has ended, and give x-rdma-postcopy-take-back at the QEMU here: %s",
                 host, reason);
    else if (!strcmp(state, "given-up") && k->state == VM_FAILED && move_host(m)->state != HOST_FAILED)
        move_end_with(m, MOVE_LOST, "its QEMU on %s has ended (%s), and the guest with it; start it again from its disks: %s",
                 host, k->error, reason);
    else if (k->state == VM_FAILED && move_host(m)->state != HOST_FAILED)
        move_end_with(m, MOVE_UNCLEAR,
                 "its QEMU on %s has ended (%s), and the QEMU here did not take the guest back; if "
                 "you can mend the reason, give x-rdma-postcopy-take-back here: %s",
                 host, k->error, reason);
    else
        move_end_with(m, MOVE_UNCLEAR,
                 "the guest may run on %s, and the QEMU here did not take it back: look there with "
                 "query-status at %s before you start or end it anywhere; neither QEMU was ended: "
                 "%s",
                 host, k->qmp, reason);
}

void move_end_taking(struct move *m)
{
    move_end_with(m, MOVE_UNCLEAR, "left: the guest is being taken back from %s: query-migrate here says failed when it "
                  "is here, as it was when it went, and why not if it is not", move_host(m)->node->host);
}

void move_fallback_free(struct move *m)
{
    disks_free(m->plan);
    strv_free(&m->made);
    free(m->record);
    free(m->overlays);
}
