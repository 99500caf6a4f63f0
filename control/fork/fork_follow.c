/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_follow.c - vmclone --follow: report how each child ends
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the fork is made, its agents were kept: they say how their children end, and what
 *              code the guests gave.
 * Failure      a host of which nothing is heard any more, or whose agent has ended, is given up:
 *              its children are reported, with that reason. Interrupted, it returns, and the
 *              agents are let go with the children that there are.
 * Limits       an agent that has been asked answers within --timeout seconds.
 */
#include <stdio.h>
#include <stdlib.h>

#include "autojson.h"
#include "fork.h"
#include "exit_queue.h"

#define TURN_MS 1000
#define PING_EVERY_MS 10000 /* or four times within --timeout */
#define WRITE_LIMIT_MS 5000

/* To whom it is for; taken over */
static void report(const struct clone *c, json_t *e, const char *line)
{
    if (c->o->events)
        lines_write_json(c->o->events, e, WRITE_LIMIT_MS);
    if (c->o->json)
        json_dumpf(e, stdout, JSON_COMPACT);
    else
        fputs(line, stdout);
    putchar('\n');
    fflush(stdout);
    json_decref(e);
}

/* Why it has no code of its own; NULL: it runs. Only for one that has said none */
static const char *end_of(const struct clone *c, const struct child *k)
{
    const struct host *h = &c->hosts[k->host];

    if (k->state == CHILD_FAILED)
        return k->error;
    if (k->state == CHILD_ENDED)
        return "it ended without a word (farfork-guest exit)";
    return h->state == HOST_FAILED ? h->error : NULL;
}

static void report_end(const struct clone *c, const struct child *k, const char *error)
{
    const char *host = c->hosts[k->host].node->host;
    int code = k->said ? k->code : JOINS_NO_CODE;
    json_t *why = k->said ? json_null() : json_string(error);
    AUTO_FREE char *line = k->said ? xprintf("child %u on %s: exit code %d", k->number, host, code)
                                   : xprintf("child %u on %s: no exit code: %s", k->number, host,
                                             error);

    report(c, json_pack("{ss si ss si so}", "event", "ended", "child", (int)k->number, "host", host,
                        "code", code, "error", why ? why : json_string("not UTF-8")), line);
}

/* Those that are new; whether there are others yet */
static bool report_ends(struct clone *c)
{
    bool left = false;

    for (size_t i = 0; i < c->n_children; i++) {
        struct child *k = &c->children[i];
        const char *error = end_of(c, k);
        if (error && !k->told)
            report_end(c, k, error);
        k->told |= error != NULL;
        left |= !k->told;
    }
    return left;
}

/* A host that vanishes closes no connection */
static void look_after_hosts(struct clone *c, bool ask)
{
    uint64_t now = now_ms();

    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        if (h->state != HOST_COMPLETE || h->let_go)
            continue;
        if (h->ping_ms && now > h->ping_ms + (uint64_t)c->o->timeout_s * 1000) {
            host_fail(c, h, "no answer for %u s: it is not known whether its children run",
                      c->o->timeout_s);
        } else if (!h->ping_ms && ask) {
            h->ping_ms = now;
            host_send(h, json_pack("{sb}", "ping", true));
        }
    }
}

/* Whether children may go on where nobody sees them */
static bool out_of_sight(const struct clone *c)
{
    for (size_t i = 0; i < c->n_hosts; i++)
        if (c->hosts[i].state == HOST_FAILED)
            return true;
    return false;
}

/* All of them well, or with what they have given back: 0 */
static int outcome(const struct clone *c)
{
    for (size_t i = 0; i < c->n_children; i++)
        if (c->children[i].told && (!c->children[i].said || c->children[i].code))
            return EXIT_SOME;
    return EXIT_ALL;
}

static void report_fork(const struct clone *c, int code)
{
    AUTO_JSON json_t *e = json_pack("{ss si}", "event", "forked", "exit_code", code);

    lines_write_json(c->o->events, e, WRITE_LIMIT_MS);
}

int clone_follow(struct clone *c, int code)
{
    uint64_t asked_ms = now_ms(), every_ms = c->o->timeout_s * 250;
    bool left;

    if (c->o->events)
        report_fork(c, code);
    if (code == EXIT_NONE)
        return code;
    while ((left = report_ends(c)) && !c->interrupted) {
        clone_turn(c, TURN_MS);
        bool ask = now_ms() >= asked_ms + (every_ms < PING_EVERY_MS ? every_ms : PING_EVERY_MS);
        look_after_hosts(c, ask);
        if (ask)
            asked_ms = now_ms();
    }
    if (left)
        fprintf(stderr, "vmclone: interrupted: children that have not ended go on\n");
    else if (!out_of_sight(c))
        clone_disks_end_server(c->disks);
    return outcome(c);
}
