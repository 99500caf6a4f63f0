/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * scope.c - systemd scopes for agents and children, in farfork.slice
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what an agent starts outlasts who started the agent: a login, a service, a job. So it
 *              belongs to none of their control groups, which end with them or limit it. A scope is a
 *              unit for processes that somebody else starts: they keep their environment, limits,
 *              namespaces and user, which a service would not.
 * Picture      farfork.slice
 *                farfork-ID:NODE.scope      the agent, and its children
 *                farfork-ID:NODE:N.scope    child N, where each has its own (--scope each)
 * Limits       an ordinary user's manager ends with his last login, and all that it has with it,
 *              unless he lingers: without that nothing is put there.
 *              Memory that was touched before stays counted where it was.
 * Sources      org.freedesktop.systemd1(5), systemd.scope(5), loginctl(1)
 */
#include "process_argv.h"
#include "scope.h"

#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spawn.h"

#define SLICE "farfork.slice"
#define LOOK_MS 5
#define LOOK_LIMIT_MS 2000

bool scope_mode_parse(const char *text, enum scope_mode *out)
{
    static const char *const names[] = {[SCOPE_ONE] = "one",
                                        [SCOPE_EACH] = "each", [SCOPE_NONE] = "none"};

    for (size_t i = SCOPE_ONE; i < FF_ARRAY_LEN(names); i++)
        if (!strcmp(text, names[i])) {
            *out = (enum scope_mode)i;
            return true;
        }
    return false;
}

/* A container may have its host's /run: that systemd would take our pids for those of its own */
static bool is_ours(void)
{
    char name[32];
    FILE *f = fopen("/proc/1/comm", "re");
    bool other = f && fgets(name, sizeof(name), f) && strcmp(name, "systemd\n");

    if (f)
        fclose(f);
    return !other; /* hidepid= of /proc: who knows */
}

int scope_possible(struct ff_error *why)
{
    const uid_t uid = geteuid();

    if (access("/run/systemd/system", F_OK) || !is_ours())
        return ff_error_set(why, ENOENT, "systemd does not run here");
    if (!uid)
        return 0;
    const struct passwd *user = getpwuid(uid);
    FF_AUTO_FREE char *lingers = xprintf("/var/lib/systemd/linger/%s", user ? user->pw_name : "");
    FF_AUTO_FREE char *bus = xprintf("/run/user/%u/bus", uid);
    if (user && !access(lingers, F_OK) && !access(bus, F_OK))
        return 0;
    return ff_error_set(why, EPERM,
                        "this user has no systemd that outlasts a login: loginctl enable-linger, and "
                        "package dbus-user-session");
}

static bool is_in(pid_t pid, const char *unit)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/cgroup", (int)pid), *line = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0;
    bool found = false;

    while (f && !found && getline(&line, &room, f) >= 0)
        found = strstr(line, unit);
    if (f)
        fclose(f);
    return found;
}

bool scope_is_job(void)
{
    FF_AUTO_FREE char *job = process_job(getpid());

    return *job || is_in(getpid(), "/slurm"); /* by ssh, into a job: no variable says so */
}

bool scope_stays(enum scope_mode mode)
{
    return mode == SCOPE_NONE || (mode == SCOPE_AUTO && scope_is_job());
}

/* systemd answers before it has moved the process */
static bool wait_in(pid_t pid, const char *unit)
{
    for (int waited = 0; !is_in(pid, unit); waited += LOOK_MS) {
        if (waited >= LOOK_LIMIT_MS)
            return false;
        poll(NULL, 0, LOOK_MS);
    }
    return true;
}

#define SYSTEMD "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"

/* Words of busctl(1), NULL at the end, to the service manager that keeps what this user starts */
static int ask_systemd(const char *const *words, struct ff_error *why)
{
    struct strv w = {0};
    int rc = scope_possible(why);

    if (rc)
        return rc;
    strv_add(&w, "busctl");
    strv_add(&w, "--quiet");
    strv_add(&w, "--timeout=4");
    if (geteuid())
        strv_add(&w, "--address=unix:path=/run/user/%u/bus", geteuid());
    for (; *words; words++)
        strv_add(&w, "%s", *words);
    rc = spawn_run(w.v, SCOPE_LIMIT_MS, why);
    strv_free(&w);
    return rc;
}

int scope_try(struct ff_error *why)
{
    static const char *const words[] = {"get-property", SYSTEMD, "Version", NULL};

    return ask_systemd(words, why);
}

int scope_take(const char *id, const char *node, unsigned child, pid_t pid, struct ff_error *why)
{
    FF_AUTO_FREE char *number = child ? xprintf(":%u", child) : xstrdup("");
    FF_AUTO_FREE char *unit = xprintf("farfork-%s:%s%s.scope", id, node, number);
    FF_AUTO_FREE char *what = child ? xprintf("Farfork: child %u of %s", child, id)
                                    : xprintf("Farfork: agent of %s", id);
    FF_AUTO_FREE char *process = xprintf("%d", (int)pid);
    const char *const words[] = {
        "call", SYSTEMD, "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", "4",
        "Description", "s", what, "Slice", "s", SLICE, "CollectMode", "s", "inactive-or-failed",
        "PIDs", "au", "1", process, "0" /* no units beside it */, NULL};
    int rc = ask_systemd(words, why);

    if (!rc && !wait_in(pid, unit))
        rc = ff_error_set(why, EIO, "systemd did not do it within %d s", LOOK_LIMIT_MS / 1000);
    return rc == -EIO ? ff_error_context(why, "scope %s", unit) : rc;
}
