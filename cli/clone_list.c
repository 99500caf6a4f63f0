/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clone_list.c - forks on all hosts that this one has sent children to: list, wait for, end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a fork's run directories are on its hosts. Which hosts those are, and how to get to
 *              them, is in BASE/ID/hosts.json on the host that made it, for those whose run
 *              directory cannot be seen here. They are asked by 'farfork forks', all at once.
 * Limits       an answer may take --timeout seconds. A host that has answered that there is
 *              nothing of the fork is forgotten.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "autojson.h"
#include "clone.h"
#include "forks.h"
#include "launch.h"
#include "rundir.h"

#define WAY_S 60

/* --- what is written down about the others --- */

/* Its run directory is where --list looks */
static bool seen_here(const char *base, const char *id, const struct host *h)
{
    AUTO_FREE char *dir = xprintf("%s/%s/%s", base, id, h->name);
    AUTO_JSON json_t *s = h->rundir && !strcmp(h->rundir, dir) ? rundir_read_state(dir) : NULL;

    return s && process_is((pid_t)json_integer_value(json_object_get(s, "agent")),
                           (uint64_t)json_integer_value(json_object_get(s, "start")));
}

static json_t *entry_of(const struct clone *c, const struct host *h)
{
    json_t *o = json_pack("{ss ss ss ss}", "host", h->node->host, "node", h->name, "launcher",
                          c->o->launcher, "agent", c->o->agent);

    if (c->o->rundir)
        json_object_set_new(o, "rundir", json_string(c->o->rundir));
    return o;
}

/* The same host by the same way; its node is the fork's name for it */
static bool is_same_host(const json_t *a, const json_t *b)
{
    return !strcmp(text_of(a, "host"), text_of(b, "host")) &&
           !strcmp(text_of(a, "launcher"), text_of(b, "launcher")) &&
           !strcmp(text_of(a, "agent"), text_of(b, "agent")) &&
           !strcmp(text_of(a, "rundir"), text_of(b, "rundir"));
}

int clone_record(const struct clone *c, struct why *why)
{
    AUTO_FREE char *base = c->o->rundir ? xstrdup(c->o->rundir) : rundir_base();
    AUTO_JSON json_t *hosts = rundir_read_hosts(base, c->o->id); /* an older fork of that name */
    size_t before = json_array_size(hosts);

    for (size_t i = 0; i < c->n_hosts; i++) {
        const struct host *h = &c->hosts[i];
        AUTO_JSON json_t *o = h->here || h->state == HOST_FAILED || seen_here(base, c->o->id, h)
                                  ? NULL : entry_of(c, h);
        bool there = false;
        for (size_t k = 0; o && k < before; k++)
            there |= json_equal(json_array_get(hosts, k), o);
        if (o && !there)
            json_array_append(hosts, o);
    }
    return json_array_size(hosts) > before ? rundir_write_hosts(base, c->o->id, hosts, why) : 0;
}

/* Forget a host of @id */
static void forget(const char *base, const char *id, const json_t *entry)
{
    AUTO_JSON json_t *hosts = rundir_read_hosts(base, id);
    struct why ignored;

    for (size_t i = json_array_size(hosts); i-- > 0;)
        if (json_equal(json_array_get(hosts, i), entry))
            json_array_remove(hosts, i);
    rundir_write_hosts(base, id, hosts, &ignored);
}

void clone_forget(const struct clone *c)
{
    AUTO_FREE char *base = c->o->rundir ? xstrdup(c->o->rundir) : rundir_base();

    for (size_t i = 0; i < c->n_hosts; i++) {
        AUTO_JSON json_t *o = c->hosts[i].rundir ? entry_of(c, &c->hosts[i]) : NULL;
        if (o) /* else there may be an older fork of that name */
            forget(base, c->o->id, o);
    }
}

/* --- ask them --- */

struct asked {
    json_t *entry;
    struct remote run;
    bool over;
    int code;        /* its exit code; -1: none came */
    char *line;      /* the last one that it printed */
    struct why why;  /* it could not be started */
};

static void ask(struct asked *a, const char *verb, const char *id, unsigned timeout_s)
{
    const char *rundir = text_of(a->entry, "rundir");
    struct words w = {0};

    words_add(&w, "%s", text_of(a->entry, "agent"));
    words_add(&w, "forks");
    words_add(&w, "%s", verb);
    if (id)
        words_add(&w, "%s", id);
    else
        words_add(&w, "--json");
    if (timeout_s) {
        words_add(&w, "--timeout");
        words_add(&w, "%u", timeout_s);
    }
    if (*rundir) {
        words_add(&w, "--rundir");
        words_add(&w, "%s", rundir);
    }
    AUTO_FREE char *line = launch_line(text_of(a->entry, "launcher"), text_of(a->entry, "host"), w.v);
    a->code = -1;
    a->over = remote_start(&a->run, w.v, line, &a->why) != 0;
    words_free(&w);
}

static void hear(struct asked *a)
{
    char *line;
    int status;
    bool over = remote_hear(&a->run);

    while ((line = lines_next(&a->run.out_lines))) {
        free(a->line);
        a->line = xstrdup(line);
    }
    if (!over)
        return;
    if (remote_ended(&a->run, &status) && WIFEXITED(status))
        a->code = WEXITSTATUS(status);
    a->over = true;
}

/* Until all have answered; @limit_ms 0: no limit */
static void hear_all(struct asked *a, size_t n, uint64_t limit_ms)
{
    struct pollfd *p = xcalloc(2 * n, sizeof(*p));
    uint64_t end = now_ms() + limit_ms;

    for (;;) {
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            p[2 * i] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.out, .events = POLLIN};
            p[2 * i + 1] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.err, .events = POLLIN};
            left += !a[i].over;
        }
        uint64_t now = now_ms();
        if (!left || (limit_ms && now >= end))
            break;
        poll(p, 2 * n, limit_ms ? (int)(end - now) : -1);
        for (size_t i = 0; i < n; i++)
            if (p[2 * i].revents || p[2 * i + 1].revents)
                hear(&a[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (!a[i].over)
            refuse(&a[i].why, 0, "no answer within %u s", (unsigned)(limit_ms / 1000));
        remote_end(&a[i].run, 0);
    }
    free(p);
}

static void say_silent(const struct asked *a)
{
    const char *host = text_of(a->entry, "host");

    if (*a->why.text)
        fprintf(stderr, "vmclone: %s: %s\n", host, a->why.text);
    else
        fprintf(stderr, "vmclone: %s: exit code %d: %s\n", host, a->code,
                a->run.words ? a->run.words : "no message");
}

static void asked_free(struct asked *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        remote_free(&a[i].run);
        json_decref(a[i].entry);
        free(a[i].line);
    }
    free(a);
}

/* --- list --- */

static bool has_fork(const json_t *forks, const char *id, const char *node)
{
    json_t *s;
    size_t i;

    json_array_foreach(forks, i, s)
        if (!strcmp(text_of(s, "id"), id) && !strcmp(text_of(s, "node"), node))
            return true;
    return false;
}

/* Of what a host has said what is ours; what it has not is forgotten */
static void take_answer(const char *base, const json_t *ids, const struct asked *a, json_t *all)
{
    AUTO_JSON json_t *there = json_loads(a->line ? a->line : "", 0, NULL);
    json_t *id, *entry, *s;
    size_t i, k, m;

    json_array_foreach(ids, i, id) {
        AUTO_JSON json_t *hosts = rundir_read_hosts(base, json_string_value(id));
        json_array_foreach(hosts, k, entry) {
            if (!is_same_host(entry, a->entry))
                continue;
            if (!has_fork(there, json_string_value(id), text_of(entry, "node")))
                forget(base, json_string_value(id), entry);
            json_array_foreach(there, m, s)
                if (!strcmp(text_of(s, "id"), json_string_value(id)) &&
                    !strcmp(text_of(s, "node"), text_of(entry, "node")))
                    json_array_append(all, s);
        }
    }
}

/* Each host that is written down, once */
static struct asked *all_hosts(const char *base, const json_t *ids, const char *only, size_t *n)
{
    struct asked *v = NULL;
    json_t *id, *entry;
    size_t i, k;

    *n = 0;
    json_array_foreach(ids, i, id) {
        if (only && strcmp(only, json_string_value(id)))
            continue;
        AUTO_JSON json_t *hosts = rundir_read_hosts(base, json_string_value(id));
        json_array_foreach(hosts, k, entry) {
            bool known = false;
            for (size_t m = 0; m < *n; m++)
                known |= is_same_host(v[m].entry, entry);
            if (known)
                continue;
            struct asked *more = xcalloc(*n + 1, sizeof(*v));
            if (*n)
                memcpy(more, v, *n * sizeof(*v));
            free(v);
            v = more;
            v[(*n)++] = (struct asked){.entry = json_incref(entry), .run = REMOTE_NONE};
        }
    }
    return v;
}

int clone_list(const char *named, bool json, unsigned timeout_s)
{
    AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    AUTO_JSON json_t *all = forks_here(base), *ids = rundir_forks(base);
    int code = EXIT_ALL;
    size_t n;
    struct asked *a = all_hosts(base, ids, NULL, &n);

    for (size_t i = 0; i < n; i++)
        ask(&a[i], "--list", NULL, 0);
    hear_all(a, n, timeout_s * 1000ull);
    for (size_t i = 0; i < n; i++)
        if (a[i].code == EXIT_ALL)
            take_answer(base, ids, &a[i], all);
    if (json) {
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        forks_print(all);
        if (!json_array_size(all))
            printf("no forks on this host (%s)%s\n", base, n ? ", nor of it elsewhere" : "");
    }
    fflush(stdout);
    for (size_t i = 0; i < n; i++)
        if (a[i].code != EXIT_ALL) {
            say_silent(&a[i]);
            code = EXIT_SOME;
        }
    asked_free(a, n);
    return code;
}

/* --- wait, kill --- */

static int end_all(const char *named, const char *id, bool kill, uint64_t limit_ms,
                   uint64_t answer_ms)
{
    AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    AUTO_JSON json_t *ids = rundir_forks(base);
    size_t n;
    struct asked *a = all_hosts(base, ids, id, &n);

    for (size_t i = 0; i < n; i++)
        ask(&a[i], kill ? "--kill" : "--wait", id, kill ? 0 : (unsigned)(limit_ms / 1000));
    int code = forks_end(base, id, kill, limit_ms, false);
    if (code == EXIT_NONE && !n)
        fprintf(stderr, "vmclone: no fork %s of this host (%s); see vmclone --list\n", id, base);
    else if (code == EXIT_NONE)
        code = EXIT_ALL;
    hear_all(a, n, answer_ms);
    for (size_t i = 0; i < n; i++)
        if (a[i].code == EXIT_ALL || a[i].code == EXIT_NONE) { /* none: it has ended by itself */
            forget(base, id, a[i].entry);
        } else {
            say_silent(&a[i]);
            code = EXIT_SOME;
        }
    asked_free(a, n);
    return code;
}

int clone_wait(const char *named, const char *id, unsigned timeout_s)
{
    /* beyond its own limit, time for the way there and back */
    return end_all(named, id, false, timeout_s * 1000ull,
                   timeout_s ? (timeout_s + WAY_S) * 1000ull : 0);
}

int clone_kill(const char *named, const char *id, unsigned timeout_s)
{
    return end_all(named, id, true, KILL_LIMIT_MS, timeout_s * 1000ull);
}
