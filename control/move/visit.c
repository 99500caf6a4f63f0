/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit.c - farfork visit: a guest works on another host, and comes back with what it wrote
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      as farfork move (move.c), by attaching, up to where the guest runs there; but its move there has visit=on: it
 *              is never complete, and the QEMU here serves the guest's memory as long as it is away
 *              --data: plugged in there
 *              until a command here has ended, or a signal comes: watch both QEMUs; a guest that has asked for its visit
 *              (visit_serve.c) hears that it is there, and asks to come home (visit_port.c)
 *              home (visit_home.c)
 * States       AWAY       it is there; all that can happen to a move after its switch may happen now
 *              HOME       here, with all of its memory; the QEMU there is ended
 *              others     as of a move
 * Failure      a return that fails leaves the guest there. With --until it is tried TRIES times; without, the next signal
 *              tries again.
 *              Killed, this program leaves both QEMUs and the agent; a person brings the guest home
 *              (visit_by_hand()).
 *              --fallback go: a guest whose host is lost is taken back as it went, as that of a move
 *              (move_fallback.c), until its return begins (visit_disks.c).
 * Limits       its disks are on shared storage, and are not copied. The way to the agent has to last as long as the
 *              visit: without it nobody tells the QEMU there to send the guest back.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failpoint.h"
#include "guest_port.h"
#include "visit.h"

#define LOOK_EVERY_MS 1000
#define LOOK_SOON_MS 100
#define TRIES 3
#define TRY_EVERY_MS 2000
#define SAY_PAUSED_MS 2000

/* --- what a user says --- */

static bool is_link_option(const char *word, size_t len, const char *name)
{
    return strlen(name) == len && !strncmp(word, name, len);
}

/* One of them; *@has_link: it says link=tcp */
static int check_option(const char *word, size_t len, bool *has_link, struct ff_error *why)
{
    static const char *const ours[] = {"visit", "budget", "prefill", "precopy", "landing", "until-go", "multicast",
                                       "fallback", "lease", "fence", "record", "output"};
    size_t name_len = strcspn(word, "=,");

    if (is_link_option(word, len, "link=tcp")) {
        *has_link = true;
        return 0;
    }
    if (is_link_option(word, name_len, "link"))
        return ff_error_set(why, ENOTSUP, "--options %.*s: a guest returns over tcp alone: want link=tcp, or none",
                            (int)len, word);
    for (size_t i = 0; i < FF_ARRAY_LEN(ours); i++)
        if (is_link_option(word, name_len, ours[i]))
            return ff_error_set(why, EINVAL, "--options %.*s: not with a visit, which goes by faults and returns",
                                (int)len, word);
    return 0;
}

int visit_link_options(const char *given, char **out, struct ff_error *why)
{
    bool has_link = false;
    int rc = 0;

    for (const char *word = given; !rc && word && *word; ) {
        size_t len = strcspn(word, ",");
        rc = check_option(word, len, &has_link, why);
        word += len + (word[len] == ',');
    }
    if (!rc)
        *out = xprintf("%s%s%s", given ? given : "", given && *given && !has_link ? "," : "", has_link ? "" : "link=tcp");
    return rc;
}

int visit_init(struct visit *v, const struct visit_options *o, struct ff_error *why)
{
    *v = (struct visit){.o = *o, .until_fd = -1, .until_code = -1, .downtime_ms = -1};
    return visit_data_parse(v, why);
}

void visit_free(struct visit *v)
{
    visit_data_free(v);
    ff_close_fd(&v->until_fd);
    free(v->link_options);
    free(v->address);
    free(v->failure);
    free(v->port_here);
    free(v->touched);
    free(v->asked);
}

/* --- whether it can --- */

int visit_check(struct move *m, struct ff_error *why)
{
    int rc = ff_failpoints_start(why);

    if (rc)
        return rc;
    if (!m->was_running)
        return ff_error_set(why, EINVAL, "this guest is paused, and works nowhere: let it run");
    if (m->plug.n || m->n_devices)
        return ff_error_set(why, ENOTSUP, "the primary device of a failover pair does not go along and come back: "
                            "remove it, or move this guest");
    return 0;
}

/* --- away --- */

static void say_away(struct move *m)
{
    const struct visit *v = m->visit;
    FF_AUTO_FREE char *down = m->downtime_ms < 0 ? xstrdup("not known") : xprintf("%.0f ms", m->downtime_ms);

    move_show(m, true);
    visit_say(m, "it runs on %s; downtime %s; QMP socket there %s%s", move_host(m)->node->host, down, move_child(m)->qmp,
              v->o.until ? "" : isatty(STDIN_FILENO) ? "; press Ctrl-C to bring it home" : "; a signal brings it home");
    session_journal(&m->s, "away", true);
}

static void give_up_visit(struct move *m, const struct ff_error *why)
{
    FF_AUTO_FREE char *how = visit_by_hand(m);

    move_end_with(m, MOVE_AWAY, "the guest is on %s still: %s; both QEMUs go on; bring it home by %s",
                  move_host(m)->node->host, why->text, how);
    m->visit->over = true;
}

/* It is lost there, and taken back */
static void say_lost_there(struct move *m)
{
    struct visit *v = m->visit;

    if (m->taking_ms && !v->said_taking)
        visit_say(m, "%s is lost: the guest is taken back as it was when it went, once its lease there has ended; what "
                  "it did there is lost; interrupt to leave that to the QEMU here", move_host(m)->node->host);
    v->said_taking = m->taking_ms;
}

/* How it is called home: by the end of its command, or by a signal */
static void look_for_call(struct move *m)
{
    struct visit *v = m->visit;
    bool signalled = m->s.interrupted;

    m->s.interrupted = false;
    v->signalled |= signalled;
    v->wanted |= visit_until_over(m);
    visit_port_hear(m);
    if (!signalled)
        return;
    if (m->taking_ms && v->said_taking) {
        move_end_taking(m);
        m->visit->over = true;
        return;
    }
    if (v->until_pid) { /* first that ends */
        visit_until_end(m);
        return;
    }
    if (v->said_wait)
        give_up_visit(m, &v->why);
    v->wanted = true;
}

/* A signal more leaves it there */
static void say_wait(struct move *m)
{
    struct visit *v = m->visit;

    if (!v->wanted || !v->said_paused || v->said_wait || v->over || m->taking_ms)
        return;
    v->said_wait = true;
    ff_error_set(&v->why, ENOTCONN, "there is no link");
    visit_say(m, "it cannot come home without a link, which is waited for; interrupt %sto leave",
              v->o.until ? "" : "again ");
}

static bool is_paused(const struct move *m)
{
    return !strcmp(m->status, "postcopy-paused");
}

/* Once for each time, but for what a return that failed leaves for a moment */
static void say_link(struct move *m)
{
    struct visit *v = m->visit;
    const char *host = move_host(m)->node->host;

    if (!is_paused(m))
        v->paused_ms = 0;
    else if (!v->paused_ms)
        v->paused_ms = ff_now_ms();
    bool is_long = is_paused(m) && ff_now_ms() >= v->paused_ms + SAY_PAUSED_MS;
    if (is_long && !v->said_paused)
        visit_say(m, "the link to %s is broken: the guest there waits where it touches memory that is here; both QEMUs "
                  "look for another for %u s", host, session_reconnect_ms(&m->s) / 1000);
    else if (!is_paused(m) && v->said_paused)
        visit_say(m, "there is a link to %s again", host);
    v->said_paused = is_paused(m) && (v->said_paused || is_long);
    v->said_wait &= v->said_paused;
}

/* The agent there was lost: nobody can tell the QEMU there to send the guest back */
static void say_agent(struct move *m, bool *said)
{
    if (*said || move_host(m)->state != HOST_FAILED)
        return;
    *said = true;
    visit_say(m, "%s: %s: the guest works on, but is to be brought home by hand%s", move_host(m)->node->host,
              move_host(m)->error, m->back.go ? ", or is taken back if there is no link either" : "");
}

/* It goes on there, and may ask again */
static void tell_guest_failed(struct move *m)
{
    struct visit *v = m->visit;
    struct ff_error ignored;

    if (move_host(m)->state != HOST_FAILED)
        visit_port_say(m, guest_port_failed_word(v->asked, VISIT_FAILED_HOME), &ignored);
    free(v->asked);
    v->asked = NULL;
}

/* It may be taken back: its host, or its QEMU, has gone, and the QEMU here does not know yet. Of a host that is not
 * heard and has a link, once */
static bool waits_for_loss(struct move *m)
{
    struct visit *v = m->visit;
    bool silent = move_host(m)->state == HOST_FAILED, waits = m->back.go && (silent || move_child(m)->state == VM_FAILED) &&
                  !v->said_lost;

    if (waits && silent)
        visit_say(m, "nobody can tell the QEMU on %s to send it home; if that host is lost, it is taken back; interrupt to "
                  "leave it there", move_host(m)->node->host);
    if (waits && silent)
        v->lost_until_ms = ff_now_ms() + m->back.lease_s * 1000ull + session_reconnect_ms(&m->s);
    v->said_lost |= waits && silent;
    return waits;
}

/* It goes on there, and nobody is asked whether to leave it: a person would have a signal for that */
static bool is_left_alone(struct move *m)
{
    const struct visit *v = m->visit;

    return v->o.until && v->lost_until_ms && ff_now_ms() > v->lost_until_ms && !is_paused(m) && !v->over &&
           move_host(m)->state == HOST_FAILED;
}

/* One try. Without a command the user says when there is another */
static void try_home(struct move *m, uint64_t *next_ms)
{
    struct visit *v = m->visit;
    struct ff_error why = {0};

    if (!visit_come_home(m, &why) || v->over)
        return;
    m->s.interrupted = false;
    *next_ms = ff_now_ms() + TRY_EVERY_MS;
    v->why = why;
    if (v->asked)
        tell_guest_failed(m);
    if (waits_for_loss(m)) {
        v->wanted = false;
        return;
    }
    if ((v->o.until && v->tries >= TRIES) || move_host(m)->state == HOST_FAILED) {
        give_up_visit(m, &why);
        return;
    }
    v->wanted = v->o.until;
    visit_say(m, "it is on %s still, and did not come home: %s%s%s", move_host(m)->node->host, why.text,
              v->gave_up ? "; it cannot be taken back any more" : "", v->o.until ? "" : isatty(STDIN_FILENO) ? "; press Ctrl-C to try again" : "; a signal tries again");
    if (!v->o.until && !v->failed && !move_check_there(m, NULL) && visit_data_plug(m, &why)) /* it works on */
        visit_say(m, "what was unplugged is not there again: %s", why.text);
}

/* What it needs there, and what it is there for. It comes home at once where that fails */
static void begin_work(struct move *m)
{
    struct visit *v = m->visit;
    int rc = visit_data_plug(m, &v->why);

    if (!rc && v->o.until)
        rc = visit_until_start(m, &v->why);
    if (!rc && v->o.word)
        rc = visit_port_say(m, guest_port_visiting(v->o.word), &v->why);
    if (!rc)
        return;
    v->failed = v->wanted = true;
    v->failure = xstrdup(v->why.text);
    visit_say(m, "%s: it comes home", v->why.text);
}

/* Its command is of no use where its guest is not any more */
static void end_command(struct move *m)
{
    struct visit *v = m->visit;
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);

    for (v->until_asked = false; v->until_pid && ff_now_ms() < end; ) {
        visit_until_end(m);
        for (uint64_t next = ff_now_ms() + TRY_EVERY_MS; !visit_until_over(m) && v->until_pid && ff_now_ms() < next;)
            session_turn(&m->s, 50);
    }
}

/* Until there is something to look at, or to try */
static int time_to_wait(const struct move *m, uint64_t next_ms)
{
    uint64_t now = ff_now_ms();

    if (!m->visit->wanted || is_paused(m))
        return m->visit->wanted ? LOOK_SOON_MS : LOOK_EVERY_MS;
    return next_ms > now ? (int)FF_MIN(next_ms - now, LOOK_EVERY_MS) : 0;
}

void visit_stay(struct move *m)
{
    struct visit *v = m->visit;
    uint64_t next_ms = 0;
    bool said_agent = false;

    if (!m->runs_there) { /* nor is it known not to */
        const struct ff_error why = m->s.why;
        give_up_visit(m, &why);
        return;
    }
    v->away_ms = ff_now_exact_ms();
    say_away(m);
    begin_work(m);
    while (!v->over) {
        if (move_follow_turn(m))
            break;
        say_link(m);
        say_agent(m, &said_agent);
        look_for_call(m);
        say_lost_there(m); /* a signal that came before it says so leaves nothing */
        say_wait(m);
        if (!strcmp(m->status, "completed"))
            visit_attach_is_home(m);
        else if (v->wanted && !is_paused(m) && ff_now_ms() >= next_ms)
            try_home(m, &next_ms);
        if (is_left_alone(m))
            give_up_visit(m, &v->why);
        if (!v->over)
            session_turn(&m->s, time_to_wait(m, next_ms));
    }
    if (!v->coming_ms) /* as far as it is known: it is not there any more */
        v->coming_ms = ff_now_exact_ms();
    visit_port_hear(m); /* on its way home, which somebody else wanted */
    end_command(m);
}
