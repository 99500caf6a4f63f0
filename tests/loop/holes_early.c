/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * holes_early.c - precopy=1: a hole of the pass that is touched before the image is frozen becomes
 *                 what the source holds at its pause
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failpoint.h"
#include "loop.h"

#define PAGE 4096u
#define PAGES 1024u
#define LEN (PAGES * PAGE)
#define EARLY 256u   /* so many faults the fault thread only remembers: see migrate/fault.c */
#define THREADS 300u /* those on top are answered at once */

static struct area src, dst;
static struct ff_source *source;

static struct ff_region region_of(const struct area *a)
{
    return (struct ff_region){.name = "ram", .host = a->host, .len_bytes = a->len_bytes,
                              .psize = a->psize, .fd = a->fd, .zero_fill = true};
}

static void wait_faults(unsigned long n)
{
    while (ff_failpoint_hits("dest.fault") < n) /* the test's limit bounds it */
        usleep(1000);
}

static void *source_main(void *arg)
{
    static uint64_t log[PAGES / 64];
    struct ff_error err;

    (void)arg;
    must_ok(ff_source_connect(source, "test", &err), err);
    must_ok(ff_source_publish(source, &err), err);
    must_ok(ff_source_wait_watched(source, &err), err);
    must_ok(ff_source_precopy(source, &err), err);
    wait_faults(THREADS + EARLY); /* whom the pass has woken has met a hole */
    memset(src.host, 7, LEN);
    memset(log, 0xff, sizeof(log));
    must_ok(ff_source_dirty(source, 0, log, PAGE, &err), err);
    must_ok(ff_source_send_state(source, "state", 5, NULL, 0, &err), err);
    must_ok(ff_source_wait_ready(source, &err), err);
    must_ok(ff_source_go(source, &err), err);
    must_ok(ff_source_wait_running(source, &err), err);
    must_ok(ff_source_wait_done(source, &err), err);
    return NULL;
}

static void *read_main(void *arg)
{
    (void)*(volatile uint8_t *)arg;
    return NULL;
}

static void start_both(struct ff_dest **dest)
{
    struct ff_address *to = loop_address(0, ",precopy=1,landing=copy"), *from;
    struct ff_region r;
    struct ff_error err;

    area_new(&src, MEM_MEMFD, LEN);
    area_new(&dst, MEM_MEMFD, LEN);
    memset(src.host, 0, LEN); /* touched: the pass reads it */
    must_ok(ff_dest_new(to, dest, &err), err);
    ff_address_free(to);
    r = region_of(&dst);
    must_ok(ff_dest_add_region(*dest, &r, &err), err);
    from = loop_address(ff_dest_port(*dest), "");
    must_ok(ff_source_new(from, &source, &err), err);
    ff_address_free(from);
    r = region_of(&src);
    must_ok(ff_source_add_region(source, &r, &err), err);
}

/* There is no memory for zeros at first, so that a hole that was touched is not filled for long */
static void touched_in_the_pass(void)
{
    static pthread_t reader[THREADS];
    pthread_t source_thread;
    struct ff_dest *dest;
    struct ff_stats st;
    struct ff_error err;
    void *state;
    size_t len;

    must_ok(ff_failpoints_arm("dest.fault=delay:0,dest.install=fail:12@1-4000", &err), err);
    start_both(&dest);
    must(!pthread_create(&source_thread, NULL, source_main, NULL));
    must_ok(ff_dest_accept(dest, "test", &err), err);
    must_ok(ff_dest_start(dest, &err), err);
    for (unsigned i = 0; i < THREADS; i++)
        must(!pthread_create(&reader[i], NULL, read_main, dst.host + i * PAGE));
    wait_faults(THREADS);
    must_ok(ff_dest_recv_state(dest, &state, &len, &err), err);
    free(state);
    must_ok(ff_dest_ready(dest, &err), err);
    must_ok(ff_dest_wait_go(dest, &err), err);
    must_ok(ff_dest_running(dest, &err), err);
    must_ok(ff_dest_wait_done(dest, &err), err);
    pthread_join(source_thread, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(reader[i], NULL);
    must(ff_failpoint_hits("dest.install") > 4000);
    ff_dest_stats(dest, &st);
    must(st.bytes_precopied && st.bytes_present == LEN);
    must(st.bytes_prefill + st.bytes_fault + st.bytes_zero == LEN + st.bytes_discarded);
    for (unsigned i = 0; i < PAGES; i++)
        if (memcmp(src.host + i * PAGE, dst.host + i * PAGE, PAGE))
            loop_fail(__FILE__, __LINE__, "page %u: %u, want %u", i, dst.host[i * PAGE],
                      src.host[i * PAGE]);
    ff_source_free(source);
    ff_dest_free(dest);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {{"touched in the pass", touched_in_the_pass, 60}};
    return loop_main(argc, argv, NULL, tests, sizeof(tests) / sizeof(*tests));
}
