/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_scaling.c - page faults of the library alone: many threads that touch missing memory, no
 * QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      fault_scaling loop THREADS MIB            source and destination here, over memcpy
 *              fault_scaling dest ADDRESS THREADS MIB    prints a port, serves one `fault_scaling
 *                                                        source`
 *              fault_scaling source ADDRESS MIB          ADDRESS: HOST:PORT,link=tcp or verbs
 *
 *              Nothing comes by prefill: every page is fetched because a thread touched it, each
 *              thread one page after the other of its own part, in an order that no read-ahead
 *              guesses. dest and loop print one JSON object:
 *                threads, pages
 *                faults_per_s                       pages by the time from first to last touch
 *                p50_us, p90_us, p99_us, max_us     of a touch, by the thread that made it
 *                pager_p50_us, pager_p99_us         likewise, as the pager counts it
 *                link                               what it says of itself
 *
 * Threads      touchers wait at a barrier; nothing else of this program runs while they touch.
 * Invariants   each page holds its number; a touch that reads anything else ends the program.
 * Limits       THREADS_MAX; LIMIT_S in all.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "farfork.h"
#include "bench.h"
#include "source.h"

#define PAGE 4096u
#define THREADS_MAX 64u
#define LIMIT_S 170
#define CONFIG "curve"
#define STEP 40503u /* odd, and no divisor of a part: a full cycle of pages far apart */

struct toucher {
    pthread_t thread;
    const uint8_t *memory;
    uint64_t first, pages;
    uint64_t *ns; /* of each touch */
    uint64_t start, end;
};

struct source_side {
    struct ff_source *s;
    struct ff_error *err;
};

static pthread_barrier_t gate;

static _Noreturn void die_now(const char *what, const struct ff_error *err)
{
    fprintf(stderr, "fault_scaling: %s: %s\n", what, err ? ff_error_message(err) : strerror(errno));
    _exit(1); /* threads may be blocked in a fault for good */
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b ? gcd(b, a % b) : a;
}

static struct ff_region region(uint64_t mib, int fill)
{
    struct ff_region r = {.name = "memory", .len_bytes = mib << 20, .psize = PAGE, .fd = -1,
                          .zero_fill = true};

    r.host = mmap(NULL, r.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.host == MAP_FAILED)
        die_now("mmap", NULL);
    madvise(r.host, r.len_bytes, MADV_NOHUGEPAGE);
    for (uint64_t i = 0; fill && i < r.len_bytes / PAGE; i++)
        *(uint64_t *)((uint8_t *)r.host + i * PAGE) = i + 1;
    return r;
}

static struct ff_address *address(const char *text, struct ff_error *err)
{
    struct ff_address *a;

    if (ff_address_parse(text, &a, err))
        die_now("address", err);
    return a;
}

/* --- source --- */

static void *run_source(void *arg)
{
    struct source_side *x = arg;

    if (ff_source_connect(x->s, CONFIG, x->err) || ff_source_publish(x->s, x->err) ||
        ff_source_wait_watched(x->s, x->err) ||
        ff_source_send_state(x->s, "state", 5, NULL, 0, x->err) ||
        ff_source_wait_ready(x->s, x->err) || ff_source_go(x->s, x->err) ||
        ff_source_wait_running(x->s, x->err) || ff_source_wait_done(x->s, x->err))
        die_now("source", x->err);
    return NULL;
}

static void add_image(struct ff_source *s, uint64_t mib, struct ff_error *err)
{
    struct ff_region r = region(mib, 1);

    if (ff_source_add_region(s, &r, err))
        die_now("source", err);
}

static int source(const char *text, uint64_t mib)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a = address(text, err);
    struct source_side x = {.err = err};

    if (ff_source_new(a, &x.s, err))
        die_now("source", err);
    add_image(x.s, mib, err);
    run_source(&x);
    ff_source_free(x.s);
    ff_address_free(a);
    ff_error_free(err);
    return 0;
}

/* --- destination --- */

static void *touch(void *arg)
{
    struct toucher *t = arg;
    uint64_t step = STEP;

    while (gcd(step, t->pages) != 1)
        step += 2;
    pthread_barrier_wait(&gate);
    t->start = ff_now_ns();
    for (uint64_t i = 0, at = 0; i < t->pages; i++, at = (at + step) % t->pages) {
        uint64_t page = t->first + at, before = ff_now_ns();

        if (*(volatile const uint64_t *)(t->memory + page * PAGE) != page + 1)
            die_now("a page has what is not its own", NULL);
        t->ns[i] = ff_now_ns() - before;
    }
    t->end = ff_now_ns();
    return NULL;
}

static double percentile(const uint64_t *ns, uint64_t n, unsigned percent)
{
    return (double)ns[percent == 100 ? n - 1 : n * percent / 100] / 1e3;
}

/* All threads, one after the other by page; ns: room for every page */
static uint64_t touch_all(const struct ff_region *r, unsigned threads, uint64_t *ns)
{
    static struct toucher t[THREADS_MAX];
    uint64_t pages = r->len_bytes / PAGE, done = 0, start = UINT64_MAX, end = 0;

    pthread_barrier_init(&gate, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        t[i] = (struct toucher){.memory = r->host, .first = done, .ns = ns + done,
                                .pages = (pages - done) / (threads - i)};
        done += t[i].pages;
        if (pthread_create(&t[i].thread, NULL, touch, &t[i]))
            die_now("pthread_create", NULL);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(t[i].thread, NULL);
        start = t[i].start < start ? t[i].start : start;
        end = t[i].end > end ? t[i].end : end;
    }
    return end - start;
}

static void print_faults(struct ff_dest *d, unsigned threads, uint64_t *ns, uint64_t pages,
                         uint64_t took)
{
    struct ff_stats st;
    char link[FF_LINK_DETAIL_MAX];

    qsort(ns, pages, sizeof(*ns), compare);
    ff_dest_stats(d, &st);
    ff_dest_link_detail(d, link);
    for (char *c = link; *c; c++)
        if (*c < ' ' || *c == '"' || *c == '\\')
            *c = '?';
    printf("{\"threads\":%u,\"pages\":%llu,\"faults_per_s\":%.0f,\"p50_us\":%.2f,\"p90_us\":%.2f,"
           "\"p99_us\":%.2f,\"max_us\":%.2f,\"pager_p50_us\":%.2f,\"pager_p99_us\":%.2f,"
           "\"link\":\"%s\"}\n",
           threads, (unsigned long long)pages, (double)pages * 1e9 / (double)took,
           percentile(ns, pages, 50), percentile(ns, pages, 90), percentile(ns, pages, 99),
           percentile(ns, pages, 100), (double)st.fault_p50_ns / 1e3,
           (double)st.fault_p99_ns / 1e3, link);
}

static void run_dest(struct ff_dest *d, unsigned threads, uint64_t mib, struct ff_error *err)
{
    struct ff_region r = region(mib, 0);
    uint64_t *ns = calloc(r.len_bytes / PAGE, sizeof(*ns)), took;
    void *state;
    size_t len;

    if (!ns)
        die_now("memory", NULL);
    if (ff_dest_add_region(d, &r, err) || ff_dest_accept(d, CONFIG, err) ||
        ff_dest_start(d, err) || ff_dest_recv_state(d, &state, &len, err))
        die_now("destination", err);
    free(state);
    if (ff_dest_ready(d, err) || ff_dest_wait_go(d, err) || ff_dest_running(d, err))
        die_now("destination", err);
    took = touch_all(&r, threads, ns);
    if (ff_dest_wait_done(d, err))
        die_now("destination", err);
    print_faults(d, threads, ns, r.len_bytes / PAGE, took);
    ff_dest_free(d);
    free(ns);
}

static int dest(const char *text, unsigned threads, uint64_t mib)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a = address(text, err);
    struct ff_dest *d;

    if (ff_dest_new(a, &d, err))
        die_now("destination", err);
    printf("%u\n", ff_dest_port(d));
    fflush(stdout);
    run_dest(d, threads, mib, err);
    ff_address_free(a);
    ff_error_free(err);
    return 0;
}

/* --- both --- */

static int run_loop(unsigned threads, uint64_t mib)
{
    struct ff_error *err = ff_error_new();
    struct source_side x = {.err = ff_error_new()};
    struct ff_address *a = address("127.0.0.1:0,prefill=off", err);
    struct ff_link *to_dest, *to_source;
    struct ff_dest *d;
    pthread_t thread;

    if (ff_loop_pair(&to_dest, &to_source, err) ||
        ff_dest_new_on_link(a, to_source, &d, err) || ff_source_new(a, &x.s, err))
        die_now("loop", err);
    ff_source_use_link(x.s, to_dest);
    add_image(x.s, mib, err);
    if (pthread_create(&thread, NULL, run_source, &x))
        die_now("pthread_create", NULL);
    run_dest(d, threads, mib, err);
    pthread_join(thread, NULL);
    ff_source_free(x.s);
    ff_address_free(a);
    ff_error_free(x.err);
    ff_error_free(err);
    return 0;
}

static uint64_t parse_option(const char *text, uint64_t max)
{
    uint64_t n = strtoull(text, NULL, 10);

    if (!n || n > max) {
        fprintf(stderr, "fault_scaling: %s: want a number from 1 to %llu\n", text,
                (unsigned long long)max);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    alarm(LIMIT_S);
    if (argc == 4 && !strcmp(argv[1], "loop"))
        return run_loop((unsigned)parse_option(argv[2], THREADS_MAX),
                        parse_option(argv[3], 1u << 20));
    if (argc == 5 && !strcmp(argv[1], "dest"))
        return dest(argv[2], (unsigned)parse_option(argv[3], THREADS_MAX),
                    parse_option(argv[4], 1u << 20));
    if (argc == 4 && !strcmp(argv[1], "source"))
        return source(argv[2], parse_option(argv[3], 1u << 20));
    fprintf(stderr, "usage: fault_scaling loop THREADS MIB | dest ADDRESS THREADS MIB | "
                    "source ADDRESS MIB\n");
    return 2;
}
