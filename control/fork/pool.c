/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool.c - vmclone --keep: children of a parent are kept ready for its next fork
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a fork costs what it costs with --prestart, and its children were started before
 *              anybody asked for it.
 * Picture      a process (fork_hold.c): agents, children    -> ready
 *              vmclone asks, by the pool's socket           -> terms are compared; the request goes
 *                                                              to that process, which answers
 *              taken                                        -> that process makes the fork
 *              it has, and the parent can be asked again    -> the next one
 * States       of the process: STARTING, READY, ASKED, TAKEN: from then on it is whoever's asked;
 *              ENDING: it has failed, and ends what it had
 * Ownership    a process that is not TAKEN ends with this one, and with it its agents and children.
 *              The socket is this user's alone, and so is who asks.
 * Failure      what fails is said, and begun anew after a while. A host that fails is left out from
 *              then on. When the parent ends all of this does.
 * Limits       one fork is kept ready; who asks meanwhile makes an ordinary one. BACK_OFF_MAX_MS.
 *              Who connects has ASK_LIMIT_MS to ask.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "defaults.h"
#include "pool.h"
#include "pool_message.h"
#include "rundir.h"
#include "signals.h"

#define ASK_LIMIT_MS 1000
#define BACK_OFF_MS 1000
#define BACK_OFF_MAX_MS 60000
#define PARENT_ENDED "the parent has ended"
#define END_LIMIT_MS 20000 /* agents end on hosts that do not answer, perhaps */

enum held_state { HELD_NONE, HELD_STARTING, HELD_READY, HELD_ASKED, HELD_TAKEN,
                  HELD_ENDING };

struct pool {
    const struct fork_options *o;
    struct hostlist hosts;   /* that are left */
    unsigned each;
    char *id;                /* forks are ID-1, ID-2, ... */
    int listen, signals, parent; /* parent: a pidfd; -1: not known yet */
    /* what is kept */
    enum held_state state;
    pid_t pid;
    int control;             /* -1: none */
    json_t *ready;           /* what it said; or NULL */
    unsigned turn, failures, forks, used;
    uint64_t next_ms;        /* when to begin anew */
    json_t *lost;            /* hosts */
    int ender;               /* who is to hear the end; -1: nobody */
    bool over, failed;
    const char *why;         /* it is over; NULL: it was told to be */
};

static void end_pool_with(struct pool *p, const char *why, bool failed)
{
    p->over = true;
    p->why = why;
    p->failed = failed;
}

/* --- what it says --- */

static void pool_say(const struct pool *p, json_t *event, char *line)
{
    if (p->o->s.json)
        json_dumpf(event, stdout, JSON_COMPACT);
    else
        fputs(line, stdout);
    putchar('\n');
    fflush(stdout);
    free(line);
    json_decref(event);
}

static unsigned limit_of(const struct pool *p)
{
    unsigned n = 0;

    for (size_t i = 0; i < p->hosts.n; i++) {
        unsigned slots = p->hosts.v[i].slots;
        n += slots != SLOTS_ANY && slots < p->each ? slots : p->each;
    }
    return n;
}

static json_t *state_json(const struct pool *p)
{
    bool ready = p->state == HELD_READY || p->state == HELD_ASKED;
    json_t *hosts = ready ? json_incref(json_object_get(p->ready, "hosts")) : json_array();

    return json_pack("{ss si si si si si si so sO}", "parent", p->o->s.parent_path, "pid",
                     (int)getpid(), "limit", (int)limit_of(p), "ready",
                     ready ? (int)limit_of(p) : 0, "starting",
                     p->state == HELD_STARTING ? (int)limit_of(p) : 0, "used", (int)p->used,
                     "forks", (int)p->forks, "hosts", hosts, "lost", p->lost);
}

/* --- the process that is kept --- */

/* In the new process: nothing of this one's stays open */
static void __attribute__((noreturn)) hold_in_child(struct pool *p, pid_t pool, int control)
{
    struct fork_options o = *p->o;
    struct fork_hold hold = {.control = control, .client = -1, .options = &o};
    FF_AUTO_FREE char *id = xprintf("%.30s-%u", p->id, p->turn);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != pool)
        _exit(EXIT_NONE);
    setpgid(0, 0); /* Ctrl-C is for the pool */
    close_range(3, (unsigned)control - 1, 0);
    close_range((unsigned)control + 1, ~0U, 0);
    o.hold = &hold;
    o.s.id = id;
    o.s.n = limit_of(p);
    o.s.quiet = true;
    o.s.json = false;
    for (size_t i = 0; i < p->hosts.n; i++) {
        struct node *n = &p->hosts.v[i];
        n->slots = n->slots != SLOTS_ANY && n->slots < p->each ? n->slots : p->each;
    }
    int code = fork_run(&o, &p->hosts);
    if (fflush(stdout) && code == EXIT_ALL)
        code = EXIT_SOME;
    if (hold.client >= 0)
        pool_send(hold.client, json_pack("{si}", "code", code), NULL, 0);
    _exit(code);
}

/* It will be begun anew; unless it never came to anything, with the hosts that are left */
static void fail_held(struct pool *p, const char *why, bool fewer)
{
    uint64_t ms = (uint64_t)BACK_OFF_MS << (p->failures < 6 ? p->failures : 6);

    p->next_ms = ff_now_ms() + (ms < BACK_OFF_MAX_MS ? ms : BACK_OFF_MAX_MS);
    p->failures++;
    pool_say(p, json_pack("{ss ss}", "event", "lost", "error", why), xprintf("lost: %s", why));
    if (!p->ready && !fewer && !p->over)
        end_pool_with(p, "no children could be started", true);
}

static void start_held(struct pool *p)
{
    pid_t pool = getpid();
    int sock[2] = {-1, -1};

    p->turn++;
    p->state = HELD_STARTING;
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) < 0 || (p->pid = fork()) < 0) {
        fail_held(p, strerror(errno), false);
        p->state = HELD_NONE;
    } else if (!p->pid) {
        hold_in_child(p, pool, sock[1]);
    }
    ff_close_fd(&sock[1]);
    if (p->state == HELD_NONE)
        ff_close_fd(&sock[0]);
    p->control = sock[0];
}

static void leave_host(struct pool *p, const json_t *h)
{
    const char *name = text_of(h, "host"), *error = text_of(h, "error");

    for (size_t i = 0; i < p->hosts.n; i++) {
        struct node *n = &p->hosts.v[i];
        if (strcmp(n->host, name))
            continue;
        free(n->host);
        free(n->address);
        memmove(n, n + 1, (--p->hosts.n - i) * sizeof(*n));
        json_array_append(p->lost, (json_t *)h);
        pool_say(p, json_pack("{ss ss ss}", "event", "host", "host", name, "error", error),
                 xprintf("host %s: not kept any more: %s", name, error));
        break;
    }
    if (!p->hosts.n)
        end_pool_with(p, "no host is left", true);
}

/* The parent's end is seen from here on */
static void watch_parent(struct pool *p)
{
    pid_t pid = (pid_t)json_integer_value(json_object_get(p->ready, "parent"));
    uint64_t start = (uint64_t)json_integer_value(json_object_get(p->ready, "start"));

    ff_close_fd(&p->parent);
    p->parent = (int)syscall(SYS_pidfd_open, pid, 0);
    if (process_look(pid, start) == PROCESS_GONE)
        end_pool_with(p, PARENT_ENDED, false);
}

static void on_ready(struct pool *p, json_t *m)
{
    json_decref(p->ready);
    p->ready = json_incref(m);
    p->state = HELD_READY;
    p->failures = 0;
    watch_parent(p);
    json_t *e = state_json(p);
    json_object_set_new(e, "event", json_string("ready"));
    pool_say(p, e, xprintf("ready: %u children on %zu hosts", limit_of(p), p->hosts.n));
}

static void on_taken(struct pool *p, unsigned n)
{
    p->state = HELD_TAKEN;
    p->next_ms = 0;
    p->forks++;
    p->used += n;
    pool_say(p, json_pack("{ss si}", "event", "used", "children", (int)n),
             xprintf("used: %u children", n));
}

/* Its end; or, when it makes a fork, that the parent can be asked again */
static void end_held(struct pool *p)
{
    if (p->state == HELD_READY || p->state == HELD_ASKED || p->state == HELD_STARTING)
        fail_held(p, "its process has ended", false);
    ff_close_fd(&p->control);
    p->state = HELD_NONE;
}

static void on_held(struct pool *p)
{
    FF_AUTO_JSON json_t *m = NULL;
    const json_t *host;
    size_t i;
    int rc = pool_recv(p->control, 0, &m, NULL);

    if (rc == -EPIPE) {
        end_held(p);
    } else if (json_object_get(m, "ready")) {
        on_ready(p, m);
    } else if (json_object_get(m, "kept")) {
        p->state = HELD_READY;
    } else if (json_object_get(m, "taken")) {
        on_taken(p, (unsigned)json_integer_value(json_object_get(m, "taken")));
    } else if (json_object_get(m, "lost")) {
        json_array_foreach(json_object_get(m, "hosts"), i, host)
            leave_host(p, host);
        fail_held(p, text_of(m, "lost"), i > 0);
        p->state = HELD_ENDING;
    }
}

/* --- who asks --- */

/* NULL: it can have a fork of @n */
static char *refuse(const struct pool *p, const json_t *terms, unsigned n)
{
    FF_AUTO_JSON json_t *own = pool_terms(p->o, &p->hosts);
    const char *other = pool_other_term(own, terms);

    if (other && !strcmp(other, "hosts"))
        return xstrdup("it keeps children on other hosts");
    if (other)
        return xprintf("it was started with another --%s", other);
    if (!n || n > limit_of(p))
        return xprintf("it keeps %u children ready", limit_of(p));
    return p->state == HELD_READY ? NULL : xstrdup("none are ready yet");
}

static void pass_request(struct pool *p, int client, json_t *m)
{
    const json_t *fork = json_object_get(m, "fork");
    unsigned n = (unsigned)json_integer_value(json_object_get(fork, "n"));
    FF_AUTO_FREE char *no = refuse(p, json_object_get(m, "terms"), n);

    if (!no && pool_send(p->control, json_incref((json_t *)fork), &client, 1))
        no = xstrdup("its process does not answer");
    if (no)
        pool_send(client, json_pack("{ss}", "no", no), NULL, 0);
    else
        p->state = HELD_ASKED;
}

static void on_client(struct pool *p)
{
    FF_AUTO_CLOSE int client = accept4(p->listen, NULL, NULL, SOCK_CLOEXEC);
    FF_AUTO_JSON json_t *m = NULL;

    if (client < 0 || !pool_peer_is_own(client) || pool_recv(client, ASK_LIMIT_MS, &m, NULL))
        return;
    if (json_object_get(m, "fork")) {
        pass_request(p, client, m);
    } else if (json_is_true(json_object_get(m, "state"))) {
        pool_send(client, state_json(p), NULL, 0);
    } else if (json_is_true(json_object_get(m, "end")) && p->ender < 0) {
        p->over = true;
        p->ender = client; /* it hears the end of this process */
        client = -1;
    }
}

/* --- the loop --- */

static void pool_turn(struct pool *p)
{
    struct pollfd f[] = {{.fd = p->signals, .events = POLLIN}, {.fd = p->listen, .events = POLLIN},
                         {.fd = p->control, .events = POLLIN}, {.fd = p->parent, .events = POLLIN}};
    uint64_t now = ff_now_ms();
    int wait = p->state != HELD_NONE ? -1 : p->next_ms > now ? (int)(p->next_ms - now) : 0;

    while (waitpid(-1, NULL, WNOHANG) > 0) /* that have made their fork */
        ;
    if (p->state == HELD_NONE && !wait) {
        start_held(p);
        return;
    }
    if (poll(f, FF_ARRAY_LEN(f), wait) <= 0)
        return;
    if (f[3].revents)
        end_pool_with(p, PARENT_ENDED, false);
    p->over |= f[0].revents;
    if (f[2].revents)
        on_held(p);
    if (f[1].revents && !p->over)
        on_client(p);
}

/* What is kept ends, and is waited for; what is used goes on */
static void end_pool(struct pool *p)
{
    uint64_t end = ff_now_ms() + END_LIMIT_MS;
    bool kept = p->state == HELD_STARTING || p->state == HELD_READY || p->state == HELD_ASKED;

    ff_close_fd(&p->listen);
    if (kept)
        kill(p->pid, SIGTERM);
    for (bool wait = kept || p->state == HELD_ENDING; wait;) {
        FF_AUTO_JSON json_t *m = NULL;
        uint64_t now = ff_now_ms();
        int rc = pool_recv(p->control, now < end ? (int)(end - now) : 0, &m, NULL);
        if (rc == -ETIMEDOUT) /* it stands still: what it has ends without it */
            kill(p->pid, SIGKILL);
        wait = !rc && !json_object_get(m, "taken"); /* taken: before it heard of the end */
    }
}

int pool_keep(const struct fork_options *o, struct hostlist *hosts, unsigned each)
{
    FF_AUTO_FREE char *base = pool_base(o->s.rundir);
    FF_AUTO_FREE char *path = pool_path(base, o->s.parent_path);
    FF_AUTO_FREE char *id = o->s.id ? xstrdup(o->s.id) : defaults_id(o->s.parent_path);
    static struct pool p;
    struct ff_error why;

    p = (struct pool){.o = o, .hosts = *hosts, .each = each, .id = id, .listen = -1, .parent = -1,
                      .control = -1, .ender = -1, .lost = json_array()};
    *hosts = (struct hostlist){0};
    int rc = path ? pool_listen(base, path, &p.listen, &why)
                  : ff_error_set(&why, ENOENT, "%s: want the QMP socket of a running QEMU",
                                 o->s.parent_path);
    if (!rc) {
        p.signals = signals_take();
        while (!p.over)
            pool_turn(&p);
        unlink(path); /* while it listens: from then on the name is another pool's, perhaps */
        end_pool(&p);
        ff_close_fd(&p.signals);
    }
    if (rc || p.why)
        fprintf(stderr, "vmclone: %s\n", rc ? why.text : p.why);
    hostlist_free(&p.hosts);
    json_decref(p.ready);
    json_decref(p.lost);
    ff_close_fd(&p.control);
    ff_close_fd(&p.parent);
    ff_close_fd(&p.ender);
    return rc || p.failed ? EXIT_NONE : EXIT_ALL;
}
