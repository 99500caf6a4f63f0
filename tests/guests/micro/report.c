/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * report.c - micro guest: one JSON object a line on the debug console
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tell the outside what the ledger and the clock have seen. Port 0xe9, isa-debugcon.
 *
 * Lines        {"farfork":"micro","event":"boot",...}   once; what runs where
 *              {"farfork":"micro","event":"error",...}  cannot start: what, and what to do
 *              {"farfork":"micro","event":"panic",...}  an exception (platform.c)
 *              {"farfork":"micro","cpu":0,...}          every report_ms from each CPU
 *
 *              ncpu, tsc_khz, pages (of this CPU) and tsc are as they say. seq counts the lines
 *              of one CPU from 0 without a gap. ready: all CPUs have done the first pass.
 *              lost, stale, torn: wrong pages found; first_bad: the first of them, saw = words
 *              0, 256, 511 and word number "word", the first that was wrong. stalls: touches of
 *              over 25 us; stall_ns, max_ns; hist: [[bucket, count], ...], see hist_bucket().
 *              Everything counts from the boot. Words and addresses are hex strings: not every
 *              JSON reader keeps 64 bits of a number.
 *
 *              Empty lines are beats (beat_ms=): the guest runs.
 *
 *              With slot_ms= there is the time line instead of hist. report_us: how long the CPU
 *              was at the line before. slots: the stretches that have ended since, [number from
 *              the boot, touches, longest time between two touches in us, time stalled in us, a
 *              bucket, how many stalls are in it, how many in the next, ...]; a stretch without a
 *              touch is left out.
 *
 * Threads      a line is made in the CPU's own buffer and printed under a lock that is only
 *              tried, never waited for: a CPU that finds it taken goes on touching pages.
 *
 * Failure      a line is port I/O, so it survives a migration in two parts: its head in the
 *              source's file, its tail in the destination's. Read both, in that order.
 */
#include "micro.h"

/* A slot has at most 400 buckets, and few of them have more than one digit */
enum { LINE_BYTES = 16384, SLOT_ROOM = 2048 };

struct line {
    size_t len, room;
    char *text;
};

static struct line lines[MAX_CPUS];
static char error_text[512];
uint32_t print_lock;

static void put_char(struct line *l, char c)
{
    if (l->len < l->room) {
        l->text[l->len++] = c;
    }
}

static void put_text(struct line *l, const char *text)
{
    while (*text) {
        put_char(l, *text++);
    }
}

static void put_number(struct line *l, uint64_t v)
{
    char digits[20];
    int n = 0;

    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    while (n) {
        put_char(l, digits[--n]);
    }
}

static void put_field(struct line *l, const char *name, uint64_t v)
{
    put_text(l, ",\"");
    put_text(l, name);
    put_text(l, "\":");
    put_number(l, v);
}

static void put_hex(struct line *l, uint64_t v)
{
    put_text(l, "\"0x");
    for (int shift = 60; shift >= 0; shift -= 4) {
        put_char(l, "0123456789abcdef"[v >> shift & 15]);
    }
    put_char(l, '"');
}

static void put_string(struct line *l, const char *name, const char *value)
{
    put_text(l, ",\"");
    put_text(l, name);
    put_text(l, "\":\"");
    for (; *value; value++) {
        /* the command line is the only foreign text; quotes and controls are not needed in it */
        put_char(l, *value < ' ' || *value == '"' || *value == '\\' ? '?' : *value);
    }
    put_char(l, '"');
}

uint64_t ticks_to_ns(uint64_t ticks)
{
    /* 1e6 / khz in 32.32 fixed point; exact to 1e-9, and no division in the hot path */
    static uint64_t factor;

    if (!factor) {
        factor = (1000000ull << 32) / machine.tsc_khz; /* the same from every CPU */
    }
    return (uint64_t)((unsigned __int128)ticks * factor >> 32);
}

uint64_t uptime_ms(uint64_t now)
{
    return now > machine.tsc_boot ? (now - machine.tsc_boot) / machine.tsc_khz : 0;
}

static void begin(struct line *l)
{
    l->len = 0;
    put_text(l, "{\"farfork\":\"micro\"");
}

static bool print(struct line *l)
{
    if (__atomic_exchange_n(&print_lock, 1, __ATOMIC_ACQUIRE)) {
        return false;
    }
    put_text(l, "}\n");
    platform_print(l->text, l->len);
    __atomic_store_n(&print_lock, 0, __ATOMIC_RELEASE);
    return true;
}

static void put_first_bad(struct line *l, const struct cpu *cpu)
{
    static const char *const KIND[] = { "ok", "lost", "stale", "torn" };
    const struct bad_page *b = &cpu->first_bad;

    put_text(l, ",\"first_bad\":");
    if (!b->set) {
        put_text(l, "null");
        return;
    }
    put_text(l, "{\"page\":");
    put_number(l, b->page);
    put_field(l, "gen", b->gen);
    put_string(l, "kind", KIND[b->kind]);
    put_string(l, "by", b->sweep ? "sweep" : "touch");
    put_field(l, "uptime_ms", b->uptime_ms);
    put_text(l, ",\"gpa\":");
    put_hex(l, b->gpa);
    put_field(l, "word", b->wrong_word);
    put_text(l, ",\"saw\":[");
    for (int i = 0; i < SAW_WORDS; i++) {
        put_text(l, i ? "," : "");
        put_hex(l, b->saw[i]);
    }
    put_text(l, "]}");
}

static void put_stalls(struct line *l, const uint32_t *stalls)
{
    uint32_t first = 0, end = HIST_BUCKETS - STALL_BUCKET;

    while (end && !stalls[end - 1]) {
        end--;
    }
    while (first < end && !stalls[first]) {
        first++;
    }
    for (uint32_t b = first; b < end; b++) {
        if (b == first) {
            put_char(l, ',');
            put_number(l, b + STALL_BUCKET);
        }
        put_char(l, ',');
        put_number(l, stalls[b]);
    }
}

/* As many as there is room for; returns the number of the first that is left for next time. */
static uint64_t put_slots(struct line *l, const struct cpu *cpu)
{
    uint64_t n = cpu->slots_told;

    if (n + SLOTS <= cpu->slots_done) {
        n = cpu->slots_done - SLOTS + 1; /* the ring has forgotten the rest */
    }
    put_text(l, ",\"slots\":[");
    for (; n < cpu->slots_done && l->room - l->len > SLOT_ROOM; n++) {
        const struct slot *s = &cpu->ring[n % SLOTS];

        put_text(l, l->text[l->len - 1] == '[' ? "[" : ",[");
        put_number(l, s->index);
        put_char(l, ',');
        put_number(l, s->touches);
        put_char(l, ',');
        put_number(l, ticks_to_ns(s->max_gap) / 1000);
        put_char(l, ',');
        put_number(l, s->stall_ns / 1000);
        put_stalls(l, s->stalls);
        put_char(l, ']');
    }
    put_char(l, ']');
    return n;
}

/**
 * report_cpu() - print this CPU's line, unless another CPU is printing
 *
 * Return:  true when it was printed
 */
bool report_cpu(struct cpu *cpu, uint64_t now)
{
    struct line *l = &lines[cpu->id];
    bool ready = __atomic_load_n(&machine.ready, __ATOMIC_ACQUIRE) == machine.ncpu;
    bool first = true;
    uint64_t told = 0;

    if (__atomic_load_n(&print_lock, __ATOMIC_RELAXED)) {
        return false;
    }
    begin(l);
    put_field(l, "cpu", cpu->id);
    put_field(l, "ncpu", machine.ncpu);
    put_field(l, "seq", cpu->seq);
    put_field(l, "tsc", now);
    put_field(l, "tsc_khz", machine.tsc_khz);
    put_field(l, "uptime_ms", uptime_ms(now));
    put_field(l, "pages", cpu->own);
    put_text(l, ready ? ",\"ready\":true" : ",\"ready\":false");
    put_field(l, "inited", cpu->inited);
    put_field(l, "touches", cpu->touches);
    put_field(l, "sweeps", cpu->sweeps);
    put_field(l, "lost", cpu->bad[PAGE_LOST]);
    put_field(l, "stale", cpu->bad[PAGE_STALE]);
    put_field(l, "torn", cpu->bad[PAGE_TORN]);
    put_first_bad(l, cpu);
    put_field(l, "stalls", cpu->stalls);
    put_field(l, "stall_ns", cpu->stall_ns);
    put_field(l, "max_ns", cpu->max_ns);
    put_text(l, ",\"hist\":[");
    for (uint32_t b = 0; b < HIST_BUCKETS; b++) {
        if (cpu->hist[b] && !machine.opt.slot_ms) {
            put_text(l, first ? "[" : ",[");
            put_number(l, b);
            put_char(l, ',');
            put_number(l, cpu->hist[b]);
            put_char(l, ']');
            first = false;
        }
    }
    put_char(l, ']');
    if (machine.opt.slot_ms) {
        put_field(l, "report_us", ticks_to_ns(cpu->report_last) / 1000);
        told = put_slots(l, cpu);
    }
    if (!print(l)) {
        return false;
    }
    cpu->seq++;
    cpu->slots_told = told;
    return true;
}

/* An empty line, unless another CPU is printing */
void report_beat(void)
{
    if (__atomic_exchange_n(&print_lock, 1, __ATOMIC_ACQUIRE)) {
        return;
    }
    platform_print("\n", 1);
    __atomic_store_n(&print_lock, 0, __ATOMIC_RELEASE);
}

void report_init(void)
{
    for (uint32_t i = 0; i < machine.ncpu; i++) {
        lines[i].room = LINE_BYTES;
        lines[i].text = ram_take(LINE_BYTES);
    }
}

/* Before the APs run. */
void report_boot(void)
{
    struct line *l = &lines[0];

    begin(l);
    put_string(l, "event", "boot");
    put_field(l, "version", 1);
    put_field(l, "ncpu", machine.ncpu);
    put_field(l, "ram_kib", machine.ram_bytes / 1024);
    put_field(l, "pages", machine.pages);
    put_field(l, "tsc_khz", machine.tsc_khz);
    put_string(l, "clock", machine.clock);
    put_text(l, ",\"ledger\":");
    put_hex(l, (uintptr_t)machine.ledger);
    put_text(l, ",\"segments\":["); /* [address, first page, pages] */
    for (uint32_t i = 0; i < machine.nsegments; i++) {
        put_text(l, i ? ",[" : "[");
        put_hex(l, machine.segments[i].gpa);
        put_char(l, ',');
        put_number(l, machine.segments[i].first);
        put_char(l, ',');
        put_number(l, machine.segments[i].pages);
        put_char(l, ']');
    }
    put_char(l, ']');
    put_field(l, "dirty_first", machine.dirty_first);
    put_field(l, "dirty_end", machine.dirty_end);
    put_string(l, "cmdline", machine.cmdline);
    print(l);
}

/* Before the APs run: nothing else prints. Perhaps before report_init(). */
void report_error(const char *what, const char *detail)
{
    struct line *l = &(struct line){ .room = sizeof(error_text), .text = error_text };

    begin(l);
    put_string(l, "event", "error");
    put_string(l, "error", what);
    put_string(l, "detail", detail);
    print(l);
    platform_halt();
}
