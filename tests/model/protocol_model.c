/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * protocol_model.c - search the protocol of a move in whole, and without each of its guards
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      for each configuration: no state breaks a rule, from each state the guest ends well
 *              or lost for a reason, and the reasons are those of the table, no fewer. For each
 *              mutant, which lacks one guard: the rule of the table breaks.
 *
 *              protocol_model               all of it, as `make check` does
 *              protocol_model -l NAME       the shortest way to each loss of a configuration
 *              protocol_model -m NUMBER     the shortest way to what a mutant breaks
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"

#define LOSS(l) (1u << LOSS_##l)

#define FAULTS .breaks = 3, .deaths = 2, .stalls = 1
#define ANY_LOSS (LOSS(SOURCE_DIED) | LOSS(PAGES) | LOSS(DEST_DIED) | LOSS(BOTH_DIED))
#define VISIT_LOSS                                                                                 \
    (LOSS(PAGES) | LOSS(DEST_DIED) | LOSS(DEST_UNKNOWN) | LOSS(BOTH_DIED))

static const struct config configs[] = {
    {.name = "today",
     .again = true,
     FAULTS,
     .losses = ANY_LOSS | LOSS(GO_BROKEN) | LOSS(LINK_BROKEN) | LOSS(DEST_UNKNOWN)},
    {.name = "today, precopy and push",
     .precopy = true,
     .push = true,
     FAULTS,
     .losses = ANY_LOSS | LOSS(GO_BROKEN) | LOSS(LINK_BROKEN) | LOSS(DEST_UNKNOWN)},
    {.name = "resume",
     .resume = true,
     .again = true,
     FAULTS,
     .losses = ANY_LOSS | LOSS(DEST_UNKNOWN)},
    {.name = "resume, precopy and push",
     .resume = true,
     .precopy = true,
     .push = true,
     FAULTS,
     .losses = ANY_LOSS | LOSS(DEST_UNKNOWN)},
    {.name = "resume with an agent",
     .resume = true,
     .agent = true,
     FAULTS,
     .losses = ANY_LOSS | LOSS(DEST_UNKNOWN)},
    {.name = "resume with an agent and a record",
     .resume = true,
     .agent = true,
     .record = true,
     FAULTS,
     .losses = ANY_LOSS},
    {.name = "fallback=go, fence kills",
     .resume = true,
     .fallback = true,
     .fence = FENCE_KILL,
     FAULTS,
     .losses = ANY_LOSS | LOSS(TAKING_DIED)},
    {.name = "fallback=go, fence reserves storage",
     .resume = true,
     .fallback = true,
     .fence = FENCE_STORAGE,
     FAULTS,
     .losses = ANY_LOSS | LOSS(TAKING_DIED)},
    {.name = "fallback=go, agent, record, push",
     .resume = true,
     .fallback = true,
     .agent = true,
     .record = true,
     .push = true,
     .fence = FENCE_KILL,
     .breaks = 2,
     .deaths = 2,
     .stalls = 1,
     .losses = ANY_LOSS | LOSS(TAKING_DIED)},
    {.name = "a visit",
     .resume = true,
     .returns = true,
     .wrote = true,
     FAULTS,
     .losses = VISIT_LOSS | LOSS(AWAY_DIED)},
    {.name = "a visit, way out with fallback=go, fence kills",
     .resume = true,
     .returns = true,
     .wrote = true,
     .lease = true,
     .fence = FENCE_KILL,
     .breaks = 2,
     .deaths = 2,
     .stalls = 1,
     .losses = VISIT_LOSS | LOSS(GIVEN_UP)},
    {.name = "a visit that writes nothing, fence reserves storage",
     .resume = true,
     .returns = true,
     .lease = true,
     .fence = FENCE_STORAGE,
     .breaks = 2,
     .deaths = 2,
     .stalls = 1,
     .losses = VISIT_LOSS | LOSS(GIVEN_UP) | LOSS(TAKING_DIED)},
    {.name = "a visit whose way home does not resume",
     .returns = true,
     .wrote = true,
     .lease = true,
     .fence = FENCE_KILL,
     .breaks = 2,
     .deaths = 2,
     .stalls = 1,
     .losses = LOSS(PAGES) | LOSS(DEST_DIED) | LOSS(DEST_UNKNOWN) | LOSS(BOTH_DIED) |
               LOSS(GIVEN_UP) | LOSS(GO_BROKEN) | LOSS(LINK_BROKEN)},
};
enum {
    TODAY,
    TODAY_PRECOPY,
    RESUME,
    RESUME_PRECOPY,
    AGENT,
    RECORD,
    KILL,
    STORAGE,
    ALL,
    VISIT,
    VISIT_KILL,
    VISIT_STORAGE,
    VISIT_TODAY,
    CONFIGS
};
_Static_assert(CONFIGS == sizeof(configs) / sizeof(*configs), "a name each");

static const struct {
    unsigned config;
    enum rule rule; /* that has to break */
    const char *what;
} mutants[MUTANTS] = {
    [M_RUNS_UNASKED] = {RESUME, TWO_DISKS, "the source goes on at postcopy-paused, unasked"},
    [M_NO_SEAL] = {RESUME, TWO_DISKS, "NOT-STARTED is said without a seal"},
    [M_OLD_LINK_KEPT] = {RESUME, OLD_EPOCH,
                         "the old link is not freed before the new one attaches"},
    [M_OLD_EPOCH_TAKEN] = {RESUME, OLD_EPOCH, "a RESUME of an older epoch is taken"},
    [M_GO_UNCLEAR] = {TODAY, TWO_DISKS, "a GO whose sending failed is taken for not sent"},
    [M_CANCEL_AFTER_GO] = {TODAY, TWO_DISKS, "a cancel is obeyed after GO"},
    [M_RUN_BEFORE_GO] = {TODAY, TWO_DISKS, "the destination runs before GO"},
    [M_LATE_GO] = {TODAY, NO_RUNNER, "GO is sent although the pause took too long"},
    [M_GO_UNREADY] = {TODAY, NO_RUNNER, "GO does not wait for READY"},
    [M_CONT_FROZEN] = {TODAY, TWO_DISKS, "cont is obeyed while the guest is frozen"},
    [M_READ_EARLY] = {TODAY, WRONG_BYTES, "pages are read before STATE, without a log"},
    [M_DONE_EARLY] = {TODAY, ZEROS_SHOWN, "DONE is said while pages are missing"},
    [M_PAGER_ENDS] = {RESUME, ZEROS_SHOWN, "a paused destination ends its pager"},
    [M_LINGER_LEAVES] = {RESUME, NO_RUNNER,
                         "a destination that nobody asks exits, without an agent"},
    [M_AGENT_GUESSES] = {AGENT, RAN_THERE, "the agent takes any death for \"nothing ran\""},
    [M_RECORD_LATE] = {RECORD, RAN_THERE, "the record is written after disks are activated"},
    [M_KEYS_KEPT] = {TODAY, KEYS_LEFT, "keys are not withdrawn"},
    [M_ASKS_ONCE] = {RESUME, NO_RUNNER, "the source asks only once"},
    [M_PORT_CLOSED] = {RESUME, NO_RUNNER, "the destination does not listen after it was found"},
    [M_COMPLETE_LEAVES] = {RESUME, NO_RUNNER, "a complete destination answers nobody"},
    [M_RUNNING_DENIED] = {RESUME, TWO_DISKS, "NOT-STARTED is said between GO and vCPUs"},
    [M_LOG_READ_EARLY] = {TODAY_PRECOPY, WRONG_BYTES, "the log is read before devices are saved"},
    [M_DIRTY_KEPT] = {TODAY_PRECOPY, WRONG_BYTES, "what DIRTY names is not discarded"},
    [M_BYTES_LOST] = {RESUME, NO_RUNNER, "reads of the old link are not posted again"},
    [M_LEASE_IGNORED] = {STORAGE, TWO_RUNNERS, "the destination runs on without a lease"},
    [M_LEASE_NO_MARGIN] = {STORAGE, TWO_RUNNERS, "stopping begins when the lease has ended"},
    [M_STALL_UNFENCED] = {STORAGE, TWO_RUNNERS,
                          "its lease thread stalls, the fence cuts disks alone"},
    [M_LEASE_FROM_RECEIPT] = {STORAGE, TWO_RUNNERS, "the lease counts from when it is received"},
    [M_LEASE_NOT_AWAITED] = {STORAGE, TWO_RUNNERS, "the source takes back before the lease ends"},
    [M_FENCE_FAILED] = {KILL, OVERLAY_LOST, "a fence that failed is ignored"},
    [M_DROP_FIRST] = {KILL, OVERLAY_LOST, "overlays are dropped before the fence"},
    [M_ACTIVATE_FIRST] = {KILL, TWO_DISKS, "disks are activated before the fence"},
    [M_NO_OVERLAY] = {KILL, BASE_CHANGED, "the destination writes to the base itself"},
    [M_COMMIT_AT_DONE] = {KILL, BASE_CHANGED, "overlays are committed at DONE, not at WITHDRAWN"},
    [M_NO_RECORD_HERE] = {STORAGE, RAN_HERE, "TAKEN-BACK is not written down"},
    [M_TAKE_AFTER_DONE] = {KILL, BASE_CHANGED, "the source takes back after it withdrew"},
    [M_SOURCE_DEATH_UNTOLD] = {KILL, NO_RUNNER,
                               "nobody tells the destination that the source died"},
    [M_GIVEN_UP_TAKEN] = {VISIT_STORAGE, TWO_RUNNERS, "home takes back what it has given up"},
    [M_TAKEN_HELD] = {VISIT_KILL, NOT_WHOLE, "a guest that is being taken back returns"},
    [M_HOLD_SERVES] = {VISIT, WRONG_BYTES,
                       "the way out is served while devices are loaded at home"},
    [M_HOLD_CONNECTS] = {VISIT, WRONG_BYTES,
                         "the way out gets another link before memory is put back"},
    [M_NOT_PUT_BACK] = {VISIT, WRONG_BYTES, "a return fails, and memory is not put back"},
    [M_NEVER_LET_GO] = {VISIT, NO_RUNNER, "a return fails, and the way out stays held"},
    [M_RELEASED_EARLY] = {VISIT_STORAGE, TWO_RUNNERS,
                          "away needs no lease once STATE was sent, before READY"},
    [M_RETURN_UNLEASED] = {VISIT_STORAGE, TWO_RUNNERS, "away runs on without a lease"},
    [M_LOG_EMPTIED] = {VISIT, WRONG_BYTES, "the log is emptied when a return fails"},
    [M_OUT_LEASE_NOT_AWAITED] = {VISIT_STORAGE, TWO_RUNNERS,
                                 "home takes back before the lease of the way out ends"},
    [M_LET_GO_UNASKED] = {VISIT_STORAGE, TWO_RUNNERS, "home says that it never takes the guest back, and has not given up"},
    [M_HOME_DEATH_UNTOLD] = {VISIT_KILL, NO_RUNNER, "nobody tells away that home died"},
};

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What all searches together have to meet: a model that cannot get there is wrong */
static int check_seen(uint64_t messages, uint32_t source, uint32_t dest)
{
    int wrong = 0;

    for (unsigned t = FF_MSG_HELLO; t <= FF_MSG_LAST; t++)
        /* model.h: these are not modelled */
        if (t != FF_MSG_FEED && !(messages >> t & 1)) {
            printf("model: nobody ever reads %s\n", ff_msg_name(t));
            wrong++;
        }
    for (unsigned i = 1; i < S_STATES; i++)
        if (!(source >> i & 1)) {
            printf("model: the source is never at %s\n", source_name(i));
            wrong++;
        }
    for (unsigned i = 1; i < D_STATES; i++)
        if (!(dest >> i & 1)) {
            printf("model: the destination is never at %s\n", dest_name(i));
            wrong++;
        }
    return wrong;
}

static int check_losses(const struct config *c, const struct search_result *r)
{
    int wrong = 0;

    for (unsigned l = 1; l < LOSSES; l++) {
        bool can = r->losses >> l & 1, may = c->losses >> l & 1;
        if (can)
            printf("    can be lost: %s (%u actions)\n", loss_name(l), r->loss_depth[l]);
        if (can == may)
            continue;
        printf("model: %s: %s %s\n", c->name, loss_name(l),
               can ? "is a loss that nobody expects" : "cannot happen any more: change the table");
        wrong++;
    }
    return wrong;
}

static int check_visits(unsigned seen)
{
    static const char *const ends[VISIT_ENDS] = {
        [VISIT_CAME_HOME] = "comes home",
        [VISIT_CAME_LATER] = "comes home by a second return",
        [VISIT_WENT_ON] = "goes on away after home gave up",
        [VISIT_HELD] = "is held at home until GO",
        [VISIT_TAKEN_BACK] = "is taken back",
        [VISIT_TAKEN_MEANWHILE] = "is taken back while it returns",
        [VISIT_FREED] = "goes on away when home has died",
        [VISIT_UNLEASED] = "goes on away without a lease, which it needs no more",
    };
    int wrong = 0;

    for (unsigned i = 0; i < VISIT_ENDS; i++)
        if (!(seen >> i & 1)) {
            printf("model: no guest that visits %s\n", ends[i]);
            wrong++;
        }
    return wrong;
}

static int check_configs(void)
{
    uint64_t messages = 0, states = 0, edges = 0;
    uint32_t source = 0, dest = 0;
    unsigned visits = 0;
    int wrong = 0;

    for (unsigned i = 0; i < CONFIGS; i++) {
        const struct config *c = &configs[i];
        struct search *s = search_new();
        struct search_result r;
        double start = seconds();
        search_run(s, c, M_NONE, true, &r);
        printf("%s (breaks %u, deaths %u, stalls %u): %llu states, %llu edges, "
               "%.3g interleavings of at most %llu actions, %.1f s\n",
               c->name, c->breaks, c->deaths, c->stalls, (unsigned long long)r.states,
               (unsigned long long)r.edges, r.runs, (unsigned long long)r.steps_deep,
               seconds() - start);
        if (r.rule) {
            printf("model: %s: %s:\n", c->name, rule_name(r.rule));
            search_trace(s, c, M_NONE, r.bad);
            wrong++;
        } else {
            wrong += check_losses(c, &r);
        }
        messages |= r.messages_seen;
        source |= r.source_seen;
        dest |= r.dest_seen;
        for (uint32_t at = 0; at < r.states && c->returns; at++)
            visits |= visit_seen(search_world(s, at));
        states += r.states;
        edges += r.edges;
        search_free(s);
    }
    printf("all: %llu states, %llu edges\n", (unsigned long long)states, (unsigned long long)edges);
    return wrong + check_seen(messages, source, dest) + check_visits(visits);
}

/* Is somebody stuck only since the model has no more links? */
static int check_links(const struct search *s, const struct search_result *r)
{
    if (r->rule != NO_RUNNER || world_can_connect(search_world(s, r->bad)))
        return 0;
    printf("model: out of links: raise LINKS\n");
    return 1;
}

static int check_mutant(struct search *s, unsigned m, bool show)
{
    const struct config *c = &configs[mutants[m].config];
    struct search_result r;

    search_run(s, c, (enum mutant)m, false, &r);
    printf("mutant %2u, %s: %s%s\n", m, mutants[m].what, r.rule ? "killed: " : "SURVIVES",
           r.rule ? rule_name(r.rule) : "");
    if (r.rule && (show || r.rule != mutants[m].rule))
        search_trace(s, c, (enum mutant)m, r.bad);
    if (check_links(s, &r))
        return 1;
    if (r.rule == mutants[m].rule)
        return 0;
    printf("model: mutant %u: it has to break this: %s\n", m, rule_name(mutants[m].rule));
    return 1;
}

static int show_losses(const char *name)
{
    for (unsigned i = 0; i < CONFIGS; i++) {
        if (strcmp(name, configs[i].name))
            continue;
        struct search *s = search_new();
        struct search_result r;
        search_run(s, &configs[i], M_NONE, true, &r);
        for (unsigned l = 1; l < LOSSES; l++)
            if (r.losses >> l & 1) {
                printf("%s:\n", loss_name(l));
                search_trace(s, &configs[i], M_NONE, search_loss_at(s, l));
            }
        search_free(s);
        return 0;
    }
    printf("model: no configuration is called \"%s\"\n", name);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "-l"))
        return show_losses(argv[2]);
    struct search *s = search_new();
    int wrong = 0;
    if (argc == 3 && !strcmp(argv[1], "-m")) {
        unsigned m = (unsigned)atoi(argv[2]);
        wrong = m && m < MUTANTS ? check_mutant(s, m, true) : 1;
        search_free(s);
        return wrong;
    }
    wrong = names_check() + check_configs();
    for (unsigned m = 1; m < MUTANTS; m++)
        wrong += check_mutant(s, m, false);
    search_free(s);
    printf("model: %u configurations, %u mutants, %d wrong\n", CONFIGS, MUTANTS - 1, wrong);
    return wrong != 0;
}
