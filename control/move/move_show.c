/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_show.c - what a move looks like to a person, while it is made and afterwards, and as JSON
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "move.h"
#include "printable.h"

#define SHOW_EVERY_MS 200

const char *move_outcome_name(enum move_outcome o)
{
    static const char *const names[] = {"here", "there", "following", "broken", "lost",
                                        "ended", "unclear", "away", "home", "untouched"};

    return names[o];
}

void move_end_with(struct move *m, enum move_outcome o, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(m->s.why.text, sizeof(m->s.why.text), fmt, ap);
    ff_printable(m->s.why.text);
    va_end(ap);
    m->outcome = o;
}

void move_show(struct move *m, bool last)
{
    static double shown_ms;
    double now = ff_now_exact_ms();

    if (m->s.o.quiet || !isatty(STDERR_FILENO) || (!last && now < shown_ms + SHOW_EVERY_MS))
        return;
    shown_ms = now;
    fprintf(stderr, "\r\033[K%s  %s  %llu of %llu MiB  %llu faults%s", move_host(m)->node->host,
            *m->status ? m->status : "starting", (unsigned long long)m->present_bytes >> 20,
            (unsigned long long)m->total_bytes >> 20, (unsigned long long)m->faults,
            last ? "\n" : "");
    fflush(stderr);
}

static void print_there(const struct move *m)
{
    const struct vm *k = m->s.vms;

    printf("host %s  pid %d  QMP socket %s  log %s\n", m->s.hosts[0].node->host, (int)k->pid,
           k->qmp, k->log);
    session_print_ms("prepare", move_between(m->begin_ms, m->listening_ms));
    session_print_ms("start", move_between(m->listening_ms, m->ready_ms));
    session_print_ms("switch",
                     move_between(m->sent_ms, m->switched_ms ? m->switched_ms : m->completed_ms));
    session_print_ms("downtime", m->downtime_ms);
    session_print_ms("complete", move_between(m->sent_ms, m->completed_ms));
    printf("  %llu of %llu MiB  %llu faults\n", (unsigned long long)m->present_bytes >> 20,
           (unsigned long long)m->total_bytes >> 20, (unsigned long long)m->faults);
    if (m->breaks)
        printf("  survived %llu breaks of the link: %.1f s without one, %llu KiB fetched again\n",
               (unsigned long long)m->breaks, m->paused_ms / 1000,
               (unsigned long long)m->again_bytes >> 10);
}

void move_print_text(const struct move *m, int code)
{
    fflush(stderr);
    if (m->outcome != MOVE_HERE && m->outcome != MOVE_HOME && m->sent)
        print_there(m);
    for (size_t i = m->s.notes_said; i < m->s.notes.n; i++)
        printf("note: %s\n", m->s.notes.v[i]);
    fflush(stdout);
    if (*m->s.why.text)
        fprintf(stderr, "%s: %s\n", m->s.kind->program, m->s.why.text);
    if (code && m->outcome == MOVE_HERE)
        fprintf(stderr, "%s: the guest %s\n", m->s.kind->program,
                strcmp(m->here, "running") ? "is here, paused" : "goes on here");
}

static json_t *json_move_phases(const struct move *m)
{
    json_t *o = json_object();

    session_set_ms(o, "prepare", move_between(m->begin_ms, m->listening_ms));
    session_set_ms(o, "start", move_between(m->listening_ms, m->ready_ms));
    session_set_ms(o, "switch",
                   move_between(m->sent_ms, m->switched_ms ? m->switched_ms : m->completed_ms));
    session_set_ms(o, "downtime", m->downtime_ms);
    session_set_ms(o, "complete", move_between(m->sent_ms, m->completed_ms));
    session_set_ms(o, "paused", m->paused_ms);
    return o;
}

static json_t *text_or_null(const char *s)
{
    return s && *s ? json_string(s) : json_null();
}

json_t *move_json(const struct move *m, int code)
{
    const struct host *h = m->s.n_hosts ? m->s.hosts : NULL;
    const struct vm *k = m->s.n_vms ? m->s.vms : NULL;
    json_t *notes = json_array();

    for (size_t i = 0; i < m->s.notes.n; i++)
        json_array_append_new(notes, json_lossy(m->s.notes.v[i]));
    return json_pack(
        "{ss ss si sb so ss si so so si so so so so s{sI sI sI} sI sI si si so}", "id", m->s.o.id, "parent",
        m->s.o.parent_path, "parent_pid", (int)m->s.parent_pid, "parent_ended",
        session_has_parent_ended(&m->s),
        "host", text_or_null(h ? h->node->host : NULL), "state", move_outcome_name(m->outcome),
        "exit_code", code, "error", text_or_null(m->s.why.text), "migration",
        text_or_null(m->status), "pid", k ? (int)k->pid : 0, "qmp",
        text_or_null(k ? k->qmp : NULL), "log", text_or_null(k ? k->log : NULL), "rundir",
        text_or_null(h ? h->rundir : NULL), "phases_ms", json_move_phases(m), "bytes", "total",
        (json_int_t)m->total_bytes, "present", (json_int_t)m->present_bytes, "again",
        (json_int_t)m->again_bytes, "breaks", (json_int_t)m->breaks, "faults",
        (json_int_t)m->faults, "unplugged", (int)move_devices_out(m), "plugged", (int)m->n_plugged, "notes", notes);
}

void move_put_json(json_t *o)
{
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    fflush(stdout);
    json_decref(o);
}
