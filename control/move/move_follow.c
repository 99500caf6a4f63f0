/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_follow.c - the migration, as the source tells it, until it is known who has the guest
 */
/**
 * DOC: Theory of Operation
 *
 * States       of query-migrate at the source:
 *
 *                  setup, active, device        the guest is the source's; a cancel is possible
 *                  failed, cancelled            it goes on there, for good
 *                  postcopy-active              it is the destination's; memory follows
 *                  completed                    the destination has every page
 *                  postcopy-paused              the source knows nothing more, and tries to connect
 *                                               again for `reconnect` seconds: what it says then
 *                                               holds. Else ask the destination
 *
 * Invariants   1. The destination is ended only when the source says failed or cancelled, or was
 *                 never asked to migrate, or runs the guest as before when it has been asked; or
 *                 the source has ended, and the destination says that it got no GO and never will.
 *              2. The source is quit only when it says completed, of this migration, and the
 *                 destination says so too and has the guest as it was here.
 *              3. A source that hears nothing more is told that nothing ran there when the agent
 *                 has reaped the QEMU there, and that left its file of until-go: it was killed
 *                 before any guest could run in it. Where the agent is lost, the list of its
 *                 host says so (move_look.c).
 * Failure      a source that has ended or hears nothing more: the destination is asked until it
 *              has decided. Whatever is not clear then is said, and nothing is ended.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "move.h"
#include "promote.h"
#include "rundir.h"

#define POLL_MS 50
#define QUERY_LIMIT_MS 10000
#define REAP_LIMIT_MS 2000
#define END_THERE_MS 10000 /* of a QEMU there that waits for a link for as long as we do */

/* --- the source --- */

static void take_numbers(struct move *m, const json_t *info)
{
    const json_t *x = json_object_get(info, "x-rdma-postcopy"), *down;

    snprintf(m->status, sizeof(m->status), "%s", text_of(info, "status"));
    snprintf(m->link, sizeof(m->link), "%s", text_of(x, "link"));
    m->fault_p99_ms = (double)json_integer_value(json_object_get(x, "fault-p99")) / 1e6;
    m->total_bytes = (uint64_t)json_integer_value(json_object_get(x, "total-bytes"));
    m->present_bytes = (uint64_t)json_integer_value(json_object_get(x, "present-bytes"));
    m->passed_bytes = (uint64_t)json_integer_value(json_object_get(x, "precopied-bytes"));
    m->faults = (uint64_t)json_integer_value(json_object_get(x, "faults"));
    m->breaks = (uint64_t)json_integer_value(json_object_get(x, "breaks"));
    m->again_bytes = (uint64_t)json_integer_value(json_object_get(x, "again-bytes"));
    m->paused_ms = (double)json_integer_value(json_object_get(x, "paused-time")) / 1e6;
    m->runs_there |= json_integer_value(json_object_get(x, "start-time")) > 0;
    down = json_object_get(info, "downtime");
    if (down && m->was_running)
        m->downtime_ms = (double)json_integer_value(down);
}

static void cancel_migration(struct move *m)
{
    struct ff_error ignored; /* too late, or over: the state says so */

    if (m->cancelling)
        return;
    m->cancelling = true;
    qmp_command(m->s.qmp, "migrate_cancel", NULL, NULL, &ignored);
}

/* A guest that came by a move is where query-migrate says completed from the start; one that never
 * moved says none */
static bool may_be_old(const char *status)
{
    return move_is(status, "completed") || move_is(status, "none") || !*status;
}

/* `migrate` was not answered in time. What is asked now is answered after it: a source that has
 * the guest as it was refused it; one in postmigrate, as it was not before, is through */
static bool has_refused(struct move *m)
{
    FF_AUTO_JSON json_t *o = NULL;
    struct ff_error why;

    if (qmp_command(m->s.qmp, "query-status", NULL, &o, &why))
        return false; /* asked again at the next turn */
    const char *status = text_of(o, "status");
    m->begun = move_is(status, "postmigrate");
    if (!move_is(status, move_status(m)))
        return false;
    move_end_with(m, MOVE_HERE,
             "the QEMU here refused to migrate, and gave the reason only after %d s: try again",
             QUERY_LIMIT_MS / 1000);
    return true;
}

/* Only this can get the guest back to the source. One that refuses has been told otherwise */
static void tell_never_ran(struct move *m)
{
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:%u", move_host(m)->address, m->port);
    struct ff_error why;
    int rc = qmp_command(m->s.qmp, "x-rdma-postcopy-not-started", json_pack("{ss ss}", "uri", uri,
                         "mark", move_child(m)->mark), NULL, &why);

    m->told_ms = ff_now_ms();
    m->told = !rc;
    if (rc)
        session_note(&m->s, "the QEMU here was told that nothing ran there: %s", why.text);
}

/* The source is paused. Is there still somebody to whom it may connect? A signal calls a guest that visits home, and
 * ends nothing */
static bool may_resume(struct move *m)
{
    bool left = m->s.interrupted && !m->visit;

    if (!m->until_ms)
        m->until_ms = ff_now_ms() + session_reconnect_ms(&m->s) + (m->via == VIA_ATTACH ? END_THERE_MS : 0);
    move_look(m, left || ff_now_ms() >= m->until_ms);
    if (move_child(m)->never_ran) {
        if (!m->told_ms)
            tell_never_ran(m);
        return ff_now_ms() < m->told_ms + m->s.o.timeout_s * 1000ull;
    }
    if (move_host(m)->state != HOST_FAILED && move_child(m)->end_unclear)
        return false;
    return !left && ff_now_ms() < m->until_ms && !move_child(m)->shut_down &&
           ((move_child(m)->state != VM_FAILED && (m->back.go || !move_side_there_has_ended(m))) || /* then that QEMU ends, too */
            move_host(m)->state == HOST_FAILED);
}

/* true: it is decided */
static bool is_decided(struct move *m, const json_t *info)
{
    const char *host = move_host(m)->node->host, *error = text_of(info, "error-desc");
    const struct vm *k = move_child(m);

    if (move_is_over_here(m->status)) {
        if (m->via == VIA_ATTACH && process_look(m->s.parent_pid, m->s.parent_start) == PROCESS_GONE) {
            m->end_there = true; /* nothing ran there */
            move_end_with(m, MOVE_UNCLEAR, "%s", error); /* who ended it may have moved it elsewhere */
        } else if (*m->s.why.text) /* why it was cancelled */
            m->outcome = MOVE_HERE;
        else if (m->s.interrupted)
            move_end_with(m, MOVE_HERE, "interrupted");
        else
            move_end_with(m, MOVE_HERE, "%s%s%s", *error ? error : m->status,
                     k->state == VM_FAILED ? "; its QEMU there: " : "",
                     k->state == VM_FAILED ? k->error : "");
        return true;
    }
    m->begun |= !may_be_old(m->status);
    if (!m->begun && has_refused(m))
        return true;
    if (move_is(m->status, "completed") && m->begun && !m->visit) {
        m->completed_ms = ff_now_exact_ms();
        move_end_with(m, MOVE_THERE, "%s", "");
        return true;
    }
    if (!move_is(m->status, "postcopy-paused")) {
        m->until_ms = m->lost_ms = m->taking_ms = 0; /* of the pause that is over */
        m->refused = false;
        if (!m->told) /* it was not paused yet, perhaps */
            m->told_ms = 0;
        return false;
    }
    if (m->taking_ms && move_take_back_failed(m, info)) {
        move_end_not_taken_back(m, info);
        return true;
    }
    if (move_take_back(m))
        return false;
    if (!may_resume(m)) {
        FF_AUTO_FREE char *here = xprintf("the source has lost %s: %s", host, error);
        move_ask_until_clear(m, here);
        return true;
    }
    return false;
}

/* Before the switch the guest goes on here; after it, it has to be left where it is */
static void on_interrupt(struct move *m)
{
    const char *host = move_host(m)->node->host;

    if (!m->switched) {
        cancel_migration(m);
        return;
    }
    move_show(m, true);
    m->s.interrupted = false;
    if (m->taking_ms) {
        fprintf(stderr, "%s: the guest is being taken back from %s; interrupt again to leave that to the QEMU here\n",
                m->s.kind->program, host);
        return;
    }
    fprintf(
        stderr,
        "%s: the guest runs on %s by now, its memory still follows: %llu of %llu MiB; "
        "interrupt again to leave, but keep the QEMU here until all is there\n",
        m->s.kind->program, host, (unsigned long long)m->present_bytes >> 20, (unsigned long long)m->total_bytes >> 20);
}

/* Nothing has changed for too long; true: leave */
static bool stop_asking(struct move *m)
{
    const char *host = move_host(m)->node->host;

    if (m->switched && m->visit) { /* visit_stay() says what to do */
        move_end_with(m, MOVE_AWAY, "it was not heard to run there for %u s", m->s.o.timeout_s);
        return true;
    }
    if (m->switched) {
        move_end_with(
            m, MOVE_FOLLOWS,
            "no memory came to %s for %u s: the guest is there; keep the QEMU here, and quit it "
            "once its query-migrate says completed",
            host, m->s.o.timeout_s);
        return true;
    }
    if (m->cancelling) {
        move_end_with(m, MOVE_UNCLEAR, "the source does not end its migration (status %s): look at it with "
                      "query-migrate; neither QEMU was ended", m->status);
        return true;
    }
    move_end_with(m, MOVE_HERE, "nothing happened for %u s (status %s): canceled", m->s.o.timeout_s,
             m->status);
    cancel_migration(m);
    return false;
}

/* A process that is killed closes its sockets before it has ended */
static void await_parent_end(struct move *m)
{
    uint64_t until = ff_now_ms() + REAP_LIMIT_MS;

    while (m->s.parent_gone && !session_has_parent_ended(&m->s) && ff_now_ms() < until)
        session_turn(&m->s, POLL_MS);
}

/* The process beside the QEMU here has ended without a last word. A QEMU that answers has the guest: from before GO on it
 * stands still, and the kernel ends it with who holds it. Else the destination knows more */
static void on_side_lost(struct move *m, const char *reason)
{
    FF_AUTO_JSON json_t *o = NULL;
    struct ff_error why;
    bool answers = m->s.qmp && !qmp_command(m->s.qmp, "query-status", NULL, &o, &why);
    bool runs = json_is_true(json_object_get(o, "running"));

    m->s.parent_gone |= !answers;
    await_parent_end(m);
    bool is_here = answers && (!m->switched || (runs && m->was_running));
    if (is_here && (runs || !m->was_running))
        move_end_with(m, MOVE_HERE, "%s", reason);
    else if (is_here)
        move_end_with(m, MOVE_HERE, "%s; the guest is in the QEMU here, and does not run (%s): give it cont", reason,
                      text_of(o, "status"));
    else
        move_ask_until_clear(m, reason);
}

bool move_follow_turn(struct move *m)
{
    FF_AUTO_JSON json_t *info = NULL;
    struct ff_error why;

    if (m->via == VIA_ATTACH && move_attach_has_ended(m, &why)) {
        on_side_lost(m, why.text);
        return true;
    }
    int rc = qmp_command(m->s.qmp, "query-migrate", NULL, &info, &why);
    if (rc && rc != -ETIMEDOUT && m->via == VIA_ATTACH)
        rc = -ETIMEDOUT; /* whether it has ended is seen at the next turn */
    if (rc && rc != -ETIMEDOUT) {
        m->s.parent_gone |= rc == -EPIPE;
        await_parent_end(m);
        move_ask_until_clear(m, why.text);
        return true;
    }
    if (!rc)
        take_numbers(m, info);
    return !rc && is_decided(m, info);
}

/* It runs there, and no source takes it back from here on */
static void on_running_there(struct move *m)
{
    struct ff_error why;

    m->handed = true;
    move_hand_over(m, &why);
    if (m->via != VIA_ATTACH) /* it passes nothing on until it ends */
        move_devices_plug(m);
}

static void follow_migration(struct move *m)
{
    uint64_t changed_ms = ff_now_ms(), fetched = 0;
    char was[sizeof(m->status)] = "";
    bool said = false;

    for (;;) {
        if (move_follow_turn(m))
            return;
        if (!m->switched && move_is(m->status, "postcopy-active")) {
            m->switched = true;
            m->switched_ms = ff_now_exact_ms();
            m->s.why.text[0] = '\0'; /* a cancel came too late */
        }
        if (m->visit && m->switched && m->runs_there) {
            m->outcome = MOVE_AWAY;
            return;
        }
        if (m->runs_there && !m->handed && !m->back.go)
            on_running_there(m);
        if (m->until_ms || m->taking_ms || m->lost_ms || strcmp(was, m->status) ||
            fetched != m->present_bytes + m->passed_bytes)
            changed_ms = ff_now_ms();
        snprintf(was, sizeof(was), "%s", m->status);
        fetched = m->present_bytes + m->passed_bytes;
        if (ff_now_ms() > changed_ms + m->s.o.timeout_s * 1000ull) {
            if (stop_asking(m))
                return;
            changed_ms = ff_now_ms();
        }
        if (m->s.interrupted && m->switched && said) {
            if (m->taking_ms)
                move_end_taking(m);
            else
                move_end_with(m, MOVE_FOLLOWS,
                              "left: the guest runs on %s, its memory still follows; the QEMU "
                              "here serves it: quit it once query-migrate says completed",
                              move_host(m)->node->host);
            return;
        }
        if (m->s.interrupted && !(m->visit && m->switched)) {
            said |= m->switched;
            on_interrupt(m);
        }
        move_show(m, false);
        session_turn(&m->s, POLL_MS);
    }
}

/* The guest's status there, to be released. -EAGAIN: its QEMU does not say completed, or nothing */
static int see_there(struct move *m, json_t **status, struct ff_error *why)
{
    FF_AUTO_JSON json_t *info = NULL;
    int rc = move_ask(m, "query-migrate", NULL, &info, why);

    if (!rc && m->promote)
        promote_take_numbers(m, info);
    if (!rc && !move_is(text_of(info, "status"), "completed"))
        return ff_error_set(why, EAGAIN, "its QEMU says: migration %s", text_of(info, "status"));
    if (!rc)
        rc = move_ask(m, "query-status", NULL, status, why);
    return rc && m->via == VIA_ATTACH && move_child(m)->state != VM_FAILED
               ? -EAGAIN : rc; /* the process beside it ends meanwhile, and its QEMU is to be asked */
}

/* Complete. Is it there as it was here? Then this side is of no use any more */
static void finish_move(struct move *m)
{
    FF_AUTO_JSON json_t *status = NULL;
    const char *host = move_host(m)->node->host;
    struct ff_error why;
    int rc;

    uint64_t until = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    while ((rc = see_there(m, &status, &why)) == -EAGAIN && ff_now_ms() < until)
        session_turn(&m->s, POLL_MS);
    until = ff_now_ms() + REAP_LIMIT_MS; /* it ends, perhaps: its agent says how */
    while (rc && move_child(m)->state != VM_FAILED && ff_now_ms() < until)
        session_turn(&m->s, POLL_MS);
    if (rc && move_child(m)->shut_down) {
        move_end_shut_down(m);
        return;
    }
    if (rc) {
        move_end_with(
            m, MOVE_UNCLEAR,
            "every page is on %s, but the guest does not show there: %s; look there, then quit "
            "the QEMU here, which no longer runs it",
            host, why.text);
        return;
    }
    if (!move_is(text_of(status, "status"), move_status(m))) {
        move_end_with(
            m, MOVE_UNCLEAR,
            "every page is on %s, but the guest is %s there: see %s; the QEMU here no longer runs "
            "it, and was not quit",
            host, text_of(status, "status"), move_child(m)->log);
        return;
    }
    move_attach_over(m);
    if (process_look(m->s.parent_pid, m->s.parent_start) == PROCESS_GONE) {
        m->s.parent_gone = true;
        if (m->via != VIA_ATTACH) /* else it was ended */
            session_note(&m->s, "the QEMU here (pid %d) has ended by itself during the move; all that "
                                   "the guest needs was there, or in its memory's file",
                     (int)m->s.parent_pid);
    } else {
        move_end_source(m);
    }
}

void move_guest(struct move *m)
{
    const struct host *h = move_host(m);
    FF_AUTO_FREE char *options = session_link_options(&m->s, h);
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:%u%s", h->address, m->port, options);
    struct ff_error why;

    qmp_cancel_by(m->s.qmp, -1);
    qmp_limit(m->s.qmp, QUERY_LIMIT_MS);
    m->s.why.text[0] = '\0'; /* of what was tried again and succeeded */
    if (move_check_disks(m, &m->s.why) || session_lend_key(&m->s, &m->s.why) ||
        (m->promote && promote_keep_disks(m, &m->s.why)))
        return;
    m->sent_ms = ff_now_exact_ms();
    m->sent = true;
    int rc = qmp_command(m->s.qmp, "migrate", json_pack("{ss}", "uri", uri), NULL, &why);
    session_take_key(&m->s);
    if (rc == -EREMOTEIO) {
        m->sent = false;
        move_end_with(m, MOVE_HERE, "%s", why.text);
        return;
    }
    m->begun = !rc;
    follow_migration(m); /* also without an answer: what is asked next is answered after it */
    if (m->outcome == MOVE_THERE && !move_hand_over(m, &why))
        session_note(&m->s, "its overlays stay in the list of %s: %s; end that by vmclone --kill "
                               "only after this guest", m->owner.dir, why.text);
    if (m->outcome == MOVE_THERE && m->completed_ms)
        finish_move(m);
    else if (m->outcome == MOVE_THERE && !session_has_parent_ended(&m->s)) /* only the destination says so */
        session_note(&m->s, "the QEMU here (pid %d) has not heard that the move is complete: "
                               "look at the guest on %s, then end it", (int)m->s.parent_pid,
                  h->node->host);
    if (m->outcome == MOVE_THERE)
        move_fallback_commit(m);
    if (m->outcome == MOVE_THERE && m->promote)
        promote_commit(m);
    if (m->outcome == MOVE_THERE || (m->outcome == MOVE_FOLLOWS && m->via != VIA_ATTACH)) /* as above */
        move_devices_plug(m);
}
