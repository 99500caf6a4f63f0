/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * soak_draw.c - what one round of soak_moves is to do, drawn from a seed and its number
 */
#include <stdarg.h>
#include <string.h>

#include "cleanup.h"
#include "fallback.h"
#include "soak_moves.h"

const struct round_fault round_faults[] = {
    /* after GO, mostly */
    {"tcp.serve.fault=fail", 40, 0},
    {"tcp.serve.prefill=fail", 20, 0},
    {"control.send=fail", 20, 0},
    {"tcp.recv.short=fail", 200, 90},
    {"tcp.send.short=fail", 200, 90},
    {"tcp.tls.rekey=fail", 30, 9},
    {"dest.install=fail:12", 60, 40},
    {"dest.install=delay:2000", 60, 40},
    {"dest.fault=delay:1000", 60, 40},
    {"dest.prefill=delay:3000", 1, 200},
    {"dest.prefill=fail", 20, 0},
    {"source.gone=fail", 1, 0},
    {"source.done=fail", 1, 0},
    {"source.resume=fail", 2, 0},
    {"dest.resume=fail", 2, 0},
    {"dest.ear=fail", 2, 0},
    {"dest.running=delay:100000", 2, 0},
    {"source.running=fail", 1, 0},
    {"source.go=delay:100000", 1, 0},
    {"dest.go=fail", 1, 0},
    /* before */
    {"source.publish=fail", 1, 0},
    {"source.state=fail", 1, 0},
    {"dest.accepted=fail", 1, 0},
    {"dest.pager=fail", 1, 0},
    {"dest.state=fail", 1, 0},
    {"dest.ready=fail", 1, 0},
};
const unsigned round_faults_n = FF_ARRAY_LEN(round_faults);
#define BEFORE_GO 6u

/* Where a side may die, and the last time at which */
static const struct deadly {
    const char *name;
    unsigned max;
} source_dies[] =
    {
        {"source.publish", 1},     {"source.state", 1},   {"source.go", 1},
        {"source.gone", 1},        {"source.running", 1}, {"source.done", 1},
        {"tcp.serve.prefill", 40}, {"source.resume", 2},  {"control.send", 8},
        {"tcp.serve.fault", 40},
},
  dest_dies[] = {
      {"dest.accepted", 1}, {"dest.pager", 1},    {"dest.state", 1},   {"dest.ready", 1},
      {"dest.go", 1},       {"dest.run", 1},      {"dest.running", 1}, {"dest.prefill", 30},
      {"dest.fault", 60},   {"dest.install", 90}, {"dest.resume", 2},  {"control.send", 20},
};

unsigned draw(struct round *r, unsigned n)
{
    uint64_t v = r->state += 0x9e3779b97f4a7c15ull;

    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
    return (unsigned)((v ^ (v >> 31)) % n);
}

__attribute__((format(printf, 3, 4))) static void add(char *to, size_t size, const char *fmt, ...)
{
    size_t len = strlen(to);
    va_list ap;

    va_start(ap, fmt);
    must(vsnprintf(to + len, size - len, fmt, ap) < (int)(size - len));
    va_end(ap);
}

static void draw_options(struct round *r, const char *key_file)
{
    static const char *const prefills[] = {"pull", "pull", "push", "auto", "off"};
    char *to = r->options;
    const size_t size = sizeof(r->options);

    add(to, size, "timeout=5,prefill=%s,chunk=%s", prefills[draw(r, FF_ARRAY_LEN(prefills))],
        draw(r, 3) ? "64K" : "1M");
    if (draw(r, 2))
        add(to, size, ",window=%u", 1 + draw(r, 4));
    if (r->memory == MEM_MEMFD && draw(r, 2))
        add(to, size, ",landing=continue");
    if (r->precopy)
        add(to, size, ",precopy=1");
    if (r->keyed)
        add(to, size, ",key-file=%s", key_file);
    if (r->fallback)
        add(to, size, ",fallback=go,lease=%u,fence=%s,record=%s", 1 + draw(r, 2), fence, record);
}

/* Each at most once */
static void draw_faults(struct round *r)
{
    unsigned n = draw(r, ROUND_FAULTS + 1), early = !draw(r, 6);

    while (r->n_faults < n) {
        unsigned f = draw(r, round_faults_n - (early ? 0 : BEFORE_GO)), i = 0;
        while (i < r->n_faults && r->fault[i] != f)
            i++;
        if (i < r->n_faults) {
            n--; /* drawn before */
            continue;
        }
        r->fault[r->n_faults++] = f;
        unsigned at = 1 + draw(r, round_faults[f].max);
        add(r->faults, sizeof(r->faults), "%s%s@%u", *r->faults ? "," : "", round_faults[f].what,
            at);
        if (round_faults[f].more)
            add(r->faults, sizeof(r->faults), "-%u", at + draw(r, round_faults[f].more));
    }
}

/* One side is in a process of its own: it dies at a point, or at a time, is stopped, or nothing */
static void draw_death(struct round *r)
{
    bool source = r->kind == SOURCE_APART;
    const struct deadly *d = source ? &source_dies[draw(r, FF_ARRAY_LEN(source_dies))]
                                    : &dest_dies[draw(r, FF_ARRAY_LEN(dest_dies))];

    switch (draw(r, 8)) {
    case 0:
    case 1:
    case 2:
        add(r->deadly, sizeof(r->deadly), "%s=kill@%u", d->name, 1 + draw(r, d->max));
        break;
    case 3:
    case 4:
        r->kill_ms = 1 + draw(r, UNDER_SANITIZER ? 600 : 200);
        break;
    case 5:
        r->stop_ms = 1 + draw(r, 1500);
        break;
    default:
        r->lost_contact = r->fallback;
        if (r->lost_contact) /* long enough to be cut off */
            add(r->deadly, sizeof(r->deadly), "dest.prefill=delay:30000");
    }
}

void round_draw(struct round *r, uint64_t seed, uint64_t number, const char *key_file)
{
    static const enum memory memories[] = {MEM_ANON, MEM_ANON_THP, MEM_MEMFD, MEM_MEMFD,
                                           MEM_MEMFD_PRIVATE};

    *r = (struct round){.number = number, .state = seed * 1000003u + number * 7919u};
    r->kind = (enum kind)draw(r, KINDS);
    r->fallback = r->kind == DEST_APART && draw(r, 2);
    r->keyed = draw(r, 2);
    r->precopy = !draw(r, 4);
    r->memory = memories[draw(r, FF_ARRAY_LEN(memories))];
    r->n_regions = 1 + draw(r, 3);
    for (unsigned i = 0; i < r->n_regions; i++)
        r->cells[i] = 1 + draw(r, 1000);
    r->touchers = draw(r, 5);
    r->breaks = draw(r, 2) ? 0 : 1 + draw(r, 8);
    r->breaks_early = !draw(r, 5);
    draw_options(r, key_file);
    draw_faults(r);
    if (r->kind != TOGETHER)
        draw_death(r);
    else if (!draw(r, 8))
        r->cancel = (enum stage)(S_PUBLISH + draw(r, S_GO - S_PUBLISH + 1));
}

void round_print(const struct round *r)
{
    static const char *const kinds[] = {"both in one process", "the destination apart",
                                        "the source apart"};

    printf("round %llu: %s, memory %d, %u regions (%llu, %llu, %llu), %u touchers, %s; faults %s; "
           "%u breaks%s, cancel %d, dies %s, killed at %u ms, stopped for %u ms%s\n",
           (unsigned long long)r->number, kinds[r->kind], r->memory, r->n_regions,
           (unsigned long long)r->cells[0], (unsigned long long)r->cells[1],
           (unsigned long long)r->cells[2], r->touchers, r->options,
           *r->faults ? r->faults : "none", r->breaks, r->breaks_early ? " from the start" : "",
           r->cancel, *r->deadly ? r->deadly : "never", r->kill_ms, r->stop_ms,
           r->lost_contact ? ", taken back though it lives" : "");
}
