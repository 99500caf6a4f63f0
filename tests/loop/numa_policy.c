/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * numa_policy.c - guest memory with a NUMA policy: nothing brings its pages but what follows the
 * policy
 *
 * One node is enough: what is checked is who brings pages, and the policies of mappings.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"
#include "platform.h"

#define HUGE_PAGES 6
#define CELLS_PER_PAGE ((2u << 20) / CELL)
#define CELLS ((uint64_t)HUGE_PAGES * CELLS_PER_PAGE)

static void setup(void)
{
    image_new(CELLS);
}

static void bind_to_node_0(struct area *a)
{
    unsigned long node = 1;

    if (syscall(SYS_mbind, a->host, a->len_bytes, MPOL_BIND, &node, 8 * sizeof(node), 0))
        loop_skip("mbind: %s", strerror(errno));
}

static void prepare(struct move *m)
{
    m->tcp = true;
    m->n_regions = 1;
    m->cells[0] = CELLS;
    area_new(&m->area[0], m->memory, CELLS * CELL);
    bind_to_node_0(&m->area[0]);
}

/* Long enough that the thread that makes pages ready would have had its turn */
static void come_late(struct move *m, enum stage stage)
{
    const struct timespec nap = {.tv_nsec = 200000000};

    (void)m;
    if (stage == S_CONNECT)
        nanosleep(&nap, NULL);
}

static void no_moves(const char *options, enum memory memory)
{
    static struct move m;

    m = (struct move){.options = options, .memory = memory, .hook = come_late};
    prepare(&m);
    move_run(&m);
    must(!m.dst.stats.bytes_moved);
    move_must_succeed(&m);
}

static void no_pool(void)
{
    no_moves("", MEM_ANON);
}

static void no_staging(void)
{
    no_moves("landing=move", MEM_ANON_THP);
}

/* Mappings of the guest's file, by their policy */
static void look(struct move *m, enum stage stage)
{
    char line[512];
    unsigned n = 0, bound = 0;

    (void)m;
    if (stage != D_RUNNING)
        return;
    FILE *f = fopen("/proc/self/numa_maps", "re");
    must(f);
    while (fgets(line, sizeof(line), f)) {
        if (!strstr(line, "memfd:farfork-loop"))
            continue;
        n++;
        bound += strstr(line, " bind:0 ") != NULL;
    }
    fclose(f);
    if (n != 2 || bound != 2)
        loop_fail(__FILE__, __LINE__, "%u of %u mappings are bound, want 2 of 2", bound, n);
}

static void in_place(enum memory memory)
{
    static struct move m;

    m = (struct move){.options = "landing=continue", .memory = memory, .hook = look};
    prepare(&m);
    move_run(&m);
    move_must_succeed(&m);
}

static void alias_memfd(void)
{
    in_place(MEM_MEMFD);
}

static void alias_hugetlb(void)
{
    in_place(MEM_HUGETLB);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp: no stock", no_pool, 0},
        {"tcp: no staging", no_staging, 0},
        {"tcp: alias of a memfd", alias_memfd, 0},
        {"tcp: alias of a hugetlb memfd", alias_hugetlb, 0},
    };

    const char *why = pl_huge_reserve(HUGE_PAGES);
    if (why)
        printf("SKIP: the alias of a hugetlb memfd: %s\n", why);
    int rc = loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]) - !!why);
    pl_huge_restore();
    return rc;
}
