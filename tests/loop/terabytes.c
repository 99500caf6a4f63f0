/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * terabytes.c - guests of 1 GiB to 4 TiB that have touched the same little: what each size costs, and that all of it comes
 *
 * Prints what it measures. What must not grow with the size is asserted in bytes, not in time.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "loop.h"

#define GIB (1ull << 30)
#define TOUCHED 64u
#define PAGE 4096u
#define PER_PAGE_MAX 1.25 /* bytes of both sides' own for each page */

static uint64_t len;

struct end {
    struct ff_address *a;
    struct ff_region r;
    struct ff_source *source;
    struct ff_dest *dest;
    uint64_t begun, watched, stopped;
};

/* Spread over all of it, the first and the last page among them */
static uint64_t place(unsigned i)
{
    return (len - PAGE) / (TOUCHED - 1) * i / PAGE * PAGE;
}

static struct ff_region memory(void)
{
    struct ff_region r = {.name = "ram", .len_bytes = len, .psize = PAGE, .zero_fill = true};

    r.fd = memfd_create("terabytes", MFD_CLOEXEC);
    must(r.fd >= 0 && !ftruncate(r.fd, (off_t)len));
    r.host = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
    must(r.host != MAP_FAILED);
    return r;
}

/* All of this process that is no page of the guests' files */
static uint64_t own_bytes(void)
{
    unsigned long size, rss, shared;
    FILE *f = fopen("/proc/self/statm", "re");

    must(f && fscanf(f, "%lu %lu %lu", &size, &rss, &shared) == 3);
    fclose(f);
    return (rss - shared) * 4096ull;
}

static uint64_t most_bytes;

static void note_bytes(void)
{
    most_bytes = FF_MAX(most_bytes, own_bytes());
}

static void *source_main(void *arg)
{
    struct end *e = arg;
    struct ff_error err;

    e->begun = ff_now_ns();
    must_ok(ff_source_connect(e->source, "test", &err), err);
    must_ok(ff_source_publish(e->source, &err), err);
    must_ok(ff_source_wait_watched(e->source, &err), err);
    e->watched = e->stopped = ff_now_ns();
    must_ok(ff_source_send_state(e->source, "state", 5, NULL, 0, &err), err);
    must_ok(ff_source_wait_ready(e->source, &err), err);
    must_ok(ff_source_go(e->source, &err), err);
    must_ok(ff_source_wait_running(e->source, &err), err);
    must_ok(ff_source_wait_done(e->source, &err), err);
    return NULL;
}

static double ms(uint64_t from, uint64_t to)
{
    return (double)(to - from) / 1e6;
}

static uint64_t touch_late(uint8_t *host, unsigned i)
{
    const uint64_t at = ff_now_ns();

    must(host[place(i)] == i + 1);
    return ff_now_ns() - at;
}

static void move_of(uint64_t gib)
{
    struct ff_error err;
    struct ff_stats st;
    pthread_t thread;
    struct stat file;
    void *state;
    size_t n;
    const uint64_t before = own_bytes();

    len = gib * GIB;
    struct end src = {.r = memory()}, dst = {.r = memory()};
    for (unsigned i = 0; i < TOUCHED; i++)
        memset((uint8_t *)src.r.host + place(i), (int)i + 1, PAGE);
    dst.a = loop_address(0, "");
    must_ok(ff_dest_new(dst.a, &dst.dest, &err), err);
    src.a = loop_address(ff_dest_port(dst.dest), "");
    must_ok(ff_source_new(src.a, &src.source, &err), err);
    must_ok(ff_source_add_region(src.source, &src.r, &err), err);
    must_ok(ff_dest_add_region(dst.dest, &dst.r, &err), err);
    must(!pthread_create(&thread, NULL, source_main, &src));
    must_ok(ff_dest_accept(dst.dest, "test", &err), err);
    must_ok(ff_dest_start(dst.dest, &err), err);
    must_ok(ff_dest_recv_state(dst.dest, &state, &n, &err), err);
    free(state);
    uint64_t fault_ns = touch_late(dst.r.host, TOUCHED / 2);
    must_ok(ff_dest_ready(dst.dest, &err), err);
    must_ok(ff_dest_wait_go(dst.dest, &err), err);
    must_ok(ff_dest_running(dst.dest, &err), err);
    const uint64_t running = ff_now_ns();
    note_bytes();
    uint64_t asked = ff_now_ns();
    ff_dest_stats(dst.dest, &st);
    asked = ff_now_ns() - asked;
    must_ok(ff_dest_wait_done(dst.dest, &err), err);
    const uint64_t done = ff_now_ns();
    note_bytes();
    pthread_join(thread, NULL);
    ff_dest_stats(dst.dest, &st);
    must(st.bytes_present == len);
    for (unsigned i = 0; i < TOUCHED; i++)
        must(((uint8_t *)dst.r.host)[place(i)] == i + 1 && ((uint8_t *)dst.r.host)[place(i) + PAGE - 1] == i + 1);
    must(!fstat(dst.r.fd, &file) && (uint64_t)file.st_blocks * 512 <= 2ull * TOUCHED * PAGE);
    const double each = (double)(most_bytes - before) / (double)(len / PAGE);
    printf("%5llu GiB: setup %.1f ms, pause %.1f ms, a fault %.0f us, statistics %.0f us, all there after %.0f ms, %.2f bytes a page\n",
           (unsigned long long)gib, ms(src.begun, src.watched), ms(src.stopped, running), (double)fault_ns / 1e3, (double)asked / 1e3,
           ms(running, done), each);
    if (gib >= 512) /* buffers and threads are as many for each size */
        must(each <= PER_PAGE_MAX);
    ff_source_free(src.source);
    ff_dest_free(dst.dest);
    ff_address_free(src.a);
    ff_address_free(dst.a);
}

static void gib_1(void)
{
    move_of(1);
}

static void gib_64(void)
{
    if (UNDER_SANITIZER)
        loop_skip("a sanitizer needs a minute for so many pages");
    move_of(64);
}

static void gib_512(void)
{
    if (UNDER_SANITIZER)
        loop_skip("a sanitizer needs minutes for so many pages");
    move_of(512);
}

static void tib_4(void)
{
    if (!getenv("FARFORK_FULL") || UNDER_SANITIZER)
        loop_skip("a minute: FARFORK_FULL=1");
    move_of(4096);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"1 GiB", gib_1, 20}, {"64 GiB", gib_64, 40}, {"512 GiB", gib_512, 60}, {"4 TiB", tib_4, 180}};

    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
