/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * starter.c - find a unit or parent process that acts when QEMU exits
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      When the source QEMU exits after a move, something may start a second guest on the same
 *              disks, or delete them. Two can: the systemd unit whose main process it is, and the
 *              process that started it.
 * Picture      /proc/PID/cgroup     the innermost unit. A .service is asked for its main process,
 *                                   Restart= and what it runs at the end
 *              the parent process   a script that waits, a supervisor, a container's runtime
 *              Not counted are: our own ancestors, which wait for this move too; a shell at its
 *              prompt; systemd, which acts on units alone; our agents, which start nothing again.
 * Failure      if it cannot tell, it reports a starter.
 * Limits       the parent's parent is not looked at: it acts when the parent ends. A process whose
 *              parent has ended, or that watches QEMU from elsewhere, is not found.
 * Sources      proc_pid_stat(5), systemd.service(5), cgroups(7)
 */
#include "starter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process_argv.h"
#include "spawn.h"

#define ASK_LIMIT_MS 5000

struct relation {
    pid_t parent, group, session, front; /* front: the group in front of its terminal; -1: it has none */
    char name[32];
};

/* False: it has ended, or cannot be seen */
static bool relation_of(pid_t pid, struct relation *r)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/stat", (int)pid), *text = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0;
    bool read = f && getdelim(&text, &room, '\0', f) > 0;

    if (f)
        fclose(f);
    /* the name may have any bytes */
    char *name = read ? strchr(text, '(') : NULL, *end = name ? strrchr(name, ')') : NULL;
    if (!end || sscanf(end, ") %*c %d %d %d %*d %d", &r->parent, &r->group, &r->session, &r->front) != 4)
        return false;
    snprintf(r->name, sizeof(r->name), "%.*s", (int)(end - name - 1), name + 1);
    return true;
}

static bool is_above_us(pid_t pid)
{
    struct relation r = {.parent = getpid()};

    do
        if (r.parent == pid)
            return true;
    while (r.parent > 1 && relation_of(r.parent, &r));
    return false;
}

static const char *name_behind_slash(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_shell(const char *word)
{
    const char *name = name_behind_slash(word + (*word == '-'));
    bool found = false;

    setusershell();
    for (const char *s; !found && (s = getusershell());)
        found = !strcmp(name_behind_slash(s), name);
    endusershell();
    return found;
}

/* It reads commands from its terminal, and QEMU is one of its jobs behind: it waits for nobody */
static bool is_at_prompt(const struct relation *parent, const struct relation *own, const struct strv *words)
{
    bool interactive = words->n && is_shell(words->v[0]);

    for (size_t i = 1; i < words->n; i++)
        interactive &= *words->v[i] == '-' && (words->v[i][1] == '-' || !strchr(words->v[i], 'c'));
    return interactive && parent->front > 0 && parent->front == parent->group && own->group != parent->group;
}

static bool is_agent(const struct strv *words)
{
    return words->n > 1 && !strcmp(words->v[1], "agent") && !strncmp(name_behind_slash(words->v[0]), "farfork", 7);
}

static void find_process(pid_t pid, struct starter *out)
{
    struct relation own, parent;
    struct strv words = {0};
    struct ff_error ignored;

    if (!relation_of(pid, &own)) {
        out->who = xstrdup("its parent process, which cannot be found out");
    } else if (!own.parent) {
        out->who = pid == 1 ? xstrdup("the container whose first process it is")
                            : xstrdup("a process outside of this container, which has started it");
    } else if (is_above_us(own.parent)) {
        return;
    } else if (own.parent == 1 && (!relation_of(1, &parent) || own.session != parent.session)) {
        return; /* an orphan: nobody started it who could do so again */
    } else if (!relation_of(own.parent, &parent)) {
        out->who = xprintf("its parent process (pid %d), which cannot be seen", (int)own.parent);
    } else if (strcmp(parent.name, "systemd")) {
        process_argv(own.parent, &words, &ignored);
        if (!is_agent(&words) && !is_at_prompt(&parent, &own, &words))
            out->who = xprintf("its parent process (pid %d: %s%s%s)", (int)own.parent, parent.name,
                               words.n > 1 && *words.v[1] != '-' ? " " : "",
                               words.n > 1 && *words.v[1] != '-' ? words.v[1] : "");
        strv_free(&words);
    }
}

/* --- systemd --- */

#define SYSTEM_MANAGER (-1)

/* The innermost unit of that path, if it is a service: *@user has it in a user's manager. NULL: it is in none */
static char *service_in(const char *path, int *user)
{
    char *unit = NULL, over;
    int number;

    for (size_t n; *path == '/'; path += n) {
        n = strcspn(++path, "/\n");
        bool service = n > 8 && !strncmp(path + n - 8, ".service", 8);
        if (!service && !(n > 6 && !strncmp(path + n - 6, ".scope", 6)))
            continue;
        free(unit);
        unit = service ? xprintf("%.*s", (int)n, path) : NULL;
        if (unit && sscanf(unit, "user@%d.servic%c", &number, &over) == 2) {
            *user = number;
            free(unit);
            unit = NULL;
        }
    }
    return unit;
}

static char *service_of(const char *groups, int *user)
{
    char *unit = NULL;

    for (const char *line = groups; line && *line && !unit; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *path = strchr(line, ':'), *end = strchr(line, '\n');
        path = path ? strchr(path + 1, ':') : NULL;
        if (path && (!end || path < end) &&
            (!strncmp(line, "0::", 3) || (path - line > 12 && !strncmp(path - 12, "name=systemd", 12))))
            unit = service_in(path + 1, user);
    }
    return unit;
}

struct shown {
    pid_t main;
    bool answered;
    char *restart, *at_end;
};

static void note_property(void *opaque, const char *line)
{
    struct shown *s = opaque;

    if (!strncmp(line, "MainPID=", 8)) {
        s->main = (pid_t)atoi(line + 8);
    } else if (!strncmp(line, "Restart=", 8) && line[8]) {
        s->answered = true;
        free(s->restart);
        s->restart = xstrdup(line + 8);
    } else if (!strncmp(line, "ExecStop", 8) && strchr(line, '{')) {
        free(s->at_end);
        s->at_end = xprintf("%.*s", (int)strcspn(line, "="), line);
    }
}

static void ask_unit(const char *unit, int user, struct shown *out)
{
    struct strv w = {0};
    struct spawn run = SPAWN_NONE;
    struct ff_error ignored;

    if (user != SYSTEM_MANAGER) {
        strv_add(&w, "env");
        strv_add(&w, "XDG_RUNTIME_DIR=/run/user/%d", user);
    }
    strv_add(&w, "systemctl");
    if (user != SYSTEM_MANAGER)
        strv_add(&w, "--user");
    strv_add(&w, "show");
    strv_add(&w, "--property=MainPID,Restart,ExecStop,ExecStopPost");
    strv_add(&w, "--");
    strv_add(&w, "%s", unit);
    if (!spawn_start(&run, w.v, NULL, &ignored)) {
        spawn_close_input(&run);
        out->answered = spawn_read_lines(&run, ASK_LIMIT_MS, note_property, out) && out->answered;
        spawn_end(&run, 0);
        spawn_free(&run);
    }
    strv_free(&w);
}

void starter_find_unit(const char *groups, pid_t pid, struct starter *out)
{
    int user = SYSTEM_MANAGER;
    FF_AUTO_FREE char *unit = service_of(groups, &user);
    struct shown s = {0};

    if (!unit)
        return;
    ask_unit(unit, user, &s);
    if (!s.answered) {
        out->who = xprintf("%s of systemd, which does not answer", unit);
    } else if (s.main && s.main != pid) {
        ; /* the unit goes on without it: its parent decides */
    } else if (strcmp(s.restart, "no")) {
        out->unit = xstrdup(unit);
        out->restart = xstrdup(s.restart);
        out->user = user != SYSTEM_MANAGER;
    } else if (s.at_end) {
        out->who = xprintf("%s of systemd, by its %s=", unit, s.at_end);
    }
    free(s.restart);
    free(s.at_end);
}

void starter_find(pid_t pid, struct starter *out)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/cgroup", (int)pid), *groups = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0;

    *out = (struct starter){0};
    if (f && getdelim(&groups, &room, '\0', f) > 0)
        starter_find_unit(groups, pid, out);
    else
        out->who = xprintf("whoever has its control group: %s cannot be read", path);
    if (f)
        fclose(f);
    if (!out->unit && !out->who)
        find_process(pid, out);
}

void starter_free(struct starter *s)
{
    free(s->unit);
    free(s->restart);
    free(s->who);
    *s = (struct starter){0};
}
