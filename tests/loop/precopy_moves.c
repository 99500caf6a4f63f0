/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * precopy_moves.c - precopy=1: a source whose guest writes while it is read once, and what must not
 * be
 *             lost of that; every way in which the pass can fail
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"
#include "platform.h"

#define PAGE 4096u
#define REGIONS 2
#define HUGE_BYTES (2u << 20)
#define HUGE_PAGES 24 /* both sides: 2 * (8 + 4) */

enum writes { WRITE_NONE, WRITE_SOME, WRITE_ALL };

struct guest {
    struct area src[REGIONS], dst[REGIONS];
    _Atomic uint64_t *log[REGIONS]; /* as a hypervisor keeps it: a bit for each 4 KiB */
    enum writes writes;
    bool twice;   /* name what is dirty while the guest still runs, too */
    uint64_t version;
    atomic_bool paused;
    pthread_t writer, source_thread;
    pthread_mutex_t gate; /* guards source against being freed while another thread uses it */
    struct ff_address *a_src, *a_dst;
    struct ff_source *source;
    struct ff_dest *dest;
    int source_rc;
    bool source_gone; /* GO was sent */
    struct ff_error source_err;
    struct ff_stats st;
};

static struct guest g;

static uint64_t n_pages(unsigned region)
{
    return g.src[region].len_bytes / PAGE;
}

/* Some pages are never written, so that they stay as the pass found them */
static bool may_write(uint64_t page)
{
    return g.writes == WRITE_ALL || (g.writes == WRITE_SOME && page * 2654435761u % 8 == 3);
}

/* As a vCPU: whoever reads the page meanwhile gets part of it. TSAN need not hear of that. */
__attribute__((no_sanitize("thread"))) static void fill(unsigned region, uint64_t page, uint64_t v)
{
    volatile uint64_t *p = (volatile uint64_t *)(g.src[region].host + page * PAGE);

    for (unsigned i = 0; i < PAGE / 8; i++)
        p[i] = v ? (page << 32 | v) * 0x9e3779b97f4a7c15ull + i : 0;
}

static void write_page(unsigned region, uint64_t page, uint64_t v)
{
    atomic_fetch_or(&g.log[region][page / 64], 1ull << (page % 64));
    fill(region, page, v);
}

static void write_round(void)
{
    g.version++;
    for (unsigned r = 0; r < REGIONS; r++)
        for (uint64_t page = 0; page < n_pages(r) && !atomic_load(&g.paused); page++)
            if (may_write(page))
                write_page(r, page, page % 5 == 1 ? 0 : g.version);
}

static void *writer_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&g.paused))
        write_round();
    return NULL;
}

/* What the log has by now, while the guest may go on writing to it */
static int name_dirty(struct ff_error *err)
{
    int rc = 0;

    for (unsigned r = 0; r < REGIONS && !rc; r++) {
        uint64_t words = n_pages(r) / 64 + 1;
        FF_AUTO_FREE uint64_t *bits = calloc(words, 8);
        must(bits);
        for (uint64_t i = 0; i < words; i++)
            bits[i] = atomic_load(&g.log[r][i]);
        rc = ff_source_dirty(g.source, r, bits, PAGE, err);
    }
    return rc;
}

static int pass(struct ff_error *err)
{
    for (unsigned r = 0; r < REGIONS; r++)
        memset((void *)g.log[r], 0, n_pages(r) / 8 + 8);
    if (g.writes)
        must(!pthread_create(&g.writer, NULL, writer_main, NULL));
    int rc = ff_source_precopy(g.source, err);
    if (!rc && g.twice)
        rc = name_dirty(err);
    if (!rc && g.twice)
        rc = ff_source_precopy(g.source, err);
    atomic_store(&g.paused, true);
    if (g.writes)
        pthread_join(g.writer, NULL);
    return rc;
}

/* What was certainly read by now changes, the last of it as devices do that are saved */
static int pause_guest(struct ff_error *err)
{
    atomic_store(&g.paused, false);
    if (g.writes)
        write_round();
    if (g.writes == WRITE_SOME) {
        write_page(0, 0, 77);
        write_page(1, n_pages(1) - 1, 78);
    }
    return name_dirty(err);
}

static int source_stages(struct ff_error *err)
{
    int rc = ff_source_connect(g.source, "test", err);
    if (!rc)
        rc = ff_source_publish(g.source, err);
    if (!rc)
        rc = ff_source_wait_watched(g.source, err);
    must(rc || ff_source_wants_precopy(g.source));
    if (!rc)
        rc = pass(err);
    if (!rc)
        rc = pause_guest(err);
    if (!rc)
        rc = ff_source_send_state(g.source, "state", 5, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(g.source, err);
    if (rc)
        return rc;
    g.source_gone = true;
    rc = ff_source_go(g.source, err);
    if (!rc)
        rc = ff_source_wait_running(g.source, err);
    return rc ? rc : ff_source_wait_done(g.source, err);
}

static void *source_main(void *arg)
{
    (void)arg;
    g.source_rc = source_stages(&g.source_err);
    if (g.source_rc) { /* as its owner does, whose guest goes on; it says why */
        pthread_mutex_lock(&g.gate);
        ff_source_free(g.source);
        g.source = NULL;
        pthread_mutex_unlock(&g.gate);
    }
    return NULL;
}

static const char *no_huge; /* why there are no huge pages */

/* Up to the state: both sides' handles, every page written once, the source's thread started */
static void prepare(enum memory kind, const char *options, enum writes writes, bool twice,
                    void *(*source)(void *))
{
    const uint64_t mib = loop_in_lab() ? 2 : 8;
    const uint64_t len[REGIONS] = {mib << 21, mib << 20};
    struct ff_error err;
    char name[16];
    if (no_huge && (kind == MEM_HUGETLB || kind == MEM_HUGETLB_ANON))
        loop_skip("%s", no_huge);
    g = (struct guest){.writes = writes, .twice = twice, .gate = PTHREAD_MUTEX_INITIALIZER};
    g.a_dst = loop_address(0, options);
    must_ok(ff_dest_new(g.a_dst, &g.dest, &err), err);
    g.a_src = loop_address(ff_dest_port(g.dest), ""); /* precopy is the destination's to say */
    must_ok(ff_source_new(g.a_src, &g.source, &err), err);
    for (unsigned r = 0; r < REGIONS; r++) {
        area_new(&g.src[r], kind, len[r]);
        area_new(&g.dst[r], kind, len[r]);
        g.log[r] = calloc(n_pages(r) / 64 + 1, 8);
        must(g.log[r]);
        for (uint64_t page = 0; page < n_pages(r); page++)
            fill(r, page, page % 7 ? 1000 + page : 0);
        snprintf(name, sizeof(name), "region%u", r);
        struct ff_region region = {.name = name, .host = g.src[r].host, .fd = g.src[r].fd,
                                   .len_bytes = len[r], .psize = g.src[r].psize,
                                   .zero_fill = true};
        must_ok(ff_source_add_region(g.source, &region, &err), err);
        region.host = g.dst[r].host;
        region.fd = g.dst[r].fd;
        must_ok(ff_dest_add_region(g.dest, &region, &err), err);
    }
    must(!pthread_create(&g.source_thread, NULL, source, NULL));
}

static int receive(struct ff_error *err)
{
    void *state;
    size_t len;

    int rc = ff_dest_accept(g.dest, "test", err);
    if (!rc)
        rc = ff_dest_start(g.dest, err);
    if (!rc)
        rc = ff_dest_recv_state(g.dest, &state, &len, err);
    if (!rc)
        free(state);
    return rc;
}

static void run_and_finish(void)
{
    struct ff_error err;

    must_ok(ff_dest_ready(g.dest, &err), err);
    must_ok(ff_dest_wait_go(g.dest, &err), err);
    must_ok(ff_dest_running(g.dest, &err), err);
    must_ok(ff_dest_wait_done(g.dest, &err), err);
    pthread_join(g.source_thread, NULL);
    must_ok(g.source_rc, g.source_err);
    ff_dest_stats(g.dest, &g.st);
}

static void release(void)
{
    ff_source_free(g.source);
    ff_dest_free(g.dest);
    ff_address_free(g.a_src);
    ff_address_free(g.a_dst);
    for (unsigned r = 0; r < REGIONS; r++) {
        munmap(g.src[r].host, g.src[r].len_bytes);
        munmap(g.dst[r].host, g.dst[r].len_bytes);
        if (g.src[r].fd >= 0)
            close(g.src[r].fd);
        if (g.dst[r].fd >= 0)
            close(g.dst[r].fd);
        free((void *)g.log[r]);
    }
}

/* Bytes of whole pages of the region that the log names: what must have been discarded */
static uint64_t dirty_bytes(void)
{
    uint64_t bytes = 0;

    for (unsigned r = 0; r < REGIONS; r++) {
        uint32_t psize = g.src[r].psize, per = psize / PAGE;
        for (uint64_t page = 0; page < n_pages(r); page += per) {
            bool dirty = false;
            for (uint64_t k = page; k < page + per; k++)
                dirty |= g.log[r][k / 64] >> (k % 64) & 1;
            bytes += dirty ? psize : 0;
        }
    }
    return bytes;
}

static void must_be_equal(void)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (uint64_t page = 0; page < n_pages(r); page++)
            if (memcmp(g.src[r].host + page * PAGE, g.dst[r].host + page * PAGE, PAGE))
                loop_fail(__FILE__, __LINE__, "region %u page %llu differs (%s in the log)", r,
                          (unsigned long long)page,
                          g.log[r][page / 64] >> (page % 64) & 1 ? "it is" : "it is not");
}

static void move_one(enum memory kind, const char *options, enum writes writes, bool twice)
{
    char text[128];
    struct ff_error err;

    snprintf(text, sizeof(text), ",precopy=1%s%s", *options ? "," : "", options);
    prepare(kind, text, writes, twice, source_main);
    must_ok(receive(&err), err);
    ff_dest_stats(g.dest, &g.st);
    uint64_t dirty = dirty_bytes(), total = g.st.bytes_total;
    if (g.st.bytes_precopied != total || g.st.bytes_discarded != dirty)
        loop_fail(__FILE__, __LINE__, "%s: precopied %llu of %llu, discarded %llu (log: %llu)",
                  options, (unsigned long long)g.st.bytes_precopied, (unsigned long long)total,
                  (unsigned long long)g.st.bytes_discarded, (unsigned long long)dirty);
    must(g.st.precopy_ns);
    must(dirty == (writes == WRITE_NONE ? 0 : writes == WRITE_ALL ? total : dirty));
    /* devices read memory while they are loaded: what was dirtied is fetched, what not is there */
    uint64_t page = n_pages(1) - 1;
    must(!memcmp(g.dst[0].host, g.src[0].host, PAGE));
    must(!memcmp(g.dst[1].host + page * PAGE, g.src[1].host + page * PAGE, PAGE));
    run_and_finish();
    must(g.st.bytes_present == total);
    must(g.st.bytes_prefill + g.st.bytes_fault + g.st.bytes_zero == total + dirty);
    must(writes != WRITE_NONE || !g.st.faults);
    must_be_equal();
    release();
}

static void each_load(enum memory kind, const char *options)
{
    for (unsigned i = 0; i < 2; i++) {
        move_one(kind, options, WRITE_NONE, i);
        move_one(kind, options, WRITE_SOME, i);
        move_one(kind, options, WRITE_ALL, i);
    }
}

static void anon(void)
{
    each_load(MEM_ANON, "");
    each_load(MEM_ANON, "window=1,chunk=8K");
    move_one(MEM_ANON, "prefill=off", WRITE_NONE, false); /* the pass brought everything */
}

static void anon_push(void)
{
    each_load(MEM_ANON, "prefill=push");
}

static void thp_move(void)
{
    each_load(MEM_ANON_THP, "landing=move");
}

static void memfd_copy(void)
{
    each_load(MEM_MEMFD, "landing=copy");
}

static void memfd_continue(void)
{
    each_load(MEM_MEMFD, "landing=continue");
}

static void memfd_private(void)
{
    each_load(MEM_MEMFD_PRIVATE, "");
}

/* What the pass brought was discarded: others that take every huge page there is must not get it */
static void hugetlb_pool_taken(void)
{
    static void *taken[4096];
    struct ff_error err;
    unsigned n = 0;

    prepare(MEM_HUGETLB, ",precopy=1", WRITE_ALL, false, source_main);
    must_ok(receive(&err), err);
    while (n < FF_ARRAY_LEN(taken) &&
           (taken[n] = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0)) != MAP_FAILED)
        n++;
    run_and_finish();
    must_be_equal();
    release();
    while (n)
        munmap(taken[--n], HUGE_BYTES);
}

/* By copy they would, and so where nothing else is possible: refused while the guest runs there */
static void hugetlb_refused(void)
{
    struct ff_error err;

    for (int own = 0; own < 2; own++) {
        prepare(own ? MEM_HUGETLB_ANON : MEM_HUGETLB, ",precopy=1,landing=copy,timeout=2",
                WRITE_ALL, false, source_main);
        must(receive(&err) == -ENOTSUP &&
             strstr(err.text, own ? "private huge pages with precopy=1" : "use landing=continue"));
        must(!ff_dest_give_up(g.dest) && !pthread_join(g.source_thread, NULL));
        must(g.source_rc && !g.source_gone);
        release();
    }
}

static void hugetlb(void)
{
    each_load(MEM_HUGETLB, "landing=continue");
    each_load(MEM_HUGETLB, "landing=auto");
}

/* --- not a move like the others --- */

/* The source does not log: nothing is read before the state */
static void *without_main(void *arg)
{
    struct ff_error err;

    (void)arg;
    must_ok(ff_source_connect(g.source, "test", &err), err);
    must_ok(ff_source_publish(g.source, &err), err);
    must_ok(ff_source_wait_watched(g.source, &err), err);
    g.writes = WRITE_ALL;
    write_round();
    must_ok(ff_source_send_state(g.source, "state", 5, NULL, 0, &err), err);
    must_ok(ff_source_wait_ready(g.source, &err), err);
    must_ok(ff_source_go(g.source, &err), err);
    must_ok(ff_source_wait_running(g.source, &err), err);
    must_ok(ff_source_wait_done(g.source, &err), err);
    return NULL;
}

static void source_does_not_log(void)
{
    struct ff_error err;

    prepare(MEM_ANON, ",precopy=1", WRITE_NONE, false, without_main);
    must_ok(receive(&err), err);
    run_and_finish();
    must(!g.st.bytes_precopied && !g.st.precopy_ns);
    must_be_equal();
    release();
}

/* What is not known to be clean must be said: a state without it is not sent */
static void *forgets_main(void *arg)
{
    struct ff_error err;

    (void)arg;
    must_ok(ff_source_connect(g.source, "test", &err), err);
    must_ok(ff_source_publish(g.source, &err), err);
    must_ok(ff_source_precopy(g.source, &err), err);
    must_ok(ff_source_dirty(g.source, 0, (uint64_t *)g.log[0], PAGE, &err), err);
    must(ff_source_send_state(g.source, "state", 5, NULL, 0, &err) == -EINVAL);
    must(strstr(err.text, "region1"));
    must(ff_source_dirty(g.source, 7, (uint64_t *)g.log[0], PAGE, &err) == -EINVAL);
    must(ff_source_dirty(g.source, 0, (uint64_t *)g.log[0], 8192, &err) == -EINVAL);
    ff_source_free(g.source);
    g.source = NULL;
    return NULL;
}

static void source_forgets_to_tell(void)
{
    struct ff_error err;

    prepare(MEM_ANON, ",precopy=1", WRITE_NONE, false, forgets_main);
    must(receive(&err));
    pthread_join(g.source_thread, NULL);
    release();
}

/* A thread that touches memory early gets a page, or waits; nothing of that stays */
static atomic_bool stop_early;

static void *early_main(void *arg)
{
    uint64_t sum = 0;

    (void)arg;
    while (!atomic_load(&stop_early))
        for (unsigned r = 0; r < REGIONS; r++)
            for (uint64_t page = 0; page < n_pages(r); page++)
                sum += __atomic_load_n((uint64_t *)(g.dst[r].host + page * PAGE),
                                       __ATOMIC_RELAXED);
    return (void *)(uintptr_t)sum;
}

static void touched_early(void)
{
    static const enum memory kinds[] = {MEM_ANON, MEM_MEMFD};
    static const char *const options[] = {",precopy=1", ",precopy=1,landing=continue",
                                          ",precopy=1,landing=copy"};
    struct ff_error err;
    pthread_t early[4];
    void *state;
    size_t len;

    for (unsigned i = 0; i < 6; i++) {
        atomic_store(&stop_early, false);
        prepare(kinds[i / 3], options[i % 3], WRITE_SOME, i % 2, source_main);
        must_ok(ff_dest_accept(g.dest, "test", &err), err);
        must_ok(ff_dest_start(g.dest, &err), err);
        for (unsigned k = 0; k < FF_ARRAY_LEN(early); k++)
            must(!pthread_create(&early[k], NULL, early_main, NULL));
        must_ok(ff_dest_recv_state(g.dest, &state, &len, &err), err);
        free(state);
        run_and_finish();
        atomic_store(&stop_early, true);
        for (unsigned k = 0; k < FF_ARRAY_LEN(early); k++)
            pthread_join(early[k], NULL);
        must_be_equal();
        release();
    }
}

/* --- failures: the guest goes on at the source --- */

/* What either side says when something happens in the pass */
static void fail(const char *faults, const char *options, const char *source_says,
                 const char *dest_says)
{
    struct ff_error err;
    char text[64];

    must_ok(ff_failpoints_arm(faults, &err), err);
    snprintf(text, sizeof(text), ",precopy=1,timeout=2%s", options);
    prepare(MEM_ANON, text, WRITE_ALL, false, source_main);
    must(receive(&err));
    must(!ff_dest_give_up(g.dest)); /* GO was not read */
    pthread_join(g.source_thread, NULL);
    if (!strstr(g.source_err.text, source_says) || !strstr(err.text, dest_says))
        loop_fail(__FILE__, __LINE__, "%s: source says: %s (want %s); destination: %s (want %s)",
                  faults, g.source_err.text, source_says, err.text, dest_says);
    must(g.source_rc && !g.source_gone);
    release();
    must_ok(ff_failpoints_arm("", &err), err);
}

static void failures(void)
{
    fail("source.precopy=fail", "", "injected", "");
    fail("dest.precopy=fail", "", "destination: pass: injected", "injected");
    fail("dest.prefill=fail@3", ",chunk=64K", "", "injected");
    fail("dest.install=fail@40", "", "", "injected");
    fail("tcp.serve.prefill=delay:4000000@1", "", "", "unanswered");
}

/* Wait until the pass has begun, by what the source is told, then end it */
static void *cancel_main(void *arg)
{
    struct ff_stats st = {.bytes_precopied = 0};

    for (unsigned ms = 0; ms < 15000 && !st.bytes_precopied; ms++) {
        pthread_mutex_lock(&g.gate);
        must(g.source);
        ff_source_stats(g.source, &st);
        if (st.bytes_precopied && !arg)
            ff_source_cancel(g.source);
        pthread_mutex_unlock(&g.gate);
        usleep(1000);
    }
    must(st.bytes_precopied && st.bytes_precopied < st.bytes_total);
    if (arg)
        ff_dest_give_up(g.dest);
    return NULL;
}

static void ended_in_the_pass(void)
{
    struct ff_error err;
    pthread_t thread;

    for (uintptr_t dest = 0; dest < 2; dest++) {
        must_ok(ff_failpoints_arm("dest.prefill=delay:5000", &err), err);
        prepare(MEM_ANON, ",precopy=1,chunk=8K,window=1", WRITE_SOME, false, source_main);
        must(!pthread_create(&thread, NULL, cancel_main, (void *)dest));
        int rc = receive(&err);
        pthread_join(thread, NULL);
        must(rc && !ff_dest_give_up(g.dest));
        pthread_join(g.source_thread, NULL);
        must(g.source_rc && !g.source_gone);
        if (dest ? rc != -ECANCELED
                 : g.source_rc != -ECANCELED || !strstr(err.text, "canceled at the source"))
            loop_fail(__FILE__, __LINE__, "source: %d: %s; destination: %d: %s", g.source_rc,
                      g.source_err.text, rc, err.text);
        release();
    }
}

static void setup(void)
{
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp anon", anon, 60},
        {"tcp anon push", anon_push, 60},
        {"tcp thp move", thp_move, 60},
        {"tcp memfd copy", memfd_copy, 60},
        {"tcp memfd continue", memfd_continue, 60},
        {"tcp memfd private", memfd_private, 60},
        {"tcp hugetlb", hugetlb, 60},
        {"hugetlb pool taken", hugetlb_pool_taken, 60},
        {"hugetlb refused", hugetlb_refused, 60},
        {"source does not log", source_does_not_log, 0},
        {"source forgets to tell", source_forgets_to_tell, 0},
        {"touched early", touched_early, 60},
        {"failures", failures, 60},
        {"ended in the pass", ended_in_the_pass, 60},
    };

    no_huge = pl_huge_reserve(HUGE_PAGES);
    int rc = loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
