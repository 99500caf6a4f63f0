/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * resume.c - links that break after GO: the guest waits, another link comes, no byte is wrong
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"
#include "platform.h"

#define HUGE_PAGES 16
#define CELLS_PER_PAGE ((2u << 20) / CELL)
#define FINE "chunk=64K,window=1"
/* However busy the machine: what is to break has not been brought by the other by then */
#define SLOW_PREFILL "dest.prefill=delay:10000"
#define SLOW_FAULTS "dest.fault=delay:2000,"

static const char *no_huge; /* why there are no huge pages */

static void setup(void)
{
    image_new(HUGE_PAGES / 2 * CELLS_PER_PAGE);
}

#define GUEST .touchers = 8, .writes = true, .touch_late = true

/* --- at one pass of a failpoint after the other --- */

static void source_prefill(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull"}; /* nobody else brings anything */
    move_must_survive(&m,
                      SLOW_FAULTS "tcp.serve.prefill=fail@3,tcp.serve.prefill=fail@7,"
                                  "tcp.serve.prefill=fail@19,tcp.serve.prefill=fail@30",
                      4);
}

/* One link breaks with one chunk on its way, three times */
static void counted(void)
{
    static struct move m;
    struct ff_stats *st = &m.dst.stats;

    m = (struct move){.options = FINE ",prefill=pull", .resumes = true, .tcp = true};
    loop_arm("tcp.serve.prefill=fail@3,tcp.serve.prefill=fail@7,tcp.serve.prefill=fail@19");
    uint64_t began = ff_now_ns();
    move_run(&m);
    uint64_t took = ff_now_ns() - began;
    if (st->breaks != 3 || !st->bytes_again || st->bytes_again > 3 * (64u << 10) ||
        st->paused_ns > took || m.breaks_dst != 3)
        loop_fail(__FILE__, __LINE__, "%llu breaks of %u, %llu bytes again, %llu ns of %llu",
                  (unsigned long long)st->breaks, atomic_load(&m.breaks_dst),
                  (unsigned long long)st->bytes_again, (unsigned long long)st->paused_ns,
                  (unsigned long long)took);
    move_must_succeed(&m);
}

static void dest_prefill(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST};
    move_must_survive(
        &m, SLOW_FAULTS "dest.prefill=fail@2,dest.prefill=fail@9,dest.prefill=fail@23", 3);
}

static void source_fault(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST};
    move_must_survive(&m,
                      SLOW_PREFILL ",tcp.serve.fault=fail@5,tcp.serve.fault=fail@17,"
                                   "tcp.serve.fault=fail@60",
                      3);
}

static void push(void)
{
    static struct move m;

    m = (struct move){.options = "chunk=64K,window=16,prefill=push", GUEST};
    move_must_survive(&m,
                      SLOW_FAULTS "tcp.serve.prefill=fail@3,dest.prefill=fail@11,"
                                  "tcp.serve.prefill=fail@21",
                      3);
    must(atomic_load(&m.breaks_src) == 3); /* what the last link granted is not pushed */
}

/* --- memory of every kind --- */

static void every_landing(enum memory memory, const char *options)
{
    static struct move m;

    m = (struct move){.options = options, .memory = memory, GUEST};
    move_must_survive(&m,
                      SLOW_FAULTS "dest.prefill=fail@3,dest.prefill=fail@9,dest.prefill=fail@17,"
                                  "tcp.serve.prefill=fail@6,tcp.serve.fault=fail@4",
                      3);
}

static void memfd_copy(void)
{
    every_landing(MEM_MEMFD, FINE ",prefill=pull,landing=copy");
}

static void memfd_in_place(void)
{
    every_landing(MEM_MEMFD, FINE ",prefill=pull,landing=continue");
}

static void memfd_push(void)
{
    every_landing(MEM_MEMFD, FINE ",prefill=push,landing=continue");
}

static void thp_move(void)
{
    static struct move m;

    m = (struct move){.options = "prefill=pull,landing=move",
                      .memory = MEM_ANON_THP,
                      GUEST,
                      .n_regions = 1,
                      .cells = {8 * CELLS_PER_PAGE}};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@2,tcp.serve.prefill=fail@4", 2);
}

static void huge_move(const char *options)
{
    static struct move m;

    if (no_huge)
        loop_skip("%s", no_huge);
    m = (struct move){.options = options,
                      .memory = MEM_HUGETLB,
                      GUEST,
                      .touches = 2000,
                      .n_regions = 1,
                      .cells = {8 * CELLS_PER_PAGE}};
    /* eight pages, some of them zeros: whoever brings most of them is stopped at the second */
    move_must_survive(&m, "tcp.serve.prefill=fail@2,tcp.serve.fault=fail@2", 1);
}

static void huge_copy(void)
{
    huge_move("prefill=pull,landing=copy");
}

static void huge_in_place(void)
{
    huge_move("prefill=pull,landing=continue");
}

/* --- precopy=1: only what was written in the pass is missing after GO --- */

#define WRITTEN 1000u /* cells, from the first one on */

static void write_in_pass(struct move *m, enum stage stage)
{
    uint64_t bits[64] = {0}, none[64] = {0};
    struct ff_error err;

    if (stage != S_STATE)
        return;
    for (unsigned c = 0; c < WRITTEN; c++) {
        image_flip(c);
        bits[c / 64] |= 1ull << (c % 64);
    }
    must_ok(ff_source_precopy(m->source, &err), err);
    for (unsigned c = 0; c < WRITTEN; c++)
        image_flip(c);
    must_ok(ff_source_dirty(m->source, 0, bits, CELL, &err), err);
    must_ok(ff_source_dirty(m->source, 1, none, CELL, &err), err);
}

static void after_pass(enum memory memory, const char *options)
{
    static struct move m;

    /* the pass itself takes 126 chunks */
    loop_arm(SLOW_FAULTS "tcp.serve.prefill=fail@130,tcp.serve.prefill=fail@141,"
                         "tcp.serve.fault=fail@3");
    m = (struct move){.tcp = true,
                      .resumes = true,
                      .options = options,
                      .memory = memory,
                      GUEST,
                      .hook = write_in_pass};
    move_run(&m);
    if (m.src.rc || m.dst.rc || atomic_load(&m.breaks_src) < 2)
        loop_fail(__FILE__, __LINE__, "%u breaks; source: %s; destination: %s",
                  atomic_load(&m.breaks_src), m.src.err.text, m.dst.err.text);
    must(m.dst.stats.bytes_discarded >= WRITTEN * CELL);
    touchers_join(&m);
    verify_all(&m);
    move_free(&m);
}

static void precopy_anon(void)
{
    after_pass(MEM_ANON, FINE ",prefill=pull,precopy=1");
}

static void precopy_memfd(void)
{
    after_pass(MEM_MEMFD, FINE ",prefill=pull,precopy=1,landing=continue");
}

/* --- at random passes --- */

#define ROUNDS 16u

static void random_passes(void)
{
    static const char *const points[] = {"tcp.serve.prefill", "tcp.serve.fault", "dest.prefill"};
    static const struct {
        enum memory memory;
        const char *options;
    } kinds[] = {
        {MEM_ANON, FINE ",prefill=pull"},
        {MEM_ANON, FINE ",prefill=push"},
        {MEM_MEMFD, FINE ",prefill=pull,landing=continue"},
        {MEM_MEMFD, FINE ",prefill=push"},
    };
    const char *given = getenv("FARFORK_TEST_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : (unsigned)(ff_now_ns() % 1000000), broken = 0;
    static struct move m;

    printf("      seed %u (FARFORK_TEST_SEED)\n", seed);
    for (unsigned i = 0; i < ROUNDS; i++) {
        char faults[300] = "dest.prefill=delay:300";
        for (unsigned k = 0; k < 6; k++) {
            size_t used = strlen(faults);
            unsigned at = 2 + (unsigned)rand_r(&seed) % 60; /* never the first one */
            snprintf(faults + used, sizeof(faults) - used, ",%s=fail@%u",
                     points[(unsigned)rand_r(&seed) % FF_ARRAY_LEN(points)], at);
        }
        m = (struct move){.options = kinds[i % 4].options, .memory = kinds[i % 4].memory, GUEST};
        move_must_survive(&m, faults, 0);
        broken += atomic_load(&m.breaks_src);
    }
    printf("      %u breaks in %u moves\n", broken, ROUNDS);
    must(broken > ROUNDS);
}

/* --- a thread in a fault whose read the link loses --- */

static struct peek waits;

static void break_in_flight(struct move *m, enum stage stage)
{
    uint64_t cell = 700;

    if (stage != D_DONE)
        return;
    while (cell_is_zero(cell))
        cell++;
    peek_start(&waits, m, cell);
    must(peek_blocked(&waits)); /* its read takes a second */
    ff_dest_pause(m->dest);
}

static void still_waits(struct move *m, bool source)
{
    struct ff_stats st, later;

    if (source)
        return;
    ff_dest_stats(m->dest, &st);
    usleep(1000);
    ff_dest_stats(m->dest, &later);
    must(!st.breaks && st.paused_ns && later.paused_ns > st.paused_ns); /* it lasts */
    must(st.faults && !atomic_load(&waits.ended) && peek_blocked(&waits));
}

static void in_flight(void)
{
    static struct move m;

    m = (struct move){
        .options = FINE ",prefill=pull", .hook = break_in_flight, .broken = still_waits};
    move_must_survive(&m, "tcp.serve.fault=delay:3000000@1,dest.prefill=delay:20000@1-20", 1);
    must(m.dst.stats.bytes_again >= CELL);
    must(wait_flag(&waits.ended, 20000)); /* all memory is here */
    pthread_join(waits.thread, NULL);
}

/* --- breaks while it resumes --- */

static void while_resuming(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST};
    move_must_survive(&m,
                      SLOW_FAULTS
                      "tcp.serve.prefill=fail@4,source.resume=fail@1-2,dest.resume=fail@2-3,"
                      "tcp.serve.prefill=fail@12,source.resume=fail@7",
                      2);
    must(ff_failpoint_hits("source.resume") >= 6);
}

/* --- without memory for what has come: it is kept, and tried again whatever the link does --- */

static void short_of_memory(const char *options, enum memory memory)
{
    static struct move m;

    m = (struct move){.options = options, .memory = memory, GUEST};
    move_must_survive(
        &m, "dest.install=fail:12@20-60,tcp.serve.prefill=fail@4,tcp.serve.fault=fail@15", 1);
    must(ff_failpoint_hits("dest.install") > 60);
}

static void memory_short(void)
{
    short_of_memory(FINE ",prefill=pull", MEM_ANON);
}

static void memory_short_in_place(void)
{
    short_of_memory(FINE ",prefill=pull,landing=continue", MEM_MEMFD);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"prefill breaks at the source", source_prefill, 30},
        {"breaks are counted", counted, 30},
        {"prefill breaks at the destination", dest_prefill, 30},
        {"faults break", source_fault, 30},
        {"push breaks", push, 30},
        {"memfd copied", memfd_copy, 30},
        {"memfd in place", memfd_in_place, 30},
        {"memfd pushed", memfd_push, 30},
        {"thp moved", thp_move, 30},
        {"hugetlb copied", huge_copy, 60},
        {"hugetlb in place", huge_in_place, 60},
        {"precopy=1, copied", precopy_anon, 30},
        {"precopy=1, in place", precopy_memfd, 30},
        {"random passes", random_passes, 120},
        {"a fault in flight", in_flight, 30},
        {"breaks while it resumes", while_resuming, 30},
        {"memory is short", memory_short, 60},
        {"memory is short in place", memory_short_in_place, 60},
    };

    no_huge = pl_huge_reserve(HUGE_PAGES);
    int rc = loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
