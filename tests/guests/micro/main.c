/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * main.c - micro guest: options, and the order of things
 */
/**
 * DOC: Options
 *
 * -append "key=value ..."; an unknown or wrong one is reported, and the guest does not start.
 *
 *   mode=random    random: pages at random; seq: one after another; readonly: check, never
 *                  write after the first pass; idle: after the first pass only report;
 *                  chase: each page read says which one is next; zipf: page k of the order of
 *                  popularity about 1/k as often as the first
 *   first=read     the timed access: read, write (locked add of 0), mix (one or the other)
 *   fill=90        percent of the free RAM that becomes pages (1..100)
 *   touch=100      percent of the pages written before "ready"; the rest must read as zeros
 *                  (where the firmware has been, near the end of low RAM, all are written)
 *   wss=100        percent of the pages that are touched afterwards (the sweep covers all)
 *   rate=0         touches per second and CPU; 0: as fast as it goes
 *   sweep=16       every so many touches one page of the sweep; 0: no sweep
 *   seed=1         of the content, the order and the choice of touch=
 *   report_ms=200  between two lines of a CPU
 *   slot_ms=0      a time line in stretches of so many ms (report.c); 0: none
 *   beat_ms=0      CPU 0 prints an empty line every so many ms, which readers skip: outside it
 *                  is seen that the guest runs, at next to no cost; 0: none
 *   tsc_khz=0      TSC rate; 0: CPUID or PIT
 *   ring=0         an address below 1 MiB: the page there is a virtqueue's available ring, the next
 *                  one its used ring; in the one after that is the address by which its device is
 *                  notified, once there is one. CPU 0 asks again for buffer 0 whenever the device
 *                  has nothing to do; 0: none
 */
#include "micro.h"

struct machine machine = {
    .opt = {
        .fill_percent = 90,
        .touch_percent = 100,
        .wss_percent = 100,
        .sweep_every = 16,
        .seed = 1,
        .report_ms = 200,
    },
};
struct cpu *cpus;

static uint32_t started; /* the APs may run */

void micro_entry(uint32_t id);

struct number_option {
    const char *name;
    uint64_t *value;
    uint64_t min, max;
};

static const struct number_option NUMBERS[] = {
    { "fill", &machine.opt.fill_percent, 1, 100 },
    { "touch", &machine.opt.touch_percent, 0, 100 },
    { "wss", &machine.opt.wss_percent, 1, 100 },
    { "rate", &machine.opt.rate, 0, 100000000 },
    { "sweep", &machine.opt.sweep_every, 0, UINT32_MAX },
    { "seed", &machine.opt.seed, 0, UINT64_MAX / 10 - 1 },
    { "report_ms", &machine.opt.report_ms, 1, 60000 },
    { "slot_ms", &machine.opt.slot_ms, 0, 10000 },
    { "beat_ms", &machine.opt.beat_ms, 0, 60000 },
    { "tsc_khz", &machine.opt.tsc_khz, 0, 100000000 },
    { "ring", &machine.opt.ring, 0, 0xf0000 },
};

static const char *const MODES[] = { "random", "seq", "idle", "readonly", "chase", "zipf", NULL };
static const char *const FIRSTS[] = { "read", "write", "mix", NULL };

static bool same(const char *word, const char *text, size_t len)
{
    size_t i = 0;

    while (i < len && word[i] == text[i]) {
        i++;
    }
    return i == len && !word[len];
}

static bool parse_number(const struct number_option *o, const char *text, size_t len)
{
    uint64_t v = 0;

    if (len == 0 || len > 19) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        v = v * 10 + (uint64_t)(text[i] - '0');
    }
    *o->value = v;
    return v >= o->min && v <= o->max;
}

static int parse_word(const char *const *words, const char *text, size_t len)
{
    for (int i = 0; words[i]; i++) {
        if (same(words[i], text, len)) {
            return i;
        }
    }
    return -1;
}

static bool parse_option(const char *text, size_t len)
{
    size_t key = 0;
    const char *value;
    int word;

    while (key < len && text[key] != '=') {
        key++;
    }
    if (key == len) {
        return false;
    }
    value = text + key + 1;
    len -= key + 1;
    if (same("mode", text, key)) {
        word = parse_word(MODES, value, len);
        machine.opt.mode = (enum mode)word;
        return word >= 0;
    }
    if (same("first", text, key)) {
        word = parse_word(FIRSTS, value, len);
        machine.opt.first = (enum first)word;
        return word >= 0;
    }
    for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]); i++) {
        if (same(NUMBERS[i].name, text, key)) {
            return parse_number(&NUMBERS[i], value, len);
        }
    }
    return false;
}

/* The first word is the kernel's file name. */
static void parse_options(char *line)
{
    bool name = true;

    while (*line) {
        char *end = line;

        while (*end && *end != ' ') {
            end++;
        }
        if (!name && end > line && !parse_option(line, (size_t)(end - line))) {
            *end = '\0';
            report_error("unknown option or value out of range", line);
        }
        name = false;
        line = *end ? end + 1 : end;
    }
}

/* From boot.S, in ring 3, on the CPU's own stack. */
void micro_entry(uint32_t id)
{
    if (id == 0) {
        platform_init();
        parse_options(machine.cmdline);
        platform_start_cpus();
        report_boot();
        __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {
        pause_cpu();
    }
    cpus[id].id = id;
    work(&cpus[id]);
}
