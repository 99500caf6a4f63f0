/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ready_files.c - pages made ready in shared files while the destination waits (prealloc): filled
 *                 where they are, never seen before, and those of zeros given back
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "loop.h"

#define CELLS (loop_in_lab() ? 1500u : 6000u)
#define MORE 501
#define ALL ((CELLS + MORE) * (uint64_t)CELL)

static void setup(void)
{
    image_new(CELLS + MORE);
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 2000000};

    nanosleep(&t, NULL);
}

/* Bytes that the files behind a destination's memory take */
static uint64_t in_files(const struct move *m)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < m->n_regions; i++) {
        struct stat st;
        must(!fstat(m->area[i].fd, &st));
        sum += (uint64_t)st.st_blocks * 512;
    }
    return sum;
}

static void must_continue(void)
{
    if (!loop_kernel()->continues)
        loop_skip("this kernel has no minor faults of shared memory: Linux 5.14 has");
}

/* The source comes when all pages are there */
static void come_late(struct move *m, enum stage stage)
{
    if (stage != S_CONNECT)
        return;
    for (unsigned i = 0; in_files(m) < ALL; i++) {
        must(i < 15000);
        nap();
    }
}

static struct move a_move(bool tcp, const char *options)
{
    must_continue();
    return (struct move){.tcp = tcp, .options = options, .memory = MEM_MEMFD, .hook = come_late,
                         .cells = {CELLS, MORE}, .n_regions = 2};
}

/* Nobody touches anything: every page lands in its place, and the file holds no page of zeros */
static void all_in_place(bool tcp, const char *options)
{
    static struct move m;
    uint64_t want = 0;

    m = a_move(tcp, options);
    move_run(&m);
    for (uint64_t i = 0; i < m.n_cells; i++)
        want += cell_is_zero(i) ? 0 : CELL;
    must(m.dst.stats.bytes_continued && m.dst.stats.bytes_continued == m.dst.stats.bytes_prefill);
    must(!m.dst.stats.bytes_copied && !m.dst.stats.bytes_moved);
    if (in_files(&m) != want)
        loop_fail(__FILE__, __LINE__, "the files take %llu bytes, want %llu",
                  (unsigned long long)in_files(&m), (unsigned long long)want);
    move_must_succeed(&m);
}

static void loop_in_place(void)
{
    all_in_place(false, "");
}

static void tcp_in_place(void)
{
    all_in_place(true, "");
    all_in_place(true, "chunk=64K,window=8");
    all_in_place(true, "prefill=push");
}

/* Threads read and write memory from the moment it is watched: a page that is ready is missing */
static void under_touchers(bool tcp, const char *options, bool writes)
{
    static struct move m;

    m = a_move(tcp, options);
    m.touchers = 4;
    m.writes = writes;
    move_run(&m);
    must(m.dst.stats.bytes_continued && !m.dst.stats.bytes_copied);
    move_must_succeed(&m);
}

static void loop_touchers(void)
{
    under_touchers(false, "", true);
    under_touchers(false, "chunk=64K", false);
}

static void tcp_touchers(void)
{
    under_touchers(true, "", true);
    under_touchers(true, "", false);
    under_touchers(true, "chunk=64K,window=8", true);
    under_touchers(true, "prefill=push", true);
}

/* The source comes at any moment while pages are being made ready: the others are copied */
static void comes_early(void)
{
    static struct move m;

    for (unsigned i = 0; i < 12; i++) {
        m = a_move(i % 2, i % 3 ? "" : "chunk=64K");
        m.hook = NULL;
        m.touchers = 2;
        m.writes = true;
        move_run(&m);
        move_must_succeed(&m);
    }
}

/* Memory that is not quite empty, as firmware leaves it, also where pages of zeros come */
static void touch_some(struct move *m)
{
    for (unsigned i = 0; i < m->n_regions; i++)
        for (uint64_t at = 0; at < m->area[i].len_bytes; at += 17 * CELL)
            memset(m->area[i].host + at, 0xaa, CELL);
}

static void was_touched(void)
{
    static struct move m;

    for (unsigned i = 0; i < 2; i++) {
        m = a_move(i, "");
        m.prepared = touch_some;
        m.touchers = 2;
        move_run(&m);
        must(m.dst.stats.bytes_continued && !m.dst.stats.bytes_copied);
        move_must_succeed(&m);
    }
}

/* Memory that is locked as it is touched */
static void lock_some(struct move *m)
{
    touch_some(m);
    for (unsigned i = 0; i < m->n_regions; i++)
        if (mlock2(m->area[i].host, m->area[i].len_bytes, MLOCK_ONFAULT))
            loop_skip("it cannot lock memory (see RLIMIT_MEMLOCK)");
}

static void is_locked(void)
{
    static struct move m;

    m = a_move(true, "");
    m.prepared = lock_some;
    m.touchers = 2;
    m.writes = true;
    move_run(&m);
    must(m.dst.stats.bytes_continued && !m.dst.stats.bytes_copied);
    move_must_succeed(&m);
}

/* Links break: what was to come into the file comes over the next one */
static void breaks(void)
{
    static struct move m;

    m = a_move(true, "chunk=64K,window=1");
    m.touchers = 4;
    m.writes = m.touch_late = true;
    move_must_survive(&m,
                      "dest.fault=delay:2000,tcp.serve.prefill=fail@3,tcp.serve.prefill=fail@19,"
                      "tcp.serve.prefill=fail@40", 3);
}

static void not_wanted(const char *options)
{
    static struct move m;

    m = a_move(true, options);
    m.hook = NULL;
    m.touchers = 4;
    move_run(&m);
    must(!m.dst.stats.bytes_continued);
    move_must_succeed(&m);
}

static void off(void)
{
    not_wanted("prealloc=0");
    not_wanted("landing=copy");
    not_wanted("precopy=1");
}

/* The guest stays at the source: the file is empty, as it was before */
static void fails_before_go(void)
{
    static struct move m;

    for (unsigned i = 0; i < 2; i++) {
        m = a_move(true, "timeout=5");
        loop_arm(i ? "dest.ready=fail" : "dest.pager=fail");
        move_run(&m);
        must(m.src.rc && m.dst.rc && !m.ran && !m.dest);
        must(!in_files(&m));
        move_free(&m);
    }
}

static void *accept_main(void *dest)
{
    struct ff_error err;

    must(ff_dest_accept(dest, "test", &err) == -ECANCELED);
    return NULL;
}

/* No source comes: the file is empty, as it was before */
static void nobody_comes(void)
{
    struct ff_address *a = loop_address(0, "");
    struct ff_dest *d;
    struct ff_error err;
    struct area area;
    struct stat st;
    pthread_t thread;

    must_continue();
    area_new(&area, MEM_MEMFD, ALL);
    const struct ff_region r = {.name = "ram", .host = area.host, .len_bytes = area.len_bytes,
                                .psize = area.psize, .fd = area.fd};
    must_ok(ff_dest_new(a, &d, &err), err);
    must_ok(ff_dest_add_region(d, &r, &err), err);
    must(!pthread_create(&thread, NULL, accept_main, d));
    for (unsigned i = 0; !fstat(area.fd, &st) && (uint64_t)st.st_blocks * 512 < ALL; i++) {
        must(i < 15000);
        nap();
    }
    ff_dest_cancel(d);
    pthread_join(thread, NULL);
    ff_dest_free(d);
    must(!fstat(area.fd, &st) && !st.st_blocks);
    ff_address_free(a);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop: all in place", loop_in_place, 60},
        {"tcp: all in place", tcp_in_place, 60},
        {"loop: under touchers", loop_touchers, 60},
        {"tcp: under touchers", tcp_touchers, 60},
        {"comes early", comes_early, 40},
        {"was touched", was_touched, 60},
        {"is locked", is_locked, 60},
        {"breaks", breaks, 60},
        {"off", off, 40},
        {"fails before GO", fails_before_go, 40},
        {"nobody comes", nobody_comes, 40},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
