/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * elsewhere.c - memory of another process, which has the userfaultfd: every byte is right; it dies, or
 *               watches no more, and the move ends
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "loop.h"
#include "platform.h"

#define N_REGIONS 2
#define HUGE_RESERVED (2 * (HUGE_PAGES + HUGE_PAGES / 3))
#define PAGES (UNDER_SANITIZER ? 400u : 3000u) /* of the first; the second has a third */
#define HUGE_PAGES 6u
#define TOUCHERS 4u
#define LIMIT_MS ((int)LAB_PATIENCE * (UNDER_SANITIZER ? 100000 : 20000))

static const char *no_huge; /* why there are no huge pages */

/* What the owner of the memory, a process of its own, shares with the test */
struct board {
    uint64_t host[N_REGIONS];
    int uffd, forgets; /* a region that is not registered; -1: none */
    atomic_bool mapped, listen, listens, run, unwatch, unwatched;
};

/* One case */
struct elsewhere {
    enum memory memory;
    const char *options;
    bool late;     /* adopted after GO */
    bool forsakes; /* the owner watches no more, before all is there */
    bool learns, unknown; /* the source's table; and the second region is not found */
    bool discards; /* each toucher some of its pages, once they are there: zeros from then on */
    bool breaks;
    bool dies;
    int forgets;

    struct board *b;
    struct area area[N_REGIONS], own[N_REGIONS]; /* the source's; the owner's, in its process */
    pid_t owner;
    struct ff_address *at;
    struct ff_source *source;
    struct ff_dest *dest;
    struct ff_stats stats;
    atomic_bool over;
    atomic_uint breaks_seen;
    int source_rc, dest_rc;
    struct ff_error source_err, dest_err;
};

static uint64_t area_pages(const struct elsewhere *e, unsigned region)
{
    return (e->memory == MEM_HUGETLB ? HUGE_PAGES : PAGES) / (region ? 3 : 1);
}

/* The first byte of a page, and the last; a fifth are zeros */
static uint64_t elsewhere_word(unsigned region, uint64_t page)
{
    return page % 5 == 3 ? 0 : (page + 1) * 0x9e3779b97f4a7c15ull + region;
}

static void fill_page(uint8_t *at, uint32_t psize, uint64_t word)
{
    for (uint32_t i = 0; i < psize; i += sizeof(word))
        memcpy(at + i, &word, sizeof(word));
}

/* --- the owner: what a QEMU is to the process beside it --- */

static void check_word(struct elsewhere *e, unsigned region, uint64_t page)
{
    const struct area *a = &e->own[region];
    uint64_t got[2], want = elsewhere_word(region, page);

    memcpy(&got[0], a->host + page * a->psize, 8);
    memcpy(&got[1], a->host + (page + 1) * a->psize - 8, 8);
    if (e->discards && page % 7 == 0 && !got[0] && !got[1])
        return;
    if (got[0] != want || got[1] != want)
        loop_fail(__FILE__, __LINE__, "region %u, page %llu: 0x%llx and 0x%llx, want 0x%llx",
                  region, (unsigned long long)page, (unsigned long long)got[0],
                  (unsigned long long)got[1], (unsigned long long)want);
}

/* As a balloon does */
static void discard_page(struct elsewhere *e, unsigned region, uint64_t page)
{
    const struct area *a = &e->own[region];
    uint64_t *at = (uint64_t *)(a->host + page * a->psize);

    must(!madvise(at, a->psize, e->memory == MEM_ANON ? MADV_DONTNEED : MADV_REMOVE));
    if (*at)
        loop_fail(__FILE__, __LINE__, "region %u, page %llu: 0x%llx came back", region, (unsigned long long)page,
                  (unsigned long long)*at);
}

struct elsewhere_toucher {
    struct elsewhere *e;
    unsigned number;
    pthread_t thread;
};

/* Each in an order of its own; pages in between are left to prefill */
static void *touch_some(void *arg)
{
    struct elsewhere_toucher *t = arg;

    for (unsigned region = 0; region < N_REGIONS; region++) {
        uint64_t n = area_pages(t->e, region);
        for (uint64_t i = 0; i < n; i += 1 + t->number) {
            uint64_t page = (i * 7919 + t->number * 101) % n;
            check_word(t->e, region, page);
            if (t->e->discards && page % 7 == 0)
                discard_page(t->e, region, page);
        }
    }
    return NULL;
}

static void watch_own(struct elsewhere *e, bool watch)
{
    for (int i = 0; i < N_REGIONS; i++) {
        struct uffdio_register r = {
            .range = {.start = e->b->host[i], .len = e->own[i].len_bytes},
            .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (i == e->forgets)
            continue;
        must(!ioctl(e->b->uffd, watch ? UFFDIO_REGISTER : UFFDIO_UNREGISTER, &r));
        must(watch || !ioctl(e->b->uffd, UFFDIO_WAKE, &r.range)); /* who came in between: uffd/install.c */
    }
}

/* Who attaches to a QEMU ends the watch itself: a thread may wait for a page that it discarded after the last one came */
static void *unwatch_main(void *arg)
{
    struct elsewhere *e = arg;

    must(wait_flag(&e->b->unwatch, LIMIT_MS));
    watch_own(e, false);
    atomic_store(&e->b->unwatched, true);
    return NULL;
}

static void owner_main(void *arg)
{
    struct elsewhere *e = arg;
    struct elsewhere_toucher t[TOUCHERS];
    struct uffdio_api api = {.api = UFFD_API};
    pthread_t unwatch;

    for (unsigned i = 0; i < N_REGIONS; i++) {
        uint64_t psize = e->memory == MEM_HUGETLB ? 2u << 20 : 4096;
        area_new(&e->own[i], e->memory, area_pages(e, i) * psize);
        e->b->host[i] = (uintptr_t)e->own[i].host;
    }
    atomic_store(&e->b->mapped, true);
    must(wait_flag(&e->b->listen, LIMIT_MS));
    e->b->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    must(e->b->uffd >= 0 && !ioctl(e->b->uffd, UFFDIO_API, &api));
    watch_own(e, true);
    atomic_store(&e->b->listens, true);
    must(!pthread_create(&unwatch, NULL, unwatch_main, e));
    must(wait_flag(&e->b->run, LIMIT_MS));
    for (unsigned i = 0; i < TOUCHERS; i++) {
        t[i] = (struct elsewhere_toucher){.e = e, .number = i};
        must(!pthread_create(&t[i].thread, NULL, touch_some, &t[i]));
    }
    for (unsigned i = 0; i < TOUCHERS; i++)
        must(!pthread_join(t[i].thread, NULL));
    must(wait_flag(&e->b->unwatch, LIMIT_MS));
    for (uint64_t i = 3; i < area_pages(e, 0) && !e->discards; i += 50) /* zeros; still watched, perhaps */
        check_word(e, 0, i);
    must(!pthread_join(unwatch, NULL));
    for (unsigned i = 0; i < N_REGIONS; i++)
        for (uint64_t page = 0; page < area_pages(e, i); page++)
            check_word(e, i, page);
}

/* --- the two sides --- */

static void *elsewhere_source(void *arg)
{
    struct elsewhere *e = arg;
    struct ff_error *err = &e->source_err;

    int rc = ff_source_connect(e->source, "test", err);
    if (!rc)
        rc = ff_source_publish(e->source, err);
    if (!rc)
        rc = ff_source_wait_watched(e->source, err);
    if (!rc)
        rc = ff_source_send_state(e->source, "state", 5, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(e->source, err);
    if (!rc)
        rc = ff_source_go(e->source, err);
    if (!rc)
        rc = ff_source_wait_running(e->source, err);
    while (!rc && (rc = ff_source_wait_done(e->source, err)) && e->breaks) {
        atomic_fetch_add(&e->breaks_seen, 1);
        rc = ff_source_resume(e->source, NULL, LIMIT_MS, err);
    }
    e->source_rc = rc;
    return NULL;
}

/* Each link brings something before it breaks */
static void *break_links(void *arg)
{
    struct elsewhere *e = arg;
    const struct timespec look = {.tv_nsec = 500000};
    struct ff_stats st;
    uint64_t had = 0;

    while (!atomic_load(&e->over)) {
        ff_dest_stats(e->dest, &st);
        if (st.bytes_present > had + (64u << 10)) {
            ff_source_pause(e->source);
            had = st.bytes_present;
        }
        nanosleep(&look, NULL);
    }
    return NULL;
}

static int adopt(struct elsewhere *e)
{
    atomic_store(&e->b->listen, true);
    must(wait_flag(&e->b->listens, LIMIT_MS));
    int pidfd = pidfd_open(e->owner, 0);
    must(pidfd >= 0);
    int uffd = pidfd_getfd(pidfd, e->b->uffd, 0);
    must(uffd >= 0);
    close(pidfd);
    return ff_dest_adopt(e->dest, uffd, &e->dest_err);
}

static void *wait_complete(void *arg)
{
    struct elsewhere *e = arg;
    struct ff_error err;

    if (!ff_dest_wait_complete(e->dest, LIMIT_MS, &err))
        atomic_store(&e->b->unwatch, true);
    return NULL;
}

static int elsewhere_dest(struct elsewhere *e, pthread_t *breaker)
{
    struct ff_error *err = &e->dest_err;
    pthread_t complete;
    size_t len;
    void *state = NULL;

    int rc = ff_dest_accept(e->dest, "test", err);
    if (!rc)
        rc = ff_dest_start(e->dest, err);
    if (!rc)
        rc = ff_dest_recv_state(e->dest, &state, &len, err);
    free(state);
    if (!rc && !e->late)
        rc = adopt(e);
    if (!rc)
        rc = ff_dest_ready(e->dest, err);
    if (!rc)
        rc = ff_dest_wait_go(e->dest, err);
    if (!rc && e->late)
        rc = adopt(e);
    if (rc)
        return rc;
    atomic_store(e->forsakes ? &e->b->unwatch : &e->b->run, true);
    if (e->forsakes)
        must(wait_flag(&e->b->unwatched, LIMIT_MS));
    rc = ff_dest_running(e->dest, err);
    if (!rc && e->dies)
        kill(e->owner, SIGKILL);
    if (rc)
        return rc;
    must(!pthread_create(&complete, NULL, wait_complete, e));
    if (e->breaks)
        must(!pthread_create(breaker, NULL, break_links, e));
    while (!rc && (rc = ff_dest_wait_done(e->dest, err)) && e->breaks)
        rc = ff_dest_recover(e->dest, LIMIT_MS, err);
    if (!rc && e->breaks && !ff_dest_is_told(e->dest)) /* it broke last when all was here */
        rc = ff_dest_recover(e->dest, LIMIT_MS, err);
    if (rc)
        ff_dest_cancel(e->dest);
    must(!pthread_join(complete, NULL));
    return rc;
}

static int take_table(void *opaque, const struct ff_region *table, unsigned n, struct ff_error *err)
{
    struct elsewhere *e = opaque;
    int rc = 0;

    must(n == N_REGIONS);
    for (unsigned i = 0; i < n && !rc; i++) {
        struct ff_region r = table[i];
        must(r.fd == -1 && !r.host && r.len_bytes == area_pages(e, i) * r.psize);
        r.host = (void *)(uintptr_t)e->b->host[i];
        rc = i && e->unknown ? ff_error_set(err, ENOENT, "second: it is not here")
                             : ff_dest_add_region(e->dest, &r, err);
    }
    return rc;
}

static void elsewhere_prepare(struct elsewhere *e)
{
    static const char *const names[N_REGIONS] = {"first", "second"};
    struct ff_error err;
    char options[320];

    e->b = mmap(NULL, sizeof(*e->b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(e->b != MAP_FAILED);
    e->owner = child_start(owner_main, e);
    must(wait_flag(&e->b->mapped, LIMIT_MS));
    snprintf(options, sizeof(options), ",timeout=5%s%s", e->options ? "," : "",
             e->options ? e->options : "");
    e->at = loop_address(0, options);
    must_ok(ff_dest_new(e->at, &e->dest, &err), err);
    must_ok(ff_dest_elsewhere(e->dest, &err), err);
    ff_address_free(e->at);
    e->at = loop_address(ff_dest_port(e->dest), options);
    must_ok(ff_source_new(e->at, &e->source, &err), err);
    for (unsigned i = 0; i < N_REGIONS; i++) {
        uint32_t psize = e->memory == MEM_HUGETLB ? 2u << 20 : 4096;
        uint64_t n = area_pages(e, i);
        area_new(&e->area[i], e->memory == MEM_HUGETLB ? MEM_HUGETLB : MEM_MEMFD, n * psize);
        for (uint64_t page = 0; page < n; page++)
            if (elsewhere_word(i, page)) /* else it is never touched */
                fill_page(e->area[i].host + page * psize, psize, elsewhere_word(i, page));
        struct ff_region r = {.name = names[i], .host = e->area[i].host, .len_bytes = n * psize,
                              .psize = psize, .fd = e->area[i].fd, .zero_fill = true};
        must_ok(ff_source_add_region(e->source, &r, &err), err);
        r.host = (void *)(uintptr_t)e->b->host[i];
        r.fd = -1;
        if (!e->learns)
            must_ok(ff_dest_add_region(e->dest, &r, &err), err);
    }
    if (e->learns)
        ff_dest_on_table(e->dest, take_table, e);
}

static void elsewhere_move(struct elsewhere *e)
{
    pthread_t source, breaker;

    elsewhere_prepare(e);
    must(!pthread_create(&source, NULL, elsewhere_source, e));
    e->dest_rc = elsewhere_dest(e, &breaker);
    atomic_store(&e->over, true);
    if (e->breaks)
        must(!pthread_join(breaker, NULL));
    ff_dest_stats(e->dest, &e->stats);
    if (e->dest_rc)
        ff_source_cancel(e->source);
    must(!pthread_join(source, NULL));
    if (e->dest_rc) /* it would wait for pages for ever */
        kill(e->owner, SIGKILL);
    int status = child_wait(e->owner, LIMIT_MS / 1000);
    printf("%llu faults, %llu breaks: %s\n", (unsigned long long)e->stats.faults, (unsigned long long)e->stats.breaks,
           e->dest_rc ? e->dest_err.text : "complete");
    if (!e->dest_rc && status)
        loop_fail(__FILE__, __LINE__, "the owner ended with %d", status);
    ff_source_free(e->source);
    ff_dest_free(e->dest);
    ff_address_free(e->at);
}

static void must_move(struct elsewhere *e)
{
    const struct ff_stats *st = &e->stats;

    e->forgets = -1;
    elsewhere_move(e);
    if (e->dest_rc)
        loop_fail(__FILE__, __LINE__, "destination: %s", e->dest_err.text);
    if (e->source_rc)
        loop_fail(__FILE__, __LINE__, "source: %s", e->source_err.text);
    must(st->bytes_present == st->bytes_total && st->bytes_moved == 0 && st->bytes_continued == 0);
    must(st->bytes_prefill + st->bytes_fault + st->bytes_zero + st->bytes_precopied -
             st->bytes_discarded == st->bytes_total);
}

static void anon(void)
{
    static struct elsewhere e = {.memory = MEM_ANON};
    must_move(&e);
}

static void shared(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD};
    must_move(&e);
}

static void private_file(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD_PRIVATE};
    must_move(&e);
}

static void huge(void)
{
    if (no_huge)
        loop_skip("%s", no_huge);
    static struct elsewhere e = {.memory = MEM_HUGETLB};
    must_move(&e);
}

static void by_faults_alone(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD,
                                 .options = "prefill=pull,chunk=64K,window=1"};
    loop_arm("tcp.serve.prefill=delay:20000");
    must_move(&e);
    must(e.stats.faults > 0);
}

static void discarded(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .discards = true,
                                 .options = "prefill=pull,chunk=64K,window=1"};
    loop_arm("tcp.serve.prefill=delay:500000"); /* what is touched comes by faults alone, within the limit */
    must_move(&e);
}

static void discarded_file(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD, .discards = true,
                                 .options = "prefill=pull,chunk=64K,window=1"};
    loop_arm("tcp.serve.prefill=delay:500000"); /* what is touched comes by faults alone, within the limit */
    must_move(&e);
}

static void adopted_late(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD, .late = true};
    must_move(&e);
}

static void links_break(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD, .breaks = true,
                                 .options = "prefill=pull,chunk=64K,window=1"};
    loop_arm("tcp.serve.prefill=delay:20000");
    must_move(&e);
    must(e.stats.breaks > 0);
}

static void pushed(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .options = "prefill=push"};
    must_move(&e);
}

static void tagged(void)
{
    static struct elsewhere e = {.memory = MEM_ANON};
    char options[256];

    snprintf(options, sizeof(options), "verify=on,key-file=%s", loop_key_file());
    e.options = options;
    must_move(&e);
    loop_remove_key();
}

static void owner_dies(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .dies = true, .forgets = -1,
                                 .options = "prefill=pull,chunk=64K,window=1"};
    loop_arm("tcp.serve.prefill=delay:20000");
    elsewhere_move(&e);
    must(e.dest_rc == -ESRCH && strstr(e.dest_err.text, "has ended"));
    must(e.source_rc);
}

/* Nobody goes on with zeros by mistake */
static void forsaken(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .forsakes = true, .forgets = -1};
    elsewhere_move(&e);
    must(e.dest_rc == -ENOENT && strstr(e.dest_err.text, "region ") && strstr(e.dest_err.text, "not watched any more"));
    must(e.source_rc);
}

static void learned(void)
{
    static struct elsewhere e = {.memory = MEM_MEMFD, .learns = true};
    must_move(&e);
}

static void not_found(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .learns = true, .unknown = true};
    elsewhere_move(&e);
    must(e.dest_rc == -ENOENT && strstr(e.dest_err.text, "second: it is not here"));
    must(e.source_rc);
}

static void not_registered(void)
{
    static struct elsewhere e = {.memory = MEM_ANON, .forgets = 1};
    elsewhere_move(&e);
    must(e.dest_rc == -EINVAL);
    must(strstr(e.dest_err.text, "second: its userfaultfd does not watch"));
    must(e.source_rc);
}

static void refused(void)
{
    struct ff_address *plain = loop_address(0, "");
    struct ff_region r = {.name = "r", .host = (void *)4096, .len_bytes = 4096, .psize = 4096,
                          .fd = -1};
    struct ff_dest *d;
    struct ff_error err;

    must_ok(ff_dest_new(plain, &d, &err), err);
    must(ff_dest_adopt(d, open("/dev/null", O_RDONLY), &err) == -EINVAL);
    must(ff_dest_wait_complete(d, 0, &err) == -EINVAL);
    must_ok(ff_dest_add_region(d, &r, &err), err);
    must(ff_dest_elsewhere(d, &err) == -EINVAL);
    ff_dest_free(d);
    ff_address_free(plain);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"anonymous", anon, 0},
        {"shared file", shared, 0},
        {"private file", private_file, 0},
        {"huge pages", huge, 0},
        {"by faults alone", by_faults_alone, 60},
        {"discarded", discarded, 60},
        {"discarded, shared file", discarded_file, 60},
        {"adopted after GO", adopted_late, 0},
        {"the source's table", learned, 0},
        {"a region is not found", not_found, 0},
        {"links break", links_break, 60},
        {"push", pushed, 0},
        {"verify=on", tagged, 0},
        {"the owner dies", owner_dies, 0},
        {"watched no more before all is here", forsaken, 0},
        {"a region is not registered", not_registered, 0},
        {"refused", refused, 0},
    };

    no_huge = pl_huge_reserve(HUGE_RESERVED);
    int rc = loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
