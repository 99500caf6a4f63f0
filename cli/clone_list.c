/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clone_list.c - forks whose children are on this host: list, wait for, end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what the state files of agents say, held against the processes that there are: a
 *              process is known by its number and the time at which it was started.
 *              An agent without who started it ends with its last child, and removes what it left.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clone.h"
#include "rundir.h"

#define POLL_MS 50
#define KILL_LIMIT_MS 10000

static int number_of(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* Of a child, or of the agent by "agent" */
static bool alive(const json_t *o, const char *pid)
{
    return process_is(number_of(o, pid),
                      (uint64_t)json_integer_value(json_object_get(o, "start")));
}

/* --- list --- */

static void print_fork(void *opaque, const char *dir, json_t *s)
{
    bool agent = alive(s, "agent");
    json_t *k;
    size_t i;

    (void)dir;
    ++*(size_t *)opaque;
    bool moved = !strcmp(text_of(s, "image"), "none");
    printf("%s  on %s  parent %s  %s%s%s\n", text_of(s, "id"), text_of(s, "node"),
           text_of(s, "parent"), moved ? "moved here" : "memory ", moved ? "" : text_of(s, "image"),
           agent ? "" : "  (the agent is gone)");
    json_array_foreach(json_object_get(s, "children"), i, k)
        printf("  %5d  pid %-8d  %-9s  %s\n", number_of(k, "number"), number_of(k, "pid"),
               alive(k, "pid") ? text_of(k, "state") : "ended", text_of(k, "qmp"));
}

static void add_fork(void *opaque, const char *dir, json_t *s)
{
    json_t *k;
    size_t i;

    json_object_set_new(s, "agent_alive", json_boolean(alive(s, "agent")));
    json_object_set_new(s, "rundir", json_string(dir));
    json_array_foreach(json_object_get(s, "children"), i, k)
        if (!alive(k, "pid"))
            json_object_set_new(k, "state", json_string("ended"));
    json_array_append(opaque, s);
}

int clone_list(const char *named, bool json)
{
    AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    size_t n = 0;

    if (json) {
        json_t *all = json_array();
        rundir_each(base, NULL, add_fork, all);
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
        return EXIT_ALL;
    }
    rundir_each(base, NULL, print_fork, &n);
    if (!n)
        printf("no forks on this host (%s)\n", base);
    return EXIT_ALL;
}

/* --- wait, kill --- */

struct search {
    size_t forks, alive;
    bool kill, clean;
};

/* By a descriptor of the process: its number could be somebody else's a moment later */
static void end_process(const json_t *k, const char *pid, int signal)
{
    int fd = (int)syscall(SYS_pidfd_open, number_of(k, pid), 0);

    if (fd < 0)
        return;
    if (alive(k, pid))
        syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
    close(fd);
}

static void look(void *opaque, const char *dir, json_t *s)
{
    struct search *f = opaque;
    bool agent = alive(s, "agent");
    json_t *k;
    size_t i, children = 0;

    f->forks++;
    json_array_foreach(json_object_get(s, "children"), i, k)
        if (alive(k, "pid")) {
            children++;
            if (f->kill)
                end_process(k, "pid", SIGKILL);
        }
    /* an attached agent goes when its vmclone lets it; --kill does not wait for that */
    if (f->kill && agent && !children && !json_is_true(json_object_get(s, "detached")))
        end_process(s, "agent", SIGTERM);
    f->alive += children + (f->kill && agent);
    if (f->clean && !agent && !children)
        rundir_remove(dir);
}

/* Look at the fork, and end it if so, until nothing of it is alive. @limit_ms: 0: no limit; past it
 * EXIT_SOME, with what is @left */
static int look_until_gone(const char *named, const char *id, bool kill, uint64_t limit_ms,
                           size_t *left)
{
    AUTO_FREE char *base = named ? xstrdup(named) : rundir_base();
    uint64_t end = now_ms() + limit_ms;

    for (bool first = true;; first = false) {
        struct search f = {.kill = kill, .clean = kill};
        rundir_each(base, id, look, &f);
        if (first && !f.forks) {
            fprintf(stderr, "vmclone: no fork %s on this host (%s); see vmclone --list\n", id,
                    base);
            return EXIT_NONE;
        }
        *left = f.alive;
        if (!f.alive)
            return EXIT_ALL;
        if (limit_ms && now_ms() > end)
            return EXIT_SOME;
        poll(NULL, 0, POLL_MS);
    }
}

int clone_wait(const char *named, const char *id, unsigned timeout_s)
{
    size_t left;
    int code = look_until_gone(named, id, false, (uint64_t)timeout_s * 1000, &left);

    if (code == EXIT_SOME)
        fprintf(stderr, "vmclone: %zu children of %s still run after %u s\n", left, id, timeout_s);
    return code;
}

int clone_kill(const char *named, const char *id)
{
    size_t left;
    int code = look_until_gone(named, id, true, KILL_LIMIT_MS, &left);

    if (code == EXIT_SOME)
        fprintf(stderr, "vmclone: %zu processes of %s could not be ended\n", left, id);
    return code;
}
