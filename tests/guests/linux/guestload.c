/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guestload.c - load of the Linux test guest: start the workers, count, report
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Notice, inside the guest, anything that a move or a fork of the
 *              machine breaks: memory, time, disk, network. It repairs nothing.
 * Picture      memory workers (gl_mem.c, one a vCPU) --.
 *              counter, 100 Hz (here) ----------------+--> gl_stats --> report,
 *              disk worker (gl_disk.c) ---------------+    one JSON line a 250 ms
 *              TCP server, port 7000 (gl_tcp.c) ------'
 *              UDP echo on the same port (gl_udp.c)
 *              calls of a remote accelerator, if asked for (gl_rpc.c)
 * Threads      every worker is one thread; gl_stats is atomic, the text of the
 *              first error is under error_lock.
 * Invariants   1. seq of the report lines is contiguous: a lost or doubled line
 *                 is a fault of the serial port's device state.
 *              2. no worker ever resets a count.
 * Limits       the counter does not catch up after a gap, so that one long stall
 *              is one long gap; the guest's clock stands still while the machine
 *              is stopped, so downtime proper shows only outside (tcpclient.py).
 *
 * usage: guestload [key=value...]; the same keys come as farfork.KEY=VALUE from
 * the kernel command line: mem, duty, disk, disk_mib, disk_pause_us, port, report,
 * rpc=ADDRESS:PORT, rpc_kib, rpc_depth.
 */
#include "guestload.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <linux/serial.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define REPORT_NS 250000000ull
#define TICK_NS 10000000ull
#define PORT_NAME "farfork.report"

struct gl_stats gl_stats;
struct gl_config gl_config = {
    .duty_percent = 100, .disk_mib = 1024, .disk_pause_us = 2000, .port = 7000,
    .rpc_kib = 64, .rpc_depth = 4,
    .disk = "/dev/vda",
};
uint64_t gl_ramp[GL_WORDS];

static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char first_error[GL_ERROR_MAX];

uint64_t gl_mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
}

uint64_t gl_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return gl_mix(*state);
}

uint64_t gl_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = { .tv_sec = (time_t)(ns / 1000000000ull),
                          .tv_nsec = (long)(ns % 1000000000ull) };

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

void gl_sleep_ns(uint64_t ns)
{
    sleep_until(gl_now_ns() + ns);
}

void gl_ramp_init(void)
{
    for (unsigned i = 0; i < GL_WORDS; i++)
        gl_ramp[i] = gl_mix(i % GL_PERIOD + 1);
}

void gl_fail(_Atomic uint64_t *count, const char *fmt, ...)
{
    va_list ap;

    atomic_fetch_add(count, 1);
    pthread_mutex_lock(&error_lock);
    if (!first_error[0]) {
        va_start(ap, fmt);
        vsnprintf(first_error, sizeof(first_error), fmt, ap);
        va_end(ap);
        for (char *c = first_error; *c; c++)
            if (*c < ' ' || *c == '"' || *c == '\\')
                *c = '?';
    }
    pthread_mutex_unlock(&error_lock);
}

struct start {
    void *(*run)(void *);
    void *arg;
    int prio;
};

static void *trampoline(void *arg)
{
    struct start s = *(struct start *)arg;
    struct sched_param p = { .sched_priority = 10 };

    free(arg);
    /* both are a courtesy: without them the load works, its gaps mean less */
    if (s.prio == GL_FIFO)
        sched_setscheduler(0, SCHED_FIFO, &p);
    else if (s.prio)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), s.prio);
    return s.run(s.arg);
}

void gl_start(void *(*run)(void *), void *arg, int nice_or_fifo)
{
    struct start *s = malloc(sizeof(*s));
    pthread_t t;

    if (!s)
        abort();
    *s = (struct start){ run, arg, nice_or_fifo };
    if (pthread_create(&t, NULL, trampoline, s) != 0) {
        perror("guestload: start thread");
        exit(1);
    }
    pthread_detach(t);
}

static void *run_counter(void *arg)
{
    uint64_t last = gl_now_ns(), now, gap;

    (void)arg;
    for (;;) {
        sleep_until(last + TICK_NS);
        now = gl_now_ns();
        if (now < last) {
            gl_fail(&gl_stats.clock_errors, "clock: went back by %" PRIu64 " ns", last - now);
            gap = 0;
        } else {
            gap = now - last;
        }
        if (gap > gl_stats.max_gap_ns)
            gl_stats.max_gap_ns = gap;
        if (gap > gl_stats.recent_gap_ns)
            gl_stats.recent_gap_ns = gap;
        atomic_fetch_add(&gl_stats.counter, 1);
        last = now;
    }
    return NULL;
}

static void set_u64(uint64_t *v, const char *text, uint64_t min, uint64_t max)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);

    if (end != text && !*end && n >= min && n <= max)
        *v = n;
    else
        fprintf(stderr, "guestload: number %s not in [%" PRIu64 ", %" PRIu64 "], ignored\n",
                text, min, max);
}

static void set_option(const char *word)
{
    const char *v = strchr(word, '=');
    size_t n = v ? (size_t)(v++ - word) : 0;
    struct gl_config *c = &gl_config;

#define IS(key) (n == sizeof(key) - 1 && !memcmp(word, key, n))
    if (IS("mem"))
        set_u64(&c->mem_mib, v, 1, 1 << 24);
    else if (IS("duty"))
        set_u64(&c->duty_percent, v, 1, 100);
    else if (IS("disk_mib"))
        set_u64(&c->disk_mib, v, 2, 1 << 20);
    else if (IS("disk_pause_us"))
        set_u64(&c->disk_pause_us, v, 0, 10000000);
    else if (IS("port"))
        set_u64(&c->port, v, 0, 65535);
    else if (IS("rpc_kib"))
        set_u64(&c->rpc_kib, v, 1, 1 << 14);
    else if (IS("rpc_depth"))
        set_u64(&c->rpc_depth, v, 1, 64);
    else if (IS("rpc"))
        snprintf(c->rpc, sizeof(c->rpc), "%s", v);
    else if (IS("disk"))
        snprintf(c->disk, sizeof(c->disk), "%s", v);
    else if (IS("report"))
        snprintf(c->report, sizeof(c->report), "%s", v);
#undef IS
}

static void read_cmdline(void)
{
    char line[4096], *save, *w;
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return;
    line[n] = 0;
    for (w = strtok_r(line, " \n", &save); w; w = strtok_r(NULL, " \n", &save))
        if (!strncmp(w, "farfork.", 8))
            set_option(w + 8);
}

/* The virtio-serial port whose name is PORT_NAME; false: there is none. */
static int find_virtio_port(char *path, size_t len)
{
    glob_t g;
    int found = 0;

    if (glob("/sys/class/virtio-ports/*/name", 0, NULL, &g))
        return 0;
    for (size_t i = 0; i < g.gl_pathc && !found; i++) {
        char name[64] = "", *dir = g.gl_pathv[i], *slash;
        FILE *f = fopen(dir, "re");

        if (!f)
            continue;
        if (fgets(name, sizeof(name), f) && !strncmp(name, PORT_NAME "\n", sizeof(PORT_NAME))) {
            *strrchr(dir, '/') = 0;
            slash = strrchr(dir, '/');
            found = snprintf(path, len, "/dev/%s", slash + 1) < (int)len;
        }
        fclose(f);
    }
    globfree(&g);
    return found;
}

/* /dev/ttyS1 exists always; whether there is a UART behind it only the driver knows. */
static int open_uart(const char *path)
{
    struct serial_struct ss = { 0 };
    struct termios t;
    int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return -1;
    if (ioctl(fd, TIOCGSERIAL, &ss) < 0 || ss.type == PORT_UNKNOWN) {
        close(fd);
        return -1;
    }
    if (!strcmp(path, "/dev/ttyS1") && tcgetattr(fd, &t) == 0) {
        cfmakeraw(&t);
        cfsetspeed(&t, B115200);
        tcsetattr(fd, TCSANOW, &t);
    }
    return fd;
}

static int open_report(void)
{
    char path[64];
    int fd = -1;

    if (gl_config.report[0]) {
        fd = open(gl_config.report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0)
            perror(gl_config.report);
        return fd;
    }
    if (find_virtio_port(path, sizeof(path)))
        fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        fd = open_uart("/dev/ttyS1");
    if (fd < 0)
        fd = open_uart("/dev/ttyS0");
    if (fd < 0)
        fprintf(stderr, "guestload: report: no port " PORT_NAME ", no ttyS1, no ttyS0\n");
    return fd;
}

static int format_report(char *line, size_t len, uint64_t seq)
{
    struct gl_stats *s = &gl_stats;
    char error[GL_ERROR_MAX + 2] = "null";

    pthread_mutex_lock(&error_lock);
    if (first_error[0])
        snprintf(error, sizeof(error), "\"%s\"", first_error);
    pthread_mutex_unlock(&error_lock);
    return snprintf(line, len,
        "{\"farfork\":\"linux\",\"seq\":%" PRIu64 ",\"uptime_ms\":%" PRIu64
        ",\"mem_mib\":%" PRIu64 ",\"mem_checked\":%" PRIu64 ",\"mem_errors\":%" PRIu64
        ",\"mem_passes\":%" PRIu64 ",\"counter\":%" PRIu64 ",\"max_gap_ms\":%.1f"
        ",\"gap_ms\":%.1f,\"clock_errors\":%" PRIu64 ",\"disk_writes\":%" PRIu64
        ",\"disk_reads\":%" PRIu64
        ",\"disk_errors\":%" PRIu64 ",\"tcp_lines\":%" PRIu64 ",\"tcp_conns\":%" PRIu64
        ",\"tcp_errors\":%" PRIu64 ",\"rpc_calls\":%" PRIu64 ",\"rpc_errors\":%" PRIu64 ",\"first_error\":%s}\n",
        seq, gl_now_ns() / 1000000u, s->mem_mib, s->mem_checked, s->mem_errors, s->mem_passes,
        s->counter, (double)s->max_gap_ns / 1e6,
        (double)atomic_exchange(&s->recent_gap_ns, 0) / 1e6, s->clock_errors, s->disk_writes,
        s->disk_reads, s->disk_errors, s->tcp_lines, s->tcp_conns, s->tcp_errors, s->rpc_calls, s->rpc_errors,
        error);
}

int main(int argc, char **argv)
{
    uint64_t next;
    char line[1024];
    int fd;

    read_cmdline();
    for (int i = 1; i < argc; i++)
        set_option(argv[i]);
    fd = open_report();
    if (fd < 0)
        return 1;

    gl_ramp_init();
    gl_start(run_counter, NULL, GL_FIFO);
    gl_tcp_start();
    gl_udp_start();
    gl_rpc_start();
    gl_disk_start();
    gl_mem_start();

    next = gl_now_ns();
    for (uint64_t seq = 1;; seq++) {
        int n = format_report(line, sizeof(line), seq);

        /* one write a line: a virtio-serial port then carries it as one buffer */
        for (int done = 0; done < n;) {
            ssize_t w = write(fd, line + done, (size_t)(n - done));

            if (w < 0 && errno != EINTR && errno != EAGAIN) {
                perror("guestload: report");
                return 1;
            }
            done += w > 0 ? (int)w : 0;
        }
        next += REPORT_NS;
        if (next < gl_now_ns())
            next = gl_now_ns();
        sleep_until(next);
    }
}
