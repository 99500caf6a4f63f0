/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * evacuate.c - every guest of this host to others; see evacuate.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      find the guests          host_facts.h: the QEMUs of this host; their QMP sockets, by their command
 *                                       lines; who answers says how much memory it has
 *              ask the hosts            ask.h: 'farfork hosts --here': memory that is available
 *              farfork move --json      one a guest, @jobs at once; its exit code says where the guest is
 * Invariants   1. What may happen to a guest is farfork move's: this starts it and reads its last words. No
 *                 move is ended from here: one that is interrupted ends by itself, with its guest on one side.
 *                 One whose process does not run any more is left alone, and its guest is unknown.
 *              2. A guest is tried again only where farfork move says that it is here still.
 * Limits       memory that is available there is counted when it is asked, and less by each guest that goes
 *              there. A QEMU whose sockets answer nobody, or that has none, stays, and is named.
 */
#include "evacuate_private.h"
#include "failpoint.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ask.h"
#include "autojson.h"
#include "defaults.h"
#include "host_facts.h"
#include "launcher.h"
#include "rundir.h"
#include "signals.h"

#define LOOK_MS 1000
#define STILL_MS 600000 /* a move waits for nothing that long without a look around, but with a longer --timeout */
#define STILL_TEST_MS 5000
#define SPARE_BYTES (256ull << 20) /* of a QEMU, beside its guest's memory */
#define EXIT_HERE 1
#define EXIT_UNKNOWN 3
#define EXIT_NO_PROGRAM 127

/* --- the hosts --- */

/* Whatever it is called: NULL: it is neither this host nor one before it */
static char *is_another(struct evacuation *e, size_t at, const char *identity)
{
    if (!strcmp(identity, e->identity))
        return xstrdup("it is this very host");
    for (size_t i = 0; i < at; i++)
        if (e->place[i].identity && !strcmp(e->place[i].identity, identity))
            return xprintf("it is %s by another name", e->place[i].node->host);
    e->place[at].identity = xstrdup(identity);
    return NULL;
}

static void ask_places(struct evacuation *e)
{
    struct asked *a = xcalloc(e->n_places, sizeof(*a));
    char *words[] = {"hosts", "--here", NULL};

    asked_prepare();
    for (size_t i = 0; i < e->n_places; i++) {
        a[i] = asked_new(json_pack("{ss ss ss ss}", "host", e->place[i].node->host, "launcher", e->o->launcher,
                                   "agent", e->agent, "rundir", ""));
        asked_start(&a[i], words);
    }
    asked_read(a, e->n_places, e->o->timeout_s * 1000ull);
    for (size_t i = 0; i < e->n_places; i++) {
        FF_AUTO_JSON json_t *f = asked_answer(&a[i]);
        uint64_t available = (uint64_t)json_integer_value(json_object_get(f, "available_bytes"));
        uint64_t promised = (uint64_t)json_integer_value(json_object_get(f, "reserved_bytes"));
        e->place[i].available = available > promised ? available - promised : 0;
        e->place[i].why_not = json_is_object(f) ? is_another(e, i, text_of(f, "identity")) : asked_why(&a[i]);
        if (e->place[i].why_not)
            fprintf(stderr, "farfork: %s gets no guest: %s\n", e->place[i].node->host, e->place[i].why_not);
    }
    asked_free(a, e->n_places);
}

/* The host with most memory left that this guest has not been to; NULL: none has room for it */
static struct place *choose(struct evacuation *e, const struct guest *g)
{
    struct place *best = NULL;

    for (size_t i = 0; i < e->n_places; i++) {
        struct place *p = &e->place[i];
        bool full = p->node->slots != SLOTS_ANY && p->guests >= p->node->slots;
        if (p->why_not || full || g->tried[i] || p->available < g->bytes + SPARE_BYTES)
            continue;
        if (!best || p->available > best->available)
            best = p;
    }
    return best;
}

/* --- moves --- */

FF_PRINTF(3, 4)
static void report(const struct evacuation *e, const struct guest *g, const char *fmt, ...)
{
    va_list ap;

    if (e->o->json || e->o->quiet)
        return;
    printf("%s (pid %d, %llu MiB): ", g->name, (int)g->pid, (unsigned long long)g->bytes >> 20);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static void stay(struct evacuation *e, struct guest *g, char *reason)
{
    g->state = STAYS;
    if (!g->reason)
        g->reason = reason;
    else
        free(reason);
    report(e, g, "stays here: %s", g->reason);
}

static void give_place_back(const struct guest *g, struct place *p)
{
    p->available += g->bytes + SPARE_BYTES;
    p->guests--;
}

static void start_move(struct evacuation *e, struct guest *g, struct place *p)
{
    struct strv w = {0};
    struct ff_error why;
    FF_AUTO_FREE char *own = defaults_agent(), *spec = hostlist_spec(p->node);

    strv_add(&w, "%s", own);
    strv_add(&w, "move");
    strv_add(&w, "--json");
    strv_add(&w, "--launcher");
    strv_add(&w, "%s", e->o->launcher);
    strv_add(&w, "--agent");
    strv_add(&w, "%s", e->agent);
    if (e->o->rundir) {
        strv_add(&w, "--rundir");
        strv_add(&w, "%s", e->o->rundir);
    }
    for (size_t i = 0; i < e->o->n_more; i++)
        strv_add(&w, "%s", e->o->more[i]);
    strv_add(&w, "%s", g->qmp);
    strv_add(&w, "%s", spec);
    g->host = (size_t)(p - e->place);
    g->tried[g->host] = true;
    g->tries++;
    free(g->said);
    g->said = xstrdup("");
    p->available -= g->bytes + SPARE_BYTES;
    p->guests++;
    if (spawn_start(&g->run, w.v, NULL, &why)) {
        give_place_back(g, p);
        free(g->reason);
        g->reason = NULL;
        stay(e, g, xstrdup(why.text));
    } else {
        g->state = MOVES;
        g->turned_ms = 0;
        report(e, g, "to %s", p->node->host);
    }
    strv_free(&w);
}

static void keep_words(struct guest *g)
{
    char *line;

    while ((line = jsonl_next(&g->run.out_lines))) {
        char *more = xprintf("%s%s\n", g->said, line);
        free(g->said);
        g->said = more;
    }
}

/* By the words of its move, which ended with that code: -1: by a signal */
static enum guest_state outcome(const struct guest *g, int code)
{
    bool said = json_is_object(g->result) && json_integer_value(json_object_get(g->result, "exit_code")) == code;
    /* nobody was asked to send it, nor started to take it */
    bool untouched = said && json_is_null(json_object_get(g->result, "migration")) &&
                     !json_integer_value(json_object_get(g->result, "pid"));

    if (said && !code && !strcmp(text_of(g->result, "state"), "there"))
        return GONE;
    if (untouched && code == EXIT_HERE)
        return (enum guest_state[]){ENDED, WAITS, UNKNOWN}[process_look(g->pid, g->start)];
    if ((said && code == EXIT_HERE) || code == EXIT_USAGE || code == EXIT_NO_PROGRAM)
        return WAITS;
    return UNKNOWN;
}

/* Its move has ended: where is it? */
static void end_move(struct evacuation *e, struct guest *g)
{
    struct place *p = &e->place[g->host];
    int status = -1;

    while (!spawn_ended(&g->run, 1000, &status))
        ; /* it has closed its output, and ends */
    json_decref(g->result);
    g->result = json_printable(json_loads(g->said, 0, NULL));
    const char *error = text_of(g->result, "error");
    free(g->reason);
    g->reason = NULL;
    g->state = outcome(g, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    if (g->state == ENDED) {
        report(e, g, "has ended by itself");
    } else if (g->state == GONE) {
        report(e, g, "on %s after %.1f s, down %.0f ms", p->node->host,
               json_number_value(json_object_get(json_object_get(g->result, "phases_ms"), "complete")) / 1e3,
               json_number_value(json_object_get(json_object_get(g->result, "phases_ms"), "downtime")));
    } else {
        g->reason = xprintf("%s: %s", p->node->host, *error         ? error
                                                     : g->run.words ? g->run.words
                                                                    : "farfork move has ended without a word");
    }
    if (g->state == WAITS || g->state == ENDED)
        give_place_back(g, p);
    if (g->state == WAITS) {
        report(e, g, "is here still: %s", g->reason);
    } else if (g->state == UNKNOWN) {
        report(e, g, "look after it: %s", g->reason);
    }
    spawn_end(&g->run, 0);
    spawn_free(&g->run);
    g->run = SPAWN_NONE;
}

static size_t count_in(const struct evacuation *e, enum guest_state s)
{
    size_t n = 0;

    for (size_t i = 0; i < e->n_guests; i++)
        n += e->guest[i].state == s;
    return n;
}

static void start_some(struct evacuation *e)
{
    for (size_t i = 0; i < e->n_guests && (e->stops || count_in(e, MOVES) < e->o->jobs); i++) {
        struct guest *g = &e->guest[i];
        if (g->state != WAITS)
            continue;
        struct place *p = e->stops ? NULL : choose(e, g);
        if (p)
            start_move(e, g, p);
        else if (e->stops)
            stay(e, g, xstrdup("interrupted"));
        else if (!count_in(e, MOVES)) /* else one that comes back may leave room */
            stay(e, g, xprintf("no host has %llu MiB of memory and a slot for it",
                               (unsigned long long)(g->bytes + SPARE_BYTES) >> 20));
    }
}

static void pass_signals_on(struct evacuation *e)
{
    struct signalfd_siginfo s;

    while (read(e->signals, &s, sizeof(s)) == sizeof(s)) {
        if (!e->stops && !e->o->quiet)
            fprintf(stderr, "farfork: no more moves begin; %zu are under way, and end with their guests on one side\n",
                    count_in(e, MOVES));
        e->stops = true;
        for (size_t i = 0; i < e->n_guests; i++) {
            struct guest *g = &e->guest[i];
            if (g->state == MOVES && !g->interrupted)
                kill(g->run.pid, SIGINT); /* a second one would make it leave its guest between two hosts */
            g->interrupted |= g->state == MOVES;
        }
    }
}

/* It is stopped, or the kernel has it: a move looks around some times a second */
static bool stands_still(struct guest *g)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/status", (int)g->run.pid), *line = NULL;
    const uint64_t limit_ms = ff_failpoint("evacuate.still") ? STILL_TEST_MS : STILL_MS;
    FILE *f = fopen(path, "re");
    unsigned long turns = 0, n;
    size_t room = 0;

    while (f && getline(&line, &room, f) > 0)
        if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1 || sscanf(line, "nonvoluntary_ctxt_switches: %lu", &n) == 1)
            turns += n;
    if (f)
        fclose(f);
    if (turns != g->turns || !g->turned_ms)
        g->turned_ms = ff_now_ms();
    g->turns = turns;
    return ff_now_ms() > g->turned_ms + limit_ms;
}

static void leave_still(struct evacuation *e)
{
    for (size_t i = 0; i < e->n_guests; i++) {
        struct guest *g = &e->guest[i];
        if (g->state != MOVES || !stands_still(g))
            continue;
        g->state = UNKNOWN;
        free(g->reason);
        g->reason = xprintf("%s: its move (pid %d) stands still, and was left: look where the guest is",
                            e->place[g->host].node->host, (int)g->run.pid);
        report(e, g, "look after it: %s", g->reason);
        spawn_leave(&g->run);
        spawn_free(&g->run);
    }
}

static void follow_moves(struct evacuation *e)
{
    struct pollfd *p = xcalloc(1 + 2 * e->n_guests, sizeof(*p));

    e->signals = signals_take();
    p[0] = (struct pollfd){.fd = e->signals, .events = POLLIN};
    for (;;) {
        start_some(e);
        if (!count_in(e, MOVES) && (e->stops || !count_in(e, WAITS)))
            break;
        for (size_t i = 0; i < e->n_guests; i++) {
            const struct guest *g = &e->guest[i];
            p[1 + 2 * i] = (struct pollfd){.fd = g->state == MOVES ? g->run.out : -1, .events = POLLIN};
            p[2 + 2 * i] = (struct pollfd){.fd = g->state == MOVES ? g->run.err : -1, .events = POLLIN};
        }
        int got = poll(p, 1 + 2 * e->n_guests, LOOK_MS);
        leave_still(e);
        if (got <= 0)
            continue;
        if (p[0].revents)
            pass_signals_on(e);
        for (size_t i = 0; i < e->n_guests; i++) {
            struct guest *g = &e->guest[i];
            if (g->state != MOVES || !(p[1 + 2 * i].revents | p[2 + 2 * i].revents))
                continue;
            bool over = spawn_on_output(&g->run);
            keep_words(g);
            if (over)
                end_move(e, g);
        }
    }
    free(p);
}

/* --- what came of it --- */

static void print_plan(struct evacuation *e)
{
    for (size_t i = 0; i < e->n_guests; i++) {
        struct guest *g = &e->guest[i];
        struct place *p = g->state == WAITS ? choose(e, g) : NULL;
        if (p) {
            p->available -= g->bytes + SPARE_BYTES;
            p->guests++;
            g->host = (size_t)(p - e->place);
            g->state = WAITS;
            report(e, g, "would go to %s", p->node->host);
        } else {
            g->state = STAYS;
            g->reason = g->reason ? g->reason : xstrdup("no host has room for it");
        }
    }
}

static void print_evacuation(const struct evacuation *e, int code)
{
    static const char *const names[] = {"planned", "moves", "there", "ended", "here", "unknown"};
    FF_AUTO_JSON json_t *list = json_array();

    for (size_t i = 0; i < e->n_guests; i++) {
        const struct guest *g = &e->guest[i];
        bool has_host = e->n_places && (g->state == GONE || g->state == UNKNOWN || g->state == WAITS);
        json_array_append_new(
            list, json_pack("{si so sI ss so si so sO*}", "pid", (int)g->pid, "name", json_lossy(g->name), "memory_bytes",
                            (json_int_t)g->bytes, "state", names[g->state], "host",
                            has_host ? json_lossy(e->place[g->host].node->host) : json_null(), "tries",
                            (int)g->tries, "error", g->reason ? json_lossy(g->reason) : json_null(), "move",
                            g->result));
    }
    FF_AUTO_JSON json_t *o = json_pack("{si sO sO}", "exit_code", code, "guests", list, "others", e->others);
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
}

static void evacuation_free(struct evacuation *e)
{
    for (size_t i = 0; i < e->n_guests; i++) {
        struct guest *g = &e->guest[i];
        free(g->name);
        free(g->qmp);
        free(g->tried);
        free(g->said);
        free(g->reason);
        json_decref(g->result);
    }
    for (size_t i = 0; i < e->n_places; i++) {
        free(e->place[i].why_not);
        free(e->place[i].identity);
    }
    free(e->guest);
    free(e->place);
    free(e->agent);
    free(e->identity);
    free(e->named);
    json_decref(e->others);
    ff_close_fd(&e->signals);
}

/* How many of those that were named are not moved */
static size_t note_left_out(const struct evacuation *e)
{
    const struct strv *names = e->o->guests;
    size_t missing = 0, i;
    json_t *f;

    for (i = 0; i < names->n; i++) {
        missing += e->named[i] != 1;
        if (!e->named[i])
            fprintf(stderr, "farfork: no guest %s is here\n", names->v[i]);
        else if (e->named[i] > 1)
            fprintf(stderr, "farfork: %s names %zu guests, by process number or name: give another of the two\n",
                    names->v[i], e->named[i]);
    }
    json_array_foreach(e->others, i, f)
        if (!e->o->quiet && !names->n)
            fprintf(stderr, "farfork: pid %lld is of another user (uid %lld), and was left out\n",
                    (long long)json_integer_value(json_object_get(f, "pid")),
                    (long long)json_integer_value(json_object_get(f, "uid")));
    return missing;
}

int evacuate_host(const struct evacuate_options *o, const struct hostlist *to)
{
    struct evacuation e = {.o = o, .n_places = to->n, .signals = -1, .identity = host_identity(), .others = json_array(),
                           .named = xcalloc(o->guests->n + 1, sizeof(size_t))};

    struct ff_error why;
    if (ff_failpoints_start(&why))
        fprintf(stderr, "farfork: %s\n", why.text);
    e.agent = o->agent ? xstrdup(o->agent) : defaults_agent();
    e.place = xcalloc(to->n + 1, sizeof(*e.place));
    for (size_t i = 0; i < to->n; i++)
        e.place[i].node = &to->v[i];
    evacuate_find(&e);
    if (e.n_guests)
        ask_places(&e);
    size_t missing = note_left_out(&e);
    for (size_t i = 0; i < e.n_guests; i++)
        if (e.guest[i].state == STAYS)
            report(&e, &e.guest[i], "stays here: %s", e.guest[i].reason);
    if (o->dry_run)
        print_plan(&e);
    else
        follow_moves(&e);
    size_t here = missing + count_in(&e, STAYS) + (o->dry_run ? 0 : count_in(&e, WAITS));
    int code = count_in(&e, UNKNOWN) ? EXIT_UNKNOWN : here ? EXIT_HERE : 0;
    FF_AUTO_FREE char *of_jobs = e.n_of_jobs ? xprintf("; %zu of batch jobs were left out", e.n_of_jobs) : xstrdup("");
    if (o->json)
        print_evacuation(&e, code);
    else if (!o->dry_run)
        printf("%zu of %zu guests are gone from here%s\n", count_in(&e, GONE) + count_in(&e, ENDED), e.n_guests, of_jobs);
    evacuation_free(&e);
    return code;
}
