/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * holes_moved.c - holes of shared memory: filled when they are touched, zeros afterwards, and
 * nothing else
 *           takes memory
 *
 * Adds huge pages to the pool when there are too few and it may, and gives them back.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "farfork-clone.h"
#include "loop.h"
#include "segments.h"
#include "platform.h"

#define MIB (1ull << 20)
#define PIECE (64 * MIB)
#define LEN (2 * PIECE + 16 * MIB)
#define HUGE_PAGES (2 * 32 + 2)

struct both {
    enum memory memory;
    uint64_t len_bytes;
    const char *options;
    bool only_tail; /* nothing is touched in the first two segments */
    void (*empty)(struct both *b); /* after ff_dest_start(), as QEMU does */
    struct area src, dst;
    struct ff_source *source;
    struct ff_dest *dest;
    pthread_t source_thread;
};

static struct ff_region region_of(const struct area *a)
{
    return (struct ff_region){.name = "ram", .host = a->host, .len_bytes = a->len_bytes,
                              .psize = a->psize, .fd = a->fd, .zero_fill = true};
}

static uint64_t taken(int fd)
{
    struct stat st;

    must(!fstat(fd, &st));
    return (uint64_t)st.st_blocks * 512;
}

/* Which bytes a guest has touched: the first of some pages in the first segment and behind the
 * second */
static bool is_touched(const struct both *b, uint64_t page)
{
    uint64_t at = page * b->dst.psize;

    return page % 8 == 3 && ((at < PIECE / 4 && !b->only_tail) || at >= 2 * PIECE);
}

static uint64_t touch_source(struct both *b)
{
    uint64_t n = 0;

    for (uint64_t p = 0; p < b->src.len_bytes / b->src.psize; p++)
        if (is_touched(b, p)) {
            b->src.host[p * b->src.psize] = (uint8_t)(p % 251 + 1);
            n++;
        }
    /* as if another process had: the page tables of this one know nothing of it */
    if (b->src.fd >= 0)
        must(mmap(b->src.host, b->src.len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  b->src.fd, 0) != MAP_FAILED);
    return n;
}

static void check_all(const struct both *b)
{
    for (uint64_t p = 0; p < b->dst.len_bytes / b->dst.psize; p++) {
        uint8_t want = is_touched(b, p) ? (uint8_t)(p % 251 + 1) : 0;
        if (b->dst.host[p * b->dst.psize] != want)
            loop_fail(__FILE__, __LINE__, "page %llu: %u, want %u", (unsigned long long)p,
                      b->dst.host[p * b->dst.psize], want);
    }
}

/* Until the last page or the break; nothing is checked: a break is not the source's fault */
static void *source_main(void *arg)
{
    struct both *b = arg;
    struct ff_error err;

    must_ok(ff_source_connect(b->source, "test", &err), err);
    must_ok(ff_source_publish(b->source, &err), err);
    must_ok(ff_source_wait_watched(b->source, &err), err);
    must_ok(ff_source_send_state(b->source, "state", 5, NULL, 0, &err), err);
    must_ok(ff_source_wait_ready(b->source, &err), err);
    must_ok(ff_source_go(b->source, &err), err);
    if (!ff_source_wait_running(b->source, &err))
        ff_source_wait_done(b->source, &err);
    return NULL;
}

static void start_source(struct both *b, unsigned port)
{
    struct ff_address *a = loop_address(port, "");
    struct ff_region r = region_of(&b->src);
    struct ff_error err;

    must_ok(ff_source_new(a, &b->source, &err), err);
    ff_address_free(a);
    must_ok(ff_source_add_region(b->source, &r, &err), err);
    must(!pthread_create(&b->source_thread, NULL, source_main, b));
}

/* All stages up to RUNNING; how many pages the source has */
static uint64_t begin(struct both *b)
{
    struct ff_address *a = loop_address(0, b->options ? b->options : "");
    struct ff_error err;
    void *state;
    size_t len;

    area_new(&b->src, b->memory, b->len_bytes ? b->len_bytes : LEN);
    area_new(&b->dst, b->memory, b->src.len_bytes);
    if (b->empty)
        must(!madvise(b->dst.host, b->dst.len_bytes, MADV_POPULATE_WRITE));
    uint64_t n = touch_source(b);
    struct ff_region r = region_of(&b->dst);
    must_ok(ff_dest_new(a, &b->dest, &err), err);
    ff_address_free(a);
    must_ok(ff_dest_add_region(b->dest, &r, &err), err);
    start_source(b, ff_dest_port(b->dest));
    must_ok(ff_dest_accept(b->dest, "test", &err), err);
    must_ok(ff_dest_start(b->dest, &err), err);
    if (b->empty)
        b->empty(b);
    must_ok(ff_dest_recv_state(b->dest, &state, &len, &err), err);
    free(state);
    must_ok(ff_dest_ready(b->dest, &err), err);
    must_ok(ff_dest_wait_go(b->dest, &err), err);
    must_ok(ff_dest_running(b->dest, &err), err);
    return n;
}

static void finish(struct both *b)
{
    struct ff_stats st;
    struct ff_error err;

    must_ok(ff_dest_wait_done(b->dest, &err), err);
    pthread_join(b->source_thread, NULL);
    ff_dest_stats(b->dest, &st);
    must(st.bytes_present == b->dst.len_bytes);
    must(st.bytes_prefill + st.bytes_fault + st.bytes_zero == b->dst.len_bytes);
}

static void end(struct both *b)
{
    check_all(b);
    ff_source_free(b->source);
    ff_dest_free(b->dest);
}

/* Both files hold @pages pages, and @more at the destination */
static void must_take(const struct both *b, uint64_t pages, uint64_t more)
{
    uint64_t src = taken(b->src.fd) / b->src.psize, dst = taken(b->dst.fd) / b->dst.psize;

    printf("%llu pages were touched; the source has %llu, the destination %llu\n",
           (unsigned long long)pages, (unsigned long long)src, (unsigned long long)dst);
    if (src != pages || dst != pages + more)
        loop_fail(__FILE__, __LINE__, "pages that take memory: %llu and %llu, want %llu and %llu",
                  (unsigned long long)src, (unsigned long long)dst, (unsigned long long)pages,
                  (unsigned long long)(pages + more));
}

/* Wait until prefill is behind the segment that was never touched */
static void wait_holes(struct both *b)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    struct ff_stats st;

    do {
        nanosleep(&nap, NULL);
        ff_dest_stats(b->dest, &st);
    } while (st.bytes_present < 2 * PIECE);
    must(st.bytes_present < LEN);
}

/* --- while memory is watched --- */

struct reader {
    const uint8_t *at;
    atomic_bool ended;
};

static void *read_main(void *arg)
{
    struct reader *r = arg;

    must(__atomic_load_n(r->at, __ATOMIC_RELAXED) == 0);
    atomic_store(&r->ended, true);
    return NULL;
}

static pthread_t start_reader(struct reader *r, const uint8_t *at)
{
    pthread_t t;

    *r = (struct reader){.at = at};
    must(!pthread_create(&t, NULL, read_main, r));
    return t;
}

static void must_read_zeros(const uint8_t *at)
{
    static struct reader r;

    pthread_t t = start_reader(&r, at);
    must(wait_flag(&r.ended, 10000));
    pthread_join(t, NULL);
}

static void touched(enum memory memory, const char *options, const char *faults)
{
    static struct both b;
    struct ff_error err;

    b = (struct both){.memory = memory, .options = options};
    must_ok(ff_failpoints_arm(faults, &err), err);
    uint64_t n = begin(&b);
    wait_holes(&b);
    must_read_zeros(b.dst.host + PIECE + 5 * 4096); /* a segment without a key */
    must_read_zeros(b.dst.host + PIECE / 2);        /* a hole in one that has one */
    uint8_t *written = b.dst.host + PIECE + MIB;
    __atomic_store_n(written + 1, 7, __ATOMIC_RELAXED);
    finish(&b);
    must_take(&b, n, 3);
    must(written[0] == 0 && written[1] == 7);
    end(&b);
}

static void tcp_touched(void)
{
    touched(MEM_MEMFD, "", "tcp.serve.prefill=delay:100000");
}

static void tcp_touched_in_place(void)
{
    touched(MEM_MEMFD, ",landing=continue", "tcp.serve.prefill=delay:10000");
}

/* No source is needed for what is known to be zeros */
static void after_a_break(void)
{
    static struct both b = {.memory = MEM_MEMFD, .options = ",prealloc=0"};
    struct ff_error err;

    must_ok(ff_failpoints_arm("tcp.serve.prefill=fail@37", &err),
            err); /* 32 chunks of the first segment */
    begin(&b);
    must(ff_dest_wait_done(b.dest, &err));
    must_read_zeros(b.dst.host + PIECE + 5 * 4096);
    must_read_zeros(b.dst.host + PIECE / 2);
    fflush(NULL);
    _exit(0);
}

/* Nor for one whose memory was not there, when the source was asked for as much as it can be */
static void breaks_when_short(void)
{
    static struct both b = {.memory = MEM_MEMFD, .only_tail = true};
    static struct reader waits[FF_QUEUE_DEPTH], hole;
    struct ff_stats st;
    struct ff_error err;

    /* the source answers no read; prefill has left holes, and installed nothing */
    must_ok(ff_failpoints_arm("tcp.serve.prefill=delay:600000000,tcp.serve.fault=delay:600000000,"
                              "dest.install=fail:12@1-200,dest.around=fail", &err), err);
    begin(&b);
    wait_holes(&b);
    for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++)
        start_reader(&waits[i], b.dst.host + 2 * PIECE + i * 4096);
    do {
        usleep(1000);
        ff_dest_stats(b.dest, &st);
    } while (st.faults < FF_QUEUE_DEPTH);
    uint64_t before = st.bytes_present;
    start_reader(&hole, b.dst.host + PIECE);
    while (!ff_failpoint_hits("dest.install"))
        usleep(1000);
    ff_dest_stats(b.dest, &st);
    must(st.bytes_present == before - 4096); /* or a move would be complete without it */
    ff_dest_cancel(b.dest);
    must(ff_dest_wait_done(b.dest, &err));
    must(wait_flag(&hole.ended, 15000));
    must(ff_failpoint_hits("dest.install") == 201);
    do { /* who waits is woken first */
        usleep(1000);
        ff_dest_stats(b.dest, &st);
    } while (st.bytes_present != before);
    fflush(NULL);
    _exit(0); /* the others wait for good */
}

/* --- what takes memory --- */

static void punch(struct both *b)
{
    must(!fallocate(b->dst.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    (off_t)b->dst.len_bytes));
}

/* Memory that was populated on purpose is populated afterwards */
static void populated_before(void)
{
    static struct both b = {.memory = MEM_MEMFD, .empty = punch};

    uint64_t n = begin(&b);
    finish(&b);
    must_take(&b, n, b.dst.len_bytes / 4096 - n);
    end(&b);
}

static void hugetlb(void)
{
    static struct both b = {.memory = MEM_HUGETLB, .len_bytes = PIECE};

    uint64_t n = begin(&b);
    finish(&b);
    must_take(&b, n, 0);
    end(&b);
}

/* What is to be registered of a hugetlb file */
static void hugetlb_segments(void)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = {.n = 0};
    struct ff_error err;
    struct area a;

    must(t);
    area_new(&a, MEM_HUGETLB, 2 * PIECE);
    struct ff_region r = region_of(&a);
    must_ok(ff_regions_add(t, &r, &err), err);
    must_ok(ff_segments_init(&p, t, PIECE, &err), err);
    must(!ff_segments_want_populated(&p, t));
    a.host[PIECE + PIECE / 2] = 1;
    must(ff_segments_want_populated(&p, t) == 1 && p.segment[1].wanted);
    must(!ff_segments_want_populated(&p, t));
    /* by another process, for all that our page tables know: it may be anywhere */
    uint8_t *other = mmap(NULL, 2 * PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
    must(other != MAP_FAILED);
    other[0] = 1;
    must(ff_segments_want_populated(&p, t) == 1 && p.segment[0].wanted);
    ff_segments_free(&p);
    ff_regions_free(t);
    free(t);
}

/* An agent's image: the file that children map */
static uint64_t image_takes(void)
{
    char path[300], to[64];
    uint64_t n = 0;
    struct dirent *e;

    DIR *d = opendir("/proc/self/fd");
    must(d);
    while ((e = readdir(d))) {
        snprintf(path, sizeof(path), "/proc/self/fd/%s", e->d_name);
        ssize_t len = readlink(path, to, sizeof(to) - 1);
        to[len < 0 ? 0 : len] = '\0';
        if (strstr(to, "memfd:farfork-image"))
            n = FF_MAX(n, taken(atoi(e->d_name)));
    }
    closedir(d);
    return n;
}

static void agent(enum memory memory)
{
    struct both b = {.memory = memory};
    struct ff_address *a = loop_address(0, "");
    struct ff_agent *agent;
    struct ff_error err;
    char dir[] = "/tmp/farfork-holes-XXXXXX", path[64];

    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/agent", dir);
    area_new(&b.src, memory, LEN);
    b.dst = b.src; /* for is_touched() */
    uint64_t n = touch_source(&b);
    must_ok(ff_agent_new(a, path, &agent, &err), err);
    ff_address_free(a);
    start_source(&b, ff_agent_port(agent));
    must_ok(ff_agent_receive(agent, &err), err);
    must_ok(ff_agent_wait(agent, &err), err);
    pthread_join(b.source_thread, NULL);
    printf("%llu pages were touched; the image has %llu\n", (unsigned long long)n,
           (unsigned long long)image_takes() / 4096);
    must(image_takes() == n * 4096);
    ff_source_free(b.source);
    ff_agent_free(agent);
    rmdir(dir);
}

static void agent_memfd(void)
{
    agent(MEM_MEMFD);
}

static void agent_anon(void)
{
    agent(MEM_ANON);
}

/* --- a child that has attached, and does not listen --- */

struct kid {
    const char *path;
    struct area area;
    atomic_bool attached;
};

static void *kid_main(void *arg)
{
    struct kid *k = arg;
    struct ff_child *c;
    struct ff_error err;

    area_new(&k->area, MEM_ANON, LEN);
    struct ff_region r = region_of(&k->area);
    must_ok(ff_child_new(k->path, 0, &c, &err), err);
    must_ok(ff_child_add_region(c, &r, &err), err);
    must_ok(ff_child_attach(c, "test", &err), err);
    atomic_store(&k->attached, true);
    return NULL;
}

/* All is here, and it has not been told: who touches a hole is answered all the same */
static void child_is_late(void)
{
    static struct both b;
    static struct kid k;
    struct ff_address *a = loop_address(0, "");
    struct ff_agent *agent;
    struct ff_error err;
    char dir[] = "/tmp/farfork-holes-XXXXXX", path[64];
    pthread_t t;

    must_ok(ff_failpoints_arm("tcp.serve.prefill=delay:30000", &err), err);
    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/agent", dir);
    area_new(&b.src, MEM_MEMFD, LEN);
    b.dst = b.src; /* for is_touched() */
    touch_source(&b);
    must_ok(ff_agent_new(a, path, &agent, &err), err);
    k.path = path;
    must(!pthread_create(&t, NULL, kid_main, &k));
    start_source(&b, ff_agent_port(agent));
    must_ok(ff_agent_receive(agent, &err), err);
    must(wait_flag(&k.attached, 10000));
    struct ff_agent_stats st;
    ff_agent_stats(agent, &st);
    must(st.image.bytes_present < LEN); /* else it would not be watched */
    must_ok(ff_agent_wait(agent, &err), err);
    uint64_t before = image_takes();
    must_read_zeros(k.area.host + PIECE + 5 * 4096);
    must_read_zeros(k.area.host + PIECE / 2);
    must(image_takes() == before + 2 * 4096);
    unlink(path);
    rmdir(dir);
    fflush(NULL);
    _exit(0); /* the child would wait to be told */
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp: touched", tcp_touched, 60},
        {"tcp: touched, in place", tcp_touched_in_place, 60},
        {"tcp: after a break", after_a_break, 60},
        {"tcp: a break when there is no memory", breaks_when_short, 60},
        {"tcp: populated before", populated_before, 60},
        {"tcp: an agent, of a memfd", agent_memfd, 60},
        {"tcp: an agent, of anonymous memory", agent_anon, 60},
        {"tcp: a child that is late", child_is_late, 60},
        {"tcp: hugetlb", hugetlb, 60},
        {"hugetlb: segments", hugetlb_segments, 0},
    };

    const char *why = pl_huge_reserve(HUGE_PAGES);
    if (why)
        printf("SKIP: hugetlb: %s\n", why);
    int rc = loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests) - (why ? 2 : 0));
    pl_huge_restore();
    return rc;
}
