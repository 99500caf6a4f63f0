/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_list.c - forks on all hosts that this one has sent children to: list, wait for, end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a fork's run directories are on its hosts. Which hosts those are, and how to get to
 *              them, is in BASE/.vmclone/ID/hosts.json on the host that made it, for those whose run
 *              directory cannot be seen here. They are asked by 'farfork forks', all at once.
 * Limits       an answer may take --timeout seconds. A host that has answered that there is
 *              nothing of the fork is forgotten.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "autojson.h"
#include "fork.h"
#include "ps.h"
#include "rundir.h"

#define WAY_S 60

/* --- what is written down about the others --- */

/* Its run directory is where --list looks */
static bool seen_here(const char *base, const char *id, const struct host *h)
{
    FF_AUTO_FREE char *dir = xprintf("%s/%s/%s", base, id, h->name);
    FF_AUTO_JSON json_t *s = h->rundir && !strcmp(h->rundir, dir) ? rundir_read_state(dir) : NULL;

    return s && rundir_is_of_here(s) && rundir_look(s, "agent") == PROCESS_ALIVE;
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

static void ask_entry(struct asked *a, const char *verb, const char *id, unsigned timeout_s)
{
    struct strv w = {0};

    strv_add(&w, "forks");
    strv_add(&w, "%s", verb);
    if (id) {
        strv_add(&w, "%s", id);
        strv_add(&w, "--agent");
        strv_add(&w, "%d", (int)json_integer_value(json_object_get(a->entry, "pid")));
    }
    if (timeout_s) {
        strv_add(&w, "--timeout");
        strv_add(&w, "%u", timeout_s);
    }
    asked_start(a, w.v);
    strv_free(&w);
}

static void print_silent(const struct asked *a)
{
    FF_AUTO_FREE char *why = asked_why(a);

    fprintf(stderr, "vmclone: %s: %s\n", text_of(a->entry, "host"), why);
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
    FF_AUTO_JSON json_t *there = asked_answer(a);
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
    FF_AUTO_JSON json_t *ids = rundir_recorded(base);
    struct asked *v = NULL;

    asked_prepare();
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
                v[(*n)++] = asked_new(json_incref(entry));
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
    asked_read(a, n, timeout_s * 1000ull);
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
    asked_read(a, n, answer_ms);
    for (size_t i = 0; i < n; i++) {
        FF_AUTO_JSON json_t *said = asked_answer(&a[i]);
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
