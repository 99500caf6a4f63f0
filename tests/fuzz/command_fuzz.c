/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * command_fuzz.c - libFuzzer: whatever farfork agent may find on its stdin, in all of its states
 */
/**
 * DOC: Theory of Operation
 *
 * Input        what there is at first; then a step each time that the agent waits: a command, one
 *              that is nearly right, or any bytes; what the library tells it of an image and of
 *              children; what a child's QEMU, its guest or its beginning say; ends, signals, time.
 * Picture      agent.c as it is. poll() is the harness's, so that there is one thread, and one
 *              order of things for each input. command_host.c is in the place of what would start
 *              programs, touch files that the input names, or send signals: names below FILES/
 *              stand for files and sockets that only this process sees.
 * Invariants   every event is an object that has a name, and none has the key in it; "end" is the
 *              last. Nothing is said, and no command taken, once it is detached or ends. A number
 *              has one child; only processes that nobody has waited for get signals; all are
 *              waited for. Each file with a secret is removed or overwritten. An agent that keeps
 *              its children outlives its input. All ends when the input and the children have.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "clock.h"
#include "command_host.h"
#include "qmp_secret.h"

#define TURNS_MAX 4000u

static int commands_in; /* where the agent reads its commands */
static int next_turn(struct pollfd *p, nfds_t n, int timeout_ms);

static int no_dup2(int from, int to)
{
    (void)from;
    return to;
}

static int no_prctl(int what, ...)
{
    (void)what;
    return 0;
}

#undef STDIN_FILENO
#define STDIN_FILENO commands_in
#define dup2 no_dup2
#define prctl no_prctl
#define poll next_turn
#include "agent.c"
#undef dup2
#undef prctl
#undef poll

/* --- the library --- */

/* In the order that it has: an image, then its end; links that break between them */
static void library_says(unsigned what)
{
    struct agent *a = &w.a;

    if (!a->ff || a->pipe[0] < 0)
        return;
    if (what % 4 == 0 && !w.image_told) {
        w.image_told = true;
        tell(a, (struct message){.kind = FROM_RECEIVE});
    } else if (what % 4 == 1 && !w.wait_told) {
        int rc = what & 4 || !w.image_told ? -ENOTCONN : 0;
        if (rc)
            ff_error_set(a->err, -rc, "the link broke");
        w.wait_told = true;
        tell(a, (struct message){.kind = FROM_WAIT, .value = rc});
    } else if (w.image_told && !w.wait_told) {
        on_pause(a, what & 4 ? "a link broke" : NULL);
    }
}

/* --- commands --- */

static const char *const commands[] = {
    "{\"spawn\":{\"number\":%u,\"argv\":[\"qemu\",\"-x\"],\"log\":\"/fuzz/log\",\"qmp\":"
    "\"/fuzz/qmp\",\"cwd\":\"/\",\"until_go\":\"/fuzz/until\",\"shut_down_file\":\"/fuzz/down\","
    "\"before\":[[\"a\",\"b\"],[\"c\"]],"
    "\"files\":[\"/fuzz/o\"],\"private\":[{\"path\":\"/fuzz/p%u\",\"text\":\"secret\",\"after\":"
    "\"======\"}],\"channel\":{\"path\":\"/fuzz/guest\",\"message\":\"m\",\"links\":[\"n0\"]}}}",
    "{\"spawn\":{\"number\":%u,\"argv\":[\"qemu\"],\"log\":\"/fuzz/log\",\"cwd\":\"/fuzz/%u\"}}",
    "{\"kill\":%u}",
    "{\"qmp\":{\"child\":%u,\"execute\":\"query-status\",\"arguments\":{},\"id\":[%u]}}",
    "{\"qmp\":{\"child\":%u,\"add-key\":true,\"id\":%u}}",
    "{\"keep\":true}",
    "{\"adopt\":{\"child\":%u,\"files\":[\"/fuzz/o\"]}}",
    "{\"ping\":true}",
    "{\"check\":{\"folder\":\"/fuzz\",\"bytes\":%u}}",
    "{\"detach\":true}",
    "{\"end\":true}",
    "{\"foreground\":true}",
    "{\"message\":{\"child\":%u,\"text\":\"n%u\"}}",
    "{\"unused\":%u}",
    "{\"spawn\":{\"number\":%u,\"argv\":[7,\"qemu\"],\"log\":\"/fuzz/log\",\"number\":%u}}",
    "{\"spawn\":{\"number\":429496729%u,\"argv\":[\"qemu\"],\"log\":\"/fuzz/log%u\"}}",
};

static void send_bytes(int fd, const char *text, size_t len)
{
    if (fd >= 0)
        (void)!write(fd, text, len); /* full: what is lost was the input's */
}

/* A text of many bytes a character, which no field of a fixed length holds */
static void send_long(unsigned how)
{
    static char text[4096];
    int n = snprintf(text, sizeof(text), how & 1 ? "{\"spawn\":{\"number\":7,\"argv\":[\"%.*s"
                                                 : "{\"spawn\":{\"number\":7,\"private\":[{\"path"
                                                   "\":\"%.*s",
                     (int)(how / 2 % 4), "abc");

    for (unsigned i = 0; i < 500; i++)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "\303\244");
    n += snprintf(text + n, sizeof(text) - (size_t)n,
                  how & 1 ? "\"],\"log\":\"/fuzz/log\"}}\n"
                          : "\"}],\"argv\":[\"q\"],\"log\":\"/fuzz/log\"}}\n");
    send_bytes(w.to_agent, text, (size_t)n);
}

static void send_command(unsigned which, bool beside)
{
    static char line[1024];
    unsigned number = get(&w.in) % NUMBERS;
    int n = snprintf(line, sizeof(line) - 1, commands[which % FF_ARRAY_LEN(commands)], number,
                     number);

    for (unsigned i = 0, how = beside ? 1 + get(&w.in) % 4 : 0; i < how; i++)
        line[(get(&w.in) + 256u * (i / 2)) % (unsigned)n] = (char)get(&w.in);
    line[n++] = '\n';
    send_bytes(w.to_agent, line, (size_t)n);
}

static void send_raw(int fd)
{
    static char bytes[256];
    unsigned n = get(&w.in), len = 0;

    while (len < n && w.in.left)
        bytes[len++] = (char)get(&w.in);
    send_bytes(fd, bytes, len);
}

/* --- children --- */

static void far_says(unsigned which, unsigned what)
{
    static const char *const words[] = {
        "{\"QMP\":{}}\n",
        "{\"return\":{},\"id\":0}\n",
        "{\"return\":{\"status\":\"setup\"},\"id\":1}\n",
        "{\"return\":{\"status\":\"active\"},\"id\":1}\n",
        "{\"error\":{\"class\":\"G\",\"desc\":\"no\"},\"id\":1}\n",
        "{\"event\":\"STOP\"}\n",
        "ready\n",
        "exit 3\n",
        "link\n",
        "fork 1\n",
        "join a\n",
    };
    int *fd = &w.far[which % FARS];
    const char *word = words[what % FF_ARRAY_LEN(words)];

    if (what == 255)
        ff_close_fd(fd);
    else if (what >= 250)
        send_raw(*fd);
    else
        send_bytes(*fd, word, strlen(word));
}

static void kid_does(unsigned which, unsigned what)
{
    static const char why[] = "qemu: No such file\n";
    struct kid *k = w.n_kids ? &w.kid[which % w.n_kids] : NULL;

    if (!k || k->ended)
        return;
    if (what % 8 == 0)
        send_bytes(k->exec_status, why, sizeof(why) - 1);
    if (what % 8 <= 4)
        ff_close_fd(&k->exec_status); /* its program runs, or never will */
    if (what % 8 > 5)
        end_kid(k, what & 32 ? SIGSEGV : what << 8 & 0xff00);
    struct signalfd_siginfo s = {.ssi_signo = SIGCHLD};
    if (what % 8 > 5)
        (void)!write(w.signals, &s, sizeof(s));
}

/* --- the agent waits: something happens --- */

static void step(void)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    struct signalfd_siginfo s = {.ssi_signo = 0};
    unsigned what = get(&w.in), more = what / 16;

    switch (what % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
        for (unsigned i = 0; i <= what % 16; i++)
            send_command(get(&w.in), false);
        break;
    case 4:
        send_command(get(&w.in), true);
        break;
    case 5:
        send_raw(w.to_agent);
        break;
    case 6:
    case 7:
        kid_does(more, get(&w.in));
        break;
    case 8:
        if (w.a.ff && w.a.pipe[0] >= 0)
            on_child(&w.a, more % NUMBERS, get(&w.in) % (FF_CHILD_LOST + 1u));
        break;
    case 9:
        library_says(more);
        break;
    case 10:
    case 11:
    case 12:
        far_says(more, get(&w.in));
        break;
    case 13:
        clock_advance(CLOCK_MONOTONIC, (more + 1) * 1000000000ull);
        break;
    case 14:
        if (more & 1)
            w.failing ^= 1u << more / 2 % 5;
        else
            send_long(more);
        break;
    default:
        s.ssi_signo = (uint32_t)signals[more % 4];
        (void)!write(w.signals, &s, sizeof(s));
    }
}

/* The input is used up: who started it is gone, and one child after the other ends */
static void wind_up(void)
{
    struct signalfd_siginfo s = {.ssi_signo = SIGCHLD};

    ff_close_fd(&w.to_agent);
    clock_advance(CLOCK_MONOTONIC, 1000000000u);
    for (unsigned i = 0; i < w.n_kids; i++)
        if (!w.kid[i].ended) {
            end_kid(&w.kid[i], 0);
            break;
        }
    (void)!write(w.signals, &s, sizeof(s));
}

static int next_turn(struct pollfd *p, nfds_t n, int timeout_ms)
{
    must(++w.turns < TURNS_MAX);
    if (w.in.left)
        step();
    else
        wind_up();
    must(p[0].fd <= 0); /* stdin, or not any more */
    if (!p[0].fd)
        p[0].fd = commands_in;
    int ready = poll(p, n, 0);
    if (!ready && timeout_ms < 0)
        clock_advance(CLOCK_MONOTONIC, 1000000000u);
    return ready;
}

/* --- one run --- */

static void begin(const uint8_t *data, size_t size)
{
    int in[2], front[2], signals[2];
    struct agent *a = &w.a;

    memset(&w, 0, sizeof(w));
    w.in = (struct input){.p = data, .left = size};
    for (unsigned i = 0; i < FARS; i++)
        w.far[i] = -1;
    unsigned how = get(&w.in);
    must(!pipe2(in, O_CLOEXEC | O_NONBLOCK) && !pipe2(front, O_CLOEXEC | O_NONBLOCK) &&
         !pipe2(signals, O_CLOEXEC | O_NONBLOCK) && !pipe2(a->pipe, O_CLOEXEC | O_NONBLOCK));
    commands_in = in[0];
    w.to_agent = in[1];
    w.signals = signals[1];
    a->signals = signals[0];
    a->front = front[1];
    close(front[0]); /* nobody waits */
    a->id = a->node = "fuzz";
    a->base = FILES;
    a->timeout_s = 4;
    a->reconnect_ms = 3000;
    a->vms.dir = a->dir = xstrdup(FILES "/run");
    if (how & 2)
        must((a->vms.key = key_text_new(KEY_TEXT)) != NULL);
    a->image = NONE;
    if (how & 1) {
        a->image = LISTENING;
        a->ff = (struct ff_agent *)(void *)&w;
        a->err = ff_error_new();
    }
    signal(SIGPIPE, SIG_IGN);
    w.runs = true;
}

static void end(bool kept_to_the_end)
{
    struct message m;

    while (read(w.a.pipe[0], &m, sizeof(m)) == sizeof(m))
        if (m.kind == FROM_PAUSE)
            free(m.text);
    must(!kept_to_the_end || w.a.detached);
    end_vms(&w.a);
    must(w.said_end || w.a.detached);
    for (unsigned i = 0; i < w.n_kids; i++) {
        must(w.kid[i].reaped || w.a.detached); /* those live on */
        ff_close_fd(&w.kid[i].exec_status);
    }
    for (unsigned i = 0; i < SECRETS; i++)
        must(!w.secret[i]);
    w.runs = false;
    clock_reset();
    ff_close_fd(&w.a.pipe[1]);
    ff_close_fd(&w.a.front);
    ff_close_fd(&w.to_agent);
    ff_close_fd(&w.signals);
    close(w.a.signals);
    close(commands_in);
    for (unsigned i = 0; i < FARS; i++)
        ff_close_fd(&w.far[i]);
    int next = dup(STDOUT_FILENO); /* nothing is left open: numbers do not grow */
    must(next >= 0 && next < 32);
    close(next);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin(data, size);
    agent_loop(&w.a);
    end(w.a.kept && !w.a.ending);
    return 0;
}
