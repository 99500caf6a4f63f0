/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * returns.c - a guest goes, works elsewhere with what it needs of its memory, and comes back with what it
 *             wrote
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "farfork-return.h"
#include "loop.h"

#define PAGE 4096u
#define REGIONS 2
#define PAGES 2048u /* of each region */
#define WORDS (PAGES / 64)

/* One way: from memory of one side to the other's */
struct leg {
    struct ff_address *to, *at;
    struct ff_source *source;
    struct ff_dest *dest;
    pthread_t thread, stay;
    bool dirty, went;
    int rc; /* the source's */
    int stay_rc; /* the destination's, of a guest that is to return */
    struct ff_error err;
};

static struct area home[REGIONS], away[REGIONS];
static uint64_t log_bits[REGIONS][WORDS]; /* since the first GO, as a hypervisor has it */
static uint32_t version[REGIONS][PAGES];  /* what the guest's pages hold; 0: zeros */
static bool seen[REGIONS][PAGES];         /* it touched the page elsewhere */

static void fill(uint8_t *page, uint32_t v)
{
    for (unsigned i = 0; i < PAGE; i += 4)
        memcpy(page + i, &(uint32_t){v ? v * 2654435761u + i : 0}, 4);
}

static bool holds(const uint8_t *page, uint32_t v)
{
    uint8_t want[PAGE];

    fill(want, v);
    return !memcmp(page, want, PAGE);
}

/* Most pages are written, some hold zeros, and some were never there */
static void guest_new(enum memory kind)
{
    for (unsigned r = 0; r < REGIONS; r++) {
        area_new(&home[r], kind, PAGES * PAGE);
        area_new(&away[r], kind, PAGES * PAGE);
        for (unsigned p = 0; p < PAGES; p++) {
            version[r][p] = p % 7 < 2 ? 0 : 1 + p;
            if (p % 7)
                fill(home[r].host + p * PAGE, version[r][p]);
        }
    }
}

static void leg_new(struct leg *l, struct area *from, struct area *to, const char *options)
{
    struct ff_error err;
    char name[16];

    *l = (struct leg){.at = loop_address(0, options)};
    must_ok(ff_dest_new(l->at, &l->dest, &err), err);
    l->to = loop_address(ff_dest_port(l->dest), options);
    must_ok(ff_source_new(l->to, &l->source, &err), err);
    for (unsigned r = 0; r < REGIONS; r++) {
        snprintf(name, sizeof(name), "region%u", r);
        struct ff_region region = {.name = name, .host = from[r].host, .fd = from[r].fd,
                                   .len_bytes = from[r].len_bytes, .psize = from[r].psize,
                                   .zero_fill = true};
        must_ok(ff_source_add_region(l->source, &region, &err), err);
        region.host = to[r].host;
        region.fd = to[r].fd;
        must_ok(ff_dest_add_region(l->dest, &region, &err), err);
    }
}

static void back_new(struct leg *back, const struct leg *out, const char *options)
{
    struct ff_error err;

    leg_new(back, away, home, options);
    back->dirty = true;
    must_ok(ff_source_return(back->source, out->dest, &err), err);
    must_ok(ff_dest_keep(back->dest, out->source, &err), err);
}

static int source_stages(struct leg *l)
{
    struct ff_error *err = &l->err;
    int rc = ff_source_connect(l->source, "test", err);

    if (!rc)
        rc = ff_source_publish(l->source, err);
    if (!rc)
        rc = ff_source_wait_watched(l->source, err);
    must(rc || !ff_source_wants_precopy(l->source));
    for (unsigned r = 0; r < REGIONS && l->dirty && !rc; r++)
        rc = ff_source_dirty(l->source, r, log_bits[r], PAGE, err);
    if (!rc)
        rc = ff_source_send_state(l->source, "state", 5, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(l->source, err);
    if (rc)
        return rc;
    l->went = true;
    rc = ff_source_go(l->source, err);
    if (!rc)
        rc = ff_source_wait_running(l->source, err);
    if (!rc)
        rc = ff_source_wait_done(l->source, err);
    while (rc && rc != -ECANCELED && rc != -EREMOTEIO && !ff_source_resume(l->source, NULL, 10000, err))
        rc = ff_source_wait_done(l->source, err);
    return rc;
}

static void *source_main(void *arg)
{
    struct leg *l = arg;

    l->rc = source_stages(l);
    if (l->rc && !l->went) { /* as its owner does, whose guest goes on */
        ff_source_free(l->source);
        l->source = NULL;
    }
    return NULL;
}

/* Until the state is here; @empty: as its owner does it for a guest that comes for the first time */
static int receive(struct leg *l, struct area *to, bool empty)
{
    struct ff_error err;
    void *state;
    size_t len;

    must(!pthread_create(&l->thread, NULL, source_main, l));
    int rc = ff_dest_accept(l->dest, "test", &err);
    if (!rc)
        rc = ff_dest_start(l->dest, &err);
    for (unsigned r = 0; r < REGIONS && empty && !rc; r++)
        must(!madvise(to[r].host, to[r].len_bytes, to[r].fd < 0 ? MADV_DONTNEED : MADV_REMOVE));
    if (!rc)
        rc = ff_dest_recv_state(l->dest, &state, &len, &err);
    if (!rc)
        free(state);
    return rc;
}

static void let_run(struct leg *l)
{
    struct ff_error err;

    must_ok(ff_dest_ready(l->dest, &err), err);
    must_ok(ff_dest_wait_go(l->dest, &err), err);
    must_ok(ff_dest_running(l->dest, &err), err);
}

/* The guest is there to return: nothing ends that but its owner */
static void *stay_main(void *arg)
{
    struct leg *l = arg;
    struct ff_error err;

    while ((l->stay_rc = ff_dest_wait_done(l->dest, &err)) && !ff_dest_recover(l->dest, 10000, &err))
        ;
    return NULL;
}

static void leg_free(struct leg *l)
{
    ff_source_free(l->source);
    ff_dest_free(l->dest);
    ff_address_free(l->to);
    ff_address_free(l->at);
}

static void go_out(struct leg *out, enum memory kind)
{
    guest_new(kind);
    leg_new(out, home, away, ",visit=on");
    must(!receive(out, away, true));
    let_run(out);
    must(!pthread_create(&out->stay, NULL, stay_main, out));
}

/* The guest is away: one page in @each is touched, and every other one of these written */
static void work(unsigned each)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = r; p < PAGES; p += each) {
            uint8_t *page = away[r].host + p * PAGE;
            must(holds(page, version[r][p]));
            seen[r][p] = true;
            if (p / each % 2)
                continue;
            log_bits[r][p / 64] |= 1ull << (p % 64);
            version[r][p] = p % 3 ? 100000 + p : 0;
            fill(page, version[r][p]);
        }
}

static uint64_t bytes_of(bool written)
{
    uint64_t n = 0;

    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p++)
            n += seen[r][p] && (!written || log_bits[r][p / 64] >> (p % 64) & 1);
    return n * PAGE;
}

static void must_hold(struct area *a)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p++)
            if (!holds(a[r].host + p * PAGE, version[r][p]))
                loop_fail(__FILE__, __LINE__, "region %u page %u is wrong (%s in the log)", r, p,
                          log_bits[r][p / 64] >> (p % 64) & 1 ? "it is" : "it is not");
}

/* The guest is home again: who served it elsewhere, and who had its memory there, end */
static void end_out(struct leg *out)
{
    ff_dest_cancel(out->dest);
    ff_source_stop(out->source);
    pthread_join(out->thread, NULL);
    pthread_join(out->stay, NULL);
    must(out->rc && out->stay_rc);
    leg_free(out);
}

static void *hold_main(void *arg)
{
    must_hold(arg);
    return NULL;
}

/* @back has GO: all comes, and nothing but what was written */
static void finish(struct leg *back, struct leg *out)
{
    struct ff_error err;
    struct ff_stats st;
    pthread_t guest;
    int rc;

    ff_dest_stats(out->dest, &st);
    must(st.bytes_present == bytes_of(false));
    end_out(out);
    must(!pthread_create(&guest, NULL, hold_main, home));
    while ((rc = ff_dest_wait_done(back->dest, &err)) && !ff_dest_recover(back->dest, 10000, &err))
        ;
    must_ok(rc, err);
    pthread_join(guest, NULL);
    must_hold(home);
    pthread_join(back->thread, NULL);
    must_ok(back->rc, back->err);
    ff_dest_stats(back->dest, &st);
    must(st.bytes_present == st.bytes_total && st.bytes_discarded == bytes_of(true));
    must(st.bytes_prefill + st.bytes_fault + st.bytes_zero == st.bytes_total + st.bytes_discarded);
    must(st.bytes_prefill + st.bytes_fault <= bytes_of(true));
    leg_free(back);
}

/* Who serves the guest has heard of all that it touched, and the move goes on, also when that is everything */
static void await_present(struct leg *out)
{
    uint64_t end = ff_now_ns() + 20000000000ull;
    struct ff_stats st;

    for (;;) {
        ff_source_stats(out->source, &st);
        if (st.bytes_present == bytes_of(false))
            return;
        must(ff_now_ns() < end && !ff_dest_is_told(out->dest));
        usleep(5000);
    }
}

static void there_and_back(enum memory kind, unsigned each, const char *options)
{
    struct leg out, back;

    go_out(&out, kind);
    if (each)
        work(each);
    await_present(&out);
    back_new(&back, &out, options);
    must(!receive(&back, home, false));
    for (unsigned r = 0; r < REGIONS; r++) { /* devices read memory while they are loaded */
        must(holds(home[r].host, version[r][0]));
        must(holds(home[r].host + PAGE, version[r][1]));
    }
    let_run(&back);
    finish(&back, &out);
}

static void anon(void)
{
    there_and_back(MEM_ANON, 10, "");
}

static void anon_all(void)
{
    there_and_back(MEM_ANON, 1, "");
}

static void anon_nothing(void)
{
    there_and_back(MEM_ANON, 0, "");
}

static void anon_thp(void)
{
    there_and_back(MEM_ANON_THP, 10, ",prefill=push");
}

static void by_faults(void)
{
    there_and_back(MEM_ANON, 10, ",prefill=off");
}

static void shared(void)
{
    there_and_back(MEM_MEMFD, 10, "");
}

static void shared_all(void)
{
    there_and_back(MEM_MEMFD, 1, ",landing=continue"); /* it is copied all the same */
}

/* What is discarded there is not missing: the file has it */
static void of_a_file(void)
{
    struct leg out, back;
    struct ff_error err;

    go_out(&out, MEM_MEMFD_PRIVATE);
    leg_new(&back, away, home, "");
    must(ff_dest_keep(back.dest, out.source, &err) == -ENOTSUP && strstr(err.text, "a private mapping"));
    _exit(0);
}

/* The link of the way back breaks while memory comes */
static void breaks(void)
{
    loop_arm("dest.prefill=fail:5@2-3");
    there_and_back(MEM_ANON, 2, ",reconnect=10,chunk=64K");
}

/* A return that fails before its GO leaves the guest where it is, with all that it may still need; and
 * the next one brings it home */
static void begun_again(void)
{
    struct leg out, back;

    go_out(&out, MEM_ANON);
    work(10);
    back_new(&back, &out, "");
    must(!receive(&back, home, false));
    must(!ff_dest_give_up(back.dest));
    ff_dest_cancel(back.dest);
    pthread_join(back.thread, NULL);
    must(back.rc && !back.went);
    leg_free(&back);
    work(9);
    must_hold(away);
    memset(seen, 1, sizeof(seen)); /* all that was read so */
    back_new(&back, &out, "");
    must(!receive(&back, home, false));
    let_run(&back);
    finish(&back, &out);
}

static void *accept_main(void *arg)
{
    ff_dest_accept(arg, "test", NULL);
    return NULL;
}

/* @l's source is refused, for a reason that has @why in it; its destination hears on */
static void must_refuse(struct leg *l, const char *why)
{
    pthread_t heard;

    must(!pthread_create(&heard, NULL, accept_main, l->dest));
    must(!pthread_create(&l->thread, NULL, source_main, l));
    pthread_join(l->thread, NULL);
    ff_dest_cancel(l->dest);
    pthread_join(heard, NULL);
    if (!l->rc || l->went || !strstr(l->err.text, why))
        loop_fail(__FILE__, __LINE__, "%d: %s (want: %s)", l->rc, l->err.text, why);
    leg_free(l);
}

/* Nobody else's guest is put over what is kept, and no guest is put where the rest of it is not */
static void others(void)
{
    struct area third[REGIONS];
    struct leg out, other, l;
    struct ff_error err;

    go_out(&out, MEM_ANON);
    leg_new(&l, away, home, "");
    must_ok(ff_dest_keep(l.dest, out.source, &err), err);
    must_refuse(&l, "is a guest's that is to return");
    leg_new(&l, away, home, "");
    must_ok(ff_source_return(l.source, out.dest, &err), err);
    l.dirty = true;
    must_refuse(&l, "did not go from here");
    for (unsigned r = 0; r < REGIONS; r++)
        area_new(&third[r], MEM_ANON, PAGES * PAGE);
    leg_new(&other, home, third, ",visit=on");
    must(ff_source_return(other.source, other.dest, &err) == -EINVAL);
    must(ff_dest_keep(other.dest, other.source, &err) == -EINVAL);
    must(!receive(&other, third, true)); /* another guest that is alike */
    let_run(&other);
    leg_new(&l, third, home, "");
    must_ok(ff_source_return(l.source, other.dest, &err), err);
    must_ok(ff_dest_keep(l.dest, out.source, &err), err);
    l.dirty = true;
    must_refuse(&l, "did not go from here");
    _exit(0);
}

/* A log may begin with all pages in it: those that never came are not asked for */
static void named_too_much(void)
{
    struct leg out, back;

    go_out(&out, MEM_ANON);
    work(10);
    memset(log_bits, 0xff, sizeof(log_bits));
    back_new(&back, &out, "");
    must(!receive(&back, home, false));
    let_run(&back);
    finish(&back, &out);
}

/* A guest that came to stay: all of its memory may be there, and nobody serves it any more */
static void to_stay(void)
{
    struct leg out, back;
    struct ff_error err;

    guest_new(MEM_ANON);
    leg_new(&out, home, away, ",prefill=off");
    must(!receive(&out, away, true));
    let_run(&out);
    leg_new(&back, away, home, "");
    must(ff_source_return(back.source, out.dest, &err) == -EINVAL && strstr(err.text, "visit=on"));
    _exit(0);
}

/* Who does not say what was written has nothing to send */
static void forgets(void)
{
    struct leg out, back;

    go_out(&out, MEM_ANON);
    work(10);
    back_new(&back, &out, "");
    back.dirty = false;
    must(receive(&back, home, false));
    pthread_join(back.thread, NULL);
    must(back.rc == -EINVAL && !back.went);
    must_hold(away);
    _exit(0);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"anon", anon, 60},
        {"anon, all touched", anon_all, 60},
        {"anon, nothing touched", anon_nothing, 60},
        {"anon, huge pages, push", anon_thp, 60},
        {"by faults alone", by_faults, 60},
        {"memfd", shared, 60},
        {"memfd, all touched", shared_all, 60},
        {"private mapping of a file", of_a_file, 60},
        {"the link back breaks", breaks, 60},
        {"begun again", begun_again, 60},
        {"others", others, 60},
        {"more is named than was written", named_too_much, 60},
        {"to stay", to_stay, 60},
        {"nothing is said of what was written", forgets, 60},
    };
    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
