/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_two.c - one end of a move between two processes, with the library's public interface
 */
/**
 * DOC: Theory of Operation
 *
 * usage: move_two source|destination HOST:PORT[,option=value...] MEMORY [MIB]
 *        MEMORY: anon, thp (anon, transparent huge pages), memfd, hugetlb
 *
 * Purpose      move memory between two hosts while threads touch it, check every byte, and
 *              say what it cost each end: a line of JSON. The destination says "listening"
 *              first. Run by move_library.py.
 * Picture      page: | one word a toucher | words that its number and their place decide |
 *              A toucher checks a random page here and there (never in each fourth 2 MiB,
 *              which are left for prefill to move in whole), and changes its own word: a
 *              page that is installed twice, late or torn shows at once or at the end.
 * Limits       LIMIT_S, then SIGALRM ends it.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "farfork.h"

#define PAGE 4096u
#define WORDS (PAGE / 8)
#define HUGE_BYTES (2u << 20)
#define TOUCHERS 4u
#define TOUCH_EVERY_US 500 /* so that prefill has something left to do */
#define SAMPLE_US 50000
#define LIMIT_S 240
#define WRITTEN 0x9e3779b97f4a7c15ull
#define THREADS_MAX 64u

static uint64_t *memory;
static uint64_t n_pages;
static atomic_bool complete;

static _Noreturn void die(const char *what, const struct ff_error *err)
{
    fprintf(stderr, "move_two: %s: %s\n", what, err ? ff_error_message(err) : strerror(errno));
    _exit(1); /* threads may wait for memory for good */
}

static _Noreturn void fail(const char *why)
{
    fprintf(stderr, "move_two: %s\n", why);
    _exit(1);
}

#define must_ok(call)                                                                       \
    do {                                                                                    \
        if (call)                                                                           \
            die(#call, err);                                                                \
    } while (0)

/* --- memory --- */

static uint64_t word_of(uint64_t page, unsigned i)
{
    uint64_t v = (page + 1) * 0x2545f4914f6cdd1dull + i * 0x9fb21c651e98df25ull;
    return v ^ (v >> 29);
}

static int map_memory(const char *kind, uint64_t len, struct ff_region *r)
{
    bool huge = !strcmp(kind, "hugetlb"), thp = !strcmp(kind, "thp");

    *r = (struct ff_region){.name = "ram", .len_bytes = len, .fd = -1, .zero_fill = true,
                            .psize = huge ? HUGE_BYTES : PAGE};
    if (huge || !strcmp(kind, "memfd")) {
        r->fd = memfd_create("move_two", huge ? MFD_HUGETLB : 0);
        if (r->fd < 0 || ftruncate(r->fd, (off_t)len))
            die("memfd", NULL);
        r->host = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    } else if (thp || !strcmp(kind, "anon")) {
        uint8_t *p = mmap(NULL, len + HUGE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            die("mmap", NULL);
        r->host = p + (-(uintptr_t)p & (HUGE_BYTES - 1));
        if (madvise(r->host, len, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) && thp)
            die("madvise", NULL);
    } else {
        return -EINVAL;
    }
    if (r->host == MAP_FAILED)
        die("mmap", NULL);
    memory = r->host;
    n_pages = len / PAGE;
    return 0;
}

static void fill(void)
{
    for (uint64_t p = 0; p < n_pages; p++)
        for (unsigned i = 0; i < WORDS; i++)
            memory[p * WORDS + i] = word_of(p, i);
}

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- threads that touch it --- */

struct toucher {
    pthread_t thread;
    unsigned id;
    uint8_t *wrote; /* a byte a page */
    double cpu_s;
};

static _Noreturn void wrong(uint64_t page, unsigned i, uint64_t want, const char *when)
{
    fprintf(stderr, "move_two: %s: page %llu, word %u: %#llx, not %#llx\n", when,
            (unsigned long long)page, i, (unsigned long long)memory[page * WORDS + i],
            (unsigned long long)want);
    _exit(1);
}

static void *touch_main(void *arg)
{
    struct toucher *t = arg;
    uint64_t seed = t->id + 1;

    pthread_setname_np(pthread_self(), "toucher");
    while (!atomic_load(&complete)) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t page = (seed >> 20) % n_pages;
        if (page * PAGE / HUGE_BYTES % 4 == 3)
            continue;
        for (unsigned i = TOUCHERS + t->id; i < WORDS; i += 61)
            if (memory[page * WORDS + i] != word_of(page, i))
                wrong(page, i, word_of(page, i), "touched");
        memory[page * WORDS + t->id] = word_of(page, t->id) ^ WRITTEN;
        t->wrote[page] = 1;
        usleep(TOUCH_EVERY_US);
    }
    t->cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void verify(const struct toucher *t)
{
    for (uint64_t p = 0; p < n_pages; p++)
        for (unsigned i = 0; i < WORDS; i++) {
            uint64_t want = word_of(p, i) ^ (i < TOUCHERS && t[i].wrote[p] ? WRITTEN : 0);
            if (memory[p * WORDS + i] != want)
                wrong(p, i, want, "at the end");
        }
}

/* --- what it costs --- */

/* CPU time by thread, as last seen: threads end before the move does */
static struct sample {
    int tid;
    char name[16];
    double cpu_s;
} sample[THREADS_MAX];
static unsigned n_samples;
static atomic_bool stop_sampling;
static pthread_t sampler;

static void sample_one(int tid)
{
    char path[64], name[16] = "";
    unsigned long long ns = 0;
    unsigned i = 0;

    snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%llu", &ns) != 1)
        ns = 0;
    if (f)
        fclose(f);
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
    f = fopen(path, "r");
    if (f && fscanf(f, "%15[^\n]", name) != 1)
        name[0] = 0;
    if (f)
        fclose(f);
    while (i < n_samples && sample[i].tid != tid)
        i++;
    if (!name[0] || i == THREADS_MAX)
        return;
    sample[i].tid = tid;
    memcpy(sample[i].name, name, sizeof(name)); /* it gets its name after its start */
    sample[i].cpu_s = (double)ns / 1e9;
    n_samples = i == n_samples ? i + 1 : n_samples;
}

static void *sample_main(void *arg)
{
    pthread_setname_np(pthread_self(), "sampler");
    while (!atomic_load(&stop_sampling)) {
        DIR *d = opendir("/proc/self/task");
        for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
            if (atoi(e->d_name))
                sample_one(atoi(e->d_name));
        if (d)
            closedir(d);
        usleep(SAMPLE_US);
    }
    return arg;
}

static double thread_s(const char *name)
{
    double sum = 0;

    for (unsigned i = 0; i < n_samples; i++)
        sum += strcmp(sample[i].name, name) ? 0 : sample[i].cpu_s;
    return sum;
}

static void print_threads(void)
{
    printf("\"threads\": {");
    for (unsigned i = 0, n = 0; i < n_samples; i++) {
        bool seen = false;
        for (unsigned k = 0; k < i; k++)
            seen |= !strcmp(sample[k].name, sample[i].name);
        if (!seen)
            printf("%s\"%s\": %.3f", n++ ? ", " : "", sample[i].name, thread_s(sample[i].name));
    }
    printf("}");
}

/* Of this process, without the thread that looks on */
static double cpu_s(void)
{
    clockid_t own;

    pthread_getcpuclockid(sampler, &own);
    return seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(own);
}

static void stop_sampler(void)
{
    atomic_store(&stop_sampling, true);
    pthread_join(sampler, NULL);
}

/* @setup_s: CPU time until the guest changed sides, @move_s: from then on */
static void print_line(const char *end, const char *link, const struct ff_stats *st, double setup_s,
                       double move_s, double took_s)
{
    printf("{\"end\": \"%s\", \"link\": \"%s\", \"bytes\": %llu, \"took_s\": %.3f, "
           "\"cpu_setup_s\": %.3f, \"cpu_move_s\": %.3f, \"faults\": %llu, "
           "\"prefill_bytes\": %llu, \"fault_bytes\": %llu, \"copied\": %llu, "
           "\"continued\": %llu, \"moved\": %llu, ",
           end, link, (unsigned long long)st->bytes_total, took_s, setup_s, move_s,
           (unsigned long long)st->faults, (unsigned long long)st->bytes_prefill,
           (unsigned long long)st->bytes_fault, (unsigned long long)st->bytes_copied,
           (unsigned long long)st->bytes_continued, (unsigned long long)st->bytes_moved);
    print_threads();
    printf("}\n");
    fflush(stdout);
}

/* --- the two ends --- */

static void source(const struct ff_address *a, const struct ff_region *r, struct ff_error *err)
{
    static const char state[65536] = "state";
    struct ff_source *s;
    struct ff_stats st;
    double start, go, end, began;

    fill();
    must_ok(ff_source_new(a, &s, err));
    must_ok(ff_source_add_region(s, r, err));
    start = cpu_s();
    must_ok(ff_source_connect(s, "move_two", err));
    must_ok(ff_source_publish(s, err));
    must_ok(ff_source_wait_watched(s, err));
    must_ok(ff_source_send_state(s, state, sizeof(state), NULL, 0, err));
    must_ok(ff_source_wait_ready(s, err));
    must_ok(ff_source_go(s, err));
    go = cpu_s();
    began = seconds(CLOCK_MONOTONIC);
    must_ok(ff_source_wait_running(s, err));
    must_ok(ff_source_wait_done(s, err));
    end = cpu_s();
    double took = seconds(CLOCK_MONOTONIC) - began;
    stop_sampler();
    ff_source_stats(s, &st);
    print_line("source", ff_source_link(s), &st, go - start, end - go, took);
    ff_source_free(s);
}

static void start_touchers(struct toucher *t)
{
    for (unsigned i = 0; i < TOUCHERS; i++) {
        t[i].id = i;
        t[i].wrote = calloc(n_pages, 1);
        if (!t[i].wrote || (errno = pthread_create(&t[i].thread, NULL, touch_main, &t[i])))
            die("touchers", NULL);
    }
}

static double join_touchers(struct toucher *t)
{
    double sum = 0;

    atomic_store(&complete, true);
    for (unsigned i = 0; i < TOUCHERS; i++) {
        pthread_join(t[i].thread, NULL);
        sum += t[i].cpu_s;
    }
    return sum;
}

static void destination(const struct ff_address *a, const struct ff_region *r,
                        struct ff_error *err)
{
    static struct toucher t[TOUCHERS];
    double start, go, end, began;
    struct ff_stats st;
    struct ff_dest *d;
    void *state;
    size_t len;

    must_ok(ff_dest_new(a, &d, err));
    must_ok(ff_dest_add_region(d, r, err));
    printf("listening\n");
    fflush(stdout);
    must_ok(ff_dest_accept(d, "move_two", err));
    start = cpu_s();
    must_ok(ff_dest_start(d, err));
    must_ok(ff_dest_recv_state(d, &state, &len, err));
    if (len != 65536)
        fail("state: of another length");
    free(state);
    must_ok(ff_dest_ready(d, err));
    must_ok(ff_dest_wait_go(d, err));
    go = cpu_s();
    began = seconds(CLOCK_MONOTONIC);
    start_touchers(t);
    must_ok(ff_dest_running(d, err));
    must_ok(ff_dest_wait_done(d, err));
    double took = seconds(CLOCK_MONOTONIC) - began;
    double touched = join_touchers(t);
    end = cpu_s();
    stop_sampler();
    verify(t);
    ff_dest_stats(d, &st);
    if (st.bytes_present != st.bytes_total || !st.faults)
        fail("statistics: not all is there, or nothing faulted");
    print_line("destination", ff_dest_link(d), &st, go - start, end - go - touched, took);
    ff_dest_free(d);
    for (unsigned i = 0; i < TOUCHERS; i++)
        free(t[i].wrote);
}

int main(int argc, char **argv)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a;
    struct ff_region r;
    unsigned long mib = argc == 5 ? strtoul(argv[4], NULL, 10) : 128;
    bool is_source = argc > 1 && !strcmp(argv[1], "source");

    if (argc < 4 || argc > 5 || !mib || mib % 2 || (!is_source && strcmp(argv[1], "destination")) ||
        map_memory(argv[3], (uint64_t)mib << 20, &r)) {
        fprintf(stderr, "usage: move_two source|destination HOST:PORT[,option=value...] "
                        "anon|thp|memfd|hugetlb [MIB]\n");
        return 2;
    }
    alarm(LIMIT_S);
    must_ok(ff_address_parse(argv[2], &a, err));
    if ((errno = pthread_create(&sampler, NULL, sample_main, NULL)))
        die("sampler", NULL);
    if (is_source)
        source(a, &r, err);
    else
        destination(a, &r, err);
    ff_address_free(a);
    ff_error_free(err);
    return 0;
}
