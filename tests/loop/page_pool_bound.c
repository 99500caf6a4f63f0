/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_pool_bound.c - pages made ready (prealloc) and installed: together never more than the guest
 */
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

#define CELLS 6000
#define MORE 501
#define ALL ((CELLS + MORE) * (uint64_t)CELL)
#define SLACK (ALL / 4) /* slots, buffers, stacks; a stock that is kept would be ALL */

static uint64_t before;

static void setup(void)
{
    image_new(CELLS + MORE);
}

static uint64_t resident(void)
{
    unsigned long size, rss = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    must(f && fscanf(f, "%lu %lu", &size, &rss) == 2);
    fclose(f);
    return rss * 4096ull;
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 1000000};

    nanosleep(&t, NULL);
}

/* --- the most that was resident from RUNNING on --- */

static pthread_t watcher;
static atomic_bool watching, enough;
static uint64_t most;

static void *watch_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&enough)) {
        most = FF_MAX(most, resident());
        nap();
    }
    return NULL;
}

/* The source comes when all pages are ready; the watch begins when the guest runs. On a kernel that
 * moves no pages (before Linux 6.8) none is made ready, however late the source comes */
static void hook(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == S_CONNECT && !loop_kernel()->moves) {
        for (unsigned ms = 0; ms < 500; ms++, nap())
            must(resident() < before + SLACK);
    } else if (stage == S_CONNECT)
        for (unsigned i = 0; resident() < before + ALL; i++) {
            must(i < 10000);
            nap();
        }
    if (stage != D_RUNNING)
        return;
    must(!pthread_create(&watcher, NULL, watch_main, NULL));
    atomic_store(&watching, true);
}

static void bounded(const char *faults, struct move *m)
{
    struct ff_error err;

    if (UNDER_SANITIZER)
        loop_skip("a sanitizer's own memory cannot be told from the guest's");
    must_ok(ff_failpoints_arm(faults, &err), err);
    before = resident();
    m->tcp = true;
    m->hook = hook;
    m->cells[0] = CELLS;
    m->cells[1] = MORE;
    m->n_regions = 2;
    move_run(m);
    must(atomic_load(&watching));
    atomic_store(&enough, true);
    pthread_join(watcher, NULL);
    printf("the guest has %llu KiB; %llu KiB at most\n", (unsigned long long)ALL >> 10,
           (unsigned long long)(most - before) >> 10);
    if (most > before + ALL + SLACK)
        loop_fail(__FILE__, __LINE__, "resident: %llu bytes, want at most %llu",
                  (unsigned long long)(most - before), (unsigned long long)(ALL + SLACK));
}

/* Faults bring most pages, long before prefill comes to them */
static void by_faults(void)
{
    static struct move m = {.touchers = 4, .touches = 3 * (CELLS + MORE)};

    /* a lab's faults take as much longer */
    bounded(loop_in_lab() ? "tcp.serve.prefill=delay:2000000" : "tcp.serve.prefill=delay:200000", &m);
    must(m.dst.stats.bytes_fault > m.dst.stats.bytes_prefill);
    move_must_succeed(&m);
}

/* The kernel moves no page into a private mapping of a file: all are copied, and counted so */
static void move_refused(void)
{
    static struct move m = {.memory = MEM_MEMFD_PRIVATE};

    bounded("tcp.serve.prefill=delay:20000", &m);
    must(!m.dst.stats.bytes_moved);
    must(m.dst.stats.bytes_prefill && m.dst.stats.bytes_copied >= m.dst.stats.bytes_prefill);
    move_must_succeed(&m);
}

/* Nobody will fetch the rest: its pages are given back, although the guest is still here */
static void breaks(const char *faults, unsigned touchers)
{
    static struct move m;

    m = (struct move){.touchers = touchers, .touch_late = true};
    bounded(faults, &m);
    must(m.ran && m.dst.rc && m.dst.stage >= D_RUNNING);
    must(m.dst.stats.bytes_present < ALL / 2);
    for (unsigned i = 0; resident() > before + m.dst.stats.bytes_present + SLACK; i++) {
        if (i >= 10000)
            loop_fail(__FILE__, __LINE__, "%llu bytes are there, %llu resident",
                      (unsigned long long)m.dst.stats.bytes_present,
                      (unsigned long long)(resident() - before));
        nap();
    }
    fflush(NULL);
    _exit(0); /* who touches what is missing never comes back */
}

static void break_in_prefill(void)
{
    breaks("tcp.serve.prefill=fail@4", 0);
}

static void break_in_fault(void)
{
    breaks("tcp.serve.prefill=delay:200000,tcp.serve.fault=fail@40", 1);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp: faults bring most", by_faults, 60},
        {"tcp: the kernel refuses to move", move_refused, 0},
        {"tcp: breaks in prefill", break_in_prefill, 0},
        {"tcp: breaks in a fault", break_in_fault, 0},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
