/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ps.c - forks with children on this host: list, wait for, end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what the state files of agents say, held against the processes that there are: a
 *              process is known by its number and the time at which it was started.
 *              An agent without who started it ends with its last child, and removes what it left.
 * Invariants   A state file may be written by what it is about, which is confined, and could name any
 *              process of this user. --kill ends those alone that carry the profile of agents, or have that
 *              run directory on their command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "process_argv.h"
#include "ps.h"
#include "qmp.h"
#include "overlay_records.h"
#include "rundir.h"
#include "unfinished.h"

#define PROFILE "farfork-agent" /* packaging/farfork-agent */
#define POLL_MS 50
#define ASK_LIMIT_MS 1000 /* of a QEMU that answers, or is busy */

static int get_int(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

/* Of a child, or of the agent by "agent" */
static bool alive(const json_t *o, const char *pid)
{
    return rundir_look(o, pid) == PROCESS_ALIVE;
}

/* --- list --- */

/* A guest came to it by a move whose mover has gone: only its QEMU knows when all of it is there */
static bool has_arrived(const json_t *k)
{
    FF_AUTO_JSON json_t *info = NULL;
    struct qmp *q;
    struct ff_error why;

    if (qmp_connect(text_of(k, "qmp"), -1, ASK_LIMIT_MS, &q, &why))
        return false;
    qmp_command(q, "query-migrate", NULL, &info, &why);
    qmp_free(q);
    return !strcmp(text_of(info, "status"), "completed");
}

/* No guest ran in it, or that has shut itself down, and its source may have to be told: its agent need
 * not have seen its end */
static const char *how_ended(const json_t *k)
{
    enum rundir_left until_go = rundir_was_left(text_of(k, "until_go"));
    enum rundir_left down = rundir_was_left(text_of(k, "shut_down_file"));

    return until_go == LEFT_YES                              ? "never-ran"
           : down == LEFT_YES                                ? "shut-down"
           : until_go == LEFT_UNKNOWN || down == LEFT_UNKNOWN ? "unknown"
                                                             : "ended";
}

/* Of a child that has ended: "mark" is what its source is told then */
static void set_child_ended(json_t *k)
{
    FF_AUTO_FREE char *mark = rundir_mark(text_of(k, "until_go"));

    json_object_set_new(k, "state", json_string(how_ended(k)));
    if (mark)
        json_object_set_new(k, "mark", json_string(mark));
}

/* Its QEMU lives. One whose guest has shut itself down may wait for the rest of the memory, or
 * (-no-shutdown) for somebody to run it again */
static const char *how_it_is(const json_t *k, bool left)
{
    bool down = rundir_was_left(text_of(k, "shut_down_file")) == LEFT_YES;

    if ((left || down) && has_arrived(k))
        return left ? "complete" : "attached";
    return down ? "shut-down" : "attached";
}

static void add_fork(void *opaque, const char *dir, json_t *s)
{
    bool left =
        json_is_true(json_object_get(s, "detached")) && !strcmp(text_of(s, "image"), "none");
    json_t *k;
    size_t i;

    enum process_state agent = rundir_look(s, "agent");
    if (unfinished_is(s) && agent != PROCESS_GONE)
        return; /* it is being made */
    json_object_set_new(s, "agent_alive",
                        agent == PROCESS_UNKNOWN ? json_null() : json_boolean(agent == PROCESS_ALIVE));
    json_object_set_new(s, "rundir", json_string(dir));
    json_array_foreach(json_object_get(s, "children"), i, k)
        if (rundir_look(k, "pid") == PROCESS_GONE)
            set_child_ended(k);
        else if (rundir_look(k, "pid") == PROCESS_UNKNOWN)
            json_object_set_new(k, "state", json_string("unknown"));
        else if (!strcmp(text_of(k, "state"), "attached"))
            json_object_set_new(k, "state", json_string(how_it_is(k, left)));
    json_array_append(opaque, s);
}

json_t *ps_forks(const char *base)
{
    json_t *all = json_array();

    rundir_each(base, NULL, add_fork, all);
    return all;
}

static void print_unfinished(const json_t *s)
{
    FF_AUTO_JSON json_t *files = unfinished_files(s);
    size_t i;
    json_t *f;

    printf("%s  parent %s  (unfinished: its vmclone was killed; end it by vmclone --kill %s)\n",
           text_of(s, "id"), text_of(s, "parent"), text_of(s, "id"));
    json_array_foreach(files, i, f)
        printf("  overlay  %s\n", json_string_value(f));
}

void ps_print(const json_t *forks)
{
    FF_AUTO_JSON json_t *shown = json_printable(json_deep_copy(forks));
    json_t *s, *k;
    size_t i, n;

    json_array_foreach(shown, n, s) {
        bool moved = !strcmp(text_of(s, "image"), "none");
        if (unfinished_is(s)) {
            print_unfinished(s);
            continue;
        }
        printf("%s  on %s  parent %s  %s%s%s\n", text_of(s, "id"), text_of(s, "node"),
               text_of(s, "parent"), moved ? "moved here" : "memory ",
               moved ? "" : text_of(s, "image"),
               json_is_true(json_object_get(s, "agent_alive")) ? ""
               : json_is_null(json_object_get(s, "agent_alive"))
                   ? "  (whether it runs cannot be seen from here)"
               : json_is_true(json_object_get(s, "kept"))      ? "  (overlays in use are left)"
                                                               : "  (the agent is gone)");
        json_array_foreach(json_object_get(s, "children"), i, k)
            printf("  %5d  pid %-8d  %-9s  %s%s%s\n", get_int(k, "number"), get_int(k, "pid"),
                   text_of(k, "state"), text_of(k, "qmp"), *text_of(k, "mark") ? "  mark " : "", text_of(k, "mark"));
    }
}

/* --- wait, kill --- */

struct search {
    const char *base;
    size_t forks, alive, unknown;
    struct strv others; /* processes that a state file names, and are none of that fork's: what is said of each */
    int agent; /* this one alone; 0: any */
    bool kill;
    struct strv *kept; /* what stays, and why */
};

static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* @word has a path in @own, BASE/ID/NODE/: by that name, or by another one that is @dir's. A path begins where an
 * option's value may: with a ':' or '=' in its folder there are several such places */
static bool is_in_folder(const char *word, const char *part, const char *own, const char *dir)
{
    for (const char *at = strstr(word, part); at; at = strstr(at + 1, part))
        for (const char *from = word; from <= at; from++) {
            if (*from != '/' || (from > word && !strchr("=:,", from[-1])))
                continue;
            FF_AUTO_FREE char *path = xprintf("%.*s", (int)(at + strlen(part) - from), from);
            if (!strcmp(path, own) || is_same_folder(path, own) || is_same_folder(path, dir))
                return true;
        }
    return false;
}

/* A word of it is in the run directory, which may be gone while its state lasts in @dir; or it is an agent that was
 * told that ID and NODE */
static bool names_fork(char *const *words, const char *base, const char *dir, const char *id, const char *node)
{
    FF_AUTO_FREE char *part = xprintf("/%s/%s/", id, node), *own = xprintf("%s%s", base, part);
    bool says_id = false, says_node = false;

    for (; *words; words++) {
        if (is_in_folder(*words, part, own, dir))
            return true;
        says_id |= words[1] && !strcmp(*words, "--id") && !strcmp(words[1], id);
        says_node |= words[1] && !strcmp(*words, "--node") && !strcmp(words[1], node);
    }
    return says_id && says_node;
}

/* AppArmor's profile of agents, which they enter by themselves and nothing that they start leaves */
static bool has_profile(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/attr/apparmor/current", (int)pid);
    char text[sizeof(PROFILE)] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        close(fd);
    return n == sizeof(text) - 1 && !strcmp(text, PROFILE);
}

/* A record of vmclone's own is out of reach of what is confined */
static bool is_of_fork(struct search *f, const char *dir, const json_t *s, const json_t *k, const char *pid)
{
    const char *node = strrchr(dir, '/');
    FF_AUTO_FREE char *id = xprintf("%.*s", (int)(node - dir), dir);
    struct strv words = {0};
    struct ff_error ignored;

    if (unfinished_is(s) || has_profile(get_int(k, pid)))
        return true;
    int rc = process_argv(get_int(k, pid), &words, &ignored);
    bool ends = rc == -ESRCH || rc == -ENOENT; /* it was killed, and has no memory any more */
    bool is = ends || (!rc && names_fork(words.v, f->base, dir, strrchr(id, '/') + 1, node + 1));
    strv_free(&words);
    if (!is)
        strv_add(&f->others, "process %d is left alone: %s/" STATE_FILE " names it, and its command line does not name "
                             "that folder: look who wrote that; end the process yourself if it is of that fork, then "
                             "remove the folder", get_int(k, pid), dir);
    return is;
}

static void end_process(const json_t *k, const char *pid, int signal)
{
    process_signal(get_int(k, pid), (uint64_t)json_integer_value(json_object_get(k, "start")), signal, 0);
}

static void visit_rundir(void *opaque, const char *dir, json_t *s)
{
    struct search *f = opaque;
    enum process_state is = rundir_look(s, "agent");
    bool agent = is == PROCESS_ALIVE;
    json_t *k;
    size_t i, children = 0, others = f->others.n;

    if (f->agent && f->agent != get_int(s, "agent"))
        return; /* another host's fork of that name */
    f->forks++;
    f->unknown += is == PROCESS_UNKNOWN;
    json_array_foreach(json_object_get(s, "children"), i, k)
        if (rundir_look(k, "pid") == PROCESS_UNKNOWN) {
            f->unknown++;
        } else if (alive(k, "pid") && (!f->kill || is_of_fork(f, dir, s, k, "pid"))) {
            children++;
            if (f->kill)
                end_process(k, "pid", json_is_true(json_object_get(k, "term")) ? SIGTERM : SIGKILL);
        }
    agent = agent && !(f->kill && !is_of_fork(f, dir, s, s, "agent"));
    /* an attached agent goes when its vmclone lets it; --kill does not wait for that. It ends its children, which it
     * knows, also those that were left alone here; for these a detached one stays */
    if (f->kill && agent && !children && !json_is_true(json_object_get(s, "detached")))
        end_process(s, "agent", SIGTERM);
    else if (f->others.n > others && !children)
        agent = false;
    /* disks are served until somebody ends that; any other agent ends after its last child */
    f->alive += children + (agent && (f->kill || strcmp(text_of(s, "image"), "disks")));
}

/* What an agent that has died left behind; with overlays that are in use, so that they are found.
 * Another fork may have this name by now: it is left alone */
static void clean(void *opaque, const char *dir, json_t *s)
{
    const struct search *f = opaque;
    bool lives = rundir_look(s, "agent") != PROCESS_GONE; /* or may */
    json_t *k;
    size_t i;

    json_array_foreach(json_object_get(s, "children"), i, k)
        lives |= rundir_look(k, "pid") != PROCESS_GONE;
    if (lives || (f->agent && f->agent != get_int(s, "agent")))
        return;
    if (unfinished_is(s))
        unfinished_end(dir, s, f->kept);
    else if (!overlay_records_left(dir))
        rundir_remove(dir);
}

/* Nothing of it is alive */
static int remove_all(const char *base, const char *id, int agent)
{
    struct strv kept = {0};
    struct search f = {.agent = agent, .kept = &kept};

    overlay_records_sweep(base, id, &kept);
    rundir_each(base, id, clean, &f);
    for (size_t i = 0; i < kept.n; i++)
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, kept.v[i]);
    int code = kept.n ? EXIT_SOME : EXIT_ALL;
    strv_free(&kept);
    return code;
}

/* Who waits has gone: its end of a pipe is closed */
static bool left_alone(struct pollfd *in)
{
    char ignored[256];

    return poll(in, 1, POLL_MS) > 0 && read(in->fd, ignored, sizeof(ignored)) <= 0;
}

static void say_unknown(const char *id, size_t n)
{
    fprintf(stderr,
            "%s: whether %zu processes of %s have ended cannot be seen from here, and what is theirs is left: ask "
            "where they were started: in that container (PID namespace), with /proc, as their user. If that container has "
            "ended, remove their run directories, and the overlays that they list\n",
            program_invocation_short_name, n, id);
}

/* true: it is decided, and said */
static bool end_is_decided(const struct search *f, const char *id, uint64_t end_ms, int *code)
{
    bool late = f->alive && end_ms && ff_now_ms() > end_ms;

    *code = EXIT_SOME;
    if (f->alive && !late)
        return false;
    for (size_t i = 0; i < f->others.n; i++)
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, f->others.v[i]);
    if (late)
        fprintf(stderr, f->kill ? "%s: %zu processes of %s have not ended\n" : "%s: %zu processes of %s still run\n",
                program_invocation_short_name, f->alive, id);
    else if (f->unknown)
        say_unknown(id, f->unknown);
    else if (!f->others.n)
        *code = f->kill ? remove_all(f->base, id, f->agent) : EXIT_ALL;
    return true;
}

int ps_end(const char *base, const char *id, int agent, bool kill, uint64_t limit_ms,
              bool lonely)
{
    uint64_t end_ms = limit_ms ? ff_now_ms() + limit_ms : 0;
    struct pollfd in = {.fd = lonely ? STDIN_FILENO : -1, .events = POLLIN};
    int code;

    for (bool first = true;; first = false) {
        struct search f = {.base = base, .agent = agent, .kill = kill};
        rundir_each(base, id, visit_rundir, &f);
        if (first && !f.forks)
            return EXIT_NONE;
        bool decided = end_is_decided(&f, id, end_ms, &code);
        strv_free(&f.others);
        if (decided)
            return code;
        if (left_alone(&in))
            return EXIT_SOME;
    }
}
