/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * many_breaks.c - one move whose link breaks again and again: how many breaks it survives, how long
 *                 a fault waits for the next link, how many bytes are fetched twice
 */
/**
 * DOC: Theory of Operation
 *
 * Usage        many_breaks [--breaks N] [NAME...]: N in each move, default BREAKS
 * Picture      a round: two threads touch missing pages; at any moment meanwhile one side's link is
 *              shut down, then another missing page is touched: from the shutdown until that is here
 *              is what the guest waits. Each side breaks in turn.
 * Limits       the network is there all the time: what it costs both sides to find each other
 *              again. An outage adds itself, and what its end takes to be seen.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "hist.h"
#include "loop.h"

#define BREAKS 50u
#define CELLS_PER_BREAK 64u /* more than a round touches, and prefill brings */
#define ROUND_MS 20000u

static unsigned breaks = BREAKS;
static struct ff_hist wait_ns;
static unsigned n_injected;

static void setup(void)
{
    image_new(breaks * CELLS_PER_BREAK + 4000);
}

static uint64_t content_cell(uint64_t from)
{
    while (cell_is_zero(from))
        from++;
    return from;
}

/* One side's link is shut down: until both have seen that there was a break */
static void break_link(struct move *m, unsigned round)
{
    pthread_mutex_lock(&m->gate);
    if (round % 2)
        ff_source_pause(m->source);
    else
        ff_dest_pause(m->dest);
    pthread_mutex_unlock(&m->gate);
}

static void one_break(struct move *m, unsigned round, unsigned *seed)
{
    /* from the end on: prefill comes from the start */
    uint64_t at = m->n_cells - (uint64_t)(round + 1) * 16;
    struct peek busy[2], after;

    for (unsigned i = 0; i < 2; i++)
        peek_start(&busy[i], m, content_cell(at + 4 * i));
    usleep((useconds_t)(rand_r(seed) % 1000));
    uint64_t since = ff_now_ns();
    break_link(m, round);
    n_injected++;
    peek_start(&after, m, content_cell(at + 8));
    pthread_join(after.thread, NULL);
    ff_hist_add(&wait_ns, ff_now_ns() - since);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(busy[i].thread, NULL);
    for (unsigned ms = 0; atomic_load(&m->breaks_src) <= round || atomic_load(&m->breaks_dst) <= round;
         ms++, usleep(1000))
        if (ms >= ROUND_MS || atomic_load(&m->src.ended))
            loop_fail(__FILE__, __LINE__, "break %u of %u was not seen", round + 1, breaks);
}

static void *break_main(void *arg)
{
    struct move *m = arg;
    unsigned seed = (unsigned)getpid();

    for (unsigned i = 0; i < breaks; i++)
        one_break(m, i, &seed);
    return NULL;
}

static pthread_t breaker;

static void start_breaking(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        must(!pthread_create(&breaker, NULL, break_main, m));
    if (stage == D_END)
        pthread_join(breaker, NULL);
}

static void many(const char *options, enum memory memory, const char *faults)
{
    static struct move m;
    const struct ff_stats *st = &m.dst.stats;

    m = (struct move){.options = options, .memory = memory, .hook = start_breaking,
                      .n_regions = 1, .cells = {breaks * CELLS_PER_BREAK + 2000},
                      .tcp = true, .resumes = true};
    loop_arm(faults);
    move_run(&m);
    printf("      %llu breaks survived of %u; until a fault was served: p50 %.2f ms, p99 %.2f ms, max "
           "%.2f ms; %llu bytes fetched again for each\n",
           (unsigned long long)st->breaks, n_injected, (double)ff_hist_at(&wait_ns, 500) / 1e6,
           (double)ff_hist_at(&wait_ns, 990) / 1e6, (double)ff_hist_at(&wait_ns, 1000) / 1e6,
           (unsigned long long)st->bytes_again / breaks);
    must(n_injected == breaks && st->breaks >= breaks);
    move_must_succeed(&m);
}

/* prefill has more to do than there are breaks */
#define SLOW "dest.prefill=delay:2000"

static void pulled(void)
{
    many("chunk=64K,window=2,prefill=pull", MEM_ANON, SLOW);
}

static void in_place(void)
{
    many("chunk=64K,window=2,prefill=pull,landing=continue", MEM_MEMFD, SLOW);
}

static void pushed(void)
{
    many("chunk=64K,window=2,prefill=push", MEM_ANON, SLOW);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--breaks") && atoi(argv[2]) > 0) {
        breaks = (unsigned)atoi(argv[2]);
        argv[2] = argv[0];
        argv += 2;
        argc -= 2;
    }
    const unsigned limit_s = 60 + breaks;
    const struct loop_test tests[] = {
        {"pulled", pulled, limit_s},
        {"in place", in_place, limit_s},
        {"pushed", pushed, limit_s},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
