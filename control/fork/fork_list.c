/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_list.c - forks on all hosts that this one has sent children to: list, wait for, end
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
#include "fork.h"
#include "ps.h"
#include "launcher.h"
#include "rundir.h"

#define WAY_S 60

/* --- what is written down about the others --- */

/* Its run directory is where --list looks */
static bool seen_here(const char *base, const char *id, const struct host *h)
{
    FF_AUTO_FREE char *dir = xprintf("%s/%s/%s", base, id, h->name);
    FF_AUTO_JSON json_t *s = h->rundir && !strcmp(h->rundir, dir) ? rundir_read_state(dir) : NULL;

    return s && rundir_is_of_here(s) &&
           process_is((pid_t)json_integer_value(json_object_get(s, "agent")),
                      (uint64_t)json_integer_value(json_object_get(s, "start")));
}

static json_t *entry_of(const struct fork *f, const struct host *h)
{
    FF_AUTO_FREE char *base = xstrdup(h->rundir); /* BASE/ID/NODE */

    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(base, '/');
        if (slash)
            *slash = '\0';
    }
    return json_pack("{ss ss ss ss ss si}", "host", h->node->host, "node", h->name, "launcher",
                     f->s.o.launcher, "agent", f->s.o.agent, "rundir", base, "pid", h->agent_pid);
}

/* The same host by the same way; its node is the fork's name for it */
static bool is_same_host(const json_t *a, const json_t *b)
{
    return !strcmp(text_of(a, "host"), text_of(b, "host")) &&
           !strcmp(text_of(a, "launcher"), text_of(b, "launcher")) &&
           !strcmp(text_of(a, "agent"), text_of(b, "agent")) &&
           !strcmp(text_of(a, "rundir"), text_of(b, "rundir"));
}

int fork_record(struct fork *f, struct ff_error *why)
{
    FF_AUTO_FREE char *base = f->s.o.rundir ? xstrdup(f->s.o.rundir) : rundir_base();
    int lock, rc = rundir_lock(base, (int)f->s.o.timeout_s * 1000, &lock, why);

    if (rc)
        return rc;
    FF_AUTO_JSON json_t *hosts =
        rundir_read_hosts(base, f->s.o.id); /* an older fork of that name */
    size_t before = json_array_size(hosts);

    if (!hosts)
        hosts = json_array();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        FF_AUTO_JSON json_t *o = h->here || h->state == HOST_FAILED || seen_here(base, f->s.o.id, h)
                                  ? NULL : entry_of(f, h);
        if (o)
            json_array_append(hosts, o);
    }
    if (json_array_size(hosts) > before)
        rc = rundir_write_hosts(base, f->s.o.id, hosts, why);
    rundir_unlock(lock);
    return rc;
}

/* Forget a host of @id */
static void forget_entry(const char *base, const char *id, const json_t *entry)
{
    struct ff_error ignored;
    int lock;

    if (rundir_lock(base, LOCK_LIMIT_MS, &lock, &ignored))
        return; /* whoever asks next finds that nothing of it is there */
    FF_AUTO_JSON json_t *hosts = rundir_read_hosts(base, id);

    for (size_t i = json_array_size(hosts); i-- > 0;)
        if (json_equal(json_array_get(hosts, i), entry))
            json_array_remove(hosts, i);
    if (hosts)
        rundir_write_hosts(base, id, hosts, &ignored);
    rundir_unlock(lock);
}

void fork_forget(const struct fork *f)
{
    FF_AUTO_FREE char *base = f->s.o.rundir ? xstrdup(f->s.o.rundir) : rundir_base();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        /* who has not said so may have children yet: --list finds out */
        FF_AUTO_JSON json_t *o =
            f->s.hosts[i].ended && f->s.hosts[i].rundir ? entry_of(f, &f->s.hosts[i]) : NULL;
        if (o)
            forget_entry(base, f->s.o.id, o);
    }
}

/* --- ask them --- */

struct asked {
    json_t *entry;
    json_t *ours;    /* {id: [entry, ...]} of that host, as it was before */
    struct spawn run;
    bool over;
    int code;        /* its exit code; -1: none came */
    char *line;      /* the last one that it printed */
    struct ff_error why;  /* it could not be started */
};

static void ask_entry(struct asked *a, const char *verb, const char *id, unsigned timeout_s)
{
    const char *rundir = text_of(a->entry, "rundir");
    struct strv w = {0};

    strv_add(&w, "%s", text_of(a->entry, "agent"));
    strv_add(&w, "forks");
    strv_add(&w, "%s", verb);
    if (id) {
        strv_add(&w, "%s", id);
        strv_add(&w, "--agent");
        strv_add(&w, "%d", (int)json_integer_value(json_object_get(a->entry, "pid")));
    }
    strv_add(&w, "--json");
    if (timeout_s) {
        strv_add(&w, "--timeout");
        strv_add(&w, "%u", timeout_s);
    }
    if (*rundir) {
        strv_add(&w, "--rundir");
        strv_add(&w, "%s", rundir);
    }
    FF_AUTO_FREE char *line =
        launcher_line(text_of(a->entry, "launcher"), text_of(a->entry, "host"), w.v);
    a->code = -1;
    a->over = spawn_start(&a->run, w.v, line, &a->why) != 0;
    strv_free(&w);
}

static void read_reply(struct asked *a)
{
    char *line;
    int status;
    bool over = spawn_on_output(&a->run);

    while ((line = jsonl_next(&a->run.out_lines))) {
        free(a->line);
        a->line = xstrdup(line);
    }
    if (!over)
        return;
    if (spawn_ended(&a->run, SPAWN_ENDS_MS, &status) && WIFEXITED(status))
        a->code = WEXITSTATUS(status);
    a->over = true;
}

/* Until all have answered; @limit_ms 0: no limit */
static void read_replies(struct asked *a, size_t n, uint64_t limit_ms)
{
    struct pollfd *p = xcalloc(2 * n, sizeof(*p));
    uint64_t end = ff_now_ms() + limit_ms;

    for (;;) {
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            p[2 * i] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.out, .events = POLLIN};
            p[2 * i + 1] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.err, .events = POLLIN};
            left += !a[i].over;
        }
        uint64_t now = ff_now_ms();
        if (!left || (limit_ms && now >= end))
            break;
        poll(p, 2 * n, limit_ms ? (int)(end - now) : -1);
        for (size_t i = 0; i < n; i++)
            if (p[2 * i].revents || p[2 * i + 1].revents)
                read_reply(&a[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (!a[i].over)
            ff_error_set(&a[i].why, 0, "no answer within %u s", (unsigned)(limit_ms / 1000));
        spawn_end(&a[i].run, 0);
    }
    free(p);
}

static void print_silent(const struct asked *a)
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
        spawn_free(&a[i].run);
        json_decref(a[i].entry);
        json_decref(a[i].ours);
        free(a[i].line);
    }
    free(a);
}

/* What it said, if it is of the kind that we asked for; else it is silent */
static json_t *answer_of(struct asked *a)
{
    json_t *said = a->line ? json_loads(a->line, 0, NULL) : NULL;

    if (said || a->code < 0)
        return said;
    if (!*a->why.text && !a->run.words)
        ff_error_set(&a->why, 0, "exit code %d, and no answer", a->code);
    return NULL;
}

/* --- list --- */

static json_t *find_fork(const json_t *forks, const char *id, const json_t *entry)
{
    json_t *s;
    size_t i;

    json_array_foreach(forks, i, s)
        if (!strcmp(text_of(s, "id"), id) && !strcmp(text_of(s, "node"), text_of(entry, "node")) &&
            json_integer_value(json_object_get(s, "agent")) ==
                json_integer_value(json_object_get(entry, "pid")))
            return s;
    return NULL;
}

/* Of what a host has said what is ours; what it has not is forgotten. False: it said nothing */
static bool take_answer(const char *base, struct asked *a, json_t *all)
{
    FF_AUTO_JSON json_t *there = answer_of(a);
    const char *id;
    json_t *entries, *entry, *s;
    size_t k;

    if (!json_is_array(there))
        return false;
    json_object_foreach(a->ours, id, entries)
        json_array_foreach(entries, k, entry)
            if ((s = find_fork(there, id, entry)))
                json_array_append(all, s);
            else
                forget_entry(base, id, entry);
    return true;
}

static void add_entry(struct asked *a, const char *id, json_t *entry)
{
    if (!a->ours)
        a->ours = json_object();
    if (!json_object_get(a->ours, id))
        json_object_set_new(a->ours, id, json_array());
    json_array_append(json_object_get(a->ours, id), entry);
}

/* Each host that is written down, once; @only: of that fork, each agent */
static struct asked *all_hosts(const char *base, const char *only, size_t *n)
{
    FF_AUTO_JSON json_t *ids = rundir_forks(base);
    struct asked *v = NULL;
    json_t *id, *entry;
    size_t i, k, m;

    *n = 0;
    json_array_foreach(ids, i, id) {
        if (only && strcmp(only, json_string_value(id)))
            continue;
        FF_AUTO_JSON json_t *hosts = rundir_read_hosts(base, json_string_value(id));
        json_array_foreach(hosts, k, entry) {
            for (m = 0; m < *n && (only || !is_same_host(v[m].entry, entry)); m++)
                ;
            if (m == *n) {
                struct asked *more = xcalloc(*n + 1, sizeof(*v));
                if (*n)
                    memcpy(more, v, *n * sizeof(*v));
                free(v);
                v = more;
                v[(*n)++] = (struct asked){.entry = json_incref(entry), .run = SPAWN_NONE};
            }
            add_entry(&v[m], json_string_value(id), entry);
        }
    }
    return v;
}

int fork_list(const char *named, bool json, unsigned timeout_s)
{
    FF_AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    FF_AUTO_JSON json_t *all = ps_forks(base);
    int code = EXIT_ALL;
    size_t n;
    struct asked *a = all_hosts(base, NULL, &n);

    for (size_t i = 0; i < n; i++)
        ask_entry(&a[i], "--list", NULL, 0);
    read_replies(a, n, timeout_s * 1000ull);
    for (size_t i = 0; i < n; i++)
        if (a[i].code != EXIT_ALL || !take_answer(base, &a[i], all)) {
            print_silent(&a[i]);
            code = EXIT_SOME;
        }
    if (json) {
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        ps_print(all);
        if (!json_array_size(all))
            printf("no forks on this host (%s)%s\n", base, n ? ", nor of it elsewhere" : "");
    }
    asked_free(a, n);
    return code;
}

/* --- wait, kill --- */

static int end_all(const char *named, const char *id, bool kill, uint64_t limit_ms,
                   uint64_t answer_ms)
{
    FF_AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    size_t n;
    struct asked *a = all_hosts(base, id, &n);

    for (size_t i = 0; i < n; i++)
        ask_entry(&a[i], kill ? "--kill" : "--wait", id, kill ? 0 : (unsigned)(limit_ms / 1000));
    int code = ps_end(base, id, 0, kill, limit_ms, false);
    if (code == EXIT_NONE && !n)
        fprintf(stderr, "vmclone: no fork %s of this host (%s); see vmclone --list\n", id, base);
    else if (code == EXIT_NONE)
        code = EXIT_ALL;
    read_replies(a, n, answer_ms);
    for (size_t i = 0; i < n; i++) {
        FF_AUTO_JSON json_t *said = answer_of(&a[i]);
        if (json_is_true(json_object_get(said, "ended"))) {
            forget_entry(base, id, a[i].entry);
        } else {
            print_silent(&a[i]);
            code = EXIT_SOME;
        }
    }
    asked_free(a, n);
    return code;
}

int fork_wait(const char *named, const char *id, unsigned timeout_s)
{
    /* beyond its own limit, time for the way there and back */
    return end_all(named, id, false, timeout_s * 1000ull,
                   timeout_s ? (timeout_s + WAY_S) * 1000ull : 0);
}

int fork_kill(const char *named, const char *id, unsigned timeout_s)
{
    return end_all(named, id, true, KILL_LIMIT_MS, timeout_s * 1000ull);
}
