/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_resume.c - an agent whose link breaks after GO: its children wait, its source comes back,
 *                  no byte is wrong; or it does not, and they are told
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "family.h"

#define STATUS(code) ((code) << 8)
#define FINE "chunk=64K,window=1"
#define N 3 /* children */

static void setup(void)
{
    image_new(3000);
}

/* In this process, which is the source. The agent and its children are there already */
static void source_faults(const char *faults)
{
    struct ff_error err;

    must_ok(ff_failpoints_arm(faults, &err), err);
}

static struct family *family_of(const char *options, const char *agent_faults)
{
    struct family *f = family_new();

    f->n_children = N;
    f->options = options;
    f->faults = agent_faults;
    f->resumes = true;
    return f;
}

/* Both sides saw @least breaks, and each pause ended */
static void must_have_survived(struct family *f, unsigned least)
{
    if (f->source_rc)
        loop_fail(__FILE__, __LINE__, "source, stage %d: %s", f->source_stage, f->source_err.text);
    unsigned pauses = atomic_load(&f->pauses), breaks = f->breaks;
    wait_count(f->ends_of_pauses, pauses);
    if (breaks < least || pauses < least)
        loop_fail(__FILE__, __LINE__, "%u breaks at the source, %u at the agent (want %u)", breaks,
                  pauses, least);
    family_must_succeed(f); /* every child has compared every byte */
    must(!atomic_load(&f->events[FF_CHILD_LOST]));
}

/* --- at passes of failpoints --- */

static void breaks_at(const char *options, const char *agent, const char *source, unsigned least)
{
    struct family *f = family_of(options, agent);

    family_start(f);
    source_faults(source);
    family_source(f, S_DONE);
    must_have_survived(f, least);
}

static void source_prefill(void)
{
    breaks_at(FINE ",prefill=pull", "dest.fault=delay:2000",
              "tcp.serve.prefill=fail@3,tcp.serve.prefill=fail@9,tcp.serve.prefill=fail@20", 3);
}

static void agent_prefill(void)
{
    breaks_at(FINE ",prefill=pull",
              "dest.fault=delay:2000,dest.prefill=fail@2,dest.prefill=fail@11", "", 2);
}

static void faults_break(void)
{
    breaks_at(FINE, "dest.prefill=delay:10000",
              "tcp.serve.fault=fail@5,tcp.serve.fault=fail@17,tcp.serve.fault=fail@60", 3);
}

static void push(void)
{
    /* what is pushed is served at the agent */
    breaks_at("chunk=64K,window=16,prefill=push",
              "dest.fault=delay:2000,tcp.serve.prefill=fail@3,dest.prefill=fail@11", "", 2);
}

static void while_resuming(void)
{
    breaks_at(FINE ",prefill=pull", "dest.fault=delay:2000,dest.resume=fail@2-3",
              "tcp.serve.prefill=fail@4,source.resume=fail@1-2,tcp.serve.prefill=fail@12", 2);
    must(ff_failpoint_hits("source.resume") >= 5);
}

static void running_lost(void)
{
    breaks_at(FINE ",prefill=pull", "dest.prefill=delay:5000", "source.running=fail@1", 1);
}

#define ROUNDS 8u

static void random_passes(void)
{
    static const char *const points[] = {"tcp.serve.prefill", "tcp.serve.fault"};
    static const char *const kinds[] = {FINE ",prefill=pull", FINE ",prefill=push"};
    const char *given = getenv("FARFORK_TEST_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : (unsigned)(ff_now_ns() % 1000000), broken = 0;

    printf("      seed %u (FARFORK_TEST_SEED)\n", seed);
    for (unsigned i = 0; i < ROUNDS; i++) {
        char source[300] = "", agent[100];
        snprintf(agent, sizeof(agent), "dest.prefill=delay:300,dest.prefill=fail@%u",
                 2 + (unsigned)rand_r(&seed) % 40);
        for (unsigned k = 0; k < 5; k++) {
            size_t used = strlen(source);
            snprintf(source + used, sizeof(source) - used, "%s%s=fail@%u", k ? "," : "",
                     points[(unsigned)rand_r(&seed) % FF_ARRAY_LEN(points)],
                     2 + (unsigned)rand_r(&seed) % 60);
        }
        struct family *f = family_of(kinds[i % 2], agent);
        family_start(f);
        source_faults(source);
        family_source(f, S_DONE);
        broken += f->breaks;
        must_have_survived(f, 0);
        source_faults("");
    }
    printf("      %u breaks in %u images\n", broken, ROUNDS);
    must(broken > ROUNDS);
}

/* --- who waits, waits; who comes meanwhile is served --- */

/* Each but the last is in a page that is missing, and the link is away: nobody has read anything */
static struct family *paused(const char *options)
{
    struct family *f = family_of(options, NULL);

    for (unsigned i = 0; i < N; i++)
        f->child[i].only_peek = true;
    family_start(f);
    source_faults("tcp.serve.fault=delay:5000000@1");
    family_source(f, S_RUNNING);
    wait_count(f->faults_so_far, (unsigned long)N);
    ff_source_pause(f->source);
    wait_count(f->pauses, 1u);
    return f;
}

static void must_wait(struct family *f)
{
    for (unsigned i = 0; i < N; i++) {
        struct family_child *k = &f->child[i];
        must(!atomic_load(&k->done) && !atomic_load(&k->peeked) &&
             thread_asleep(k->pid, atomic_load(&k->peek_tid)));
    }
}

static void children_wait(void)
{
    struct family *f = paused("prefill=off");

    usleep(500000); /* time in which nothing may happen */
    must_wait(f);
    must(!atomic_load(&f->ends_of_pauses) && !atomic_load(&f->ended));
    must_ok(ff_source_wait_done(f->source, &f->source_err) ? 0 : 1, f->source_err);
    must_ok(ff_source_resume(f->source, NULL, 20000, &f->source_err), f->source_err);
    wait_count(f->ends_of_pauses, 1u);
    for (unsigned i = 0; i < N; i++)
        must(wait_flag(&f->child[i].peeked, 20000));
    atomic_store(&f->may_cancel, true);
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -ECANCELED);
    family_free(f);
    atomic_store(&f->children_may_end, true);
    for (unsigned i = 0; i < N; i++)
        family_reap(f->child[i].pid, STATUS(5));
}

static void comes_meanwhile(void)
{
    struct family *f = family_of(FINE, NULL);

    f->child[N - 1].when = WHEN_COMPLETE; /* here: when it is told to */
    family_start(f);
    source_faults("tcp.serve.prefill=delay:20000");
    family_source(f, S_RUNNING);
    ff_source_pause(f->source);
    wait_count(f->pauses, 1u);
    atomic_store(&f->late_may_start, true);
    must(wait_flag(&f->child[N - 1].may_start, 20000)); /* it has its devices, and waits for pages */
    must(!atomic_load(&f->ends_of_pauses));
    family_source(f, S_DONE);
    must_have_survived(f, 1);
}

/* --- it does not come back --- */

static void must_be_told(struct family *f, const char *says)
{
    for (unsigned i = 0; i < N; i++) {
        struct family_child *k = &f->child[i];
        must(wait_flag(&k->done, 20000));
        if (!atomic_load(&k->rc) || !strstr(k->error, says))
            loop_fail(__FILE__, __LINE__, "child %u: %d: \"%s\" is not in: %s", i,
                      atomic_load(&k->rc), says, k->error);
        must(!atomic_load(&k->peeked) && thread_asleep(k->pid, atomic_load(&k->peek_tid)));
    }
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc));
    wait_count(f->events[FF_CHILD_LOST], (unsigned)N); /* the agent's own thread hears of it, too */
    must(!atomic_load(&f->ends_of_pauses));
    family_free(f);
    atomic_store(&f->children_may_end, true);
    for (unsigned i = 0; i < N; i++)
        family_reap(f->child[i].pid, STATUS(4));
}

static void never_comes(void)
{
    uint64_t begin_ns = ff_now_ns();
    struct family *f = paused("prefill=off,reconnect=2");

    must_wait(f);
    while (!atomic_load(&f->child[0].done) && ff_now_ns() - begin_ns < 1900000000ull)
        usleep(1000);
    must(!atomic_load(&f->child[0].done)); /* none before its time is up */
    must_be_told(f, "the image was lost: the source did not come back within 2 s, and nobody else brought 2001 pages "
                    "(8004 KiB): region0 0x0-0x5dbfff, region1 0x0-0x1f4fff");
}

static void not_at_all(void)
{
    struct family *f = family_of("prefill=off,reconnect=0", NULL);

    for (unsigned i = 0; i < N; i++)
        f->child[i].only_peek = true;
    family_start(f);
    source_faults("tcp.serve.fault=delay:5000000@1");
    family_source(f, S_RUNNING);
    wait_count(f->faults_so_far, (unsigned long)N);
    ff_source_pause(f->source);
    must_be_told(f, "the image was lost");
    must(!atomic_load(&f->pauses));
}

/* The agent is to end while it waits: at once */
static void canceled(void)
{
    struct family *f = family_new();

    f->n_children = 0;
    f->options = "prefill=off";
    family_start(f);
    family_source(f, S_RUNNING);
    ff_source_pause(f->source);
    wait_count(f->pauses, 1u);
    must(!atomic_load(&f->ended));
    atomic_store(&f->may_cancel, true);
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -ECANCELED);
    family_free(f);
}

/* While there is a link its source is told, and need not wait for another */
static void leaves(void)
{
    struct family *f = family_of("prefill=off", NULL);

    for (unsigned i = 0; i < N; i++)
        f->child[i].only_peek = true;
    family_start(f);
    source_faults("tcp.serve.fault=delay:2000000@1");
    family_source(f, S_RUNNING);
    wait_count(f->faults_so_far, (unsigned long)N);
    atomic_store(&f->may_cancel, true);
    must(ff_source_wait_done(f->source, &f->source_err) == -EREMOTEIO);
    must(strstr(f->source_err.text, "needs no more of the image"));
    must_be_told(f, "canceled");
    must(!atomic_load(&f->pauses));
}

/* --- every page is here, and the source does not know --- */

static void done_lost(void)
{
    struct family *f = family_of(FINE, NULL);

    f->late_answer = true;
    family_start(f);
    source_faults("source.done=fail@1,source.resume=fail@1");
    family_source(f, S_DONE);
    must(f->breaks == 1 && !atomic_load(&f->pauses));
    family_must_succeed(f);
}

/* GO did not get there: the children hear it at once, and the source when it asks. After that the
 * agent never takes a GO */
static void go_lost(void)
{
    struct family *f = family_new();

    f->n_children = 0;
    f->late_answer = true;
    family_start(f);
    source_faults("source.gone=fail@1");
    family_source(f, S_GO);
    must(f->source_rc && f->source_stage == S_GO);
    must(ff_source_resume(f->source, NULL, 10000, &f->source_err) == -ETIME);
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) && !atomic_load(&f->here));
    family_free(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"prefill breaks at the source", source_prefill, 30},
        {"prefill breaks at the agent", agent_prefill, 30},
        {"faults break", faults_break, 30},
        {"push breaks", push, 30},
        {"breaks while it resumes", while_resuming, 30},
        {"RUNNING lost", running_lost, 30},
        {"random passes", random_passes, 120},
        {"children wait", children_wait, 40},
        {"a child comes meanwhile", comes_meanwhile, 40},
        {"the source never comes back", never_comes, 40},
        {"reconnect=0", not_at_all, 40},
        {"canceled while it waits", canceled, 30},
        {"it leaves", leaves, 30},
        {"DONE lost", done_lost, 30},
        {"GO lost", go_lost, 30},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
