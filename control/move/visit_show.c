/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_show.c - what a visit looks like to a person, while it lasts and afterwards, and as JSON
 */
#include <stdarg.h>
#include <stdio.h>

#include "visit.h"

#define MIB(bytes) ((double)(bytes) / (1 << 20))

void visit_say(const struct move *m, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", m->s.kind->program);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(stderr);
}

bool visit_was_taken_back(const struct move *m)
{
    return m->outcome == MOVE_HERE && (m->taking_ms || m->visit->away_ms > 0);
}

void visit_print_text(const struct move *m, int code)
{
    const struct visit *v = m->visit;

    move_print_text(m, code);
    if (visit_was_taken_back(m))
        printf("taken back: it goes on as it was when it went; what it did on %s is lost\n", m->s.hosts[0].node->host);
    if (!v->away_ms)
        return;
    printf("  away %.1f s  got %.1f of %.1f MiB there, %llu faults", (v->coming_ms ? v->coming_ms - v->away_ms : 0) / 1000,
           MIB(m->present_bytes), MIB(m->total_bytes), (unsigned long long)m->faults);
    if (v->o.budget_mib)
        printf("; %.1f MiB by prefill, %.1f MiB by faults", MIB(v->prefill_bytes), MIB(v->fault_bytes));
    if (m->outcome == MOVE_HOME)
        printf("; %.1f MiB back", MIB(v->back_bytes));
    putchar('\n');
    session_print_ms("downtime out", m->downtime_ms);
    session_print_ms("downtime back", v->downtime_ms);
    session_print_ms("return", move_between(v->coming_ms, v->home_ms));
    putchar('\n');
    if (v->until_code >= 0)
        printf("  the command ended with %d\n", v->until_code);
    fflush(stdout);
}

void visit_print_json(const struct move *m, int code)
{
    const struct visit *v = m->visit;
    json_t *o = move_json(m, code);
    json_t *ms = json_object_get(o, "phases_ms"), *bytes = json_object_get(o, "bytes");

    session_set_ms(ms, "away", move_between(v->away_ms, v->coming_ms));
    session_set_ms(ms, "switch_back", move_between(v->coming_ms, v->here_ms));
    session_set_ms(ms, "downtime_back", v->downtime_ms);
    session_set_ms(ms, "return", move_between(v->coming_ms, v->home_ms));
    json_object_set_new(bytes, "by_prefill", json_integer((json_int_t)v->prefill_bytes));
    json_object_set_new(bytes, "by_faults", json_integer((json_int_t)v->fault_bytes));
    json_object_set_new(bytes, "back", json_integer((json_int_t)v->back_bytes));
    json_object_set_new(o, "taken_back", json_boolean(visit_was_taken_back(m)));
    json_object_set_new(o, "tries", json_integer(v->tries));
    json_object_set_new(o, "until_code", v->until_code < 0 ? json_null() : json_integer(v->until_code));
    move_put_json(o);
}
