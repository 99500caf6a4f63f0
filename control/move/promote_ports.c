/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * promote_ports.c - ports of this host that a user network of the parent's forwards: its successor's, once they are free
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "autojson.h"
#include "move.h"
#include "promote.h"
#include "qemu_opts.h"
#include "rundir.h"

#define RULE "hostfwd"
#define FREE_LIMIT_MS 30000
#define FREE_TURN_MS 10
#define ASK_LIMIT_MS 10000

/* "hostfwd_add ID RULE" of each rule of a backend */
static void add_rules(struct strv *out, const char *value)
{
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id");
    FF_AUTO_JSON json_t *o = *value == '{' ? json_loads(value, 0, NULL) : NULL;
    const char *space = id ? " " : "";
    json_t *rule;
    size_t i;

    json_array_foreach(json_object_get(o, RULE), i, rule)
        strv_add(out, "hostfwd_add %s%s%s", id ? id : "", space, text_of(rule, "str"));
    for (const char *at = value; !o && (at = strstr(at, "," RULE "=")); ) {
        at += strlen("," RULE "=");
        strv_add(out, "hostfwd_add %s%s%.*s", id ? id : "", space, (int)strcspn(at, ","), at);
    }
}

static int add_ports(struct move *m, const struct strv *rules, struct ff_error *why)
{
    const struct promote *p = m->promote;
    const uint64_t end = ff_now_ms() + FREE_LIMIT_MS;
    struct qmp *q;

    while (process_look(p->parent_pid, p->parent_start) != PROCESS_GONE && ff_now_ms() < end)
        poll(NULL, 0, FREE_TURN_MS);
    int rc = qmp_connect_in_turn(move_child(m)->qmp, -1, ASK_LIMIT_MS, NULL, NULL, &q, why);
    if (rc)
        return rc;
    for (size_t i = 0; i < rules->n && !rc; i++) {
        FF_AUTO_JSON json_t *said = NULL;
        rc = qmp_command(q, "human-monitor-command", json_pack("{ss}", "command-line", rules->v[i]), &said, why);
        if (!rc && json_string_length(said)) /* it prints complaints alone */
            rc = ff_error_set(why, EADDRINUSE, "%s: %.*s", rules->v[i], (int)strcspn(json_string_value(said), "\r\n"),
                              json_string_value(said));
    }
    qmp_free(q);
    return rc;
}

void promote_ports(struct move *m)
{
    const struct strv *argv = &m->s.parent_argv;
    struct strv rules = {0};
    struct ff_error why;

    for (size_t i = 1; i < argv->n; i++)
        if (qemu_option_is(argv->v[i - 1], "netdev") || qemu_option_is(argv->v[i - 1], "nic") ||
            qemu_option_is(argv->v[i - 1], "net"))
            add_rules(&rules, argv->v[i]);
    if (rules.n && !m->promote->is_here)
        session_note(&m->s, "forward the guest's ports at %s: %s, by its monitor, and %zu more", m->promote->host, rules.v[0], rules.n - 1);
    else if (rules.n && add_ports(m, &rules, &why))
        session_note(&m->s, "the guest's forwarded ports: %s: add them by the monitor command hostfwd_add", why.text);
    strv_free(&rules);
}
