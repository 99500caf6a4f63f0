/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_attach.c - the way home of a guest that visits by attaching: into a QEMU made anew here
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      here                                          there
 *              QEMU, held - A ========================== B - QEMU with the guest
 *                           | its memory                 | what was written
 *              QEMU, new  - D ========================== C, one for each try: processes 3, 4, .. of the visit
 *
 *              A to D are those of control/attach/attach_return.c. The way home is a move to this host (struct visit's home):
 *              an agent here, which stays, a QEMU started from the guest's command line, and D beside it. The path of the
 *              guest's QMP socket becomes a symbolic link to the new QEMU's socket.
 * Invariants   visit_home.c's. A ends the held QEMU when D tells it that every page is here; this program need not run then.
 * Failure      before GO: the guest goes on there, and what was started here for it is ended.
 * Limits       8 tries: VISIT_VMS (cli/cmd_visit.c) less FIRST_SIDE - 1.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "failpoint.h"
#include "qmp_secret.h"
#include "visit.h"

#define BACK_TURN_MS 50
#define END_LIMIT_MS 12000
#define STATE_LIMIT_MS 2000
#define FIRST_SIDE 3u
#define HOME_SIDE 2u /* the process beside the QEMU made anew */

/* --- a move to this host --- */

static char *own_exe(const struct move *m)
{
    FF_AUTO_FREE char *link = xprintf("/proc/%d/exe", (int)m->s.parent_pid);
    char exe[PATH_MAX] = "";

    if (!m->s.o.qemu || readlink(link, exe, sizeof(exe) - 1) <= 0) /* --qemu names the one there */
        return xstrdup(m->s.parent_exe);
    return xstrdup(exe);
}

static int new_home(struct move *m, struct ff_error *why)
{
    static const struct session_kind kind = {.program = "farfork visit", .where = "here", .by_hand = "",
                                             .agent_options = move_agent_options};
    struct visit *v = m->visit;

    if (ff_failpoint("visit.home"))
        return ff_error_set(why, EIO, "home: injected");
    FF_AUTO_FREE char *id = xprintf("%.16s-home-%d-%u", m->s.o.id, (int)getpid(), v->tries);
    FF_AUTO_FREE char *host = xprintf("localhost=%s", v->address);
    FF_AUTO_FREE char *options = xprintf("%s,precopy=1", v->link_options);
    struct session_options o = m->s.o;

    o.id = id;
    o.link_options = options;
    o.qemu = NULL;
    o.n = 2;
    o.quiet = o.unconfined = true;
    struct move *h = v->home = xcalloc(1, sizeof(*h));
    h->via = VIA_ATTACH;
    h->downtime_ms = -1;
    h->return_of = m->side_qmp;
    h->no_programs = m->no_programs;
    h->was_running = true;
    int rc = session_init(&h->s, &kind, &o, why);
    h->s.signals = -1;
    if (!rc)
        rc = hostlist_add(&h->s.hostlist, host, why);
    h->s.parent_pid = m->s.parent_pid;
    h->s.parent_start = m->s.parent_start;
    h->s.parent_exe = own_exe(m);
    h->s.parent_cwd = m->s.parent_cwd ? xstrdup(m->s.parent_cwd) : NULL;
    h->s.anywhere = m->s.anywhere;
    for (size_t i = 0; i < m->s.parent_argv.n; i++)
        strv_add(&h->s.parent_argv, "%s", m->s.parent_argv.v[i]);
    const struct strv *argv = m->argv_home.n ? &m->argv_home : &m->argv;
    for (size_t i = 0; i < argv->n; i++)
        strv_add(&h->argv, "%s", argv->v[i]);
    h->images = json_incref(m->images);
    h->files = json_incref(m->files);
    h->machine = json_incref(m->machine);
    memcpy(h->genid, m->genid, sizeof(h->genid));
    h->started = true;
    if (!rc)
        rc = session_plan(&h->s, why);
    if (!rc) /* what two QEMUs of one command line cannot have */
        rc = qmp_command(m->s.qmp, "x-farfork-let-go", NULL, NULL, why);
    return rc ? rc : move_start(h, why);
}

/* Its agent ends what there is, or stays with the guest */
static void let_go_of_home(struct move *m, bool is_here)
{
    struct move *h = m->visit->home;

    if (!h)
        return;
    h->sent = is_here;
    h->outcome = is_here ? MOVE_THERE : MOVE_HERE;
    move_let_go(h);
    for (size_t i = 0; is_here && i < h->s.notes.n; i++)
        session_note(&m->s, "%s", h->s.notes.v[i]);
    strv_free(&h->argv);
    free(h->guest_port);
    json_decref(h->images);
    json_decref(h->files);
    json_decref(h->machine);
    session_free(&h->s);
    free(h);
    m->visit->home = NULL;
}

/* --- the process there that sends it --- */

static bool is_status(const json_t *info, const char *a, const char *b)
{
    const char *status = text_of(info, "status");

    return !strcmp(status, a) || !strcmp(status, b);
}

static struct vm *side_back(struct move *m)
{
    return &m->s.vms[m->visit->side - 1];
}

static int start_side_back(struct move *m, struct ff_error *why)
{
    struct host *h = move_host(m);
    struct visit *v = m->visit;

    v->side = v->side ? v->side + 1 : FIRST_SIDE;
    if (v->side > m->s.n_vms)
        return ff_error_set(why, E2BIG, "it was tried %u times: bring it home by hand", v->tries - 1);
    struct vm *side = side_back(m);
    side->qmp = xprintf("%s/%u.qmp", h->rundir, v->side);
    side->log = xprintf("%s/%u.log", h->rundir, v->side);
    json_t *argv = json_pack("[sssssssss]", m->s.o.agent, "attach", "--source", "--qmp", "", "--return", move_side(m)->qmp,
                             "--monitor", side->qmp);
    json_array_set_new(argv, 4, json_sprintf("%s/" VISIT_BACK_QMP, h->rundir));
    host_send(h, json_pack("{s{si so ss ss sb}}", "spawn", "number", (int)v->side, "argv", argv, "log", side->log, "qmp",
                           side->qmp, "side", true));
    side->state = VM_SPAWNED;
    return 0;
}

/* It did not take `migrate`, and says so: nothing of its command is on its way. Without an answer it may be */
static bool has_not_begun(struct move *m)
{
    FF_AUTO_JSON json_t *info = NULL;
    struct ff_error ignored;

    return !move_ask_child(m, m->visit->side, "query-migrate", NULL, &info, &ignored) &&
           (is_status(info, "none", "failed") || is_status(info, "cancelled", "cancelled"));
}

static int send_back(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:%u,%s,key=" KEY_SECRET, v->address, v->home->port, v->link_options);
    struct ff_error ignored;
    int rc = start_side_back(m, why);

    if (!rc)
        rc = session_send_key(&v->home->s, move_host(m), why);
    if (!rc)
        rc = move_ask_first(m, v->side, NULL, NULL, why);
    if (!rc) {
        v->home->sent = true;
        rc = move_ask_child(m, v->side, "migrate", json_pack("{ss}", "uri", uri), NULL, why);
        if (!rc && ff_failpoint("visit.sent"))
            rc = ff_error_set(why, ETIMEDOUT, "migrate: injected");
        if (rc && !has_not_begun(m))
            rc = 0; /* it is followed, as one that began */
        v->home->sent = !rc;
    }
    if (!rc)
        move_ask_child(m, v->side, "object-del", json_pack("{ss}", "id", KEY_SECRET), NULL, &ignored);
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{sb}", "keep", true)); /* its agent needs the key no more */
    move_wait_answer(m, "keep", "the agent there", &ignored);
    return rc;
}

/* The guest is there: it goes on, also where who sent it was killed while it stood still */
static void goes_on_there(struct move *m)
{
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error ignored;

    if (!move_ask(m, "query-status", NULL, &status, &ignored) && json_is_false(json_object_get(status, "running")) &&
        !strcmp(m->visit->had, "running"))
        move_ask(m, "cont", NULL, NULL, &ignored);
}

/* --- and followed --- */

static uint64_t visit_number(const json_t *info, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(json_object_get(info, "x-rdma-postcopy"), key));

    return n > 0 ? (uint64_t)n : 0;
}

static void over_as(struct move *m, enum move_outcome o, const char *text)
{
    move_end_with(m, o, "%s", text);
    m->visit->over = true;
}

int visit_link_socket(const char *name, const char *to)
{
    FF_AUTO_FREE char *made = xprintf("%s.%d", name, (int)getpid());
    int rc = symlink(to, made) || rename(made, name) ? -errno : 0;

    if (rc)
        unlink(made);
    return rc;
}

/* Where the guest's socket was, for whoever knows that name */
static void link_socket(struct move *m)
{
    const char *qmp = move_child(m->visit->home)->qmp, *name = m->s.o.parent_path;
    int rc = visit_link_socket(name, qmp);

    if (rc) {
        session_note(&m->s, "the guest's QMP socket is %s now; %s could not be made to lead there: %s", qmp, name,
                     strerror(-rc));
    } else {
        session_note(&m->s, "the guest is in another QEMU here (pid %d): its QMP socket is %s, to which %s leads",
                     (int)move_child(m->visit->home)->pid, qmp, name);
    }
}

/* The one that it went from has ended with who held it */
static void reap_old(struct move *m)
{
    uint64_t end = ff_now_ms() + END_LIMIT_MS;

    qmp_free(m->s.qmp);
    m->s.qmp = NULL;
    int over = 0;
    while (m->side_pid > 0 && !(over = waitpid(m->side_pid, NULL, WNOHANG)) && ff_now_ms() < end)
        session_turn(&m->visit->home->s, BACK_TURN_MS);
    if (m->side_pid > 0 && !over && !m->starter && !kill(m->side_pid, SIGKILL)) /* it was not told; its QEMU ends with it */
        waitpid(m->side_pid, NULL, 0);
    m->side_pid = 0;
    m->s.parent_gone = true;
    if (!session_has_parent_ended(&m->s) && m->starter)
        session_note(&m->s, "the QEMU that the guest went from (pid %d) was kept: its end may start another one, or remove what "
                     "the guest uses, by %s. See to that first, then end it", (int)m->s.parent_pid, m->starter);
    else if (!session_has_parent_ended(&m->s))
        session_note(&m->s, "the QEMU that the guest went from (pid %d) was not ended: nobody needs it any more",
                     (int)m->s.parent_pid);
}

/* The process beside it ends meanwhile, and its QEMU answers then */
static void say_state_here(struct move *m)
{
    uint64_t end = ff_now_ms() + STATE_LIMIT_MS;
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error why;
    int rc;

    while ((rc = move_ask(m->visit->home, "query-status", NULL, &status, &why)) && ff_now_ms() < end)
        session_turn(&m->visit->home->s, BACK_TURN_MS);
    if (rc)
        session_note(&m->s, "whether the guest runs here is not known: %s", why.text);
    else if (*m->visit->had && strcmp(text_of(status, "status"), m->visit->had))
        session_note(&m->s, "the guest is %s here, and was %s there", text_of(status, "status"), m->visit->had);
}

static void on_home(struct move *m, const json_t *here)
{
    struct visit *v = m->visit;
    const json_t *down = json_object_get(here, "downtime");

    v->home_ms = ff_now_exact_ms();
    v->back_bytes = FF_MAX(v->back_bytes, visit_number(here, "prefill-bytes") + visit_number(here, "fault-bytes"));
    if (down)
        v->downtime_ms = (double)json_integer_value(down);
    say_state_here(m);
    reap_old(m);
    visit_keep_touched(m, move_child(v->home)->pid);
    link_socket(m);
    v->port_here = v->home->guest_port;
    v->home->guest_port = NULL;
    let_go_of_home(m, true);
    m->end_there = true;
    FF_AUTO_FREE char *text = v->failed ? xprintf("it is home again, and could not work there: %s", v->failure) : NULL;
    over_as(m, MOVE_HOME, text ? text : "");
}

/* The QEMU made anew takes no GO any more, as the process beside it says now, or never ran the guest, as its agent knows. That who
 * sends it has ended is no proof: so it does once all of it is here */
static bool is_refused_here(struct move *m)
{
    struct move *h = m->visit->home;
    FF_AUTO_JSON json_t *now = NULL;
    struct ff_error ignored;

    if (move_child(h)->never_ran)
        return true;
    return !move_ask_child(h, HOME_SIDE, "query-migrate", NULL, &now, &ignored) &&
           (is_status(now, "failed", "cancelled") || is_status(now, "pre-switchover", "pre-switchover"));
}

/* Who sends it is still in doubt, perhaps, and holds the guest */
static void tell_not_started(struct move *m)
{
    struct ff_error ignored;

    if (move_child(m->visit->home)->never_ran)
        move_ask_child(m, m->visit->side, "x-rdma-postcopy-not-started",
                       json_pack("{ss}", "mark", move_child(m->visit->home)->mark), NULL, &ignored);
}

/* 0: decided, or it goes on; -EIO: the guest stays there, and @why says the reason */
static int look_before(struct move *m, const json_t *here, const json_t *there, struct ff_error *why)
{
    const struct move *h = m->visit->home;
    const struct vm *back = side_back(m), *new_qemu = &h->s.vms[0], *new_side = &h->s.vms[1];
    bool has_ended = back->state == VM_FAILED || back->state == VM_ENDED;

    if (!is_status(there, "failed", "cancelled") && !((has_ended || new_qemu->never_ran) && is_refused_here(m)))
        return 0;
    tell_not_started(m);
    return ff_error_set(why, EIO, "there: %s; here: %s", back->state == VM_FAILED ? back->error : text_of(there, "error-desc"),
                        new_side->state == VM_FAILED   ? new_side->error
                        : new_qemu->state == VM_FAILED ? new_qemu->error
                        : *text_of(here, "error-desc") ? text_of(here, "error-desc") : text_of(here, "status"));
}

/* Nothing has happened for long, or the user has had enough. true: it is left so */
static bool leave_home(struct move *m, const char *because)
{
    const struct visit *v = m->visit;
    FF_AUTO_FREE char *text =
        xprintf("%s: the guest %s; the processes beside both QEMUs go on: see %s here", because,
                v->runs_here ? "is here, and what it wrote there follows" : "is on its way home", move_side(v->home)->log);

    over_as(m, v->runs_here ? MOVE_FOLLOWS : MOVE_UNCLEAR, text);
    return true;
}

/* What the process beside the QEMU made anew says; once that has ended, its exit code. Not that QEMU: it calls its load completed */
static void ask_new_side(struct move *m, json_t **here)
{
    struct move *h = m->visit->home;
    const struct vm *side = move_side(h);
    struct ff_error ignored;

    if (side->state == VM_STARTED)
        move_ask_child(h, HOME_SIDE, "query-migrate", NULL, here, &ignored);
    else if (side->ended_well)
        *here = json_pack("{ss}", "status", "completed");
    else if (m->visit->runs_here) {
        FF_AUTO_FREE char *text = xprintf("the process beside its QEMU here has ended: %s: the guest is here, and a CPU that touches "
                                          "missing memory waits for ever: save what you can from inside, then start the guest anew",
                                          side->error);
        over_as(m, MOVE_BROKEN, text);
    }
}

static int follow_home(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    uint64_t changed_ms = ff_now_ms();
    char was[96] = "", now[96];
    bool said = false;
    int rc = 0;

    for (; !rc && !v->over; session_turn(&m->s, BACK_TURN_MS)) {
        FF_AUTO_JSON json_t *here = NULL, *there = NULL;
        struct ff_error ignored;

        session_turn(&v->home->s, 0);
        ask_new_side(m, &here);
        ff_failpoint("visit.look");
        if (side_back(m)->state == VM_STARTED)
            move_ask_child(m, v->side, "query-migrate", NULL, &there, &ignored);
        if (!v->runs_here && (is_status(here, "postcopy-active", "completed"))) {
            v->runs_here = true;
            v->here_ms = ff_now_exact_ms();
            visit_say(m, "it runs here again, what it wrote follows");
        }
        v->back_bytes = FF_MAX(v->back_bytes, v->runs_here ? visit_number(here, "prefill-bytes") + visit_number(here, "fault-bytes") : 0);
        if (is_status(here, "completed", "completed"))
            on_home(m, here);
        else if (!v->runs_here && !v->over)
            rc = look_before(m, here, there, why);
        snprintf(now, sizeof(now), "%.20s %.20s %llu", text_of(here, "status"), text_of(there, "status"),
                 (unsigned long long)visit_number(here, "present-bytes"));
        if (strcmp(was, now))
            changed_ms = ff_now_ms();
        memcpy(was, now, sizeof(was));
        if (m->s.interrupted && !v->over) {
            m->s.interrupted = false;
            v->signalled = true;
            if (said)
                leave_home(m, "left");
            else
                visit_say(m, "it is on its way home; interrupt again to leave that to the processes beside both QEMUs");
            said = true;
        }
        if (!rc && !v->over && ff_now_ms() > changed_ms + (uint64_t)move_limit_ms(m))
            leave_home(m, "nothing happens");
    }
    return rc;
}

/* Before anything here closes what the guest would need if it were taken back. An answer that does not come is none: this
 * is asked again, and the QEMU here takes it back no more, perhaps */
static int give_up_fallback(struct move *m, struct ff_error *why)
{
    /* nobody gives up a guest whose QEMU does not answer */
    int rc = move_ask(m, "query-status", NULL, NULL, why);

    if (!rc)
        rc = qmp_command(m->s.qmp, "x-farfork-give-up", NULL, NULL, why);
    if (!rc) {
        m->visit->gave_up = true;
        m->back.go = false;
    }
    return rc;
}

int visit_attach_home(struct move *m, struct ff_error *why)
{
    int rc = m->back.go ? give_up_fallback(m, why) : 0;

    if (!rc && m->visit->gave_up)
        rc = visit_disks_commit(m, why);
    if (rc)
        return rc;
    rc = new_home(m, why);
    if (!rc)
        rc = send_back(m, why);
    if (!rc)
        rc = follow_home(m, why);
    if (rc) {
        const struct ff_error first = *why;
        goes_on_there(m);
        let_go_of_home(m, false);
        *why = first;
    }
    return rc;
}

void visit_attach_is_home(struct move *m)
{
    over_as(m, MOVE_UNCLEAR, "another program brought the guest home, into a QEMU that this one does not know: the process beside the QEMU here "
            "says that all of it came, and whether it runs is for that program to say");
    if (m->side_pid > 0 && waitpid(m->side_pid, NULL, WNOHANG) > 0)
        m->side_pid = 0;
}
