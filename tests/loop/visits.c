/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visits.c - a guest that goes, works elsewhere, and comes back: its memory, and the two moves; see visits.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "visits.h"

const char *visit_options = "", *visit_first;
bool visit_budget;
struct area home[REGIONS], away[REGIONS];
uint64_t log_bits[REGIONS][WORDS]; /* since the first GO, as a hypervisor has it */
uint32_t version[REGIONS][PAGES];  /* what the guest's pages hold; 0: zeros */
bool seen[REGIONS][PAGES];         /* it touched the page elsewhere */

void visit_fill(uint8_t *page, uint32_t v)
{
    for (unsigned i = 0; i < PAGE; i += 4)
        memcpy(page + i, &(uint32_t){v ? v * 2654435761u + i : 0}, 4);
}

bool visit_holds(const uint8_t *page, uint32_t v)
{
    uint8_t want[PAGE];

    visit_fill(want, v);
    return !memcmp(page, want, PAGE);
}

/* Most pages are written, some hold zeros, and some were never there */
void visit_guest_new(enum memory kind)
{
    for (unsigned r = 0; r < REGIONS; r++) {
        area_new(&home[r], kind, PAGES * PAGE);
        area_new(&away[r], kind, PAGES * PAGE);
        for (unsigned p = 0; p < PAGES; p++) {
            version[r][p] = p % 7 < 2 ? 0 : 1 + p;
            if (p % 7)
                visit_fill(home[r].host + p * PAGE, version[r][p]);
        }
    }
}

void visit_leg_new(struct leg *l, struct area *from, struct area *to, const char *options)
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

void visit_back(struct leg *back, const struct leg *out, const char *options)
{
    struct ff_error err;

    visit_leg_new(back, away, home, options);
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
    if (l->leaves)
        return -ECANCELED;
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

void *visit_source_main(void *arg)
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
int visit_receive(struct leg *l, struct area *to, bool empty)
{
    struct ff_error err;
    void *state;
    size_t len;

    must(!pthread_create(&l->thread, NULL, visit_source_main, l));
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

void visit_let_run(struct leg *l)
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

void visit_leg_free(struct leg *l)
{
    ff_source_free(l->source);
    ff_dest_free(l->dest);
    ff_address_free(l->to);
    ff_address_free(l->at);
}

void visit_go(struct leg *out, enum memory kind)
{
    struct ff_error err;
    char options[160];

    snprintf(options, sizeof(options), ",visit=on%s", visit_options);
    visit_guest_new(kind);
    visit_leg_new(out, home, away, options);
    if (visit_first)
        must_ok(ff_dest_first(out->dest, visit_first, &err), err);
    must(!visit_receive(out, away, true));
    visit_let_run(out);
    must(!pthread_create(&out->stay, NULL, stay_main, out));
}

/* The guest is away: one page in @each is touched, and every other one of these written */
void visit_work(unsigned each)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = r; p < PAGES; p += each) {
            uint8_t *page = away[r].host + p * PAGE;
            must(visit_holds(page, version[r][p]));
            seen[r][p] = true;
            if (p / each % 2)
                continue;
            log_bits[r][p / 64] |= 1ull << (p % 64);
            version[r][p] = p % 3 ? 100000 + p : 0;
            visit_fill(page, version[r][p]);
        }
}

uint64_t visit_bytes(bool written)
{
    uint64_t n = 0;

    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p++)
            n += seen[r][p] && (!written || log_bits[r][p / 64] >> (p % 64) & 1);
    return n * PAGE;
}

void visit_must_hold(struct area *a)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p++)
            if (!visit_holds(a[r].host + p * PAGE, version[r][p]))
                loop_fail(__FILE__, __LINE__, "region %u page %u is wrong (%s in the log)", r, p,
                          log_bits[r][p / 64] >> (p % 64) & 1 ? "it is" : "it is not");
}

static bool has_all_that_came(const struct ff_stats *st)
{
    return visit_budget ? st->bytes_present >= visit_bytes(false) : st->bytes_present == visit_bytes(false);
}

/* The guest is home again: who served it elsewhere, and who had its memory there, end */
static void end_out(struct leg *out)
{
    ff_dest_cancel(out->dest);
    ff_source_stop(out->source);
    pthread_join(out->thread, NULL);
    pthread_join(out->stay, NULL);
    must(out->rc && out->stay_rc);
    visit_leg_free(out);
}

static void *hold_main(void *arg)
{
    visit_must_hold(arg);
    return NULL;
}

/* @back has GO: all comes, and nothing but what was written */
void visit_finish(struct leg *back, struct leg *out)
{
    struct ff_error err;
    struct ff_stats st;
    pthread_t guest;
    int rc;

    ff_dest_stats(out->dest, &st);
    must(has_all_that_came(&st));
    end_out(out);
    must(!pthread_create(&guest, NULL, hold_main, home));
    while ((rc = ff_dest_wait_done(back->dest, &err)) && !ff_dest_recover(back->dest, 10000, &err))
        ;
    must_ok(rc, err);
    pthread_join(guest, NULL);
    visit_must_hold(home);
    pthread_join(back->thread, NULL);
    must_ok(back->rc, back->err);
    ff_dest_stats(back->dest, &st);
    must(st.bytes_present == st.bytes_total && st.bytes_discarded == visit_bytes(true));
    must(st.bytes_prefill + st.bytes_fault + st.bytes_zero == st.bytes_total + st.bytes_discarded);
    must(st.bytes_prefill + st.bytes_fault <= visit_bytes(true));
    visit_leg_free(back);
}

/* Who serves the guest has heard of all that it touched, and the move goes on, also when that is everything */
void visit_await_present(struct leg *out)
{
    uint64_t end = ff_now_ns() + 20000000000ull;
    struct ff_stats st;

    for (;;) {
        ff_source_stats(out->source, &st);
        if (has_all_that_came(&st))
            return;
        must(ff_now_ns() < end && !ff_dest_is_told(out->dest));
        usleep(5000);
    }
}
