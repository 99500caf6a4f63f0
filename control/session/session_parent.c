/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_parent.c - the guest here: its QEMU, and what that was started with
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child is started as its parent was: the program and words of the process behind
 *              the QMP socket, from /proc.
 * Limits       what was plugged or changed since is not on that command line. QEMU itself says what
 *              disks and NICs are by now, and what was plugged (session_plugged.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "command_line.h"
#include "config_file.h"
#include "process_argv.h"
#include "qemu_opts.h"
#include "rundir.h"
#include "session.h"

#define COMMAND_LIMIT_MS 10000
#define SAY_FIRST_MS 1000
#define SAY_EVERY_MS 10000

static char *read_link(pid_t pid, const char *name)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/%s", (int)pid, name);
    char text[PATH_MAX];
    ssize_t n = readlink(path, text, sizeof(text) - 1);

    if (n < 0)
        return NULL;
    text[n] = '\0';
    return xstrdup(text);
}

/* What it was started from, also when that file has been replaced since */
static int find_program(struct session *s, struct ff_error *why)
{
    static const char deleted[] = " (deleted)";

    if (s->o.qemu) {
        s->parent_exe = xstrdup(s->o.qemu);
        return 0;
    }
    s->parent_exe = read_link(s->parent_pid, "exe");
    if (!s->parent_exe)
        return ff_error_set(why, EACCES, "/proc/%d/exe cannot be read: name the program by --qemu",
                      (int)s->parent_pid);
    size_t len = strlen(s->parent_exe);
    if (len > sizeof(deleted) && !strcmp(s->parent_exe + len - sizeof(deleted) + 1, deleted))
        return ff_error_set(
            why, ENOENT,
            "%.*s was replaced since the start of the parent: name the program by --qemu",
            (int)(len - sizeof(deleted) + 1), s->parent_exe);
    return 0;
}

int session_check_parent(struct session *s, struct ff_error *why)
{
    FF_AUTO_JSON json_t *status = NULL;
    FF_AUTO_JSON json_t *list = NULL;
    int rc = qmp_command(s->qmp, "query-commands", NULL, &list, why);

    if (!rc && !qmp_command(s->qmp, "query-status", NULL, &status, NULL))
        s->parent_stood = json_is_false(json_object_get(status, "running"));
    if (rc || json_find(list, "name", PATCHED_COMMAND))
        return rc;
    return ff_error_set(why, ENOTSUP, "%s: this QEMU has no x-rdma-postcopy-not-started: start it with Farfork's patched QEMU",
                        s->o.parent_path);
}

/* The real, effective, saved and filesystem user of a process */
static int read_users(pid_t pid, unsigned uid[4], struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    char line[256];
    int got = 0;

    while (f && got != 4 && fgets(line, sizeof(line), f))
        got = sscanf(line, "Uid: %u %u %u %u", &uid[0], &uid[1], &uid[2], &uid[3]);
    if (f)
        fclose(f);
    return got == 4 ? 0 : ff_error_set(why, ESRCH, "%s: no user in it", path);
}

/* Its program and all that its command line names is run again, on every host, by this user there:
 * what another user has chosen would have this one's rights */
static int check_owner(const struct session *s, struct ff_error *why)
{
    unsigned uid[4], own = geteuid(), other = qmp_uid(s->qmp);
    int rc = read_users(s->parent_pid, uid, why);

    for (int i = 0; !rc && i < 4; i++)
        if (uid[i] != own)
            other = uid[i];
    if (rc || other == own)
        return rc;
    const struct passwd *p = getpwuid(other);
    FF_AUTO_FREE char *name = p ? xstrdup(p->pw_name) : xprintf("#%u", other);
    return ff_error_set(why, EPERM,
                        "%s: its QEMU (pid %d) is of user %s (uid %u), this program runs as uid "
                        "%u, and would run what that user chose: run it as that user: sudo "
                        "-u %s %s ...",
                        s->o.parent_path, (int)s->parent_pid, name, other, own, name,
                        s->kind->program);
}

/* Its QEMU serves one client at a time */
struct turn {
    const struct session *s;
    uint64_t begin_ms, next_ms;
};

static void print_waiting(void *opaque)
{
    struct turn *t = opaque;
    uint64_t now = ff_now_ms();

    if (t->s->o.quiet || now < t->next_ms)
        return;
    fprintf(stderr,
            "%s: another client has it, a fork perhaps: waiting for %u s, at most for %u s\n",
            t->s->o.parent_path, (unsigned)((now - t->begin_ms) / 1000), t->s->o.timeout_s);
    t->next_ms = now + SAY_EVERY_MS;
}

static int reach_parent(struct session *s, struct ff_error *why)
{
    uint64_t now = ff_now_ms();
    struct turn t = {.s = s, .begin_ms = now, .next_ms = now + SAY_FIRST_MS};

    if (s->o.books) {
        s->qmp = qmp_by(domain_books_monitor, s->o.books, domain_books_pid(s->o.books));
        return 0;
    }
    return qmp_connect_in_turn(s->o.parent_path, s->signals, (int)s->o.timeout_s * 1000,
                               print_waiting, &t, &s->qmp, why);
}

void session_leave_parent(struct session *s)
{
    qmp_free(s->qmp);
    s->qmp = NULL;
    s->parent_silent = s->parent_gone = false; /* it is asked anew */
    s->parent_start = 0;
    strv_free(&s->parent_argv);
    free(s->parent_exe);
    free(s->parent_cwd);
    s->parent_exe = s->parent_cwd = NULL;
}

/* The folder in which its QEMU was started, by a name that still means it */
static bool folder_is_there(pid_t pid, const char *folder)
{
    FF_AUTO_FREE char *at = xprintf("/proc/%d/cwd", (int)pid);
    struct stat its, named;

    return folder && !stat(at, &its) && !stat(folder, &named) && its.st_dev == named.st_dev &&
           its.st_ino == named.st_ino;
}

/* One that is gone, or cannot be read, matters if an option names a file in it */
static int find_folder(struct session *s, struct ff_error *why)
{
    FF_AUTO_FREE char *own = s->o.qemu ? read_link(s->parent_pid, "exe") : NULL;

    s->parent_cwd = read_link(s->parent_pid, "cwd");
    command_line_name_disk(&s->parent_argv, own ? own : s->parent_exe);
    if (own)
        command_line_drop_loader(&s->parent_argv, own);
    config_file_expand(&s->parent_argv, s->parent_cwd, process_age_s(s->parent_pid));
    FF_AUTO_FREE char *relative = command_line_relative(s->parent_argv.v);
    s->anywhere = !relative;
    if (folder_is_there(s->parent_pid, s->parent_cwd))
        return 0;
    if (relative)
        return ff_error_set(why, ENOENT,
                            "%s names a file in the folder where the QEMU here was started (%s), which "
                            "is not there any more, or is another one by now: no second QEMU finds it: "
                            "start the guest with absolute "
                            "names", relative, s->parent_cwd ? s->parent_cwd : "unknown");
    free(s->parent_cwd);
    s->parent_cwd = xstrdup("/");
    return 0;
}

static bool is_dead_end(pid_t pid, const char *value)
{
    FF_AUTO_FREE char *type = qemu_opts_get_first(value, "type"), *fd = qemu_opts_get(value, "fd");
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fdinfo/%d", (int)pid, fd ? atoi(fd) : -1);
    FILE *f = type && fd && !strcmp(type, "tap") ? fopen(path, "re") : NULL;
    char line[256];
    bool is = false;

    while (f && !is && fgets(line, sizeof(line), f))
        is = !strcmp(line, "iff:\t" NET_DEAD_END "\n");
    if (f)
        fclose(f);
    return is;
}

/* A NIC of a child that leads nowhere: another QEMU has no use for the descriptor, and gets one of its own */
static void name_dead_ends(struct session *s)
{
    for (size_t i = 1; i < s->parent_argv.n; i++) {
        char **word = s->parent_argv.v + i;
        bool is_backend = qemu_option_is(word[-1], "netdev") || qemu_option_is(word[-1], "nic");
        if (!is_backend || !is_dead_end(s->parent_pid, *word))
            continue;
        char *hub = net_dead_end_hub(*word, (unsigned)i);
        free(*word);
        *word = hub;
    }
}

int session_find_parent(struct session *s, struct ff_error *why)
{
    int rc = reach_parent(s, why);

    if (rc)
        return rc;
    qmp_limit(s->qmp, COMMAND_LIMIT_MS);
    s->parent_pid = qmp_pid(s->qmp);
    if (s->parent_pid <= 0)
        return ff_error_set(why, ESRCH,
                            "%s: its process is in another PID namespace: run this there",
                            s->o.parent_path);
    s->parent_start = process_start_time(s->parent_pid);
    rc = s->o.books ? 0 : check_owner(s, why); /* libvirt runs it */
    if (!rc)
        rc = process_argv(s->parent_pid, &s->parent_argv, why);
    if (!rc)
        rc = find_program(s, why);
    if (rc)
        return rc;
    name_dead_ends(s);
    rc = find_folder(s, why);
    return rc ? rc : session_check_filter(s, why);
}
