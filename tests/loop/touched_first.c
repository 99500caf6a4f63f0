/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * touched_first.c - what children have touched is known, and comes first to others
 */
#include <pthread.h>
#include <string.h>

#include "cleanup.h"
#include "family.h"
#include "working_set.h"

/* Pages of region 0 and 1, far from where prefill begins */
#define FIRST "region1=40+4,60;nosuch=1;region0=3e8+20,7;region1=1f0+5"
#define FIRST_BYTES (0x20 * CELL) /* that come at least, zeros apart */
#define AT 0x3ea
#define SLOW "dest.prefill=delay:20000"
#define FINE "chunk=64K,window=1"

static void setup(void)
{
    image_new(3000);
}

static pthread_t source;

static void *source_main(void *arg)
{
    family_source(arg, S_DONE); /* who pushes hears what it may */
    return NULL;
}

static struct family *slow(const char *options, const char *first)
{
    struct family *f = family_new();

    f->n_children = 1;
    f->options = options;
    f->faults = SLOW;
    f->first = first;
    f->child[0] = (struct family_child){.when = WHEN_COMPLETE, .only_peek = true, .peek_at = AT};
    family_start(f);
    family_source(f, S_RUNNING);
    must(!pthread_create(&source, NULL, source_main, f));
    wait_count(f->present_so_far, (unsigned long)FIRST_BYTES);
    return f;
}

/* By then only the beginning of the image would be there: @faults in all */
static void peek(struct family *f, uint64_t faults)
{
    atomic_store(&f->late_may_start, true);
    must(wait_flag(&f->child[0].peeked, 20000));
    must(atomic_load(&f->present_so_far) < f->n_cells * CELL / 2);
    pthread_join(source, NULL);
    must(wait_flag(&f->ended, 30000) && !f->source_rc && !atomic_load(&f->agent_rc));
    if (f->stats.image.faults != faults)
        loop_fail(__FILE__, __LINE__, "%llu faults, want %llu",
                  (unsigned long long)f->stats.image.faults, (unsigned long long)faults);
    must(wait_flag(&f->child[0].done, 20000));
    family_free(f);
    atomic_store(&f->children_may_end, true);
    family_reap(f->child[0].pid, 5 << 8);
}

static void unknown(void)
{
    struct family *f = slow("prefill=pull," FINE, NULL);

    peek(f, 1);
    must(!strncmp(f->touched, "region0=3e", 10) && !strpbrk(f->touched, ",+;"));
}

static void known(void)
{
    struct family *f = slow("prefill=pull," FINE, FIRST);

    peek(f, 0);
    must(!strcmp(f->touched, "region1=40+4,60;region0=3e8+20,7;region1=1f0+5"));
}

static void known_push(void)
{
    peek(slow("prefill=push," FINE, FIRST), 0);
}

/* More than a buffer has: spans go on in the next one */
static void known_small_buffers(void)
{
    peek(slow("prefill=pull,chunk=32K,window=1", FIRST), 0);
}

/* Whatever is said, every byte is right, and all come */
static void all_known(const char *options, const char *first, enum memory memory)
{
    struct family *f = family_new();

    f->n_children = 3;
    f->options = options;
    f->first = first;
    f->memory = memory;
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

static void whole(void)
{
    all_known(FINE, "region1=0+1f5;region0=0+5dc", MEM_ANON);
    all_known("prefill=push," FINE, "region1=0+1f5;region0=0+5dc", MEM_ANON);
}

static void nonsense(void)
{
    all_known(FINE, "region0=1,1,1,2+1000,0,5db,5dc,ffffffffffffff+ffffffffffffff;region1=", MEM_ANON);
    all_known(FINE, "what is this?", MEM_ANON);
}

/* Nothing came but what was touched: all of it, each page once */
static void all_touched(void)
{
    static struct ff_regions t;
    struct ff_working_set *s = ff_working_set_new();
    struct family *f = family_new();
    uint64_t n = 0;
    struct ff_error err;

    f->n_children = 3;
    f->options = "prefill=off";
    f->last_later = true;
    family_start(f);
    family_source(f, S_RUNNING);
    family_last(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
    t = (struct ff_regions){.n = 2, .r = {{.name = "region0", .len_bytes = f->cells[0] * CELL},
                                          {.name = "region1", .len_bytes = f->cells[1] * CELL}}};
    must_ok(ff_working_set_read(s, &t, f->touched, &err), err);
    for (unsigned i = 0; i < s->n; i++)
        n += s->span[i].n;
    must(n == f->n_cells);
    ff_working_set_free(s);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a page that nobody knew of", unknown, 40},
        {"a page that comes first", known, 40},
        {"a page that comes first, pushed", known_push, 40},
        {"spans larger than a buffer", known_small_buffers, 40},
        {"all pages come first", whole, 40},
        {"a working set that is none", nonsense, 40},
        {"all pages were touched", all_touched, 40},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
