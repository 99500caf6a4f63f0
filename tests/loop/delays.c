/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * delays.c - moves that succeed although something is slow, or comes in small segments
 */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(4000);
}

static void slow(bool tcp, const char *faults, const char *options, enum memory memory,
                 bool must_duplicate)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm(faults, &err), err);
    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .touchers = 8,
                      .writes = true, .touches = must_duplicate ? 100 : 4000,
                      .touch_late = must_duplicate};
    move_run(&m);
    if (must_duplicate)
        must(m.dst.stats.bytes_duplicated > 0);
    move_must_succeed(&m);
}

/* There is no thread for it at first: faults are served, and it begins when there is one */
static void prefill_starts_late(void)
{
    slow(true, "dest.prefill.start=fail:11@1-4", NULL, MEM_ANON, false);
}

/* A chunk that was read long ago is installed late: what was written meanwhile stays */
static void late_prefill(void)
{
    slow(false, "dest.prefill=delay:100000", "window=4,chunk=4M", MEM_ANON, true);
    slow(true, "dest.prefill=delay:100000", "window=4,chunk=4M", MEM_ANON, true);
    slow(true, "dest.prefill=delay:10000", "window=4,chunk=4M,landing=continue", MEM_MEMFD, false);
    slow(true, "dest.prefill=delay:100000", "window=4,chunk=4M,landing=copy", MEM_MEMFD, true);
    slow(true, "dest.prefill=delay:100000", "window=4,chunk=4M", MEM_MEMFD_PRIVATE, true);
}

/* Between claim and page: others wait for that page meanwhile */
static void slow_install(void)
{
    slow(false, "dest.install=delay:300", NULL, MEM_ANON, false);
    slow(true, "dest.install=delay:300", NULL, MEM_MEMFD, false);
    slow(true, "dest.install=delay:300", "landing=continue", MEM_MEMFD, false);
}

static void slow_fault_thread(void)
{
    slow(false, "dest.fault=delay:2000", NULL, MEM_ANON, false);
    slow(true, "dest.fault=delay:2000", NULL, MEM_ANON, false);
}

static void slow_source(void)
{
    slow(true, "tcp.serve.fault=delay:1000", NULL, MEM_ANON, false);
    slow(true, "tcp.serve.prefill=delay:50000", NULL, MEM_ANON, false);
    slow(true, "tcp.serve.fault=delay:500,tcp.serve.prefill=delay:5000", "chunk=64K", MEM_MEMFD,
         false);
    slow(false, "loop.read=delay:500", "chunk=64K", MEM_ANON, false);
}

static void slow_stages(void)
{
    slow(false, "source.publish=delay:30000,source.state=delay:30000,source.go=delay:30000,"
                "source.running=delay:30000", NULL, MEM_ANON, false);
    slow(true, "dest.accepted=delay:30000,dest.pager=delay:30000,dest.state=delay:30000,"
               "dest.ready=delay:30000,dest.running=delay:30000", NULL, MEM_ANON, false);
    slow(true, "control.send=delay:10000", NULL, MEM_ANON, false);
}

static void short_receives(void)
{
    slow(true, "tcp.recv.short=fail", NULL, MEM_ANON, false);
}

static void short_sends(void)
{
    slow(true, "tcp.send.short=fail@1-10000", "chunk=64K", MEM_ANON, false); /* of 5 bytes each */
}

/* What is slow with prefill may not be slow with faults: the queues are independent */
static void faults_first(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("tcp.serve.prefill=delay:300000", &err), err);
    m = (struct move){.tcp = true, .options = "chunk=4M,window=1", .touchers = 1, .touches = 300};
    move_run(&m);
    must(m.dst.stats.faults > 20);
    must(m.dst.stats.fault_p50_ns < 150000000);
    move_must_succeed(&m);
}

/* Activating disks takes longer than a peer may be silent: it is not silent. The limit is far above
 * what a busy machine stands still for */
static void slow_activation(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.running=delay:6500000,source.go=delay:500000", &err), err);
    m = (struct move){.tcp = true, .go_timeout_ms = 4500};
    move_run(&m);
    move_must_succeed(&m);
}

/* Each message is in time, all together are not: the guest goes on at the source */
static void slow_pause(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("control.send=delay:100000", &err), err);
    m = (struct move){.tcp = true, .state_bytes = 3u << 20, .pause_ms = 1000};
    move_run(&m);
    must(!m.went && !m.ran && m.src.stage == S_STATE && m.src.rc == -ETIMEDOUT && m.dst.rc);
    move_free(&m);
}

/* Nor is a destination that loads for too long, or a source that comes to GO too late */
static void slow_ready(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.ready=delay:1500000", &err), err);
    m = (struct move){.tcp = true, .pause_ms = 1000};
    move_run(&m);
    must(!m.went && !m.ran && m.src.stage == S_READY && m.src.rc == -ETIMEDOUT && m.dst.rc);
    move_free(&m);
    must_ok(ff_failpoints_arm("source.go=delay:1500000", &err), err);
    m = (struct move){.tcp = true, .pause_ms = 1000};
    move_run(&m);
    must(!m.went && !m.ran && m.src.stage == S_GO && m.src.rc == -ETIME && m.dst.rc);
    move_free(&m);
}

/* A host that was suspended: of its clocks this one has gone on */
static atomic_int suspended_s;

int clock_gettime(clockid_t id, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, id, ts);

    if (!rc && id == CLOCK_BOOTTIME)
        ts->tv_sec += atomic_load(&suspended_s);
    return rc;
}

static void suspend_before_go(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == S_GO)
        atomic_store(&suspended_s, 3600);
}

/* Its destination may have left long ago, and what says so be on its way yet */
static void suspended(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .hook = suspend_before_go};
    move_run(&m);
    must(!m.went && !m.ran && m.src.stage == S_GO && m.src.rc == -ETIME && m.dst.rc);
    move_free(&m);
}

/* A destination that gets no thread to say that it is alive has said READY by then: it goes on */
static void no_beat(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.beat=fail:11,source.go=delay:300000", &err), err);
    m = (struct move){.tcp = true};
    move_run(&m);
    move_must_succeed(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"late prefill", late_prefill, 0},     {"prefill starts late", prefill_starts_late, 0},
        {"slow install", slow_install, 0},
        {"slow fault thread", slow_fault_thread, 40}, {"slow source", slow_source, 40},
        {"slow stages", slow_stages, 0},       {"short receives", short_receives, 40},
        {"short sends", short_sends, 60},      {"faults first", faults_first, 0},
        {"slow activation", slow_activation, 0}, {"slow pause", slow_pause, 0},
        {"slow ready, slow go", slow_ready, 0}, {"suspended", suspended, 0},
        {"no beat", no_beat, 0},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
