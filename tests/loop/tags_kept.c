/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tags_kept.c - verify=on: a tag that never comes, or comes for another read, lets nobody wait
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      source -- link -- thief -- destination's pager
 *              The thief stands where that of verified.c does. It keeps a tag's notice, as somebody
 *              in a fabric can: he makes a WRITE with immediate data one without. All else goes on.
 * Limits       A stall that is longer than PATIENCE_MS may break a link as well, for a reason of its
 *              own: then he steals once more from the next one.
 */
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "loop.h"
#include "tags.h"

#define FINE "chunk=4096,verify=on"
#define KEPT "no tag for"
#define PATIENCE_MS 3000 /* a stall of this process that is shorter breaks no link */
#define TURNS 3

static void setup(void)
{
    image_new(4096);
}

/* --- the thief --- */

enum theft { NONE, KEEP, TURN, TWICE, KEEP_READ };

static struct {
    enum theft what;
    enum ff_queue queue;
    unsigned after, most; /* tags, on each link; one of each link */
    atomic_uint done;
    atomic_bool stole; /* since the last break: the next link may stand before that is told */
    atomic_uint seen; /* of this link */
    struct ff_link *_Atomic link; /* the newest; the one before may still be read */
    const struct ff_link_ops *real;
    struct ff_link_ops ops;
} thief;

/* The notice at @wc, or KEEP_READ: that a READ is complete; what is left of it, none or two */
static unsigned steal(struct ff_wc *wc)
{
    atomic_fetch_add(&thief.done, 1);
    atomic_store(&thief.stole, true);
    if (thief.what == TURN)
        wc->imm ^= 1;
    if (thief.what == TWICE)
        wc[1] = wc[0];
    return thief.what == KEEP || thief.what == KEEP_READ ? 0 : thief.what == TURN ? 1 : 2;
}

static int thieving_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n,
                         int timeout_ms, struct ff_error *err)
{
    /* there is room for one more */
    int got = thief.real->poll(l, q, wc, n > 1 ? n - 1 : 1, timeout_ms, err), left = 0;

    for (int i = 0; i < got; i++) {
        bool mine = l == thief.link && q == thief.queue &&
                    wc[i].op == (thief.what == KEEP_READ ? FF_WC_READ : FF_WC_RECV_IMM) &&
                    thief.what && thief.seen++ == thief.after &&
                    atomic_load(&thief.done) < thief.most;
        wc[left] = wc[i];
        if (mine && thief.what == TWICE)
            memmove(wc + i + 2, wc + i + 1, (size_t)(got - i - 1) * sizeof(*wc));
        unsigned gives = mine ? steal(wc + left) : 1;
        left += (int)gives;
        if (gives == 2)
            got++, i++;
    }
    return got < 0 ? got : left;
}

static void stand_at(struct ff_link *l)
{
    if (!thief.real) {
        thief.real = l->ops;
        thief.ops = *l->ops;
        thief.ops.poll = thieving_poll;
    }
    thief.seen = 0;
    thief.link = l;
    l->ops = &thief.ops;
}

/* Every link of a network begins here (ld --wrap) */
int __real_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);
int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);

int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err)
{
    int rc = __real_ff_port_accept(port, also, n, timeout_ms, out, err);

    if (!rc)
        stand_at(*out);
    return rc;
}

static void steals(enum theft what, enum ff_queue q, unsigned after, unsigned most)
{
    thief.what = what;
    thief.queue = q;
    thief.after = after;
    thief.most = most;
    atomic_store(&thief.done, 0);
    atomic_store(&thief.stole, false);
}

/* --- moves --- */

static const char *with_key(const char *more)
{
    static char options[200];

    snprintf(options, sizeof(options), "key-file=%s,%s", loop_key_file(), more);
    return options;
}

static const char *says;
static atomic_uint said; /* of the breaks after a theft it gave this reason at the destination */
static atomic_uint_fast64_t least; /* bytes that were missing at each of these breaks */

static void note_reason(struct move *m, bool source)
{
    struct ff_stats st;

    if (source)
        return;
    bool right = strstr(m->dst.err.text, says) != NULL;
    if (!right)
        printf("  %s\n", m->dst.err.text);
    if (!atomic_exchange(&thief.stole, false))
        return;
    atomic_fetch_add(right ? &said : &thief.done, right ? 1u : -1u);
    if (!right)
        return;
    ff_dest_stats(m->dest, &st);
    if (st.bytes_total - st.bytes_present < atomic_load(&least))
        atomic_store(&least, st.bytes_total - st.bytes_present);
}

/* Each theft breaks the link for the reason that it is, and the next link brings what is right */
static void survives(const char *more, const char *faults, const char *reason)
{
    static struct move m;

    says = reason;
    atomic_store(&said, 0);
    atomic_store(&least, UINT64_MAX);
    m = (struct move){.options = with_key(more), .touchers = 8, .writes = true, .touch_late = true,
                      .go_timeout_ms = PATIENCE_MS, .broken = note_reason};
    move_must_survive(&m, faults, thief.most);
    if (atomic_load(&thief.done) != thief.most || atomic_load(&said) != thief.most)
        loop_fail(__FILE__, __LINE__, "%u thefts, and %u breaks for them (want %u)",
                  atomic_load(&thief.done), atomic_load(&said), thief.most);
    loop_remove_key();
}

/* Others are answered all the time, for longer than anybody is to wait for one: the link breaks
 * while they still are */
static void others_go_on(void)
{
    steals(KEEP, FF_QUEUE_FAULT, 20, 2);
    survives(FINE ",window=1", "dest.fault=delay:6000,dest.prefill=delay:50000,dest.around=fail", KEPT);
    must(atomic_load(&least) > 100 * CELL);
    steals(KEEP, FF_QUEUE_PREFILL, 20, 2);
    survives(FINE ",window=8", "dest.fault=delay:50000,dest.prefill=delay:6000,dest.around=fail", KEPT);
    must(atomic_load(&least) > 100 * CELL);
}

/* Bytes that do not come are not said to be a tag that somebody keeps */
static void bytes_are_late(void)
{
    steals(KEEP_READ, FF_QUEUE_FAULT, 20, 1);
    survives(FINE ",window=1", "dest.fault=delay:6000@1-900,dest.prefill=delay:50000", "no READ of");
}

/* Nothing else is under way on that queue */
static void nothing_goes_on(void)
{
    steals(KEEP, FF_QUEUE_PREFILL, 20, 2);
    survives(FINE ",window=1", "dest.fault=delay:3000,dest.around=fail", "verify: the bytes came, and no tag");
}

static void of_another(void)
{
    steals(TURN, FF_QUEUE_PREFILL, 20, 2);
    survives(FINE ",window=8", "dest.fault=delay:2000", "verify: ");
    steals(TWICE, FF_QUEUE_FAULT, 20, 2);
    survives(FINE ",window=1", "dest.prefill=delay:10000", "verify: ");
}

static void make_pass(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage == S_STATE && ff_source_precopy(m->source, &err))
        printf("  %s\n", err.text);
}

/* Before GO the guest goes on at the source: of a page that it named, or of a pass. What broke for
 * another reason, or before a theft, was a stall */
static void fails(const struct move *how, const char *more)
{
    static struct move m;
    bool right = false;

    for (unsigned turn = 0; turn < TURNS && !right; turn++) {
        atomic_store(&thief.done, 0);
        m = *how;
        m.tcp = true;
        m.options = with_key(more);
        move_run(&m);
        must(!m.went && !m.ran && m.src.rc && m.dst.rc);
        right = atomic_load(&thief.done) == 1 &&
                strstr(m.dst.err.text, "verify: the bytes came, and no tag");
        if (!right)
            printf("  %s\n", m.dst.err.text);
        move_free(&m);
        loop_remove_key();
    }
    must(right);
}

static void before_go(void)
{
    struct move how = {.n_first = 1};

    steals(KEEP, FF_QUEUE_FAULT, 0, 1);
    loop_arm("dest.ready=delay:5000000");
    while (cell_is_zero(how.first[0].offset / CELL))
        how.first[0].offset += CELL;
    fails(&how, FINE ",timeout=3");
}

static void in_a_pass(void)
{
    steals(KEEP, FF_QUEUE_PREFILL, 20, 1);
    fails(&(struct move){.hook = make_pass}, FINE ",precopy=1,timeout=3,window=1");
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a tag is kept, others come", others_go_on, 60},
        {"bytes are late, others come", bytes_are_late, 60},
        {"a tag is kept, and nothing comes", nothing_goes_on, 60},
        {"a tag for another", of_another, 60},
        {"a tag is kept before GO", before_go, 40},
        {"a tag is kept in a pass", in_a_pass, 40},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
