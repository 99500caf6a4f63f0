/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_table.c - what a fork looks like to a person, while it is made and afterwards, and as JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fork.h"
#include "autojson.h"

#define SHOW_EVERY_MS 250

static const char *host_state_name(const struct host *h)
{
    static const char *const names[] = {"starting", "waiting", "arriving", "complete", "failed"};

    return h->state == HOST_IMAGE && h->paused_until_ms ? "paused" : names[h->state];
}

static unsigned running_on(const struct fork *f, size_t host, unsigned *all)
{
    unsigned n = 0;

    *all = 0;
    for (size_t k = 0; k < f->s.n_vms; k++)
        if (f->s.vms[k].host == host) {
            n += vm_runs(&f->s.vms[k]);
            ++*all;
        }
    return n;
}

void fork_show(struct fork *f, bool last)
{
    static double shown_ms;
    static size_t lines;
    double now = ff_now_exact_ms();

    if (f->s.o.quiet || !isatty(STDERR_FILENO) || (!last && now < shown_ms + SHOW_EVERY_MS))
        return;
    shown_ms = now;
    if (lines)
        fprintf(stderr, "\033[%zuA", lines);
    lines = last ? 0 : f->s.n_hosts;
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        unsigned all, up = running_on(f, i, &all);
        fprintf(stderr, "\033[K%s  %s  %u of %u children run  %llu of %llu MiB  %llu faults\n",
                h->node->host, host_state_name(h), up, all,
                (unsigned long long)h->present_bytes >> 20,
                (unsigned long long)h->total_bytes >> 20, (unsigned long long)h->child_faults);
    }
    fflush(stderr);
}

/* --- phases --- */

static void least(double *to, double ms)
{
    if (ms > 0 && (*to < 0 || ms < *to))
        *to = ms;
}

static void most(double *to, double ms)
{
    if (ms > *to)
        *to = ms;
}

struct fork_phases fork_phases_of(const struct fork *f)
{
    struct fork_phases p = {-1, -1, -1, -1, -1, -1, -1};

    if (!f->export_ms)
        return p;
    p.prepare = f->export_ms - f->s.begin_ms;
    if (f->freeze)
        p.freeze = f->stood_ms > 0 ? f->stood_ms
                 : (double)json_integer_value(json_object_get(f->freeze, "pause-ns")) / 1e6;
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        most(&p.ship, f->s.hosts[i].image_ms - f->export_ms);
        most(&p.complete, f->s.hosts[i].complete_ms - f->export_ms);
    }
    for (size_t k = 0; k < f->s.n_vms; k++) {
        const struct vm *child = &f->s.vms[k];
        most(&p.start, child->attached_ms - f->export_ms);
        if (f->paused)
            continue;
        least(&p.first, child->running_ms - f->export_ms);
        most(&p.last, child->running_ms - f->export_ms);
    }
    return p;
}

static void print_phases(const struct fork *f)
{
    struct fork_phases p = fork_phases_of(f);

    if (p.prepare < 0)
        return;
    printf("prepare %.1f ms; then:", p.prepare);
    session_print_ms("freeze", p.freeze);
    session_print_ms("ship state", p.ship);
    session_print_ms("start", p.start);
    session_print_ms("first instruction", p.first);
    session_print_ms("of the last child", p.last);
    session_print_ms("complete", p.complete);
    putchar('\n');
}

/* --- the table --- */

static int width_of_hosts(const struct fork *f)
{
    size_t w = 4;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        w = strlen(f->s.hosts[i].node->host) > w ? strlen(f->s.hosts[i].node->host) : w;
    return (int)w;
}

static void print_children(const struct fork *f)
{
    int w = width_of_hosts(f);

    printf("%5s  %-*s  %8s  %-8s  %17s  %s\n", "child", w, "host", "pid", "state",
           "first instruction", "QMP socket, or why not");
    for (size_t k = 0; k < f->s.n_vms; k++) {
        const struct vm *child = &f->s.vms[k];
        char pid[16] = "-", first[32] = "-";
        if (child->pid && child->state != VM_FAILED)
            snprintf(pid, sizeof(pid), "%d", (int)child->pid);
        if (child->running_ms > 0 && !f->paused)
            snprintf(first, sizeof(first), "%.1f ms", child->running_ms - f->s.begin_ms);
        printf("%5u  %-*s  %8s  %-8s  %17s  %s\n", child->number, w,
               f->s.hosts[child->host].node->host, pid, vm_state_name(child->state), first,
               child->state == VM_FAILED ? child->error : child->qmp ? child->qmp : "-");
    }
}

/* Where the memory of those came from that other agents fed */
static void print_fed(const struct fork *f)
{
    uint64_t least = UINT64_MAX, most = 0;

    for (size_t i = 0; f->group && i < f->s.n_hosts; i++)
        if (f->s.hosts[i].keyed && f->s.hosts[i].state == HOST_COMPLETE) {
            least = FF_MIN(least, f->s.hosts[i].multicast_bytes);
            most = FF_MAX(most, f->s.hosts[i].multicast_bytes);
        }
    if (most)
        printf("note: by multicast to %s each host got %llu to %llu MiB\n", f->group,
               (unsigned long long)least >> 20, (unsigned long long)most >> 20);
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        if (h->same_bytes)
            printf("note: host %s: %llu MiB are as in the image of an earlier fork there\n", h->node->host,
                   (unsigned long long)h->same_bytes >> 20);
        if (h->fed_bytes && h->feeder)
            printf("note: host %s: %llu MiB came from host %s, the rest from the parent\n",
                   h->node->host, (unsigned long long)h->fed_bytes >> 20, h->feeder->node->host);
    }
}

/* Who starts the parent again has to know */
static void print_disks(const struct fork *f)
{
    FF_AUTO_JSON json_t *disks = fork_disks_summary(f->disks);
    json_t *d;
    size_t i;

    json_array_foreach(disks, i, d)
        printf("note: disk %s of the parent is now in %s, over %s\n",
               json_string_value(json_object_get(d, "disk")),
               json_string_value(json_object_get(d, "parent-overlay")),
               json_string_value(json_object_get(d, "frozen")));
}

void fork_print_table(const struct fork *f, int code)
{
    size_t good = 0;

    fflush(stderr);
    if (f->s.launched)
        print_children(f);
    print_phases(f);
    for (size_t i = f->s.notes_said; i < f->s.notes.n; i++)
        printf("note: %s\n", f->s.notes.v[i]);
    print_fed(f);
    print_disks(f);
    if (session_has_parent_ended(&f->s))
        printf("note: the parent has ended\n");
    for (size_t k = 0; k < f->s.n_vms; k++)
        good += vm_runs(&f->s.vms[k]);
    fflush(stdout);
    if (*f->s.why.text)
        fprintf(stderr, "vmclone: %s\n", f->s.why.text);
    if (f->stopped)
        fprintf(stderr, "vmclone: %s\n", f->stopped);
    if (f->s.interrupted && (code == EXIT_NONE || !f->o->follow))
        fprintf(stderr, "vmclone: interrupted: the children were ended\n");
    if (code == EXIT_SOME && good < f->s.n_vms)
        fprintf(stderr, "vmclone: %zu of %zu children run\n", good, f->s.n_vms);
}

/* --- JSON --- */

static json_t *json_fork_phases(const struct fork *f)
{
    struct fork_phases p = fork_phases_of(f);
    json_t *o = json_object();

    session_set_ms(o, "prepare", p.prepare);
    session_set_ms(o, "freeze", p.freeze);
    session_set_ms(o, "ship_state", p.ship);
    session_set_ms(o, "start", p.start);
    session_set_ms(o, "first_instruction", p.first);
    session_set_ms(o, "last_first_instruction", p.last);
    session_set_ms(o, "complete", p.complete);
    return o;
}

static double since(const struct fork *f, double when)
{
    return when > 0 ? when - f->s.begin_ms : -1;
}

static json_t *json_children(const struct fork *f)
{
    json_t *list = json_array();

    for (size_t k = 0; k < f->s.n_vms; k++) {
        const struct vm *child = &f->s.vms[k];
        json_t *o = json_pack("{si ss si ss}", "child", (int)child->number, "host",
                              f->s.hosts[child->host].node->host, "pid", (int)child->pid, "state",
                              vm_state_name(child->state));
        session_set_ms(o, "first_instruction_ms", f->paused ? -1 : since(f, child->running_ms));
        session_set_ms(o, "complete_ms", since(f, child->complete_ms));
        session_set_ms(o, "ready_ms", since(f, child->ready_ms));
        json_object_set_new(o, "qmp", child->qmp ? json_string(child->qmp) : json_null());
        json_object_set_new(o, "error", child->error ? json_string(child->error) : json_null());
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *json_hosts(const struct fork *f)
{
    json_t *list = json_array();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        json_array_append_new(
            list, json_pack("{ss ss sI sI sI sI sI sI so sI sI sI sI sI so so}", "host", h->node->host, "state",
                            host_state_name(h), "total_bytes", (json_int_t)h->total_bytes,
                            "present_bytes", (json_int_t)h->present_bytes, "lent_bytes",
                            (json_int_t)h->lent_bytes, "fed_bytes", (json_int_t)h->fed_bytes,
                            "same_bytes", (json_int_t)h->same_bytes, "multicast_bytes", (json_int_t)h->multicast_bytes, "fed_by", h->feeder ? json_string(h->feeder->node->host) : json_null(),
                            "pages_by_fault",
                            (json_int_t)h->pages_by_fault, "fault_p50_us",
                            (json_int_t)h->fault_p50_us, "fault_p99_us",
                            (json_int_t)h->fault_p99_us, "fault_max_us",
                            (json_int_t)h->fault_max_us, "child_faults",
                            (json_int_t)h->child_faults, "rundir",
                            h->rundir ? json_string(h->rundir) : json_null(), "error",
                            h->error ? json_string(h->error) : json_null()));
    }
    return list;
}

static json_t *json_identities(const struct fork *f)
{
    json_t *list = json_array();

    for (size_t k = 0; f->identity && k < f->s.n_vms; k++)
        json_array_append_new(list, identity_summary(f->identity, f->s.vms[k].number));
    return list;
}

void fork_print_json(const struct fork *f, int code)
{
    json_t *notes = json_array();

    for (size_t i = 0; i < f->s.notes.n; i++)
        json_array_append_new(notes, json_string(f->s.notes.v[i]));
    json_t *o = json_pack(
        "{ss ss si sb so si sb so so so so so so so so}", "id", f->s.o.id, "parent",
        f->s.o.parent_path, "parent_pid", (int)f->s.parent_pid, "parent_ended",
        session_has_parent_ended(&f->s),
        "parent_stopped", f->stopped ? json_string(f->stopped) : json_null(), "exit_code", code,
        "interrupted", f->s.interrupted, "error",
        *f->s.why.text ? json_string(f->s.why.text) : json_null(), "children", json_children(f),
        "hosts", json_hosts(f), "phases_ms", json_fork_phases(f), "freeze",
        f->freeze ? json_incref(f->freeze) : json_null(), "notes", notes, "disks",
        fork_disks_summary(f->disks), "identities", json_identities(f));
    json_object_set_new(o, "children_paused", json_boolean(f->paused));
    if (f->o->follow) /* ends follow, each on a line */
        json_object_set_new(o, "event", json_string("forked"));
    json_dumpf(o, stdout, f->o->follow ? JSON_COMPACT : JSON_INDENT(2));
    putchar('\n');
    fflush(stdout);
    json_decref(o);
}
