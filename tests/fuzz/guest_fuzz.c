/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guest_fuzz.c - libFuzzer: a guest that says what it likes to its port, and what its forks report
 */
/**
 * DOC: Theory of Operation
 *
 * Input        steps: what a good guest says, whole or in pieces; any bytes; what the process of a
 *              fork reports, right or wrong; that process ends; the guest reads, or hangs up.
 * Picture      guest's socket --> serve.c, as it is, but for the process that it would start: that
 *                                 is a pipe, and its reports are the input's
 *              another        --> agent_guest_port.c: a child's port
 * Invariants   an answer is lines without control characters, and begins as docs/guest.md says. No
 *              more forks run than were begun; one is arriving at a time; nothing is left open.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "input.h"

static int last_pipe[2][2] = {{-1, -1}, {-1, -1}}; /* the writing ends: of events, of errors */
static unsigned n_pipes;

static int new_pipe(int p[2], int flags)
{
    int rc = pipe2(p, flags);

    must(!rc);
    last_pipe[0][n_pipes % 2] = dup(p[1]);
    n_pipes++;
    return rc;
}

static pid_t no_fork(void)
{
    return getpid();
}

static pid_t no_wait(pid_t pid, int *status, int flags)
{
    (void)pid, (void)status, (void)flags;
    return 0;
}

static int no_kill(pid_t pid, int sig)
{
    (void)pid, (void)sig;
    return 0;
}

/* What a person would read */
static int __attribute__((format(printf, 2, 3))) no_print(FILE *f, const char *fmt, ...)
{
    (void)f, (void)fmt;
    return 0;
}

#define fork no_fork /* the member of struct fork_serve, too */
#define pipe2 new_pipe
#define waitpid no_wait
#define kill no_kill
#define fprintf no_print
#include "serve.c"
#undef fork
#undef pipe2
#undef waitpid
#undef kill
#undef fprintf

#include "agent_guest_port.h"

#define RUNS 8u

struct world {
    struct server v;
    struct fork_serve s;
    struct serve_limits limits;
    int guest;           /* -1: it has hung up */
    int events[RUNS][2]; /* of run number i, and its errors; -1: closed */
    struct run *run[RUNS];
    unsigned n_begun;
    bool in_message; /* of the identity, which follows "forked" */
    char line[GUEST_LINE_MAX];
    size_t n_line;
};

static const char *const words[] = {
    "fork 3\n",        "fork 1 some data of the user\n",
    "join\n",          "join a-word\n",
    "joined\n",        "exit 3\n",
    "link\n",          "ready\n",
    "exit 300\n",      "exit 99999999999999999999\n",
    "fork 9\n",        "fork 0\n",
    "join bad word\n", "fork 2 \n",
    "visit a w.1\n",   "return w.2\n",
};

static const char *const reports[] = {
    "{\"event\":\"forked\",\"exit_code\":0}\n",
    "{\"event\":\"ended\",\"child\":1,\"code\":0}\n",
    "{\"event\":\"ended\",\"child\":2,\"code\":7}\n",
    "{\"event\":\"ended\",\"child\":3,\"code\":256}\n",
    "{\"event\":\"forked\",\"exit_code\":1}\n",
    "{\"event\":\"ended\",\"child\":-1,\"code\":\"x\"}\n",
    "{\"event\":[]}\n",
};

/* --- the guest --- */

static void check_line(struct world *w)
{
    static const char *const begins[] = {"forked", "failed ", "joining", "exited ", "joined"};
    bool known = w->in_message;

    for (size_t i = 0; i < w->n_line; i++)
        must((unsigned char)w->line[i] >= ' ' && w->line[i] != 127);
    for (unsigned i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
        known |= !strncmp(w->line, begins[i], strlen(begins[i]));
    must(known);
    if (!strcmp(w->line, "forked"))
        w->in_message = true;
    else if (w->in_message && !strcmp(w->line, "end"))
        w->in_message = false;
}

static void guest_reads(struct world *w)
{
    char c;

    while (w->guest >= 0 && recv(w->guest, &c, 1, MSG_DONTWAIT) == 1) {
        must(w->n_line < sizeof(w->line) - 1);
        if (c != '\n') {
            w->line[w->n_line++] = c;
            continue;
        }
        w->line[w->n_line] = '\0';
        check_line(w);
        w->n_line = 0;
    }
}

static void guest_says(struct world *w, const void *bytes, size_t n)
{
    if (w->guest >= 0)
        (void)!send(w->guest, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* --- the host --- */

/* A fork may have begun: its pipes are the input's from now on */
static void note_runs(struct world *w)
{
    unsigned n = 0;

    for (struct run *r = w->v.runs; r; r = r->next)
        n++;
    must(n == w->v.n && n <= RUNS);
    must(!w->v.arriving || w->v.n);
    if (n_pipes == 0)
        return;
    must(n_pipes == 2 && w->v.runs);
    for (unsigned i = 0; i < RUNS; i++)
        if (!w->run[i]) {
            w->run[i] = w->v.runs;
            memcpy(w->events[i], last_pipe[0], sizeof(w->events[i]));
            break;
        }
    n_pipes = 0;
}

static void end_of(struct world *w, unsigned i)
{
    if (!w->run[i])
        return;
    close(w->events[i][0]);
    close(w->events[i][1]);
    read_pipe(&w->v, w->run[i], RUN_ERRORS);
    read_pipe(&w->v, w->run[i], RUN_EVENTS);
    end_run(&w->v, w->run[i]);
    w->run[i] = NULL;
}

/* The runs that it has are as many as are to be had: their processes would not end by themselves */
static void turn(struct world *w)
{
    if (w->v.port < 0 && !w->v.arriving)
        return;
    unsigned n = 0;
    for (unsigned i = 0; i < RUNS; i++)
        n += w->run[i] != NULL;
    if (n == RUNS)
        end_of(w, 0);
    serve_turn(&w->v, 0);
    note_runs(w);
}

static void report(struct world *w, struct input *in, bool good)
{
    unsigned i = get(in) % RUNS;
    uint8_t bytes[256];
    unsigned n = 0;

    if (!w->run[i])
        return;
    if (good) {
        const char *line = reports[get(in) % (sizeof(reports) / sizeof(reports[0]))];
        (void)!write(w->events[i][0], line, strlen(line));
        return;
    }
    for (n = get(in); n && in->left; n--)
        bytes[255 - n] = get(in);
    (void)!write(w->events[i][get(in) & 1], bytes, sizeof(bytes));
}

static void step(struct world *w, struct input *in)
{
    uint8_t bytes[256];
    unsigned n;

    switch (get(in) % 8) {
    case 0:
    case 1: { /* all of it, or a piece */
        const char *word = words[get(in) % (sizeof(words) / sizeof(words[0]))];
        n = get(in);
        guest_says(w, word, n % 4 ? strlen(word) : n / 4 % (strlen(word) + 1));
        break;
    }
    case 2:
        for (n = 0; n < sizeof(bytes) && in->left; n++)
            if ((bytes[n] = get(in)) == 0xff)
                break;
        guest_says(w, bytes, n);
        break;
    case 3: /* a long line */
        memset(bytes, get(in), sizeof(bytes));
        for (n = get(in) % 20; n--;) {
            guest_says(w, bytes, sizeof(bytes));
            turn(w);
        }
        break;
    case 4:
        report(w, in, true);
        break;
    case 5:
        report(w, in, false);
        break;
    case 6:
        end_of(w, get(in) % RUNS);
        break;
    default:
        if (get(in) < 8 && w->guest >= 0) {
            close(w->guest);
            w->guest = -1;
        }
    }
    turn(w);
    guest_reads(w);
}

static void serve(struct world *w, struct input *in)
{
    int pair[2];

    w->s = (struct fork_serve){.id = "f", .max = 5, .limits = &w->limits};
    w->limits = (struct serve_limits){.children = 12, .forks = 1 + get(in)};
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    w->guest = pair[0];
    w->v = (struct server){.s = &w->s, .port = pair[1]};
    for (unsigned n = 0; in->left && n < 200; n++)
        step(w, in);
    for (unsigned i = 0; i < RUNS; i++)
        end_of(w, i);
    if (w->guest >= 0)
        close(w->guest);
    w->guest = -1;
    for (unsigned n = 0; n < 10 && w->v.port >= 0; n++)
        turn(w);
    for (unsigned i = 0; i < RUNS; i++) /* what it still had in hand */
        end_of(w, i);
    must(w->v.port < 0 || w->v.out || w->v.arriving || !w->v.n);
    if (w->v.port >= 0)
        close_port(&w->v);
    exit_queue_free(&w->v.exits);
}

/* --- a child's port --- */

static char dir[64], path[80];

static void clean(void)
{
    unlink(path);
    rmdir(dir);
}

static int child_listener(void)
{
    static int fd = -1;
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (fd >= 0)
        return fd;
    snprintf(dir, sizeof(dir), "%s/farfork-fuzz-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/port", dir);
    atexit(clean);
    strcpy(a.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    must(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, 4));
    return fd;
}

static void child_port(struct input *in)
{
    int listener = child_listener(), code = -1;
    json_t *o = json_pack("{ss ss s[s]}", "path", path, "message", "a\nmessage\n", "links", "net0");
    bool visits = get(in) & 1;
    struct channel *c = visits ? agent_port_visit(path) : agent_port_new(o);
    struct ff_error why;
    uint8_t bytes[256];

    json_decref(o);
    must(c && !agent_port_open(c, &why));
    int guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    must(guest >= 0);
    for (unsigned n = 0, len; in->left && n < 200; n++) {
        const char *word = words[get(in) % (sizeof(words) / sizeof(words[0]))];
        unsigned how = get(in);
        for (len = 0; how & 1 && len < sizeof(bytes) && in->left; len++)
            if ((bytes[len] = get(in)) == 0xff)
                break;
        (void)!send(guest, how & 1 ? (const void *)bytes : word, how & 1 ? len : strlen(word),
                    MSG_DONTWAIT | MSG_NOSIGNAL);
        while (how & 6 && agent_port_on_input(c, &code) != CHANNEL_NOTHING)
            must(!visits || strlen(agent_port_word(c)) <= GUEST_WORD_MAX);
        if (visits && how & 32)
            agent_port_tell(c, "visiting w.1\n", NULL);
        must(code >= -1 && code <= 255 && (!visits || code == -1));
        agent_port_raise_links(c, how & 8 ? path : NULL);
        while (how & 16 && recv(guest, bytes, sizeof(bytes), 0) > 0)
            ;
    }
    close(guest);
    agent_port_free(c);
    while ((guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        close(guest); /* it took the port for a monitor */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct input in = {.p = data, .left = size};

    memset(&w, 0, sizeof(w));
    n_pipes = 0;
    if (get(&in) & 1)
        child_port(&in);
    else
        serve(&w, &in);
    return 0;
}
