/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move.c - farfork move: let a running guest end here and run on another host
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connect to the guest's QEMU; refuse what cannot be moved
 *              an agent on the host, without an image -> run directory
 *              its QEMU, from the command line here   -> waits for a migration (-incoming defer)
 *              migrate-incoming, by the agent         -> listens; its port is known
 *              keep                                   -> the agent ends nothing any more
 *              migrate rdma-postcopy:                 -> runs there; memory follows
 *              completed, and seen there: quit here
 *              the agent is let go
 *
 *              It shares launcher, agent and command line with vmclone, but not its export. A fork
 *              is an image that a holder serves while the parent goes on. A move is a migration:
 *              the guest's disks, addresses and NICs go with it. So the command line keeps what a
 *              fork has to take away, and the agent holds no memory.
 *
 * Invariants   1. `keep` comes before `migrate`: at no moment does the end of farfork move, or of
 *                 the way to the agent, end a guest.
 *              2. A `completed` of the source counts once it is known to be of this migration: a
 *                 guest that came by a move says so from the start.
 * Failure      until the source says that it gave the guest away it goes on here, and what was
 *              started there is ended; see move_follow.c for what comes after. That the guest is
 *              here is only said where its QEMU said so last: it may have ended, or be moved by
 *              somebody else.
 *              Killed, this program leaves both QEMUs and the agent: the move goes on to its end,
 *              only the QEMU here is not quit.
 * Limits       every wait ends after --timeout seconds without anything new.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "move.h"
#include "promote.h"
#include "session_told.h"
#include "signals.h"
#include "visit.h"

/* 0: the guest can be sent */
static int prepare_move(struct move *m)
{
    struct ff_error *why = &m->s.why;
    int rc = session_plan(&m->s, why);

    if (!rc)
        rc = move_find_parent(m, why);
    if (!rc)
        rc = move_check_starter(m, why);
    if (!rc && m->visit)
        rc = visit_check(m, why);
    if (!rc)
        rc = move_check_argv(m, why);
    m->started = !rc;
    if (!rc)
        rc = move_start(m, why);
    if (!rc && m->visit)
        rc = visit_find_address(m, why);
    if (!rc && m->visit)
        rc = visit_tell_touched(m, why);
    if (!rc)
        session_say_notes(&m->s); /* while the guest runs as ever */
    if (!rc)
        rc = move_devices_unplug(m, why);
    return rc;
}

static bool is_well(const struct move *m)
{
    return m->outcome == MOVE_THERE || m->outcome == MOVE_HOME;
}

/* It is where it was, or nobody touched it */
static bool is_as_it_was(const struct move *m)
{
    return m->outcome == MOVE_HERE || m->outcome == MOVE_UNTOUCHED;
}

static int exit_code(const struct move *m)
{
    if (m->visit && visit_was_taken_back(m))
        return MOVE_EXIT_TROUBLE;
    if (m->visit && m->visit->failed)
        return is_as_it_was(m) ? MOVE_EXIT_HERE : MOVE_EXIT_TROUBLE;
    return is_well(m) ? 0 : is_as_it_was(m) ? MOVE_EXIT_HERE : MOVE_EXIT_TROUBLE;
}

static void print_move(const struct move *m, int code)
{
    if (m->visit && m->s.o.json)
        visit_print_json(m, code);
    else if (m->visit)
        visit_print_text(m, code);
    else if (m->promote && m->s.o.json)
        promote_print_json(m, code);
    else if (m->promote)
        promote_print_text(m, code);
    else if (m->s.o.json)
        move_put_json(move_json(m, code));
    else
        move_print_text(m, code);
}

static int run_move(struct move *m)
{
    m->s.signals = m->visit ? signals_take_more(SIGUSR1) : signals_take();
    m->begin_ms = ff_now_exact_ms();
    m->downtime_ms = -1;
    struct metrics *metrics = move_metrics_begin(m);
    int rc = prepare_move(m);
    if (!rc && m->via == VIA_ATTACH)
        rc = move_attach_here(m, &m->s.why);
    if (!rc)
        move_guest(m);
    if (m->outcome == MOVE_AWAY)
        visit_stay(m);
    if (!m->sent)
        move_attach_drop(m);
    if (m->sent && !m->visit)
        move_show(m, true);
    if (m->sent && m->via == VIA_ATTACH && m->outcome != MOVE_THERE && m->outcome != MOVE_HOME)
        move_attach_say_sides(m);
    move_let_go(m);
    if (m->outcome == MOVE_HERE || m->outcome == MOVE_LOST || m->outcome == MOVE_ENDED)
        move_attach_over(m);
    if (m->outcome == MOVE_HERE)
        move_find_here(m);
    if (m->outcome == MOVE_HERE)
        move_devices_back(m);
    else
        move_devices_say(m);
    if (is_as_it_was(m))
        move_fallback_drop(m);
    else if (m->visit)
        visit_disks_say(m);
    else if (m->outcome != MOVE_THERE)
        move_fallback_keep(m);
    if (m->promote)
        promote_over(m);
    int code = exit_code(m);
    print_move(m, code);
    move_metrics_end(m, metrics);
    if (m->visit) {
        m->visit->outcome = m->outcome;
        m->visit->signalled |= m->s.interrupted;
    }
    session_journal(&m->s, move_outcome_name(m->outcome), is_well(m));
    return code;
}

/* *@options: of the link, to be freed */
static int init_move(struct move *m, const struct session_options *given, const char *host, char **options,
                     struct ff_error *why)
{
    static const struct session_kind kind = {.program = "farfork move", .where = "there",
                                             .by_hand = ", or move this guest by hand, see "
                                                        "farfork-rdma-postcopy(7)",
                                             .agent_options = move_agent_options};
    static const struct session_kind promotes = {.program = "farfork promote", .where = "in the parent's place", .by_hand = "",
                                                 .agent_options = move_agent_options};
    static const struct session_kind visits = {.program = "farfork visit", .where = "there", .by_hand = "",
                                               .agent_options = move_agent_options};
    struct session_options o = *given;
    FF_AUTO_FREE char *passes = m->promote ? xprintf("%s%sprecopy=1", given->link_options ? given->link_options : "",
                                                     given->link_options ? "," : "") : NULL;
    const char *link = passes ? passes : given->link_options;
    int rc = m->visit ? visit_link_options(link, &m->visit->link_options, why) : 0;

    if (!rc)
        rc = move_fallback_options(m, m->visit ? m->visit->link_options : link, options, why);

    o.watcher = m->via == VIA_ATTACH && !m->visit;
    o.link_options = *options;
    if (m->promote) { /* its agent's filter would forbid the process beside the QEMU to attach to the parent */
        m->no_programs = !o.unconfined;
        o.unconfined = true;
    }
    if (!rc)
        rc = session_init(&m->s, m->visit ? &visits : m->promote ? &promotes : &kind, &o, why);
    return rc ? rc : hostlist_add(&m->s.hostlist, host, why);
}

int move_run(const struct session_options *given, const struct move_fallback *back,
             const struct move_way *way, const char *host)
{
    struct move m = {.back = *back, .via = way->via, .visit = way->visit, .promote = way->promote,
                     .keep_source = way->keep_source, .tpm = way->tpm,
                     .same_disks = way->same_disks || (way->visit && way->visit->o.same_disks),
                     .unplug = &way->unplug};
    struct ff_error why;
    int code = EXIT_USAGE;
    FF_AUTO_FREE char *options = NULL;
    for (size_t i = 0; i < way->plug.n; i++)
        strv_add(&m.plug, "%s", way->plug.v[i]);
    if (init_move(&m, given, host, &options, &why))
        fprintf(stderr, "farfork %s: %s\n", m.visit ? "visit" : m.promote ? "promote" : "move", why.text);
    else
        code = run_move(&m);
    move_devices_free(&m);
    free(m.starter);
    strv_free(&m.argv);
    strv_free(&m.argv_home);
    json_decref(m.images);
    json_decref(m.files);
    json_decref(m.machine);
    overlay_records_owner_free(&m.owner);
    move_fallback_free(&m);
    free(m.side_dir);
    free(m.side_qmp);
    free(m.guest_port);
    session_free(&m.s);
    return code;
}
