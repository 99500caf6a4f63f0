/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * many.c - a hundred moves in one process leave nothing behind
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      moves that end well, that are refused and that are cancelled, one after the
 *              other; then memory, descriptors, threads and (over verbs, in the lab) RDMA
 *              resources are what they were after the first few.
 * Limits       HEAP_SLACK for what libraries keep in caches. Under a sanitizer the heap is
 *              its own to judge: it looks for leaks when the test's process ends.
 */
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loop.h"

#define WARM_UP 12u
#define MOVES 100u
#define HEAP_SLACK (32u << 10)

struct held {
    unsigned fds, rdma;
    size_t heap_bytes;
};

static unsigned entries(const char *folder)
{
    DIR *d = opendir(folder);
    unsigned n = 0;

    must(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Lines that `rdma resource show` has for this process */
static unsigned rdma_resources(bool show)
{
    static const char *const kinds[] = {"qp", "cq", "mr", "pd", "cm_id", "ctx", "srq"};
    char command[64], line[512], own[32];
    const char *link = getenv("FARFORK_TEST_LINK");
    unsigned n = 0;

    if (!link || strcmp(link, "verbs"))
        return 0;
    snprintf(own, sizeof(own), " pid %d ", getpid());
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        snprintf(command, sizeof(command), "rdma resource show %s", kinds[i]);
        FILE *f = popen(command, "r");
        must(f);
        while (fgets(line, sizeof(line), f)) {
            if (!strstr(line, own))
                continue;
            n++;
            if (show)
                printf("      %s: %s", kinds[i], line);
        }
        must(!pclose(f));
    }
    return n;
}

static struct held held_now(void)
{
    return (struct held){.fds = entries("/proc/self/fd"),
                         .rdma = rdma_resources(false),
                         .heap_bytes = UNDER_SANITIZER ? 0 : mallinfo2().uordblks};
}

/* A thread that was joined stays in /proc for a moment */
static void wait_threads(unsigned n)
{
    for (unsigned ms = 0; ms < 10000 && entries("/proc/self/task") > n; ms += 10)
        usleep(10000);
#ifndef __SANITIZE_THREAD__ /* which has a thread of its own, from when it likes */
    must(entries("/proc/self/task") == n);
#endif
}

static void cancel_before_go(struct move *m, enum stage stage)
{
    if (stage == S_READY)
        move_cancel_source(m);
}

static void once(unsigned i)
{
    static struct move m;
    bool refused = i % 5 == 3, cancelled = i % 5 == 4;

    m = (struct move){.tcp = true, .n_regions = 2, .cells = {300, 41},
                      .memory = i % 2 ? MEM_MEMFD : MEM_ANON};
    if (refused)
        m.config = "another machine";
    else if (cancelled)
        m.hook = cancel_before_go;
    else
        m.touchers = 2;
    move_run(&m);
    if (refused || cancelled) {
        must(m.src.rc && m.dst.rc && !m.went && !m.ran);
        move_free(&m);
    } else {
        move_must_succeed(&m);
    }
    for (unsigned r = 0; r < m.n_regions; r++)
        munmap(m.area[r].host, m.area[r].len_bytes);
}

static void hundred(void)
{
    unsigned threads = entries("/proc/self/task");
    struct held before, after;

    mallopt(M_ARENA_MAX, 1); /* mallinfo2() knows the first one alone */
    for (unsigned i = 0; i < WARM_UP; i++)
        once(i);
    wait_threads(threads);
    before = held_now();
    for (unsigned i = 0; i < MOVES; i++)
        once(i);
    wait_threads(threads);
    after = held_now();
    printf("      %u descriptors, %u RDMA resources, %zu bytes of heap before; %u, %u, %zu after\n",
           before.fds, before.rdma, before.heap_bytes, after.fds, after.rdma, after.heap_bytes);
    if (after.rdma != before.rdma)
        rdma_resources(true);
    fflush(stdout);
    must(after.fds == before.fds);
    must(after.rdma == before.rdma);
    must(after.heap_bytes < before.heap_bytes + HEAP_SLACK);
}

static void setup(void)
{
    image_new(341);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {{"a hundred moves", hundred, 100}};
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(*tests));
}
