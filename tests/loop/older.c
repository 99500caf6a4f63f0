/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * older.c - an agent that fetches from an earlier image of its host what is the same: every byte is right
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "family.h"

#define FINE "chunk=64K,prefill=pull"

enum { EARLIER, LATER, OTHER };

static char options[2][200], pushed[80];
static struct family *f[3];
static unsigned n;

static void setup(void)
{
    image_new(3000);
}

/* An earlier image, of a fork without a key, and a later one; OTHER has the later one, too. @faults: of the earlier
 * one's agent */
static void images_are(unsigned families, const char *more, const char *faults)
{
    n = families;
    snprintf(options[0], sizeof(options[0]), FINE "%s", more);
    snprintf(options[1], sizeof(options[1]), FINE ",key-file=%s,verify=on%s", loop_key_file(), more);
    for (unsigned i = 0; i < n; i++) {
        f[i] = family_new();
        f[i]->options = options[i > 0];
        f[i]->n_children = i ? 2 : 0;
        f[i]->resumes = true;
    }
    f[EARLIER]->faults = faults;
    f[LATER]->older = f[EARLIER]->path;
    if (!*pushed)
        return;
    f[LATER]->faults = "feed.pushed=fail";
    if (faults)
        snprintf(pushed, sizeof(pushed), "feed.pushed=fail,%s", faults);
    f[EARLIER]->faults = pushed;
}

/* All come in the background: nobody touches anything before */
static void untouched(unsigned i)
{
    for (unsigned k = 0; k < f[i]->n_children; k++)
        f[i]->child[k].when = WHEN_COMPLETE;
}

static void run(unsigned i)
{
    family_source(f[i], S_RUNNING);
    must_ok(f[i]->source_rc, f[i]->source_err);
}

static void begin(void)
{
    for (unsigned i = 0; i < n; i++)
        family_fork(f[i]);
    for (unsigned i = 0; i < n; i++)
        family_start(f[i]);
    run(EARLIER);
}

static void earlier_is_whole(void)
{
    family_source(f[EARLIER], S_DONE);
    must_ok(f[EARLIER]->source_rc, f[EARLIER]->source_err);
    must(wait_flag(&f[EARLIER]->ended, 20000));
}

static void end_well(unsigned i)
{
    family_source(f[i], S_DONE);
    family_must_succeed(f[i]);
}

/* Of memory by prefill of @i so much is of the earlier image */
static uint64_t same(unsigned i)
{
    const struct ff_agent_stats *s = &f[i]->stats;

    printf("      %llu KiB by prefill, %llu of them from the earlier image, %llu from other agents\n",
           (unsigned long long)s->image.bytes_prefill >> 10, (unsigned long long)s->bytes_same >> 10,
           (unsigned long long)s->bytes_fed >> 10);
    return s->bytes_same;
}

static void later_is_whole(void)
{
    family_source(f[LATER], S_DONE);
    must_ok(f[LATER]->source_rc, f[LATER]->source_err);
    must(wait_flag(&f[LATER]->ended, 20000));
}

static void end(void)
{
    for (unsigned i = n; i-- > 0;)
        end_well(i);
    loop_remove_key();
}

static void kill_earlier(void)
{
    end_well(LATER);
    kill(f[EARLIER]->agent_pid, SIGKILL);
    family_reap(f[EARLIER]->agent_pid, SIGKILL);
    f[EARLIER]->agent_pid = 0;
    family_free(f[EARLIER]);
    loop_remove_key();
}

static void all_same(void)
{
    images_are(2, "", NULL);
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(LATER);
    later_is_whole();
    must(same(LATER) == f[LATER]->stats.image.bytes_prefill && same(LATER));
    end();
}

/* Children touch what comes, and write */
static void touched(void)
{
    images_are(2, "", NULL);
    begin();
    earlier_is_whole();
    run(LATER);
    later_is_whole();
    must(same(LATER));
    end();
}

/* @faults: what the earlier image has not as the later one; some of it has to be the same */
static void some_differs(const char *faults, uint64_t least, uint64_t most)
{
    images_are(2, "", faults);
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(LATER);
    later_is_whole();
    uint64_t percent = same(LATER) * 100 / f[LATER]->stats.image.bytes_prefill;
    if (percent < least || percent > most)
        loop_fail(__FILE__, __LINE__, "%llu %% are of the earlier image (want %llu..%llu)",
                  (unsigned long long)percent, (unsigned long long)least, (unsigned long long)most);
    end();
}

/* One page of 37: so of the parts of 4 pages one of 9 */
static void pages_differ(void)
{
    some_differs("relay.image.some=fail", 80, 95);
}

static void region_differs(void)
{
    some_differs("relay.image=fail@2", 90, 99);
}

static void all_differs(void)
{
    some_differs("relay.image=fail", 0, 1);
}

/* The links between the agents break now and then */
static void links_break(void)
{
    images_are(2, "", "relay.image.some=fail,tcp.serve.prefill=fail@9,tcp.serve.prefill=fail@40");
    f[LATER]->faults = "dest.prefill=delay:5000";
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(LATER);
    later_is_whole();
    must(same(LATER));
    end();
}

/* The later image's source goes away and comes back */
static void source_breaks(void)
{
    images_are(2, "", "relay.image.some=fail");
    f[LATER]->faults = "dest.prefill=delay:5000";
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(LATER);
    wait_count(f[LATER]->same_so_far, 256ul << 10);
    ff_source_pause(f[LATER]->source);
    later_is_whole();
    must(same(LATER) && f[LATER]->stats.image.breaks == 1);
    end();
}

static void earlier_ends(int signal)
{
    images_are(2, ",timeout=1", "relay.image.some=fail");
    f[LATER]->faults = "dest.prefill=delay:10000";
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(LATER);
    wait_count(f[LATER]->same_so_far, 256ul << 10);
    kill(f[EARLIER]->agent_pid, signal);
    later_is_whole();
    must(same(LATER) && same(LATER) < f[LATER]->stats.image.bytes_prefill);
    kill_earlier();
}

static void earlier_killed(void)
{
    earlier_ends(SIGKILL);
}

static void earlier_stopped(void)
{
    earlier_ends(SIGSTOP);
}

/* It does not answer when it is asked: nobody waits for it for long */
static void earlier_silent(void)
{
    images_are(2, "", NULL);
    untouched(LATER);
    begin();
    earlier_is_whole();
    kill(f[EARLIER]->agent_pid, SIGSTOP);
    run(LATER);
    later_is_whole();
    must(!same(LATER));
    kill_earlier();
}

/* What it has not got is not waited for */
static void earlier_incomplete(void)
{
    images_are(2, "", "dest.prefill=delay:100000000@90+"); /* no more, for as long as this test lasts */
    untouched(LATER);
    begin();
    wait_count(f[EARLIER]->present_so_far, 5ul << 20);
    run(LATER);
    later_is_whole();
    must(!atomic_load(&f[EARLIER]->ended) && same(LATER) && same(LATER) < f[LATER]->stats.image.bytes_prefill);
    kill_earlier();
}

/* Who is fed by an earlier image takes others when that has no more; and nobody is told that it failed */
static void another_feeds(void)
{
    images_are(3, "", "relay.image.some=fail");
    f[LATER]->faults = "dest.prefill=delay:5000";
    untouched(LATER);
    begin();
    earlier_is_whole();
    run(OTHER);
    run(LATER);
    wait_count(f[LATER]->same_so_far, 64ul << 10);
    must(!atomic_exchange(&f[OTHER]->feed_to, atomic_load(&f[LATER]->port)));
    later_is_whole();
    must(same(LATER) && !f[LATER]->stats.bytes_fed && !atomic_load(&f[OTHER]->unfed));
    end();
}

/* Likewise when that came first: it comes again */
static void another_was_first(void)
{
    images_are(3, "", "relay.image.some=fail");
    f[LATER]->faults = "dest.prefill=delay:5000";
    untouched(LATER);
    begin();
    earlier_is_whole();
    kill(f[EARLIER]->agent_pid, SIGSTOP);
    run(OTHER);
    run(LATER);
    must(!atomic_exchange(&f[OTHER]->feed_to, atomic_load(&f[LATER]->port)));
    wait_count(f[LATER]->fed_so_far, 64ul << 10);
    kill(f[EARLIER]->agent_pid, SIGCONT);
    later_is_whole();
    must(same(LATER) && f[LATER]->stats.bytes_fed && !atomic_load(&f[OTHER]->unfed));
    end();
}

static void pages_differ_pushed(void)
{
    strcpy(pushed, "feed.pushed=fail");
    pages_differ();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"all is the same", all_same, 40},
        {"children touch it", touched, 40},
        {"pages differ", pages_differ, 40},
        {"a region differs", region_differs, 40},
        {"all differs", all_differs, 40},
        {"links between agents break", links_break, 40},
        {"the source breaks", source_breaks, 40},
        {"the earlier agent is killed", earlier_killed, 40},
        {"the earlier agent is stopped", earlier_stopped, 40},
        {"the earlier agent does not answer", earlier_silent, 40},
        {"the earlier image is not whole", earlier_incomplete, 40},
        {"another agent comes to feed it", another_feeds, 40},
        {"another agent was there first", another_was_first, 40},
        {"pushed: pages differ", pages_differ_pushed, 40},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
