/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel_breaks.c - moves with a tunnel whose links break: no byte is lost, none comes twice
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failpoint.h"
#include "tunnel_programs.h"

#define FINE "chunk=64K,window=1,prefill=pull"

static void setup(void)
{
    image_new(4000);
}

/* --- breaks --- */

/* As many as there is time for */
#define BREAKS_MIN 30u
#define BREAKS_MAX (UNDER_SANITIZER ? 60u : 300u)
#define BREAKS_NS (20 * 1000000000ull)

/* Random moments while it serves: either side pauses, and the other finds out */
static void *breaker_main(void *arg)
{
    struct move *m = arg;
    unsigned seed = (unsigned)(ff_now_ns() % 1000000);
    uint64_t next = 0;

    uint64_t end = ff_now_ns() + BREAKS_NS;
    for (;;) {
        unsigned n = atomic_load(&m->breaks_src);
        if (n >= BREAKS_MAX || (n >= BREAKS_MIN && ff_now_ns() > end) || atomic_load(&m->src.ended))
            break;
        uint64_t moved = of[0].taken + of[1].taken;
        usleep((unsigned)rand_r(&seed) % 1000);
        pthread_mutex_lock(&m->gate);
        bool up = m->source && m->dest && atomic_load(&m->stage_src) == S_DONE &&
                  atomic_load(&m->stage_dst) == D_DONE &&
                  (moved >= next || rand_r(&seed) % 64 == 0); /* seldom while it resumes */
        if (up)
            next = moved + 1 + (unsigned)rand_r(&seed) % (UNDER_SANITIZER ? 30000 : 300000);
        if (up && rand_r(&seed) % 2)
            ff_source_pause(m->source);
        else if (up)
            ff_dest_pause(m->dest);
        pthread_mutex_unlock(&m->gate);
    }
    for (int i = 0; i < 2; i++)
        atomic_store(&of[i].may_end, true);
    return NULL;
}

static void random_breaks(void)
{
    static struct move m;

    plan.beside = breaker_main;
    plan.bytes[0] = plan.bytes[1] = UINT64_MAX;
    plan.most = 3000;
    plan.endless = plan.late_end = true; /* until all breaks have been */
    m = (struct move){.tcp = true, .resumes = true, .options = FINE, MOVE};
    tunnel_must_carry(&m);
    printf("      %u breaks at the source, %u at the destination; %llu bytes\n", m.breaks_src,
           m.breaks_dst, (unsigned long long)(of[0].bytes + of[1].bytes));
    must(m.breaks_src >= BREAKS_MIN);
}

/* The programs begin when the guest runs there, so that a break is followed by another link */
static void late_start_hook(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == S_DONE || stage == D_DONE)
        atomic_store(&of[stage == S_DONE].may_send, true);
}

/* Each message of a small exchange is the one that is lost: the last acknowledgement, too */
static void each_message(void)
{
    static struct move m;
    unsigned n = 3, lost = 0; /* two are said before GO */

    for (bool any = true; any; n++) {
        char fault[64];
        snprintf(fault, sizeof(fault), "tunnel.send=fail@%u", n);
        loop_arm(fault);
        plan.bytes[0] = plan.bytes[1] = 10;
        plan.late_send = true;
        plan.hook = late_start_hook;
        m = (struct move){.tcp = true, .resumes = true, .cells = {40, 9}, .n_regions = 2, MOVE};
        tunnel_must_carry(&m);
        any = ff_failpoint_hits("tunnel.send") >= n;
        lost += any;
        must(any == (m.breaks_src || m.breaks_dst));
    }
    printf("      %u messages lost, one after the other\n", lost);
    must(lost >= 4); /* two parts or ends, two acknowledgements */
}

/* DONE, or WITHDRAWN, is lost, or the answer after it: COMPLETE says the same once more */
static void done_lost(void)
{
    static struct move m;

    loop_arm("source.done=fail@1,source.resume=fail@1-2");
    plan.bytes[0] = plan.bytes[1] = SOME;
    m = (struct move){.tcp = true, .resumes = true, MOVE};
    tunnel_must_carry(&m);
    must(m.breaks_src == 1 && ff_failpoint_hits("source.done") == 1);
}

static void resuming(const char *options, enum memory memory, bool no_region)
{
    static struct move m;

    loop_arm("tunnel.send=fail@4,tunnel.send=fail@9,tunnel.send=fail@13,source.resume=fail@2-3,"
             "dest.resume=fail@1-2,tcp.serve.prefill=fail@20,dest.prefill=fail@25");
    plan.bytes[0] = plan.bytes[1] = LOT;
    plan.late_send = true;
    plan.hook = late_start_hook;
    m = (struct move){.tcp = true, .resumes = true, .options = options, .memory = memory,
                      .no_region = no_region, MOVE};
    tunnel_must_carry(&m);
    must(m.breaks_src + m.breaks_dst >= 3);
}

static void resume_pull(void)
{
    resuming(FINE, MEM_ANON, false);
}

static void resume_push(void)
{
    resuming("chunk=64K,window=4,prefill=push", MEM_ANON, false);
}

static void resume_in_place(void)
{
    resuming(FINE ",landing=continue", MEM_MEMFD, false);
}

static void resume_no_region(void)
{
    resuming(FINE, MEM_ANON, true);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"random breaks", random_breaks, 150},
        {"each message is lost", each_message, 100},
        {"DONE is lost", done_lost, 30},
        {"breaks while it resumes", resume_pull, 60},
        {"breaks while it resumes, push", resume_push, 60},
        {"breaks while it resumes, in place", resume_in_place, 60},
        {"breaks while it resumes, no region", resume_no_region, 60},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
