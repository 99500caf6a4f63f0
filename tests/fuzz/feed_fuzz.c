/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * feed_fuzz.c - libFuzzer: another agent that says what it likes to an agent that it feeds
 */
/**
 * DOC: Theory of Operation
 *
 * Input        how many steps of a good relay come first; then steps: the next one of a good relay,
 *              that a bit beside, any message; claims that it has, or has not, whatever it said
 *              before; a link that breaks, and another; a source that goes, and comes back.
 * Picture      ff_agent_receive() and ff_agent_wait() have a thread, a good source has one. The relay
 *              has the source's image, and a byte of claims for each page.
 * Invariants   what was fed is counted, and is no more than there is. Every failure has a reason. All
 *              ends when the caller gives up; nothing of it is left.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "cleanup.h"
#include "farfork-clone.h"
#include "key.h"
#include "peer.h"
#include "source.h"

enum step { HERE, FEED, WELCOMED, SERVE, STEPS };

#define PAGES_MAX 48u
#define HERE_MS 3000
#define AWAIT_MS 100
#define SERVE_MS 1000u
#define SERVE_WRONG_MS 10u

struct world {
    struct peer p;
    unsigned next;
    struct area image[REGIONS];
    uint8_t claims[REGIONS][PAGES_MAX];
    struct ff_wire_region table[REGIONS];
    struct ff_offer offer;

    struct ff_agent *a;
    struct ff_source *source;
    pthread_t engine, source_thread;
    struct event here, ended;
    atomic_bool stop, away;
    int rc;
};

static char dir[64], path[80];

static void remove_dir(void)
{
    rmdir(dir);
}

static void *run_agent(void *arg)
{
    struct world *w = arg;
    struct ff_error err = {.code = 0};

    w->rc = ff_agent_receive(w->a, &err);
    event_set(&w->here);
    if (!w->rc)
        w->rc = ff_agent_wait(w->a, &err);
    check_outcome(w->rc, &err);
    event_set(&w->ended);
    return NULL;
}

static int run_stages(struct world *w, struct ff_error *err)
{
    static const uint8_t state[1000] = {1};

    int rc = ff_source_connect(w->source, "fuzz", err);
    if (!rc)
        rc = ff_source_publish(w->source, err);
    if (!rc)
        rc = ff_source_send_state(w->source, state, sizeof(state), NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(w->source, err);
    if (!rc)
        rc = ff_source_go(w->source, err);
    return rc ? rc : ff_source_wait_running(w->source, err);
}

static void *run_source(void *arg)
{
    struct world *w = arg;
    struct ff_error err;

    int rc = run_stages(w, &err);
    while (!rc && (rc = ff_source_wait_done(w->source, &err)) && !atomic_load(&w->stop)) {
        while (atomic_load(&w->away) && !atomic_load(&w->stop))
            usleep(500);
        rc = atomic_load(&w->stop) ? rc : ff_source_resume(w->source, NULL, 1000, &err);
    }
    check_outcome(rc, &err);
    return NULL;
}

/* --- the relay --- */

static void connect_peer(struct world *w)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .timeout_ms = 1000, .key = fuzz_key()};
    char port[16];

    snprintf(port, sizeof(port), "%u", ff_agent_port(w->a));
    lp.port = port;
    w->p.open = false;
    if (!strcmp(port, "0") || ff_tcp_connect(&lp, -1, &w->p.l, NULL))
        w->p.l = NULL;
}

/* Over a link of its own, which knows its memory */
static int make_feed(struct world *w)
{
    struct ff_hello h = {.n_regions = REGIONS, .config = "fuzz", .regions = w->table};
    struct ff_mr mr;

    w->offer = (struct ff_offer){.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION,
                                 .digest = ff_hello_digest(&h), .n = REGIONS};
    for (unsigned i = 0; w->p.l && i < REGIONS; i++) {
        struct ff_fed_region *r = &w->offer.r[i];
        r->addr = (uintptr_t)w->image[i].host;
        r->claims_addr = (uintptr_t)w->claims[i];
        must(!w->p.l->ops->reg(w->p.l, w->image[i].host, w->image[i].len_bytes,
                               FF_ACCESS_REMOTE_READ, &mr, NULL));
        r->rkey = mr.rkey;
        must(!w->p.l->ops->reg(w->p.l, w->claims[i], region_pages[i], FF_ACCESS_REMOTE_READ, &mr,
                               NULL));
        r->claims_rkey = mr.rkey;
    }
    return ff_wire_put_feed(w->p.msg, &w->offer);
}

static void be_welcomed(struct world *w)
{
    struct peer *p = &w->p;
    struct ff_welcome welcome;
    struct ff_error why;

    if (p->open || !peer_await(p, FF_MSG_WELCOME, NULL, NULL) ||
        ff_wire_get_welcome(p->heard, (size_t)p->heard_len, &welcome, &why))
        return;
    p->open = !p->l->ops->open_queues(p->l, welcome.session, 500, &why);
    if (!p->open)
        peer_hang_up(p);
}

static void serve(struct world *w)
{
    uint64_t end = ff_now_ns() + (w->p.right ? SERVE_MS : SERVE_WRONG_MS) * 1000000ull;

    while (w->p.l && !event_is(&w->ended) && ff_now_ns() < end) {
        if (!peer_hear(&w->p))
            peer_wait(&w->p, 2);
    }
}

static void good_step(void *opaque)
{
    struct world *w = opaque;

    switch (w->next++) {
    case HERE:
        event_await(&w->here, HERE_MS);
        break;
    case FEED:
        peer_hang_up(&w->p);
        connect_peer(w);
        peer_say(&w->p, make_feed(w));
        break;
    case WELCOMED:
        be_welcomed(w);
        break;
    case SERVE:
        serve(w);
        break;
    default:
        w->next = FEED;
    }
}

static void step(void *opaque, struct input *in)
{
    struct world *w = opaque;
    unsigned how = get(in);

    switch (how % 8) {
    case 0:
    case 1:
        good_step(w);
        break;
    case 2:
        peer_hang_up(&w->p);
        connect_peer(w);
        peer_say_beside(&w->p, make_feed(w), in);
        w->next = WELCOMED;
        break;
    case 3:
        peer_say_anything(&w->p, in);
        break;
    case 4: /* pages that it has, or has not; some values are no claims at all */
        w->claims[how >> 7][get(in) % PAGES_MAX] = get(in) % 6;
        break;
    case 5:
        peer_hang_up(&w->p);
        w->next = FEED;
        break;
    case 6:
        atomic_store(&w->away, how & 8);
        if (how & 8)
            ff_source_pause(w->source);
        break;
    default:
        for (unsigned i = how / 8; i--;)
            if (!peer_hear(&w->p))
                peer_wait(&w->p, 1);
    }
}

/* --- one run --- */

static void new_agent(struct world *w)
{
    struct ff_error err;

    if (!dir[0]) {
        snprintf(dir, sizeof(dir), "%s/farfork-fuzz-XXXXXX",
                 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        must(mkdtemp(dir) != NULL);
        snprintf(path, sizeof(path), "%s/agent", dir);
        atexit(remove_dir);
    }
    struct ff_address *a = fuzz_address(KEYED, 0, ",chunk=64K,prefill=pull,reconnect=5");
    must(!ff_agent_new(a, path, &w->a, &err));
    ff_address_free(a);
    ff_agent_await_feed(w->a, AWAIT_MS);
}

static void begin(struct world *w)
{
    struct ff_error err;

    w->p = (struct peer){.way = KEYED, .right = true, .raw = {-1, -1, -1}, .engine_ended = &w->ended};
    event_new(&w->here);
    event_new(&w->ended);
    new_agent(w);
    struct ff_address *a = fuzz_address(KEYED, ff_agent_port(w->a), "");
    must(!ff_source_new(a, &w->source, &err));
    ff_address_free(a);
    for (unsigned i = 0; i < REGIONS; i++) {
        area_new(&w->image[i], i, false);
        area_fill(&w->image[i], i);
        must(!mprotect(w->image[i].host, w->image[i].len_bytes, PROT_READ));
        struct ff_region r = region_of(&w->image[i], i);
        must(!ff_source_add_region(w->source, &r, &err));
        strcpy(w->table[i].name, r.name);
        w->table[i].len_bytes = r.len_bytes;
        w->table[i].psize = PAGE;
        memset(w->claims[i], FF_CLAIM_PRESENT, PAGES_MAX);
    }
    must(!pthread_create(&w->engine, NULL, run_agent, w));
    must(!pthread_create(&w->source_thread, NULL, run_source, w));
}

static void end(struct world *w)
{
    struct ff_agent_stats st;

    ff_agent_stats(w->a, &st);
    must(st.image.bytes_present <= st.image.bytes_total && st.bytes_fed <= st.image.bytes_prefill);
    peer_hang_up(&w->p);
    atomic_store(&w->stop, true);
    ff_agent_cancel(w->a);
    ff_source_cancel(w->source);
    pthread_join(w->engine, NULL);
    pthread_join(w->source_thread, NULL);
    ff_agent_free(w->a);
    ff_source_free(w->source);
    must(access(path, F_OK) < 0);
    event_free(&w->here);
    event_free(&w->ended);
    for (unsigned i = 0; i < REGIONS; i++)
        area_free(&w->image[i]);
    int next = dup(0); /* nothing is left open: numbers do not grow */
    must(next >= 0 && next < 64);
    close(next);
}

void fuzz_one(struct input *in)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    begin(&w);
    fuzz_steps(in, STEPS, good_step, step, &w);
    end(&w);
}
