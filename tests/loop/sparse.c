/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * sparse.c - a guest that has touched little: segments without a key are zeros, what it touches
 *            between publishing and its pause arrives all the same, and the source's memory
 *            does not become populated where the guest has touched nothing, nor does the
 *            destination
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

#define MIB (1ull << 20)
#define LEN (400 * MIB) /* seven segments of 64 MiB, the last one of 16 */

/* Pages of either kind, by offset; in segments 0, 2, 3 and 6, the last page among them */
static const uint64_t early[] = {0, 5 * MIB, 2 * 64 * MIB, 2 * 64 * MIB + 8192, LEN - 4096};
static const uint64_t late[] = {3 * 64 * MIB + 4096, 4 * 64 * MIB - 4096, 6 * MIB};

struct end {
    struct ff_address *a;
    struct ff_region r;
    struct ff_source *source;
    struct ff_dest *dest;
};

static uint8_t value_at(uint64_t offset)
{
    return (uint8_t)(offset / 4096 % 251 + 1);
}

static void touch(uint8_t *host, const uint64_t *offset, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memset(host + offset[i], value_at(offset[i]), 4096);
}

static struct ff_region memory(bool shared)
{
    struct ff_region r = {
        .name = "ram", .len_bytes = LEN, .psize = 4096, .fd = -1, .zero_fill = true};

    if (shared) {
        r.fd = memfd_create("sparse", MFD_CLOEXEC);
        must(r.fd >= 0 && !ftruncate(r.fd, (off_t)LEN));
    }
    /* between guards: a mapping that the kernel joins with no other can be measured */
    uint8_t *room = mmap(NULL, LEN + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(room != MAP_FAILED);
    r.host = mmap(room + 4096, LEN, PROT_READ | PROT_WRITE,
                  (shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE) | MAP_FIXED,
                  r.fd, 0);
    must(r.host != MAP_FAILED);
    madvise(r.host, LEN, MADV_NOHUGEPAGE);
    return r;
}

/* Pages that take memory: of the file, or of the anonymous mapping (the shared page of zeros
 * takes none) */
static uint64_t populated(const struct ff_region *r)
{
    unsigned long from, to, kib = 0;
    struct stat st;
    char line[256];
    bool here = false;

    if (r->fd >= 0 || r->is_private) {
        must(!fstat(r->is_private ? r->private_fd : r->fd, &st));
        return (uint64_t)st.st_blocks * 512 / 4096;
    }
    FILE *f = fopen("/proc/self/smaps", "re");
    must(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = from <= (uintptr_t)r->host && (uintptr_t)r->host < to;
        if (here && sscanf(line, "Anonymous: %lu", &kib) == 1)
            break;
    }
    fclose(f);
    return kib / 4;
}

static void *source_main(void *arg)
{
    struct end *e = arg;
    struct ff_error err;

    must_ok(ff_source_connect(e->source, "test", &err), err);
    must_ok(ff_source_publish(e->source, &err), err);
    must_ok(ff_source_wait_watched(e->source, &err), err);
    touch(e->r.host, late, FF_ARRAY_LEN(late)); /* the guest still ran */
    must_ok(ff_source_send_state(e->source, "state", 5, NULL, 0, &err), err);
    must_ok(ff_source_wait_ready(e->source, &err), err);
    must_ok(ff_source_go(e->source, &err), err);
    must_ok(ff_source_wait_running(e->source, &err), err);
    must_ok(ff_source_wait_done(e->source, &err), err);
    return NULL;
}

static void check(const uint8_t *host)
{
    static uint8_t want[LEN / 4096];

    memset(want, 0, sizeof(want));
    for (size_t i = 0; i < FF_ARRAY_LEN(early); i++)
        want[early[i] / 4096] = value_at(early[i]);
    for (size_t i = 0; i < FF_ARRAY_LEN(late); i++)
        want[late[i] / 4096] = value_at(late[i]);
    for (uint64_t p = 0; p < LEN / 4096; p++)
        for (unsigned b = 0; b < 4096; b += 8) {
            uint64_t got, w = 0x0101010101010101ull * want[p];
            memcpy(&got, host + p * 4096 + b, 8);
            if (got != w)
                loop_fail(__FILE__, __LINE__, "page %llu: 0x%llx, want 0x%llx",
                          (unsigned long long)p, (unsigned long long)got, (unsigned long long)w);
        }
}

static void must_hold(const struct ff_region *r, const char *where, uint64_t most)
{
    uint64_t pages = populated(r);

    printf("populated at the %s: %llu pages of %llu\n", where, (unsigned long long)pages,
           LEN / 4096);
    if (pages > most)
        loop_fail(__FILE__, __LINE__, "populated at the %s: %llu pages, at most %llu", where,
                  (unsigned long long)pages, (unsigned long long)most);
}

/* As a fork leaves it: what was touched is in the file, which nobody writes to any more. What is
 * written later is in copies (of a hole the kernel makes a page of the file first) */
static void make_private(struct ff_region *r)
{
    must(mmap(r->host, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, r->fd, 0) == r->host);
    madvise(r->host, LEN, MADV_NOHUGEPAGE);
    r->is_private = true;
    r->private_fd = r->fd;
    r->fd = -1;
}

static void move_sparse(bool shared, bool is_private, const char *options)
{
    struct end src = {.r = memory(shared)}, dst = {.r = memory(shared)};
    struct ff_stats st;
    struct ff_error err;
    pthread_t thread;
    void *state;
    size_t len;

    touch(src.r.host, early, FF_ARRAY_LEN(early));
    if (is_private)
        make_private(&src.r);
    dst.a = loop_address(0, options);
    must_ok(ff_dest_new(dst.a, &dst.dest, &err), err);
    src.a = loop_address(ff_dest_port(dst.dest), options);
    must_ok(ff_source_new(src.a, &src.source, &err), err);
    must_ok(ff_source_add_region(src.source, &src.r, &err), err);
    must_ok(ff_dest_add_region(dst.dest, &dst.r, &err), err);
    must(!pthread_create(&thread, NULL, source_main, &src));

    must_ok(ff_dest_accept(dst.dest, "test", &err), err);
    must_ok(ff_dest_start(dst.dest, &err), err);
    must_ok(ff_dest_recv_state(dst.dest, &state, &len, &err), err);
    free(state);
    must(((uint8_t *)dst.r.host)[late[0]] == value_at(late[0])); /* by a fault */
    must(((uint8_t *)dst.r.host)[64 * MIB] == 0);               /* a segment without a key */
    must_ok(ff_dest_ready(dst.dest, &err), err);
    must_ok(ff_dest_wait_go(dst.dest, &err), err);
    must_ok(ff_dest_running(dst.dest, &err), err);
    must_ok(ff_dest_wait_done(dst.dest, &err), err);
    pthread_join(thread, NULL);
    ff_dest_stats(dst.dest, &st);
    must(st.bytes_present == LEN);
    /* over a link that pins, the segments that were touched early are populated as a whole, and 1 MiB around what was
     * touched late in others */
    bool pins = getenv("FARFORK_TEST_LINK") && !strcmp(getenv("FARFORK_TEST_LINK"), "verbs") &&
                !strstr(options, "odp=on");
    uint64_t touched = FF_ARRAY_LEN(early) + FF_ARRAY_LEN(late),
             most = pins ? (2 * 64 + 16 + 2) * MIB / 4096 : touched;
    if (strstr(options, "push") && shared && !pins)
        most = touched * 512; /* a chunk is written as a whole */
    must_hold(&src.r, "source", most);
    must_hold(&dst.r, "destination", shared && !pins ? touched + 1 : FF_MAX(most, touched));
    check(dst.r.host);
    ff_source_free(src.source);
    ff_dest_free(dst.dest);
    ff_address_free(src.a);
    ff_address_free(dst.a);
}

static void anon(void)
{
    move_sparse(false, false, "");
}

/* --- pages made ready for what turns out to hold nothing --- */

static uint64_t resident(void)
{
    unsigned long size, rss = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    must(f && fscanf(f, "%lu %lu", &size, &rss) == 2);
    fclose(f);
    return rss * 4096ull;
}

static uint64_t before;

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 2000000};

    nanosleep(&t, NULL);
}

static void *late_source_main(void *arg)
{
    for (unsigned i = 0; resident() < before + LEN; i++) {
        must(i < 5000);
        nap();
    }
    return source_main(arg);
}

static struct ff_dest *counting;

/* As soon as all that has no key is there, nothing that was made ready for it is left */
static void *count_main(void *arg)
{
    uint64_t zeros = LEN - (3 * 64 + 16) * MIB, now;
    struct ff_stats st;

    (void)arg;
    do {
        nap();
        ff_dest_stats(counting, &st);
        now = resident();
    } while (st.bytes_zero < zeros);
    must(st.bytes_present < LEN); /* else it says nothing */
    printf("resident when %llu MiB of zeros are there: %llu MiB\n",
           (unsigned long long)(st.bytes_zero / MIB), (unsigned long long)((now - before) / MIB));
    must(now < before + LEN - zeros + 16 * MIB);
    return NULL;
}

static void pool(bool shared)
{
    struct end src = {.r = memory(false)}, dst = {.r = memory(shared)};
    pthread_t thread, counter;
    struct ff_error err;
    void *state;
    size_t len;

    if (UNDER_SANITIZER)
        loop_skip("a sanitizer's own memory cannot be told from the guest's");
    if (shared ? !loop_kernel()->continues : !loop_kernel()->moves)
        loop_skip("this kernel %s, so no page is made ready",
                  shared ? "has no minor faults (Linux 5.14)" : "moves no pages (Linux 6.8)");
    touch(src.r.host, early, FF_ARRAY_LEN(early));
    must_ok(ff_failpoints_arm("tcp.serve.prefill=delay:10000", &err), err);
    before = resident();
    dst.a = loop_address(0, "");
    must_ok(ff_dest_new(dst.a, &dst.dest, &err), err);
    src.a = loop_address(ff_dest_port(dst.dest), "");
    must_ok(ff_source_new(src.a, &src.source, &err), err);
    must_ok(ff_source_add_region(src.source, &src.r, &err), err);
    must_ok(ff_dest_add_region(dst.dest, &dst.r, &err), err);
    must(!pthread_create(&thread, NULL, late_source_main, &src));
    must_ok(ff_dest_accept(dst.dest, "test", &err), err);
    must_ok(ff_dest_start(dst.dest, &err), err);
    must_ok(ff_dest_recv_state(dst.dest, &state, &len, &err), err);
    free(state);
    must_ok(ff_dest_ready(dst.dest, &err), err);
    must_ok(ff_dest_wait_go(dst.dest, &err), err);
    must_ok(ff_dest_running(dst.dest, &err), err);
    counting = dst.dest;
    must(!pthread_create(&counter, NULL, count_main, NULL));
    must_ok(ff_dest_wait_done(dst.dest, &err), err);
    pthread_join(counter, NULL);
    pthread_join(thread, NULL);
    must_hold(&dst.r, "destination", FF_ARRAY_LEN(early) + FF_ARRAY_LEN(late));
    check(dst.r.host);
    ff_source_free(src.source);
    ff_dest_free(dst.dest);
    ff_address_free(src.a);
    ff_address_free(dst.a);
}

static void anon_pool(void)
{
    pool(false);
}

static void memfd_pool(void)
{
    pool(true);
}

static void anon_push(void)
{
    move_sparse(false, false, ",prefill=push");
}

static void memfd_copy(void)
{
    move_sparse(true, false, ",landing=copy");
}

static void memfd_push(void)
{
    move_sparse(true, false, ",landing=copy,prefill=push");
}

static void memfd_continue(void)
{
    move_sparse(true, false, ",landing=continue");
}

static void private_copy(void)
{
    move_sparse(true, true, ",landing=copy");
}

static void private_push(void)
{
    move_sparse(true, true, ",landing=copy,prefill=push");
}

static void setup(void)
{
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp anon", anon, 60},
        {"stock, anon", anon_pool, 60},
        {"stock, memfd", memfd_pool, 60},
        {"tcp anon push", anon_push, 60},
        {"tcp memfd copy", memfd_copy, 60},
        {"tcp memfd push", memfd_push, 60},
        {"tcp memfd continue", memfd_continue, 60},
        {"tcp private copy", private_copy, 60},
        {"tcp private push", private_push, 60},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
