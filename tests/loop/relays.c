/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * relays.c - agents that feed each other: every byte is right whoever brings it, and whoever ends
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "family.h"
#include "key.h"
#include "link.h"
#include "wire.h"

#define STATUS(signal) (signal)
#define AGENTS_MAX 4
#define FINE ",chunk=64K,prefill=pull"

static char options[200], all_faults[AGENTS_MAX][200];
static const char *pushed; /* a fault of every agent's: it is as over a link that pins */
static const char *verify = ""; /* or: every page that an agent gives on is compared with the source's */
static struct family *f[AGENTS_MAX];
static unsigned n_agents;

static void setup(void)
{
    image_new(3000);
}

/* Agents of one image, with one key; all but the first wait for who feeds them. @faults: of the first */
static void agents_are(unsigned n, const char *more, const char *faults)
{
    snprintf(options, sizeof(options), "key-file=%s" FINE "%s%s", loop_key_file(), verify, more);
    n_agents = n;
    for (unsigned i = 0; i < n; i++) {
        f[i] = family_new();
        f[i]->options = options;
        f[i]->n_children = 2;
        f[i]->resumes = true;
        f[i]->faults = i ? "dest.around=fail" : faults; /* no fault brings the page that is left to the background */
        f[i]->await_feed_ms = i ? 10000 : 0;
    }
}

/* Nobody touches anything before all is there: it comes in the background */
static void untouched(unsigned i)
{
    for (unsigned k = 0; k < f[i]->n_children; k++)
        f[i]->child[k].when = WHEN_COMPLETE;
}

/* Its children leave one page to the background, however fast they touch all else */
static void all_but_one(unsigned i)
{
    f[i]->last_later = true;
}

/* @faults: of sources */
static void begin_with(const char *faults)
{
    struct ff_error err;

    for (unsigned i = 0; i < n_agents && pushed; i++) {
        const char *own = f[i]->faults;
        snprintf(all_faults[i], sizeof(all_faults[i]), "%s%s%s", pushed, own ? "," : "", own ? own : "");
        f[i]->faults = all_faults[i];
    }
    for (unsigned i = 0; i < n_agents; i++)
        family_fork(f[i]);
    for (unsigned i = 0; i < n_agents; i++)
        family_start(f[i]);
    must_ok(ff_failpoints_arm(faults, &err), err); /* no thread is there to look */
    for (unsigned i = 0; i < n_agents; i++) {
        family_source(f[i], S_RUNNING);
        if (f[i]->source_rc)
            loop_fail(__FILE__, __LINE__, "source %u: %s", i, f[i]->source_err.text);
    }
}

static void begin(void)
{
    begin_with("");
}

static void feed(unsigned from, unsigned to)
{
    must(!atomic_exchange(&f[from]->feed_to, atomic_load(&f[to]->port)));
}

static void end_well(unsigned i)
{
    family_source(f[i], S_DONE);
    family_must_succeed(f[i]);
}

static uint64_t fed(unsigned i)
{
    printf("      agent %u: %llu KiB by prefill, %llu of them from another agent, %llu by faults\n", i,
           (unsigned long long)f[i]->stats.image.bytes_prefill >> 10,
           (unsigned long long)f[i]->stats.bytes_fed >> 10,
           (unsigned long long)f[i]->stats.image.bytes_fault >> 10);
    return f[i]->stats.bytes_fed;
}

static void *until_done(void *opaque)
{
    family_source(opaque, S_DONE);
    return NULL;
}

/* Sources are heard all at once: over verbs there is room for a few messages only.
 * family_must_succeed() frees what the test looks at */
static void all_end_well(bool (*good)(unsigned i))
{
    pthread_t source[AGENTS_MAX];

    for (unsigned i = 0; i < n_agents; i++)
        must(!pthread_create(&source[i], NULL, until_done, f[i]));
    for (unsigned i = 0; i < n_agents; i++)
        pthread_join(source[i], NULL);
    for (unsigned i = 0; i < n_agents; i++) {
        must(wait_flag(&f[i]->ended, 20000));
        atomic_store(&f[i]->last_may_come, true);
        if (!good(i))
            loop_fail(__FILE__, __LINE__, "agent %u: %llu bytes of %llu by prefill from another agent",
                      i, (unsigned long long)f[i]->stats.bytes_fed,
                      (unsigned long long)f[i]->stats.image.bytes_prefill);
    }
    for (unsigned i = 0; i < n_agents; i++)
        end_well(i);
    loop_remove_key();
}

static bool all_is_fed(unsigned i)
{
    return i ? fed(i) == f[i]->stats.image.bytes_prefill && fed(i) : !fed(i);
}

static bool some_is_fed(unsigned i)
{
    return i ? fed(i) : !fed(i);
}

static bool none_is_fed(unsigned i)
{
    return !fed(i);
}

static void one_feeds_one(void)
{
    agents_are(2, "", NULL);
    all_but_one(1);
    begin();
    feed(0, 1);
    all_end_well(all_is_fed);
}

static void chain(void)
{
    agents_are(4, "", "dest.prefill=delay:5000");
    for (unsigned i = 1; i < 4; i++)
        all_but_one(i);
    begin();
    for (unsigned i = 0; i < 3; i++)
        feed(i, i + 1);
    all_end_well(all_is_fed);
}

static void one_feeds(unsigned n)
{
    agents_are(n + 1, "", NULL);
    for (unsigned i = 1; i <= n; i++)
        all_but_one(i);
    begin();
    for (unsigned i = 1; i <= n; i++) {
        feed(0, i);
        while (atomic_load(&f[0]->feed_to))
            usleep(1000);
    }
    all_end_well(all_is_fed);
}

static void one_feeds_many(void)
{
    one_feeds(3);
}

/* It comes when the other one has begun by its source */
static void comes_late(void)
{
    agents_are(2, "", NULL);
    f[1]->await_feed_ms = 0;
    f[1]->faults = "dest.prefill=delay:10000";
    untouched(1);
    begin();
    usleep(50000);
    feed(0, 1);
    all_end_well(some_is_fed);
}

static void never_comes(void)
{
    agents_are(2, "", NULL);
    f[1]->await_feed_ms = 300;
    begin();
    all_end_well(none_is_fed);
}

static void links_break(void)
{
    agents_are(2, "",
               "tcp.serve.prefill=fail@9,tcp.serve.prefill=fail@30,tcp.serve.prefill=fail@70");
    f[1]->faults = "dest.prefill=delay:5000";
    untouched(1);
    begin();
    feed(0, 1);
    all_end_well(some_is_fed);
}

/* The source of the one that is fed goes away and comes back */
static void source_breaks(void)
{
    agents_are(2, "", NULL);
    f[1]->faults = "dest.prefill=delay:5000";
    untouched(1);
    begin();
    feed(0, 1);
    wait_count(f[1]->fed_so_far, 256ul << 10);
    ff_source_pause(f[1]->source);
    all_end_well(some_is_fed);
}

static void lose_source(unsigned i)
{
    ff_source_free(f[i]->source);
    f[i]->source = NULL;
    f[i]->resumes = false;
}

/* It never comes back, and the others have all that there is; faults were on their way to it */
static void source_gone(void)
{
    agents_are(3, ",reconnect=5", NULL);
    /* they are not done when the sources have gone */
    f[1]->faults = loop_in_lab() ? "dest.prefill=delay:30000" : "dest.prefill=delay:5000";
    untouched(0);
    untouched(1);
    begin_with("tcp.serve.fault=delay:200000");
    feed(0, 1);
    feed(1, 2);
    wait_count(f[2]->fed_so_far, 256ul << 10);
    lose_source(1);
    lose_source(2);
    for (unsigned i = 1; i < 3; i++) {
        must(wait_flag(&f[i]->ended, 20000) && atomic_load(&f[i]->pauses) == 1);
        must(fed(i) == f[i]->stats.image.bytes_prefill);
        family_must_succeed(f[i]);
    }
    end_well(0);
    loop_remove_key();
}

/* Two that have got different parts from a source that is gone: each has what the other lacks */
static void complete_each_other(void)
{
    agents_are(2, ",reconnect=10,window=1", "dest.prefill=delay:4000");
    f[1]->await_feed_ms = 0;
    f[1]->faults = "dest.prefill=delay:3000";
    for (unsigned i = 0; i < 2; i++)
        untouched(i);
    begin();
    wait_count(f[0]->present_so_far, 1ul << 20);
    must(!atomic_load(&f[0]->ended));
    lose_source(0);
    wait_count(f[0]->pauses, 1u);
    feed(1, 0);
    family_source(f[1], S_DONE);
    must(wait_flag(&f[0]->ended, 20000) && fed(0));
    family_must_succeed(f[0]);
    end_well(1);
    loop_remove_key();
}

static uint64_t all_bytes(unsigned i)
{
    return f[i]->n_cells * CELL;
}

/* Chunks that nobody has all of: what there is of them goes from one to the other, page by page */
static void parts_of_chunks(void)
{
    agents_are(2, ",reconnect=25", NULL);
    snprintf(options, sizeof(options), "key-file=%s,prefill=pull,chunk=2M,reconnect=25",
             loop_key_file());
    f[0]->await_feed_ms = f[1]->await_feed_ms = 60000;
    f[0]->last_later = true; /* its children touch all else, and nothing more comes */
    f[0]->faults = "dest.around=fail";
    untouched(1);
    begin();
    wait_count(f[0]->present_so_far, all_bytes(0) - CELL);
    ff_source_pause(f[1]->source);
    wait_count(f[1]->pauses, 1u);
    feed(0, 1);
    wait_count(f[1]->present_so_far, all_bytes(1) - CELL);
    lose_source(0);
    wait_count(f[0]->pauses, 1u);
    family_last(f[0]);
    family_source(f[1], S_DONE); /* comes back, and brings the last page */
    must(wait_flag(&f[1]->ended, 20000) && fed(1));
    feed(1, 0);
    must(wait_flag(&f[0]->ended, 20000));
    end_well(1);
    family_must_succeed(f[0]);
    loop_remove_key();
}

static void kill_children(unsigned i)
{
    for (unsigned k = 0; k < f[i]->n_children; k++) {
        kill(f[i]->child[k].pid, SIGKILL);
        family_reap(f[i]->child[k].pid, STATUS(SIGKILL));
    }
}

/* No source comes back, and one page is nowhere: each has all else, and says which one that is */
static void nobody_has(void)
{
    agents_are(2, ",reconnect=5", NULL);
    f[0]->await_feed_ms = f[1]->await_feed_ms = 60000;
    f[0]->last_later = true; /* its children touch all else, and nothing more comes */
    f[0]->faults = "dest.around=fail";
    untouched(1);
    begin();
    wait_count(f[0]->present_so_far, all_bytes(0) - CELL);
    for (unsigned i = 0; i < 2; i++)
        lose_source(i);
    feed(0, 1);
    for (unsigned i = 0; i < 2; i++) {
        must(wait_flag(&f[i]->ended, 20000) && atomic_load(&f[i]->agent_rc));
        if (!strstr(f[i]->agent_error, "the source did not come back within 5 s, and nobody else "
                                       "brought 1 pages (4 KiB): region1 0x23000-0x23fff"))
            loop_fail(__FILE__, __LINE__, "agent %u: %s", i, f[i]->agent_error);
        kill_children(i);
        family_free(f[i]);
    }
    loop_remove_key();
}

/* It is gone before it hears that the guest runs: nothing was asked for yet in the background */
static void source_gone_early(void)
{
    agents_are(2, ",reconnect=20", NULL);
    f[1]->faults = "dest.running=delay:1000000";
    f[1]->await_feed_ms = 0;
    for (unsigned i = 0; i < 2; i++) {
        untouched(i);
        family_fork(f[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        family_start(f[i]);
    family_source(f[0], S_DONE);
    family_source(f[1], S_GO);
    usleep(300000); /* it reads GO; if it does not, it says so and the test fails */
    lose_source(1);
    wait_count(f[1]->pauses, 1u);
    feed(0, 1);
    must(wait_flag(&f[1]->ended, 20000) && fed(1));
    end_well(0);
    family_must_succeed(f[1]);
    loop_remove_key();
}

static void kill_agent(unsigned i)
{
    kill(f[i]->agent_pid, SIGKILL);
    family_reap(f[i]->agent_pid, STATUS(SIGKILL));
    f[i]->agent_pid = 0;
    unlink(f[i]->path);
    family_free(f[i]);
}

static void kill_first(void)
{
    kill_agent(0);
    loop_remove_key();
}

/* Who feeds it dies together with its source: another one feeds it */
static void both_gone(void)
{
    agents_are(3, ",reconnect=20", NULL);
    f[1]->n_children = 0;
    f[2]->faults = "dest.prefill=delay:30000";
    untouched(0);
    untouched(2);
    begin();
    feed(0, 1);
    feed(1, 2);
    wait_count(f[2]->fed_so_far, 256ul << 10);
    lose_source(2); /* it has nowhere to go when the other one ends */
    kill_agent(1);
    wait_count(f[2]->pauses, 1u);
    must(!atomic_load(&f[2]->ended));
    feed(0, 2);
    must(wait_flag(&f[2]->ended, 20000));
    must(fed(2));
    family_must_succeed(f[2]);
    end_well(0);
    loop_remove_key();
}

/* The relay's process is killed, or stopped, when it has fed something */
static void relay_ends(int signal)
{
    agents_are(2, ",timeout=1", "dest.prefill=delay:10000");
    f[0]->n_children = 0;
    untouched(1);
    begin();
    feed(0, 1);
    wait_count(f[1]->fed_so_far, 256ul << 10);
    kill(f[0]->agent_pid, signal);
    family_source(f[1], S_DONE);
    must(wait_flag(&f[1]->ended, 20000));
    must(fed(1) && fed(1) < f[1]->stats.image.bytes_prefill);
    end_well(1);
    kill_first();
}

static void relay_killed(void)
{
    relay_ends(SIGKILL);
}

static void relay_stopped(void)
{
    relay_ends(SIGSTOP);
}

/* No request fits into the queue to it, for good */
static void relay_full(void)
{
    pushed = "feed.pushed=fail";
    agents_are(2, ",timeout=1", NULL);
    f[1]->faults = "feed.full=fail";
    untouched(1);
    begin();
    feed(0, 1);
    all_end_well(none_is_fed);
}

/* A relay that gets nothing itself is left for good, and not asked again and again */
static void relay_idle(void)
{
    static char off[220];

    agents_are(2, ",timeout=1", NULL);
    snprintf(off, sizeof(off), "%s,prefill=off", options);
    f[0]->options = off;
    f[0]->n_children = 0;
    f[1]->faults = "dest.prefill=delay:10000";
    untouched(1);
    begin();
    feed(0, 1);
    uint64_t begin_ns = ff_now_ns();
    family_source(f[1], S_DONE);
    must(wait_flag(&f[1]->ended, 30000) && !fed(1));
    if (ff_now_ns() - begin_ns > 12000000000ull)
        loop_fail(__FILE__, __LINE__, "memory came late: %llu ms",
                  (unsigned long long)(ff_now_ns() - begin_ns) / 1000000);
    end_well(1);
    kill_first();
}

/* An agent of another image, which looks alike but for its table, is refused */
static void other_image(void)
{
    agents_are(2, "", NULL);
    f[1]->await_feed_ms = 500;
    f[0]->cells[1] = 400;
    begin();
    feed(0, 1);
    all_end_well(none_is_fed);
}

/* There is no memory for it, say: the relay is told, and does not come again and again */
static void cannot_be_fed(void)
{
    agents_are(2, "", NULL);
    f[1]->faults = "dest.feed.new=fail";
    f[1]->await_feed_ms = 1000;
    begin();
    feed(0, 1);
    wait_count(f[0]->unfed, 1u);
    all_end_well(none_is_fed);
}

/* Who is to be fed refuses the relay, once by each code, and in the other one's words: the code counts */
static void refused_by_code(void)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_link_params p = {.host = "127.0.0.1", .port = "0", .timeout_ms = 10000};
    struct ff_port *port;
    struct ff_link *l;
    struct ff_error err;

    if (loop_in_lab()) /* over tcp alone */
        return;
    agents_are(1, "", NULL);
    begin();
    must_ok(ff_key_load(loop_key_file(), &p.key, &err), err);
    must_ok(ff_port_listen(&p, FF_LINK_TCP, &port, &err), err);
    must(!atomic_exchange(&f[0]->feed_to, ff_port_number(port)));
    for (enum ff_refusal code = FF_REFUSAL_NOT_YET;; code = FF_REFUSAL_FINAL) {
        must_ok(ff_port_accept(port, NULL, 0, 10000, &l, &err), err);
        int len = l->ops->recv(l, buf, 10000, &err);
        must(len > 0 && ff_wire_type(buf, (size_t)len, &err) == FF_MSG_FEED && !atomic_load(&f[0]->unfed));
        len = ff_wire_put_refuse(buf, code, code ? "another agent feeds this one"
                                                 : "feed: there is no image here yet");
        must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
        l->ops->free(l);
        if (code == FF_REFUSAL_FINAL)
            break;
    }
    wait_count(f[0]->unfed, 1u);
    ff_port_free(port);
    ff_key_unref(p.key);
    all_end_well(none_is_fed);
}

/* --- verify=on --- */

static void verified(void (*test)(void))
{
    verify = ",verify=on";
    test();
}

static void one_verified(void)
{
    verified(one_feeds_one);
}

static void tree_verified(void)
{
    verify = ",verify=on";
    one_feeds(2);
}

static void chain_verified(void)
{
    verified(chain);
}

static void late_verified(void)
{
    verified(comes_late);
}

static void links_verified(void)
{
    verified(links_break);
}

static void source_verified(void)
{
    verified(source_breaks);
}

static void killed_verified(void)
{
    verified(relay_killed);
}

static void stopped_verified(void)
{
    verified(relay_stopped);
}

static void idle_verified(void)
{
    verified(relay_idle);
}

/* One of its regions is right */
static bool some_is_right(unsigned i)
{
    must(atomic_load(&f[i]->misfed) == (i == 1));
    return i == 1 ? fed(i) && fed(i) < f[i]->stats.image.bytes_prefill : i ? fed(i) : !fed(i);
}

static void relay_wrong(void)
{
    verify = ",verify=on";
    agents_are(3, "", "relay.image=fail@2");
    untouched(1);
    untouched(2);
    begin();
    feed(0, 1);
    feed(1, 2);
    all_end_well(some_is_right);
}

/* Its source goes away, for good, while it is fed: nobody can say what is right, and nothing is taken */
static void source_gone_verified(void)
{
    verify = ",verify=on";
    agents_are(2, ",reconnect=1", NULL);
    f[1]->faults = "dest.prefill=delay:10000";
    f[1]->n_children = 0;
    f[1]->resumes = false;
    begin();
    feed(0, 1);
    wait_count(f[1]->fed_so_far, 256ul << 10);
    ff_source_free(f[1]->source);
    f[1]->source = NULL;
    wait_count(f[1]->pauses, 1u);
    uint64_t had = atomic_load(&f[1]->present_so_far);
    must(wait_flag(&f[1]->ended, 20000) && atomic_load(&f[1]->agent_rc));
    must(f[1]->stats.image.bytes_present < f[1]->stats.image.bytes_total);
    if (f[1]->stats.image.bytes_present > had + (1ul << 20))
        loop_fail(__FILE__, __LINE__, "it went on: %llu bytes, then %llu", (unsigned long long)had,
                  (unsigned long long)f[1]->stats.image.bytes_present);
    family_free(f[1]);
    end_well(0);
    loop_remove_key();
}

/* --- as over a link that pins --- */

static void pushing(void (*test)(void))
{
    pushed = "feed.pushed=fail";
    test();
}

static void one_pushed(void)
{
    pushing(one_feeds_one);
}

static void chain_pushed(void)
{
    pushing(chain);
}

static void many_pushed(void)
{
    pushing(one_feeds_many);
}

static void killed_pushed(void)
{
    pushing(relay_killed);
}

static void stopped_pushed(void)
{
    pushing(relay_stopped);
}

/* Somebody who asks for what is not there yet gets nothing, and a relay's files no zeros for it */
static bool got_none(unsigned i)
{
    return !i || fed(i) < f[i]->stats.image.bytes_prefill / 2;
}

static void too_early_pushed(void)
{
    pushed = "feed.pushed=fail";
    agents_are(2, "", "dest.prefill=delay:20000");
    f[1]->faults = "dest.feed.has=fail";
    untouched(0);
    untouched(1);
    begin();
    feed(0, 1);
    all_end_well(got_none);
}

static void chain_pushed_verified(void)
{
    pushing(chain_verified);
}

static void wrong_pushed(void)
{
    pushing(relay_wrong);
}

static void source_pushed(void)
{
    pushing(source_verified);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"one agent feeds one", one_feeds_one, 40},
        {"a chain of four", chain, 40},
        {"one feeds three", one_feeds_many, 40},
        {"a feed that comes late", comes_late, 40},
        {"nobody feeds", never_comes, 40},
        {"links between agents break", links_break, 40},
        {"the source of who is fed comes back", source_breaks, 40},
        {"sources that never come back", source_gone, 40},
        {"who has lost its source is fed", complete_each_other, 40},
        {"parts of chunks", parts_of_chunks, 60},
        {"a page that nobody has", nobody_has, 60},
        {"a source that is gone early", source_gone_early, 60},
        {"the relay and the source are gone", both_gone, 60},
        {"the relay is killed", relay_killed, 40},
        {"the relay is stopped", relay_stopped, 40},
        {"a relay that takes no request", relay_full, 40},
        {"the relay has nothing", relay_idle, 40},
        {"a relay with another image", other_image, 40},
        {"who cannot be fed", cannot_be_fed, 40},
        {"refused, not yet and for good", refused_by_code, 40},
        {"verified: one agent feeds one", one_verified, 40},
        {"verified: a tree of three", tree_verified, 40},
        {"verified: a chain of four", chain_verified, 40},
        {"verified: a feed that comes late", late_verified, 40},
        {"verified: links between agents break", links_verified, 40},
        {"verified: the source of who is fed comes back", source_verified, 40},
        {"verified: the relay is killed", killed_verified, 40},
        {"verified: the relay is stopped", stopped_verified, 40},
        {"verified: the relay has nothing", idle_verified, 40},
        {"verified: what the relay gives on is wrong", relay_wrong, 40},
        {"verified: a source that never comes back", source_gone_verified, 40},
        {"pushed: one agent feeds one", one_pushed, 40},
        {"pushed: a chain of four", chain_pushed, 40},
        {"pushed: one feeds three", many_pushed, 40},
        {"pushed: the relay is killed", killed_pushed, 40},
        {"pushed: the relay is stopped", stopped_pushed, 40},
        {"pushed: what is not announced is asked for", too_early_pushed, 40},
        {"pushed, verified: a chain of four", chain_pushed_verified, 40},
        {"pushed, verified: the source of who is fed comes back", source_pushed, 40},
        {"pushed, verified: what the relay gives on is wrong", wrong_pushed, 40},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
