/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_say.c - what one side of a move by attaching says and has counted
 */
#include <stdio.h>

#include "attach_private.h"
#include "autojson.h"
#include "metrics.h"

/* Where the time of a fault goes; the destination alone knows */
static json_t *stage_numbers(struct ff_dest *d)
{
    struct ff_stage_time times[FF_STAGES];
    json_t *all = json_array();

    ff_dest_stages(d, times);
    for (unsigned i = 0; i < FF_STAGES; i++)
        json_array_append_new(all, json_pack("{ss sI sI}", "name", times[i].name, "p50",
                                             (json_int_t)times[i].p50_ns, "p99",
                                             (json_int_t)times[i].p99_ns));
    return all;
}

static void get_stats(struct attach *a, struct ff_stats *st)
{
    *st = (struct ff_stats){0};
    if (a->source)
        ff_source_stats(a->source, st);
    if (a->dest)
        ff_dest_stats(a->dest, st);
}

json_t *attach_numbers(struct attach *a)
{
    struct ff_stats st;
    char detail[FF_LINK_DETAIL_MAX] = "";

    get_stats(a, &st);
    if (a->source)
        ff_source_link_detail(a->source, detail);
    if (a->dest)
        ff_dest_link_detail(a->dest, detail);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"total-bytes", st.bytes_total},       {"present-bytes", st.bytes_present},
        {"prefill-bytes", st.bytes_prefill},   {"fault-bytes", st.bytes_fault},
        {"zero-bytes", st.bytes_zero},         {"duplicated-bytes", st.bytes_duplicated},
        {"faults", st.faults},                 {"waited-faults", st.faults_waited},
        {"late-faults", st.faults_late},       {"fault-p50", st.fault_p50_ns},
        {"fault-p90", st.fault_p90_ns},        {"fault-p99", st.fault_p99_ns},
        {"fault-p999", st.fault_p999_ns},      {"fault-max", st.fault_max_ns},
        {"breaks", st.breaks},                 {"again-bytes", st.bytes_again},
        {"paused-time", st.paused_ns},         {"pass-time", st.precopy_ns},
        {"precopied-bytes", st.bytes_precopied},
        {"discarded-bytes", st.bytes_discarded},
        {"start-time", a->run_ns ? a->run_ns - a->begin_ns : 0},
    };
    const char *link = a->source ? ff_source_link(a->source) : a->dest ? ff_dest_link(a->dest) : "none";
    json_t *o = json_pack("{ss ss}", "link", link, "link-detail", detail);

    for (size_t i = 0; i < FF_ARRAY_LEN(numbers); i++)
        json_object_set_new(o, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    if (a->dest)
        json_object_set_new(o, "fault-stages", stage_numbers(a->dest));
    return o;
}

static double ms_since(const struct attach *a, uint64_t at_ns)
{
    return at_ns > a->begin_ns ? (double)(at_ns - a->begin_ns) / 1e6 : 0;
}

static void print_fields(FILE *out, const json_t *fields)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)fields, key, v)
    {
        if (json_is_string(v))
            fprintf(out, " %s=%s", key, json_string_value(v));
        else if (json_is_real(v))
            fprintf(out, " %s=%.1f", key, json_real_value(v));
        else if (json_is_integer(v))
            fprintf(out, " %s=%lld", key, (long long)json_integer_value(v));
    }
}

static void keep_reason(struct attach *a, const char *reason)
{
    pthread_mutex_lock(&a->lock);
    if (*reason)
        snprintf(a->reason, sizeof(a->reason), "%s", reason);
    pthread_mutex_unlock(&a->lock);
}

void attach_event(struct attach *a, const char *name, json_t *fields)
{
    FF_AUTO_JSON json_t *all =
        json_pack("{s:s,s:s,s:f}", "event", name, "side", a->side, "ms", ms_since(a, ff_now_ns()));
    FF_AUTO_JSON json_t *own = fields;

    keep_reason(a, text_of(own, "reason"));
    if (a->on_event)
        a->on_event(a, name, own);
    if (a->o->json) {
        FF_AUTO_FREE char *line = NULL;

        json_object_update(all, own);
        line = json_dumps(all, JSON_COMPACT);
        printf("%s\n", line ? line : "{}");
        fflush(stdout);
        return;
    }
    flockfile(stderr);
    fprintf(stderr, "farfork attach: %s: %8.1f ms: %s", a->side, ms_since(a, ff_now_ns()), name);
    print_fields(stderr, own);
    fputc('\n', stderr);
    funlockfile(stderr);
}

void attach_say_why(struct attach *a, const char *name, const struct ff_error *why)
{
    attach_event(a, name, json_pack("{s:s}", "reason", why->text));
}

void attach_begins(struct attach *a)
{
    a->asked_ns = ff_now_ns();
    a->metrics = metrics_new(a->o->metrics_dir, "farfork attach");
    metrics_begin_move(a->metrics, a->side);
}

static void count(struct attach *a, const struct ff_stats *st, int code)
{
    uint64_t now = ff_now_ns();
    struct metrics_move done = {
        .side = a->side,
        .via = "attach",
        .link = a->source ? ff_source_link(a->source) : a->dest ? ff_dest_link(a->dest) : "none",
        .outcome = !code ? NULL : code == ATTACH_EXIT_HERE ? "here" : "unclear",
        .total_bytes = (double)st->bytes_total,
        .present_bytes = (double)st->bytes_present,
        .again_bytes = (double)st->bytes_again,
        .faults = (double)st->faults,
        .breaks = (double)st->breaks,
        .paused_s = (double)st->paused_ns / 1e9,
        /* the destination waits for its source first */
        .duration_s = code || !a->is_source ? -1 : (double)(now - a->asked_ns) / 1e9,
        .downtime_s =
            a->run_ns > a->pause_ns && a->pause_ns ? (double)(a->run_ns - a->pause_ns) / 1e9 : -1,
        .fault_p99_s = st->faults ? (double)st->fault_p99_ns / 1e9 : -1,
    };

    metrics_end_move(a->metrics, &done);
    metrics_free(a->metrics);
}

void attach_summary(struct attach *a, int code)
{
    struct ff_stats st;
    uint64_t now = ff_now_ns();

    get_stats(a, &st);
    attach_event(a, "ended",
                 json_pack("{s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "total_ms", ms_since(a, now), "downtime_ms",
                           a->pause_ns && a->run_ns ? (double)(a->run_ns - a->pause_ns) / 1e6 : 0.0, "bytes",
                           (json_int_t)st.bytes_total, "zero_bytes", (json_int_t)st.bytes_zero, "faults",
                           (json_int_t)st.faults, "late_faults", (json_int_t)st.faults_late, "breaks",
                           (json_int_t)st.breaks, "package_bytes", (json_int_t)a->state_bytes, "engine",
                           attach_numbers(a)));
    count(a, &st, code);
}

/* Who finds only the last line of a log finds the reason there */
void attach_last_word(struct attach *a, int code)
{
    if (code && !a->o->json && *a->reason)
        fprintf(stderr, "farfork attach: %s: %s\n", a->side, a->reason);
}
