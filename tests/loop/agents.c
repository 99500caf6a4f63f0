/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agents.c - one image, its children: each sees every byte, and its own writes alone
 */
#include <unistd.h>

#include "cleanup.h"
#include "family.h"

static void setup(void)
{
    image_new(UNDER_SANITIZER ? 3000 : 8000);
}

static void run(struct family *f)
{
    family_start(f);
    family_source(f, S_RUNNING);
    if (f->last_later)
        family_last(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
    must(atomic_load(&f->events[FF_CHILD_CONNECTED]) == f->n_children);
    must(atomic_load(&f->events[FF_CHILD_ATTACHED]) == f->n_children);
    must(atomic_load(&f->events[FF_CHILD_RUNNING]) == f->n_children);
    must(atomic_load(&f->events[FF_CHILD_COMPLETE]) == f->n_children);
    must(!atomic_load(&f->events[FF_CHILD_LOST]));
}

static void children(unsigned n, bool loop, const char *options)
{
    struct family *f = family_new();

    f->n_children = n;
    f->loop = loop;
    f->options = options;
    run(f);
}

static void tcp_one(void)
{
    children(1, false, NULL);
}

static void tcp_two(void)
{
    children(2, false, NULL);
}

static void tcp_eight(void)
{
    children(8, false, NULL);
}

static void tcp_fifty(void)
{
    children(50, false, NULL);
}

static void loop_eight(void)
{
    children(8, true, NULL);
}

static void loop_push(void)
{
    children(4, true, "prefill=push");
}

static void tcp_small_chunks(void)
{
    children(4, false, "chunk=4096,window=1");
}

/* Nothing but faults: every page is fetched by one child's, and once */
static void fetched_once(bool loop, unsigned n)
{
    struct family *f = family_new();

    f->n_children = n;
    f->loop = loop;
    f->options = "prefill=off";
    f->last_later = true;
    run(f);
    const struct ff_stats *st = &f->stats.image;
    must(!st->bytes_prefill && !st->bytes_duplicated);
    must(st->bytes_fault + st->bytes_zero == st->bytes_total);
    must(st->faults == f->n_cells);
    must(f->stats.child_faults >= st->faults);
}

static void tcp_fetched_once(void)
{
    fetched_once(false, 8);
}

static void loop_fetched_once(void)
{
    fetched_once(true, 8);
}

/* A read takes so long that all children wait for each page */
static void all_wait(void)
{
    struct family *f = family_new();

    f->n_children = 8;
    f->options = "prefill=off";
    f->n_regions = 1;
    f->cells[0] = 200;
    f->faults = "dest.install=delay:2000";
    f->last_later = true;
    run(f);
    must(f->stats.image.faults == 200 && f->stats.child_faults_waited > 0);
}

/* Events that are read late find their page there */
static void slow_events(void)
{
    struct family *f = family_new();

    f->n_children = 8;
    f->options = "prefill=off";
    f->faults = "dest.fault=delay:100";
    f->last_later = true;
    run(f);
    must(f->stats.child_faults_late > 0);
}

/* Nobody listens for a source: its sockets come through the agent's */
static void passed(unsigned n, bool lend, const char *options)
{
    struct family *f = family_new();

    f->n_children = n;
    f->passed = true;
    f->lend = lend;
    f->options = options;
    run(f);
    must(!atomic_load(&f->port));
    must(f->stats.bytes_lent == (lend ? 1500 * CELL : 0));
}

static void passed_eight(void)
{
    passed(8, false, NULL);
}

static void passed_faults(void)
{
    struct family *f = family_new();

    f->n_children = 4;
    f->passed = f->last_later = true;
    f->options = "prefill=off";
    run(f);
    must(f->stats.image.faults == f->n_cells);
}

static void passed_lent_in_part(void)
{
    passed(4, true, "prefill=push");
}

static void no_child(void)
{
    children(0, false, NULL);
}

/* --- when they come --- */

static void before_the_image(void)
{
    struct family *f = family_new();

    f->n_children = 6;
    family_start(f);
    wait_count(f->children_so_far, 6ul); /* nothing is connected to the source yet */
    for (unsigned i = 0; i < 6; i++)
        must(!atomic_load(&f->child[i].attached));
    family_source(f, S_READY); /* nor after the state has come: the source may still go back */
    for (unsigned i = 0; i < 6; i++)
        must(!atomic_load(&f->child[i].attached));
    family_source(f, S_DONE);
    family_must_succeed(f);
}

static void after_it_is_complete(void)
{
    struct family *f = family_new();

    f->n_children = 6;
    f->child[0].when = WHEN_HERE;
    for (unsigned i = 1; i < 6; i++)
        f->child[i].when = WHEN_COMPLETE;
    run(f);
}

/* None goes on before the last has come */
static void together(void)
{
    struct family *f = family_new();

    f->n_children = f->together = 4;
    f->child[1].when = WHEN_HERE;
    f->child[1].later_us = 200000;
    run(f);
}

static void together_but_one(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    f->together = 4;
    run(f);
}

/* --- lent --- */

static void lent_in_part(void)
{
    struct family *f = family_new();

    f->n_children = 4;
    f->lend = true;
    run(f);
    must(f->stats.bytes_lent == 1500 * CELL);
    must(f->stats.image.bytes_prefill + f->stats.image.bytes_fault <= 501 * CELL);
}

static void lent_all(bool loop)
{
    struct family *f = family_new();

    f->n_children = 4;
    f->loop = loop;
    f->lend_all = true;
    run(f);
    must(f->stats.bytes_lent == f->stats.image.bytes_total);
    must(!f->stats.image.faults && !f->stats.child_faults);
}

static void tcp_lent_all(void)
{
    lent_all(false);
}

static void loop_lent_all(void)
{
    lent_all(true);
}

/* START, RUN and COMPLETE that do not go out: each is said once more, and once */
static void said_again(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    f->together = 3;
    f->faults = "agent.say=fail:11@1,agent.say=fail:12@2,agent.say=fail:105@6,agent.say=fail:11@9,"
                "agent.say=fail:11@12";
    run(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp, 1 child", tcp_one, 0},
        {"tcp, 2 children", tcp_two, 0},
        {"tcp, 8 children", tcp_eight, 30},
        {"tcp, 50 children", tcp_fifty, 90},
        {"loop, 8 children", loop_eight, 30},
        {"loop, push", loop_push, 0},
        {"tcp, small chunks", tcp_small_chunks, 30},
        {"tcp, fetched once", tcp_fetched_once, 30},
        {"loop, fetched once", loop_fetched_once, 30},
        {"all wait for one", all_wait, 30},
        {"slow events", slow_events, 40},
        {"passed, 8 children", passed_eight, 30},
        {"passed, faults alone", passed_faults, 30},
        {"passed, lent in part", passed_lent_in_part, 0},
        {"no child", no_child, 0},
        {"before the image", before_the_image, 0},
        {"after it is complete", after_it_is_complete, 0},
        {"together", together, 0},
        {"together, but one does not come", together_but_one, 0},
        {"said again", said_again, 0},
        {"lent in part", lent_in_part, 0},
        {"tcp, lent", tcp_lent_all, 0},
        {"loop, lent", loop_lent_all, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
