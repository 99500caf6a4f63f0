/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve.c - vmclone --serve: fork a guest when it asks for that, and say how its children end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the host's end of the parent's port (docs/guest.md). A request becomes an ordinary
 *              fork with --follow, in a process of its own; its outcome is the answer, what it
 *              reports later is for `join`. The children's ends are their agents'.
 * Picture      port  -> fork -> process, pipe of events: forked -> answer
 *                                                        ended  -> exit_queue.c
 *                    -> join -> exit_queue.c -> joining, exited ..., joined
 * States       a run is ARRIVING until the guest has its answer, then it only follows. While one is
 *              arriving the port is neither read nor written: what the host says then could be in
 *              the children's ports, too.
 * Failure      the guest hears that a fork failed; why is on stderr, since it names paths and
 *              hosts. One of which some children run has happened: the guest gets its number. A run
 *              that ends before its children leaves them without a code. When the parent has ended,
 *              or this process, runs are told to let their agents go: children go on.
 * Limits       one fork at a time; serve_limits.h; not more children than the command line's;
 *              EXIT_QUEUE_MAX forks with children. One answer is in hand at a time, and no request
 *              is read before it is
 *              written: the guest cannot make this process keep more.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "guest_port.h"
#include "exit_queue.h"
#include "serve.h"

/* What the guest hears: it is not told of the host's paths and names, which stderr has */
#define HOST_FAILED "the host could not make the fork; its log says why"

#define END_LIMIT_MS 20000 /* a run lets its agents go, which may be on hosts that do not answer */

enum { RUN_PROCESS, RUN_EVENTS, RUN_ERRORS, RUN_FDS };

struct run {
    struct run *next;
    unsigned turn, count;
    char *id;
    pid_t pid;
    int fds[RUN_FDS];         /* a pidfd, and two pipes; -1: closed */
    struct jsonl_reader in[RUN_FDS];
};

struct server {
    const struct fork_serve *s;
    int port;                 /* -1: the parent has ended */
    struct guest_input in;
    char *out;                /* an answer, not yet written from @out_at on; NULL: none */
    size_t out_at;
    unsigned turn;
    struct run *arriving;     /* one of these */
    struct run *runs;
    size_t n;
    struct exit_queue exits;
};

/* --- the port --- */

static void close_port(struct server *v)
{
    close(v->port);
    v->port = -1;
    v->in.n = 0; /* nobody waits for an answer */
    free(v->out);
    v->out = NULL;
}

/* @text is taken over */
static void answer_guest(struct server *v, char *text)
{
    free(v->out);
    v->out = v->port >= 0 ? text : NULL;
    v->out_at = 0;
    if (!v->out)
        free(text);
}

static void write_port(struct server *v)
{
    size_t left = strlen(v->out + v->out_at);
    ssize_t n = send(v->port, v->out + v->out_at, left, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        close_port(v);
    } else if (n > 0 && (v->out_at += (size_t)n, (size_t)n == left)) {
        free(v->out);
        v->out = NULL;
    }
}

/* The message of the parent: nothing in it is its own but the number */
static char *parent_message(const char *id, unsigned count)
{
    FF_AUTO_JSON json_t *none = json_array();
    const struct identity_input in = {.fork_id = id, .count = count, .argv = none};
    struct identity *plan = NULL;
    char *out = NULL;

    if (!identity_plan(&in, &plan, NULL))
        out = identity_message(plan, 0, 0);
    identity_free(plan);
    return out;
}

/* --- runs --- */

/* In the new process. Nothing of the server's stays open: who ends first would not be noticed */
static void __attribute__((noreturn)) exec_fork(const struct fork_serve *s, const struct run *r,
                                                const char *user, pid_t server, int events,
                                                int errors)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != server)
        _exit(EXIT_NONE);
    dup2(errors, STDERR_FILENO);
    if (events > 3)
        close_range(3, (unsigned)events - 1, 0);
    close_range((unsigned)events + 1, ~0U, 0);
    exit(s->fork(s->opaque, r->id, r->count, user, events));
}

static int start_run(struct server *v, struct run *r, const char *user)
{
    int events[2], errors[2] = {-1, -1};
    pid_t server = getpid();

    if (pipe2(events, O_CLOEXEC) < 0)
        return -errno;
    if (pipe2(errors, O_CLOEXEC) < 0) {
        close(events[0]);
        close(events[1]);
        return -errno;
    }
    fflush(NULL);
    r->pid = fork();
    int code = errno;
    if (!r->pid)
        exec_fork(v->s, r, user, server, events[1], errors[1]);
    close(events[1]);
    close(errors[1]);
    r->fds[RUN_EVENTS] = events[0];
    r->fds[RUN_ERRORS] = errors[0];
    if (r->pid < 0)
        return -code;
    r->fds[RUN_PROCESS] = (int)syscall(SYS_pidfd_open, r->pid, 0);
    if (r->fds[RUN_PROCESS] < 0) {
        code = errno;
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
        return -code;
    }
    fcntl(events[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    return 0;
}

static void run_free(struct run *r)
{
    for (int i = 0; i < RUN_FDS; i++) {
        if (r->fds[i] >= 0)
            close(r->fds[i]);
        jsonl_free(&r->in[i]);
    }
    free(r->id);
    free(r);
}

static void begin_fork(struct server *v, const struct guest_request *q)
{
    struct run *r = xcalloc(1, sizeof(*r));

    const char *no =
        exit_queue_room(&v->exits)
            ? serve_limits_take(v->s->limits, exit_queue_alive(&v->exits), q->count, ff_now_ms())
            : "too many forks still have children: join them first";

    if (no) {
        fprintf(stderr, "vmclone: the guest asked for %u children: %s\n", q->count, no);
        free(r);
        answer_guest(v, guest_port_failed(no));
        return;
    }
    for (int i = 0; i < RUN_FDS; i++)
        r->fds[i] = -1;
    r->turn = ++v->turn;
    r->count = q->count;
    r->id = xprintf("%s-%u", v->s->id, r->turn);
    int rc = start_run(v, r, q->user);
    if (rc) {
        fprintf(stderr, "vmclone: start %s: %s\n", r->id, strerror(-rc));
        run_free(r);
        answer_guest(v, guest_port_failed(HOST_FAILED));
        return;
    }
    r->next = v->runs;
    v->runs = r;
    v->n++;
    v->arriving = r;
}

/* The fork's outcome is known: the guest's answer */
static void answer_fork(struct server *v, struct run *r, bool happened)
{
    FF_AUTO_FREE char *message = happened ? parent_message(r->id, r->count) : NULL;

    if (v->arriving != r)
        return;
    v->arriving = NULL;
    if (happened)
        exit_queue_add(&v->exits, r->turn, r->count);
    answer_guest(v, message ? guest_port_forked(message) : guest_port_failed(HOST_FAILED));
}

static void on_event(struct server *v, struct run *r, const char *line)
{
    FF_AUTO_JSON json_t *e = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(e, "event"));
    json_int_t code = json_integer_value(json_object_get(e, "exit_code"));

    if (!name)
        return;
    if (!strcmp(name, "ended"))
        exit_queue_ended(&v->exits, r->turn,
                    (unsigned)json_integer_value(json_object_get(e, "child")),
                    (int)json_integer_value(json_object_get(e, "code")));
    else if (!strcmp(name, "forked") && (code == EXIT_ALL || code == EXIT_SOME))
        answer_fork(v, r, true);
}

/* What it complains about goes on */
static void print_error_line(const char *line)
{
    fprintf(stderr, "%s\n", line);
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return fd >= 0 && poll(&p, 1, 0) > 0;
}

/* What is there now: a process that the run has started can hold a pipe open for longer */
static void read_pipe(struct server *v, struct run *r, int which)
{
    struct jsonl_reader *in = &r->in[which];
    char *line;

    while (readable(r->fds[which])) {
        int rc = jsonl_read(in, r->fds[which]);
        while ((line = jsonl_next(in)))
            if (which == RUN_EVENTS)
                on_event(v, r, line);
            else
                print_error_line(line);
        if (rc || in->ended) {
            close(r->fds[which]);
            r->fds[which] = -1;
        }
    }
}

/* Its process has ended: what it has not said is not known */
static void end_run(struct server *v, struct run *r)
{
    struct run **at = &v->runs;

    waitpid(r->pid, NULL, 0);
    answer_fork(v, r, false);
    exit_queue_over(&v->exits, r->turn);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    v->n--;
    run_free(r);
}

/* --- requests --- */

/* Who asks has the port alone: nobody waits for the answer to an earlier join */
static void run_guest_request(struct server *v, const struct guest_request *q)
{
    switch (q->verb) {
    case GUEST_FORK:
        exit_queue_cancel(&v->exits);
        begin_fork(v, q);
        break;
    case GUEST_JOIN:
        exit_queue_ask(&v->exits, q->word);
        break;
    case GUEST_JOINED:
        exit_queue_acknowledged(&v->exits);
        break;
    case GUEST_VISIT:
    case GUEST_RETURN:
        answer_guest(v, guest_port_failed_word(q->word, "no farfork visit --serve serves this machine"));
        break;
    default: /* of children, or of who has been one */
        break;
    }
}

/* Until there is something to be written, or a fork is under way; @got bytes are new */
static void take_requests(struct server *v, size_t got)
{
    struct guest_request q;
    struct ff_error why;
    int rc = 1;

    while (rc && !v->out && !v->arriving) {
        rc = guest_port_take(&v->in, got, v->s->max, &q, &why);
        got = 0;
        if (rc > 0)
            run_guest_request(v, &q);
        else if (rc < 0)
            answer_guest(v, guest_port_failed(why.text));
    }
}

static void read_port(struct server *v)
{
    size_t room;
    char *at = guest_port_room(&v->in, &room);
    ssize_t n = recv(v->port, at, room, MSG_DONTWAIT);

    if (n > 0)
        take_requests(v, (size_t)n);
    else if (!n || (errno != EAGAIN && errno != EINTR))
        close_port(v);
}

/* --- the loop --- */

static void on_port(struct server *v, short revents)
{
    if (!revents)
        return;
    if (v->out)
        write_port(v);
    else
        read_port(v);
}

/* Its complaints before its outcome, which they may be the reason of */
static void on_run(struct server *v, struct run *r, const struct pollfd *p)
{
    read_pipe(v, r, RUN_ERRORS);
    read_pipe(v, r, RUN_EVENTS);
    if (p[RUN_PROCESS].revents)
        end_run(v, r);
}

static void serve_turn(struct server *v, int wait_ms)
{
    take_requests(v, 0);
    if (!v->out && !v->arriving)
        answer_guest(v, exit_queue_next(&v->exits));
    size_t n = 1 + RUN_FDS * v->n;
    struct pollfd *p = xcalloc(n, sizeof(*p)), *at = p + 1;
    p[0] = (struct pollfd){.fd = v->arriving ? -1 : v->port, .events = v->out ? POLLOUT : POLLIN};
    for (struct run *r = v->runs; r; r = r->next)
        for (int i = 0; i < RUN_FDS; i++)
            *at++ = (struct pollfd){.fd = r->fds[i], .events = POLLIN};
    if (poll(p, n, wait_ms) > 0) {
        at = p + 1;
        for (struct run *r = v->runs, *next; r; r = next, at += RUN_FDS) {
            next = r->next;
            on_run(v, r, at);
        }
        on_port(v, p[0].revents); /* the last: a run can begin */
    }
    free(p);
}

int fork_serve(const struct fork_serve *s, struct ff_error *why)
{
    static struct server v;

    v = (struct server){.s = s, .port = guest_port_connect(s->port, "--serve", why)};
    if (v.port < 0)
        return v.port;
    printf("serving %s\n", s->port);
    fflush(stdout);
    while (v.port >= 0 || v.arriving)
        serve_turn(&v, -1);
    uint64_t end = ff_now_ms() + END_LIMIT_MS;
    for (struct run *r = v.runs; r; r = r->next)
        kill(r->pid, SIGTERM);
    for (uint64_t now = ff_now_ms(); v.runs && now < end; now = ff_now_ms())
        serve_turn(&v, (int)(end - now));
    exit_queue_free(&v.exits);
    return 0;
}
