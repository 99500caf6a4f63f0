/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hugetlb.c - 2 MiB pages: moved whole, while 8 threads read and write
 *
 * Adds huge pages to the pool when there are too few and it may, and gives them back.
 */
#include <string.h>
#include <sys/mman.h>

#include "loop.h"
#include "platform.h"
#include "uffd.h"

#define HUGE_PAGES 48
#define CELLS_PER_PAGE ((2u << 20) / CELL)

static void setup(void)
{
    image_new(HUGE_PAGES * CELLS_PER_PAGE);
}

static void move_huge(bool tcp, enum memory memory, const char *options)
{
    static struct move m;

    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .touchers = 8,
                      .writes = true, .touches = 2000, .n_regions = 2,
                      .cells = {40 * CELLS_PER_PAGE, 8 * CELLS_PER_PAGE}};
    move_run(&m);
    must((m.dst.stats.bytes_zero || m.dst.stats.bytes_continued) && m.dst.stats.bytes_fault);
    move_must_succeed(&m);
}

static void loop_copy(void)
{
    move_huge(false, MEM_HUGETLB, "landing=copy");
}

static void tcp_copy(void)
{
    move_huge(true, MEM_HUGETLB, "landing=copy");
}

static void loop_continue(void)
{
    move_huge(false, MEM_HUGETLB, "landing=continue");
}

static void tcp_continue(void)
{
    move_huge(true, MEM_HUGETLB, "landing=continue");
}

static void loop_push(void)
{
    move_huge(false, MEM_HUGETLB, "prefill=push,landing=copy");
}

static void tcp_push(void)
{
    move_huge(true, MEM_HUGETLB, "prefill=push");
}

static void tcp_anon(void)
{
    move_huge(true, MEM_HUGETLB_ANON, NULL);
}

static void tcp_small_chunk(void)
{
    move_huge(true, MEM_HUGETLB, "chunk=4096,window=1");
}

static void tcp_large_chunk(void)
{
    move_huge(true, MEM_HUGETLB, "chunk=4M,window=8,landing=continue");
}

static void tcp_faults_alone(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "prefill=off", .memory = MEM_HUGETLB, .touchers = 2,
                      .touches = 4000, .n_regions = 1, .cells = {6 * CELLS_PER_PAGE}};
    move_run(&m);
    must(m.dst.stats.faults == 6 && !m.dst.stats.bytes_prefill);
    move_must_succeed(&m);
}

/* The pool is another's, who gives it back when the owner of the guest hears that it is empty */
static void *taken;
static size_t taken_bytes;
static unsigned n_short, n_again;

static void *map_huge(size_t pages)
{
    void *p = mmap(NULL, pages * CELLS_PER_PAGE * CELL, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    must(p != MAP_FAILED);
    return p;
}

static void give_back(void *opaque, const char *why)
{
    (void)opaque;
    n_again += !why;
    if (!why || n_short++)
        return;
    must(strstr(why, "no free huge pages"));
    must(!munmap(taken, taken_bytes));
}

static void listen_for_it(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        ff_dest_on_shortage(m->dest, give_back, NULL);
}

static void pool_is_empty(void)
{
    static struct move m;

    m = (struct move){.tcp = true,
                      .n_regions = 1,
                      .touchers = 2,
                      .touches = 4000,
                      .touch_late = true,
                      .hook = listen_for_it};
    m.area[0] = (struct area){.psize = CELLS_PER_PAGE * CELL, .fd = -1, .host = map_huge(8)};
    m.area[0].len_bytes = 8ull * m.area[0].psize;
    size_t pages = (size_t)pl_number(PL_HUGE_DIR "free_hugepages") - 4;
    taken_bytes = pages * m.area[0].psize;
    taken = map_huge(pages);
    memset(taken, 1, taken_bytes);
    move_run(&m);
    must(n_short == 1 && n_again == 1);
    move_must_succeed(&m);
}

/* A page that another has put there is no empty pool: to wait for one would never end */
static void is_there_already(void)
{
    static uint8_t bytes[2 * PL_HUGE];
    struct ff_error err;
    struct ff_uffd u;
    struct area a;
    uint64_t done;

    area_new(&a, MEM_HUGETLB, 3 * PL_HUGE);
    struct ff_uffd_range r = {.host = a.host, .len_bytes = a.len_bytes, .psize = a.psize,
                              .memory = FF_UFFD_HUGETLB, .landing = FF_UFFD_COPY, .shared = true};
    must_ok(ff_uffd_open(&u, &err), err);
    must_ok(ff_uffd_register(&u, &r, "ram", &err), err);
    must_ok(ff_uffd_install(&u, &r, 0, bytes, PL_HUGE, true, &done, &err), err);
    must(ff_uffd_install(&u, &r, 0, bytes, PL_HUGE, true, &done, &err) == -EEXIST);
    /* as if by another process: in the file, and not in the page table */
    uint8_t *other = mmap(NULL, a.len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
    must(other != MAP_FAILED);
    other[2 * PL_HUGE] = 1;
    must(ff_uffd_install(&u, &r, PL_HUGE, bytes, 2 * PL_HUGE, true, &done, &err) == -EEXIST);
    must(done == PL_HUGE && other[2 * PL_HUGE] == 1);
    ff_uffd_close(&u);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop copy", loop_copy, 0},         {"tcp copy", tcp_copy, 0},
        {"loop continue", loop_continue, 0}, {"tcp continue", tcp_continue, 0},
        {"loop push", loop_push, 0},         {"tcp push", tcp_push, 0},
        {"tcp anon", tcp_anon, 0},           {"tcp small chunk", tcp_small_chunk, 0},
        {"tcp large chunk", tcp_large_chunk, 0}, {"tcp faults alone", tcp_faults_alone, 0},
        {"pool is empty", pool_is_empty, 60},    {"is there already", is_there_already, 0},
    };

    signal(SIGINT, pl_on_signal); /* these give the pages back */
    signal(SIGTERM, pl_on_signal);
    const char *why = pl_huge_reserve(HUGE_PAGES);
    if (why) {
        pl_huge_restore();
        printf("SKIP: %s\n", why);
        return 77;
    }
    int rc = loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
    pl_huge_restore();
    return rc;
}
