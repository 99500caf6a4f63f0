/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent.c - farfork agent: hold an image on this host, start children on it, look after them
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a fork needs on each host, behind one connection: JSON lines. Who started it
 *              reads events on its stdout and writes commands to its stdin (man/farfork.1).
 *
 * Threads      the main thread waits for everything: stdin, signals, children, a tick. One more is
 *              in ff_agent_receive() and then ff_agent_wait(); it and the library's threads tell
 *              the main one through a pipe.
 * Processes    the first process only waits for the second, which is the agent in a session of its
 *              own: when the agent detaches, the first one ends, and so does a launcher that waits
 *              for it. When the first one dies, the agent gets SIGTERM.
 * States       attached to who started it, until {"detach":true}. Attached, the end of stdin or a
 *              signal ends its children and itself, but for the end of stdin once every page is
 *              here, or it was told to keep its children (a guest is moved to one): then it
 *              detaches, and ends those to which no guest has come after a while. Detached, it
 *              ends with its last child; a signal ends it together with those children that still
 *              need it.
 * Failure      the link breaks: the library waits for another, for the reconnect= seconds of
 *              --listen, and children with it. There is none: the library tells them, and they end;
 *              those that have not after some seconds are killed. Nothing is left in the run
 *              directory, nor itself, but where overlays of its children are in use yet
 *              (overlay_records.c), or where nobody else knows that a guest never ran
 *              (agent_kept.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent_state.h"
#include "defaults.h"
#include "farfork-clone.h"
#include "jsonl.h"
#include "overlay_records.h"
#include "preflight.h"
#include "rundir.h"
#include "same_file.h"

#define TICK_MS 250
#define TICK_READY_MS 10       /* while children come that are started ahead */
#define END_LIMIT_MS 5000
#define LOST_LIMIT_MS 5000
#define MMAP_FROM_BYTES (64 << 10) /* of malloc(): a device state, for instance, goes back when it is freed */

/* From other threads to the main one */
struct message {
    enum { FROM_CHILD, FROM_BESIDE, FROM_RECEIVE, FROM_WAIT, FROM_PAUSE, FROM_RELAY } kind;
    unsigned child;
    int value;
    char *text;    /* FROM_PAUSE: the main thread's; NULL: it is over */
    json_t *event; /* FROM_RELAY: likewise */
};

/* --- the library's side --- */

static void tell(struct agent *a, struct message m)
{
    while (write(a->pipe[1], &m, sizeof(m)) < 0 && errno == EINTR)
        ;
}

static void on_child(void *opaque, unsigned child, enum ff_child_event what)
{
    tell(opaque, (struct message){.kind = FROM_CHILD, .child = child, .value = (int)what});
}

static void on_beside_failed(void *opaque, unsigned child)
{
    tell(opaque, (struct message){.kind = FROM_BESIDE, .child = child});
}

static void on_pause(void *opaque, const char *why)
{
    tell(opaque, (struct message){.kind = FROM_PAUSE, .text = why ? xstrdup(why) : NULL});
}

static void on_unfed(void *opaque, const char *host, const char *port, const char *why)
{
    tell(opaque, (struct message){.kind = FROM_RELAY, .event = agent_unfed(host, port, why)});
}

static void *work(void *opaque)
{
    struct agent *a = opaque;
    int rc = ff_agent_receive(a->ff, a->err);

    if (!rc) {
        tell(a, (struct message){.kind = FROM_RECEIVE});
        rc = ff_agent_wait(a->ff, a->err);
    }
    tell(a, (struct message){.kind = FROM_WAIT, .value = rc});
    ff_agent_tell_source(a->ff, NULL);
    return NULL;
}

static void on_child_message(struct agent *a, const struct message *m)
{
    static const struct {
        enum agent_vm_state state;
        const char *what;
    } of[] = {[FF_CHILD_CONNECTED] = {AGENT_VM_CONNECTED, NULL},
              [FF_CHILD_ATTACHED] = {AGENT_VM_ATTACHED, "attached"},
              [FF_CHILD_RUNNING] = {AGENT_VM_RUNNING, "running"},
              [FF_CHILD_COMPLETE] = {AGENT_VM_COMPLETE, "complete"},
              [FF_CHILD_LOST] = {AGENT_VM_LOST, "lost"}};
    struct agent_vm *vm = agent_vms_find(&a->vms, m->child);

    if (!vm || vm->state == AGENT_VM_ENDED)
        return;
    agent_private_forget(vm); /* it comes here last */
    if (vm->state != AGENT_VM_COMPLETE) /* memory can be complete before the guest runs */
        vm->state = of[m->value].state;
    if (m->value == FF_CHILD_RUNNING)
        agent_port_open(vm->channel, NULL); /* one that does not answer keeps its links down */
    agent_count_vms(a);
    if (of[m->value].what)
        agent_send_child(a, vm, of[m->value].what);
}

static void on_worker(struct agent *a, const struct message *m)
{
    if (m->kind == FROM_PAUSE) {
        a->paused = m->text;
        agent_send(a, m->text ? json_pack("{ss ss si}", "event", "paused", "error", m->text,
                                          "seconds", a->reconnect_ms / 1000)
                              : json_pack("{ss}", "event", "resumed"));
        free(m->text);
    } else if (m->kind == FROM_RELAY) {
        agent_send(a, m->event);
    } else if (m->kind == FROM_RECEIVE) {
        a->image = IMAGE;
        a->image_ms = ff_now_ms();
        agent_send_image(a);
    } else {
        a->worker_over = true;
        agent_send_progress(a);
        if (!m->value) {
            a->image = COMPLETE;
            agent_send_touched(a);
            agent_send(a, json_pack("{ss}", "event", "complete"));
        } else {
            a->image = LOST;
            a->lost_ms = ff_now_ms();
            if (!a->ending)
                agent_send(a, json_pack("{ss ss}", "event", "lost", "error",
                                        ff_error_message(a->err)));
        }
    }
    if (m->kind == FROM_WAIT)
        agent_metrics_image(a);
    agent_write_state(a);
}

static void on_threads(struct agent *a)
{
    struct message m;

    while (read(a->pipe[0], &m, sizeof(m)) == sizeof(m))
        if (m.kind == FROM_CHILD)
            on_child_message(a, &m);
        else if (m.kind == FROM_BESIDE)
            agent_kill(a, m.child);
        else
            on_worker(a, &m);
}

/* --- commands --- */

static void detach(struct agent *a)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (a->detached)
        return;
    agent_send(a, json_pack("{ss}", "event", "detached"));
    a->detached = true;
    prctl(PR_SET_PDEATHSIG, 0);
    for (int fd = 0; fd <= 2; fd++)
        dup2(null, fd);
    close(null);
    agent_count_vms(a);
    agent_write_state(a); /* before who started it goes on, and may look */
    agent_tell_detached(a);
}

static void let_vms_go(struct agent *a)
{
    if (a->kept)
        agent_vms_let_go(&a->vms);
    detach(a);
}

static void wait_for_use(struct agent *a)
{
    a->unused_ms = ff_now_ms() + a->timeout_s * 1000ull;
}

/* Who started it is gone, and was perhaps before it sent the guest */
static void detach_alone(struct agent *a)
{
    if (a->kept && a->image == NONE) /* with an image, children get their memory from here */
        wait_for_use(a);
    detach(a);
}

static void run_command(struct agent *a, const char *line)
{
    json_t *o = json_loads(line, 0, NULL), *v;
    struct ff_error why;

    if ((v = json_object_get(o, "spawn"))) {
        if (agent_reserve_state(a, (unsigned)agent_waiting(a), v, &why))
            agent_send_error(a, (unsigned)json_integer_value(json_object_get(v, "number")),
                             why.text);
        else
            agent_spawn_later(a, v);
        agent_count_vms(a);
    } else if ((v = json_object_get(o, "check"))) {
        int rc = preflight_check(v, &why);
        if (rc && rc != -EXDEV)
            agent_send_error(a, 0, why.text);
        else
            agent_send(a, json_pack("{ss sb}", "event", "checked", "lacks-flags", rc != 0));
    } else if ((v = json_object_get(o, "kill"))) {
        agent_kill(a, json_integer_value(v));
    } else if ((v = json_object_get(o, "qmp"))) {
        if ((v = agent_vms_qmp(&a->vms, v)))
            agent_send(a, v);
    } else if (json_is_true(json_object_get(o, "keep"))) {
        agent_keep(a);
    } else if ((v = json_object_get(o, "adopt"))) {
        agent_send(a, agent_vms_adopt(&a->vms, v));
    } else if ((v = json_object_get(o, "same"))) {
        agent_send(a, json_pack("{ss so}", "event", "same", "files", same_files_look(v)));
    } else if ((v = json_object_get(o, "plugged"))) {
        agent_vms_plugged(&a->vms, v);
    } else if ((v = json_object_get(o, "say"))) {
        agent_send(a, agent_visit_say(&a->vms, v));
    } else if (agent_bring(a, o)) {
        ;
    } else if (json_is_true(json_object_get(o, "detach"))) {
        let_vms_go(a);
    } else if (json_is_true(json_object_get(o, "end"))) {
        a->ending = true;
        a->kept = false;
    } else if (json_is_true(json_object_get(o, "ping"))) {
        agent_send(a, json_pack("{ss}", "event", "pong"));
    } else if (!agent_warm(a, o)) {
        agent_send_error(a, 0, "want one JSON object a line: check, spawn, kill, qmp, adopt, same, plugged, say, keep, "
                              "await_feed, feed, first, foreground, message, unused, ping, detach or end");
    }
    json_decref(o);
}

static void on_input(struct agent *a)
{
    char *line;

    if (jsonl_read(&a->in, STDIN_FILENO))
        a->in.ended = true;
    while (!a->ending && !a->detached && (line = jsonl_next(&a->in)))
        if (*line && !agent_take_key(a, line))
            run_command(a, line);
    if (a->in.ended && !a->detached)
        a->input_ended = true;
}

/* --- the loop --- */

static void on_signals(struct agent *a)
{
    struct signalfd_siginfo s;

    while (read(a->signals, &s, sizeof(s)) == sizeof(s))
        if (s.ssi_signo != SIGCHLD && a->kept && !a->detached)
            detach_alone(a);
        else if (s.ssi_signo != SIGCHLD)
            agent_end_by(a, (int)s.ssi_signo);
    agent_reap(a);
}

/* Whether it is time to end */
static bool over(struct agent *a)
{
    if (a->ending)
        return true;
    if (a->input_ended && !a->detached) {
        if (a->image != COMPLETE && !a->kept)
            return true;
        detach_alone(a);
    }
    if (a->unused_ms && ff_now_ms() > a->unused_ms) {
        a->unused_ms = 0;
        agent_vms_end_unused(&a->vms);
    }
    if (a->image == LOST && ff_now_ms() > a->lost_ms + LOST_LIMIT_MS)
        for (size_t i = 0; i < a->vms.n; i++)
            if (a->vms.v[i].state < AGENT_VM_COMPLETE || a->vms.v[i].state == AGENT_VM_LOST)
                agent_vm_kill(&a->vms.v[i]);
    return a->detached && !agent_vms_alive(&a->vms) && !agent_waiting(a);
}

static int tick_ms(const struct agent *a)
{
    if (a->unused_ms)
        return TICK_MS;
    if (a->image == NONE || (a->detached && a->image == COMPLETE))
        return -1; /* nothing but the end of a child happens any more */
    return a->image == LISTENING && a->heard < a->vms.n ? TICK_READY_MS : TICK_MS;
}

/* Answers of children's QEMUs; true: look again soon */
static bool on_answers(struct agent *a)
{
    json_t *e;

    while ((e = agent_vms_answer(&a->vms)))
        agent_send(a, e);
    if (a->vms.ask_unused_again)
        wait_for_use(a);
    a->vms.ask_unused_again = false;
    return agent_vms_poll(&a->vms, NULL);
}

/* Nothing in it waits but poll(): a child that is busy is not all that there is to hear */
static void agent_loop(struct agent *a)
{
    struct pollfd *p = NULL;

    while (!over(a)) {
        bool again = on_answers(a);

        again |= agent_metrics_write(a, false);
        size_t vms = a->vms.n, n = 3 + 3 * vms + agent_vms_poll(&a->vms, NULL), waiting = 0;
        free(p);
        p = xcalloc(n, sizeof(*p));
        p[0] = (struct pollfd){.fd = a->detached || a->in.ended ? -1 : 0, .events = POLLIN};
        p[1] = (struct pollfd){.fd = a->pipe[0], .events = POLLIN};
        p[2] = (struct pollfd){.fd = a->signals, .events = POLLIN};
        agent_vms_poll(&a->vms, p + 3 + 3 * vms);
        for (size_t i = 0; i < vms; i++) {
            p[3 + i] = (struct pollfd){.fd = a->vms.v[i].exec_status_fd, .events = POLLIN};
            waiting += p[3 + i].fd >= 0;
            again |= agent_on_guest(a, &a->vms.v[i]);
            int channel = a->vms.v[i].exited ? -1 : agent_port_fd(a->vms.v[i].channel);
            p[3 + vms + i] = (struct pollfd){.fd = channel, .events = POLLIN};
            p[3 + 2 * vms + i] = (struct pollfd){
                .fd = agent_port_qmp_fd(a->vms.v[i].channel), .events = POLLIN};
        }
        if (poll(p, n, again ? TICK_MS : tick_ms(a)) < 0 && errno != EINTR)
            break;
        for (size_t i = 0; waiting && i < vms; i++)
            if (p[3 + i].revents)
                agent_on_exec_status(a, &a->vms.v[i]);
        if (p[1].revents)
            on_threads(a);
        bool word = false; /* one has ended, and is looked at again without a signal */
        for (size_t i = 0; i < a->vms.n; i++)
            word |= a->vms.v[i].word_ms && a->vms.v[i].state != AGENT_VM_ENDED;
        if (p[2].revents)
            on_signals(a);
        else if (word)
            agent_reap(a);
        if (p[0].revents)
            on_input(a);
        agent_spawn_waiting(a);
        agent_send_progress(a);
    }
    free(p);
}

/* --- beginning and end --- */

/* Take an image, in a thread of its own */
static int start_worker(struct agent *a, struct ff_error *why)
{
    struct ff_address *address = NULL;

    if (!a->socket)
        a->socket = xprintf("%s/agent", a->dir);
    a->err = ff_error_new();
    int rc = ff_address_parse(a->listen, &address, a->err);
    if (!rc && a->keyed)
        rc = ff_address_set_key(address, a->vms.key, strlen(a->vms.key), a->err);
    if (!rc)
        rc = ff_agent_new(address, a->socket, &a->ff, a->err);
    if (!rc)
        a->reconnect_ms = ff_address_reconnect_ms(address);
    ff_address_free(address);
    if (rc)
        return ff_error_set(why, -rc, "%s", ff_error_message(a->err));
    agent_drop_key(a); /* the library has it */
    ff_agent_on_child(a->ff, on_child, a);
    ff_agent_on_pause(a->ff, on_pause, a);
    ff_agent_on_unfed(a->ff, on_unfed, a);
    ff_agent_limit(a->ff, a->memory_bytes);
    agent_find_earlier(a);
    rc = pthread_create(&a->worker, NULL, work, a);
    if (rc)
        return ff_error_set(why, rc, "thread: %s", strerror(rc));
    a->worker_runs = true;
    return 0;
}

static int agent_start(struct agent *a, struct ff_error *why)
{
    int rc = a->keyed ? agent_read_key(a, why) : 0;

    if (!rc)
        rc = rundir_make(a->base, a->id, a->node, &a->dir, why);
    if (!rc)
        rc = agent_watcher_listen(a, why);
    if (!rc)
        rc = agent_lasting_make(a, why);
    if (!rc)
        rc = agent_reserve_state(a, a->children, NULL, why);
    if (rc)
        return rc;
    a->vms.dir = a->dir;
    if (pipe2(a->pipe, O_CLOEXEC) < 0 || fcntl(a->pipe[0], F_SETFL, O_NONBLOCK) < 0)
        return ff_error_set(why, errno, "pipe: %s", strerror(errno));
    a->image = a->listen ? LISTENING : NONE;
    a->beside_failed = on_beside_failed;
    if (a->listen && (rc = start_worker(a, why)))
        return rc;
    if ((rc = agent_write_state(a)))
        return ff_error_set(why, -rc, "write %s/" STATE_FILE ": %s", a->dir, strerror(-rc));
    agent_send(a, json_pack("{ss si si ss ss ss}", "event", "listening", "port",
                     a->ff ? (int)ff_agent_port(a->ff) : 0, "pid", (int)getpid(), "rundir", a->dir,
                     "lasting", a->lasting ? a->lasting : a->dir, "socket",
                     a->socket ? a->socket : ""));
    return 0;
}

/* A worker that does not end keeps the library's handle, and the process ends under it */
static bool end_worker(struct agent *a)
{
    struct timespec t;

    if (!a->worker_runs)
        return true;
    ff_agent_cancel(a->ff); /* it waits for a source, perhaps, also when it is complete */
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += END_LIMIT_MS / 1000;
    return pthread_clockjoin_np(a->worker, NULL, CLOCK_MONOTONIC, &t) == 0;
}

static void end_vms(struct agent *a)
{
    size_t left = 0;

    if (a->pipe[0] >= 0)
        close(a->pipe[0]); /* a thread that cannot tell any more goes on: it is waited for */
    agent_write_state(a); /* for those that go on without it */
    for (size_t i = 0; a->detached && i < a->vms.n; i++)
        if (a->vms.v[i].state != AGENT_VM_ENDED &&
            (a->kept || a->vms.v[i].state == AGENT_VM_COMPLETE)) {
            agent_private_forget(&a->vms.v[i]); /* nobody else does */
            a->vms.v[i].state = AGENT_VM_ENDED;
            left++;
        }
    agent_vms_end(&a->vms, END_LIMIT_MS);
    bool untold = a->detached && agent_vms_untold(&a->vms);
    if (end_worker(a)) {
        ff_agent_free(a->ff);
        a->ff = NULL;
    } else {
        unlink(a->socket);
    }
    agent_beside_end(&a->beside);
    if (a->dir)
        overlay_records_sweep(a->base, NULL, NULL);
    /* the very last: once it is gone the next fork may have it; and before the last word, since who
     * hears that may look */
    if (a->dir && !left && !untold)
        agent_leave(a);
    if (!left && !untold)
        agent_lasting_drop(a);
    agent_send(a, json_pack("{ss}", "event", "end"));
    agent_metrics_write(a, true);
    ff_error_free(a->err);
    json_decref(a->said);
    json_decref(a->spawns);
    agent_vms_drop_questions(&a->vms);
    agent_drop_key(a);
    agent_vms_free(&a->vms);
    jsonl_free(&a->in);
    free(a->socket);
    free(a->dir);
    free(a->lasting);
}

int agent_run(struct agent *a)
{
    struct ff_error why;
    struct stat st;
    sigset_t set;

    /* what a thread has freed is for all of them: with a thread beside each of many children that is most of an agent's memory */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, MMAP_FROM_BYTES);
    int rc = agent_begin_scope(a, &why); /* before it is confined, and before there is anything in it */
    if (!rc)
        rc = agent_watcher_begin(a, &why);
    if (!a->unconfined)
        agent_confine();
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL); /* the library's threads inherit it */
    signal(SIGPIPE, SIG_IGN);
    a->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (!fstat(STDOUT_FILENO, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    agent_metrics_begin(a);
    if (!rc)
        rc = agent_start(a, &why);
    if (rc)
        agent_send_error(a, 0, why.text);
    else
        agent_loop(a);
    end_vms(a);
    return rc ? 1 : 0;
}
