/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_numbers.c - what the engine of a proxy has counted
 */
#include "proxy_state.h"

/* Where the time of a fault goes; the destination alone knows */
static json_t *old_stage_numbers(struct ff_dest *d)
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

void proxy_stats(struct proxy *p, struct ff_stats *st)
{
    *st = (struct ff_stats){0};
    if (p->source)
        ff_source_stats(p->source, st);
    if (p->dest)
        ff_dest_stats(p->dest, st);
    if (!p->o->from_stream)
        return;
    st->bytes_total = atomic_load(&p->counts.pages_small) * STREAM_PAGE_LEN;
    st->bytes_present = atomic_load(&p->counts.pages_small_here) * STREAM_PAGE_LEN;
}

json_t *proxy_numbers(struct proxy *p)
{
    struct ff_stats st;
    char detail[FF_LINK_DETAIL_MAX] = "";

    proxy_stats(p, &st);
    if (p->source)
        ff_source_link_detail(p->source, detail);
    if (p->dest)
        ff_dest_link_detail(p->dest, detail);
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
        {"precopied-bytes", p->source ? atomic_load(&p->counts.pages_precopied) * STREAM_PAGE_LEN
                                      : st.bytes_precopied},
        {"discarded-bytes", st.bytes_discarded},
        /* before all is there it says nothing of the move */
        {"stream-bytes", atomic_load(&p->is_there) ? atomic_load(&p->counts.stream_bytes) : 0},
        {"start-time", p->run_ns ? p->run_ns - p->begin_ns : 0},
    };
    json_t *o = json_pack("{ss}", "link-detail", detail);

    for (size_t i = 0; i < FF_ARRAY_LEN(numbers); i++)
        json_object_set_new(o, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    if (p->dest)
        json_object_set_new(o, "fault-stages", old_stage_numbers(p->dest));
    return o;
}
