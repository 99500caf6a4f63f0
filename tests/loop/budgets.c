/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * budgets.c - a guest that visits gets some of its memory before it touches it: so much and not more, and first what
 *             it touched on other visits
 */
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "visits.h"

#define CHUNK (64u << 10)
#define FINE ",chunk=64K,window=1"
#define LIMIT_NS 20000000000ull

/* Far from where prefill begins; region 0 has the guest's first pages */
#define FIRST "region1=700+40;nosuch=1;region0=400+20,301"
#define FIRST_PAGES (0x40 + 0x20 + 1)
#define ALL_FIRST "region1=700+40;region0=400+20,301"

static struct ff_stats stats(const struct leg *l)
{
    struct ff_stats st;

    ff_dest_stats(l->dest, &st);
    return st;
}

/* So much has come by prefill, that nobody waited for */
static void await_prefill(const struct leg *out, uint64_t bytes)
{
    uint64_t end = ff_now_ns() + LIMIT_NS;

    while (stats(out).bytes_prefill < bytes) {
        must(ff_now_ns() < end);
        usleep(2000);
    }
}

static void come_home(struct leg *out)
{
    struct leg back;

    visit_back(&back, out, "");
    must(!visit_receive(&back, home, false));
    visit_let_run(&back);
    visit_finish(&back, out);
}

static void go(struct leg *out, enum memory kind, const char *options)
{
    visit_budget = true;
    visit_options = options;
    visit_go(out, kind);
}

/* A budget of 1 MiB, of 11 MiB that hold something: the guest touches the rest itself */
static void spent(enum memory kind, const char *options, uint64_t least)
{
    struct leg out;

    go(&out, kind, options);
    await_prefill(&out, least);
    visit_work(10);
    usleep(100000); /* not an event: what should not come has time to */
    struct ff_stats st = stats(&out);
    must(st.bytes_prefill + st.bytes_duplicated < (1u << 20) + CHUNK);
    must(st.faults > REGIONS * PAGES / 10 / 2 && st.bytes_fault > 0);
    visit_await_present(&out);
    come_home(&out);
}

static void pull(void)
{
    spent(MEM_ANON, ",budget=1M" FINE, 1u << 20);
}

static void push(void)
{
    spent(MEM_ANON, ",budget=1M,prefill=push" FINE, 700u << 10); /* a source pushes zeros, too */
}

static void in_place(void)
{
    spent(MEM_MEMFD, ",budget=1M,landing=continue,prefill=pull" FINE, 1u << 20);
}

static void thp(void)
{
    spent(MEM_ANON_THP, ",budget=1M" FINE, 1u << 20);
}

/* More than there is: all comes, zeros for nothing, and the guest is a visitor still */
static void all(void)
{
    struct leg out;

    go(&out, MEM_ANON, ",budget=16M");
    uint64_t end = ff_now_ns() + LIMIT_NS;
    for (struct ff_stats st = stats(&out); st.bytes_present < st.bytes_total; st = stats(&out)) {
        must(ff_now_ns() < end);
        usleep(2000);
    }
    visit_work(3);
    must(!stats(&out).faults && !ff_dest_is_told(out.dest));
    come_home(&out);
}

/* As much as there are bytes that are not zeros: that brings them all, and no more is needed */
static void zeros_cost_nothing(void)
{
    char options[64];
    uint64_t pages = 0;
    struct leg out;

    for (unsigned p = 0; p < PAGES; p++)
        pages += REGIONS * (p % 7 >= 2);
    snprintf(options, sizeof(options), ",budget=%llu,prefill=pull" FINE, (unsigned long long)(pages * PAGE));
    go(&out, MEM_ANON, options);
    await_prefill(&out, pages * PAGE);
    visit_work(1);
    must(!stats(&out).bytes_fault);
    come_home(&out);
}

static bool is_here(const struct leg *out, unsigned region, unsigned page)
{
    return ff_dest_is_present(out->dest, region, page * PAGE, &(uint64_t){0});
}

static void await_page(const struct leg *out, unsigned region, unsigned page)
{
    uint64_t end = ff_now_ns() + LIMIT_NS;

    while (!is_here(out, region, page)) {
        must(ff_now_ns() < end);
        usleep(2000);
    }
}

static void touch(unsigned region, unsigned page)
{
    must(visit_holds(away[region].host + page * PAGE, version[region][page]));
    seen[region][page] = true;
}

/* What it touched on other visits is there, and nothing else; what it touches besides is learned */
static void first(enum memory kind, const char *options)
{
    static const struct { unsigned region, page; } other[] = {{0, 0x500}, {1, 0x20}, {0, 0x21}};
    struct leg out;

    visit_first = FIRST;
    go(&out, kind, options);
    await_page(&out, 0, 0x301);
    for (unsigned i = 0; i < 0x40; i++)
        await_page(&out, 1, 0x700 + i);
    for (unsigned i = 0; i < 0x20; i++)
        await_page(&out, 0, 0x400 + i);
    for (unsigned i = 0; i < 0x40; i++)
        touch(1, 0x700 + i);
    touch(0, 0x41f);
    must(!stats(&out).faults);
    must(stats(&out).bytes_present <= FIRST_PAGES * PAGE + CHUNK && !is_here(&out, 0, 0));
    for (unsigned i = 0; i < FF_ARRAY_LEN(other); i++)
        touch(other[i].region, other[i].page);
    must(stats(&out).faults == FF_ARRAY_LEN(other));
    char *text = ff_dest_working_set(out.dest);
    must(text && !strcmp(text, ALL_FIRST ",500;region1=20;region0=21"));
    free(text);
    come_home(&out);
}

/* Just what the list has, zeros apart, or with them: after that it is spent */
#define FIRST_BUDGET ",budget=280K"

static void first_pull(void)
{
    first(MEM_ANON, FIRST_BUDGET ",prefill=pull" FINE);
}

static void first_push(void)
{
    first(MEM_ANON, ",budget=388K,prefill=push" FINE);
}

static void first_in_place(void)
{
    first(MEM_MEMFD, FIRST_BUDGET ",landing=continue,prefill=pull" FINE);
}

/* Without a budget it is learned all the same, and nothing comes unasked */
static void learned(void)
{
    struct leg out;

    visit_go(&out, MEM_ANON);
    touch(1, 0x3e8);
    touch(0, 7);
    touch(0, 8);
    char *text = ff_dest_working_set(out.dest);
    must(text && !strcmp(text, "region1=3e8;region0=7+2"));
    free(text);
    must(!stats(&out).bytes_prefill);
    uint64_t len;
    must(ff_dest_is_touched(out.dest, 0, 7 * PAGE, &len) && len == 2 * PAGE);
    must(!ff_dest_is_touched(out.dest, 0, 9 * PAGE, &len) && len == (PAGES - 9) * PAGE);
    come_home(&out);
}

/* Of another guest, or of somebody who wishes this one ill: a hint, never more */
static void nonsense(void)
{
    struct leg out;

    visit_first = "region0=0+7ff,7ff,ffffffffffffff+ffffffffffffff;region1=1,1,1,1;=;region0";
    go(&out, MEM_ANON, ",budget=512K" FINE);
    await_prefill(&out, 384u << 10);
    visit_work(10);
    must(stats(&out).bytes_prefill < (512u << 10) + CHUNK);
    come_home(&out);
}

/* It comes home while prefill goes on; also when that try fails */
static void in_the_middle(void)
{
    struct leg out, back;

    loop_arm("dest.prefill=delay:20000@1-200");
    go(&out, MEM_ANON, ",budget=16M" FINE);
    await_prefill(&out, 4 * CHUNK);
    visit_work(10);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    must(!ff_dest_give_up(back.dest));
    ff_dest_cancel(back.dest);
    pthread_join(back.thread, NULL);
    must(back.rc && !back.went);
    visit_leg_free(&back);
    await_prefill(&out, stats(&out).bytes_prefill + 4 * CHUNK); /* by another link */
    visit_work(9);
    must(stats(&out).bytes_present < stats(&out).bytes_total);
    come_home(&out);
}

/* What was asked for over the link that broke counts */
static void breaks(void)
{
    struct leg out;

    loop_arm("dest.prefill=fail:5@3-4");
    go(&out, MEM_ANON, ",budget=1M,reconnect=10" FINE);
    await_prefill(&out, (1u << 20) - 6 * CHUNK);
    visit_work(10);
    usleep(100000); /* as in spent() */
    must(stats(&out).bytes_prefill < (1u << 20) + CHUNK && stats(&out).breaks >= 1);
    come_home(&out);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"spent", pull, 60},
        {"spent, push", push, 60},
        {"spent, in place", in_place, 60},
        {"spent, huge pages", thp, 60},
        {"more than there is", all, 60},
        {"zeros cost nothing", zeros_cost_nothing, 60},
        {"first what was touched", first_pull, 60},
        {"first what was touched, push", first_push, 60},
        {"first what was touched, in place", first_in_place, 60},
        {"learned without a budget", learned, 60},
        {"a list that is none", nonsense, 60},
        {"home in the middle of it", in_the_middle, 60},
        {"the link breaks", breaks, 60},
    };
    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
