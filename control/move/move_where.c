/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_where.c - the source says no more: the destination is asked who has the guest
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "move.h"
#include "rundir.h"

#define ASK_TURN_MS 50

/* Nobody sends it more, and it runs its guest, or may */
static bool is_alone_there(const char *has, const char *move)
{
    return move_is(move, "postcopy-paused") && !move_is(has, "inmigrate");
}

bool move_side_there_has_ended(struct move *m)
{
    return m->via == VIA_ATTACH && (move_side(m)->state == VM_FAILED || move_side(m)->state == VM_ENDED);
}

/* What it says of the guest and of the move; false: it is not decided there, or it does not say */
static bool on_events_there(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *status = NULL, *info = NULL;
    const char *host = move_host(m)->node->host;

    if (move_ask(m, "query-status", NULL, &status, why) ||
        move_ask(m, "query-migrate", NULL, &info, why))
        return false;
    const char *has = text_of(status, "status"), *move = text_of(info, "status");
    if (move_side_there_has_ended(m) && m->was_running && move_is(has, "paused")) {
        move_end_with(m, MOVE_UNCLEAR,
            "the process beside its QEMU on %s has ended: %s: the guest stands still there (paused), and may never have run "
            "there: end that QEMU (%s) only once you know; the QEMU here was not ended", host, move_side(m)->error,
            move_child(m)->qmp);
        return true;
    }
    if (move_side_there_has_ended(m) && !move_side(m)->ended_well && !move_is(has, "inmigrate")) {
        move_end_with(m, MOVE_BROKEN,
            "the process beside its QEMU on %s has ended: %s: the guest is there (%s), and a CPU that touches missing memory "
            "waits for ever: save what you can from inside, then start the guest anew", host, move_side(m)->error, has);
        return true;
    }
    if (move_is(move, "completed")) {
        move_end_with(m, MOVE_THERE, "%s", "");
        return true;
    }
    bool waits = m->via == VIA_ATTACH ? move_is(move, "pre-switchover") : move_is(move, "postcopy-paused") && move_is(has, "inmigrate");
    if (waits && session_has_parent_ended(&m->s)) {
        m->end_there = true;
        move_end_with(m, MOVE_LOST, "its QEMU here has ended before it let the guest go, and the QEMU "
                 "on %s, which was ended, never ran it: the guest runs nowhere; start it again "
                 "from its disks", host);
        return true;
    }
    if (!is_alone_there(has, move)) {
        ff_error_set(why, EBUSY, "its QEMU on %s says: guest %s, migration %s", host, has, move);
        return false;
    }
    if (m->back.go)
        move_end_with(m, MOVE_BROKEN,
            "the link to %s is broken: the guest is there (%s), and stands still from the end of its lease on; neither "
            "QEMU was ended: if the QEMU here is dead for good, and there is no file %s, give x-rdma-postcopy-release "
            "at %s there, and it runs until it touches missing memory; see TAKING BACK in farfork-rdma-postcopy(7)",
            host, has, m->record, m->via == VIA_ATTACH ? move_side(m)->qmp : move_child(m)->qmp);
    else
        move_end_with(m, MOVE_BROKEN,
            "the link to %s is broken: the guest is there (%s), and runs until it touches missing memory; neither QEMU "
            "was ended: see A LINK THAT BREAKS in farfork-rdma-postcopy(7) for how it goes on, and save what you can "
            "from inside if the QEMU here is gone", host, has);
    return true;
}

/* Its QEMU had not all of its memory: that does not matter any more */
void move_end_shut_down(struct move *m)
{
    m->end_there = true;
    move_end_with(m, MOVE_ENDED, "the guest shut itself down on %s: it runs nowhere; end the QEMU here, "
             "which no longer runs it", move_host(m)->node->host);
}

void move_ask_until_clear(struct move *m, const char *why_here)
{
    uint64_t until = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    const struct host *h = move_host(m);
    const struct vm *k = move_child(m);
    struct ff_error why = {0};

    while (ff_now_ms() < until && h->state != HOST_FAILED && k->state != VM_FAILED &&
           !k->shut_down && !k->end_unclear) {
        if (on_events_there(m, &why))
            return;
        session_turn(&m->s, ASK_TURN_MS);
        move_show(m, false);
    }
    bool is_held = m->via == VIA_ATTACH && process_look(m->s.parent_pid, m->s.parent_start) != PROCESS_GONE;
    /* nobody looks for its file */
    m->end_there = k->never_ran && (session_has_parent_ended(&m->s) || m->told);
    if (k->shut_down)
        move_end_shut_down(m);
    else if (k->end_unclear && h->state != HOST_FAILED)
        move_end_with(m, MOVE_UNCLEAR,
            "its QEMU on %s has ended, and whether its guest had shut itself down before cannot be read there: if there "
            "is no file " UNTIL_GO ".shut-down in %s there, %s", h->node->host, h->lasting,
            m->back.go && !session_has_parent_ended(&m->s)
                ? "x-rdma-postcopy-take-back at the QEMU here may get the guest back"
                : "the guest is lost: start it again from its disks");
    else if (((m->visit && k->ended_well) || (m->back.go && move_may_have_shut_down(m))) && !k->never_ran)
        move_end_with(m, MOVE_UNCLEAR,
            "its QEMU on %s was told to quit, or its guest shut itself down, and nobody wrote that down: it runs "
            "nowhere; look at its disks before you start it again; end the QEMU here, which no longer runs it",
            h->node->host);
    else if (!m->begun) /* the guest may be where somebody else moved it */
        move_end_with(m, MOVE_UNCLEAR,
            "%s; it may have sent the guest to %s: find out where the guest is before you start it anywhere; neither "
            "QEMU was ended", why_here, h->node->host);
    else if (h->state == HOST_FAILED || k->state != VM_FAILED)
        move_end_with(
            m, MOVE_UNCLEAR,
            "%s; and %s cannot tell: %s; look there with query-status at %s, or at what vmclone "
            "--list says, before you start this guest anywhere; neither QEMU was ended",
            why_here, h->node->host, h->state == HOST_FAILED ? h->error : why.text,
            k->qmp ? k->qmp : "");
    else if (k->never_ran && is_held)
        move_end_with(m, MOVE_UNCLEAR,
                 "%s; its QEMU on %s has ended, and never ran it: %s: the QEMU here (pid %d) may have the guest yet: give "
                 "cont where its query-status says paused; start it from its disks only once that QEMU has ended",
                 why_here, h->node->host, k->error, (int)m->s.parent_pid);
    else if (k->never_ran)
        move_end_with(m, MOVE_LOST,
                 "%s; its QEMU on %s has ended: %s: the guest runs nowhere; start it again "
                 "from its disks",
                 why_here, h->node->host, k->error);
    else if (m->back.go && !session_has_parent_ended(&m->s))
        move_end_with(m, MOVE_UNCLEAR,
                 "its QEMU on %s has ended; x-rdma-postcopy-take-back at the QEMU here may get the "
                 "guest back: %s; %s",
                 h->node->host, k->error, why_here);
    else
        move_end_with(m, MOVE_LOST,
                 "%s; its QEMU on %s has ended, and the guest with it: %s; start it again "
                 "from its disks",
                 why_here, h->node->host, k->error);
}
