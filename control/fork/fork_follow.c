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
static void report_event(const struct fork *f, json_t *e, const char *line)
{
    if (f->o->events)
        jsonl_write_json(f->o->events, e, WRITE_LIMIT_MS);
    if (f->s.o.json)
        json_dumpf(e, stdout, JSON_COMPACT);
    else
        fputs(line, stdout);
    putchar('\n');
    fflush(stdout);
    json_decref(e);
}

/* Why it has no code of its own; NULL: it runs. Only for one that has said none */
static const char *why_ended(const struct fork *f, const struct vm *k)
{
    const struct host *h = &f->s.hosts[k->host];

    if (k->state == VM_FAILED)
        return k->error;
    if (k->state == VM_ENDED)
        return "it ended without farfork-guest exit";
    return h->state == HOST_FAILED ? h->error : NULL;
}

static void report_end(const struct fork *f, const struct vm *k, const char *error)
{
    const char *host = f->s.hosts[k->host].node->host;
    int code = k->said ? k->code : EXIT_QUEUE_NO_CODE;
    json_t *why = k->said ? json_null() : json_string(error);
    FF_AUTO_FREE char *line =
        k->said ? xprintf("child %u on %s: exit code %d", k->number, host, code)
                : xprintf("child %u on %s: no exit code: %s", k->number, host, error);

    report_event(f,
                 json_pack("{ss si ss si so}", "event", "ended", "child", (int)k->number, "host",
                           host, "code", code, "error", why ? why : json_string("not UTF-8")),
                 line);
}

/* Those that are new; whether there are others yet */
static bool report_ends(struct fork *f)
{
    bool left = false;

    for (size_t i = 0; i < f->s.n_vms; i++) {
        struct vm *k = &f->s.vms[i];
        const char *error = why_ended(f, k);
        if (error && !k->told)
            report_end(f, k, error);
        k->told |= error != NULL;
        left |= !k->told;
    }
    return left;
}

void fork_look_after(struct fork *f, bool ask)
{
    uint64_t now = ff_now_ms();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h->state == HOST_FAILED || h->let_go)
            continue;
        if (h->ping_ms && now > h->ping_ms + (uint64_t)f->s.o.timeout_s * 1000) {
            host_fail(&f->s, h, "no answer for %u s: its children may still run", f->s.o.timeout_s);
        } else if (!h->ping_ms && ask) {
            host_ping(h);
        }
    }
}

/* Whether children may go on where nobody sees them */
static bool out_of_sight(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_FAILED)
            return true;
    return false;
}

/* All of them well, or with what they have given back: 0 */
static int follow_outcome(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_vms; i++)
        if (f->s.vms[i].told && (!f->s.vms[i].said || f->s.vms[i].code))
            return EXIT_SOME;
    return EXIT_ALL;
}

static void report_fork(const struct fork *f, int code)
{
    FF_AUTO_JSON json_t *e = json_pack("{ss si}", "event", "forked", "exit_code", code);

    jsonl_write_json(f->o->events, e, WRITE_LIMIT_MS);
}

int fork_follow(struct fork *f, int code)
{
    uint64_t asked_ms = ff_now_ms(), every_ms = f->s.o.timeout_s * 250;
    bool left;

    if (f->o->events)
        report_fork(f, code);
    if (code == EXIT_NONE)
        return code;
    while ((left = report_ends(f)) && !f->s.interrupted) {
        session_turn(&f->s, TURN_MS);
        bool ask = ff_now_ms() >= asked_ms + (every_ms < PING_EVERY_MS ? every_ms : PING_EVERY_MS);
        fork_look_after(f, ask);
        if (ask)
            asked_ms = ff_now_ms();
    }
    if (left)
        fprintf(stderr, "vmclone: interrupted: children that have not ended go on\n");
    else if (!out_of_sight(f))
        fork_disks_end_server(f->disks);
    return follow_outcome(f);
}
