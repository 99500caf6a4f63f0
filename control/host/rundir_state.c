/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rundir_state.c - the state file of a run directory: by it a fork's processes are found again
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a state that can be written when the folder is full: what it says of processes is
 *              known when they run, and a fork cannot be taken back then.
 * Picture      state.json        what readers open
 *              state.json.new    the next one is written into it; then the two change names
 *              Both have the reserved room, and keep it: none is ever cut, a shorter text is
 *              padded with newlines.
 * Invariants   1. A reader sees one state as a whole: it holds a shared lock on the file that it
 *                 reads, and looks whether that is the state file yet.
 *              2. The writer waits for nobody: where a reader has the file from before, it makes a
 *                 new one.
 * Limits       A filesystem without fallocate(2) reserves nothing, one that copies on write may
 *              want more room all the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "autojson.h"
#include "rundir.h"
#include "whole_file.h"

#define FRESH STATE_FILE ".new"

static int open_to_write(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int rundir_reserve_state(const char *dir, size_t bytes, struct ff_error *why)
{
    static const char *const names[] = {STATE_FILE, FRESH};
    int code = 0;

    for (int i = 0; !code && i < 2; i++) {
        FF_AUTO_FREE char *path = xprintf("%s/%s", dir, names[i]);
        int fd = open_to_write(path);
        if (fd < 0 || (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) < 0 &&
                       errno != EOPNOTSUPP))
            code = errno;
        if (fd >= 0)
            close(fd);
        if (code)
            ff_error_set(
                why, code,
                "run directory: reserve %zu bytes for %s: %s: --list and --kill find the fork by "
                "that file; make room, or name another folder by --rundir",
                bytes, path, strerror(code));
    }
    return -code;
}

const char *rundir_host(void)
{
    static struct utsname u;

    return *u.nodename || !uname(&u) ? u.nodename : "";
}

/* The first line of a file; "" where there is none */
static const char *line_of(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static const char *this_machine(void)
{
    static char id[64];

    return *id ? id : line_of("/etc/machine-id", id, sizeof(id));
}

static const char *this_boot(void)
{
    static char id[64];

    return *id ? id : line_of("/proc/sys/kernel/random/boot_id", id, sizeof(id));
}

/* The PID namespace that pids are of; "": it cannot be read */
static const char *this_pid_namespace(void)
{
    static char id[64];
    ssize_t n = *id ? 0 : readlink("/proc/self/ns/pid", id, sizeof(id) - 1);

    if (n < 0)
        *id = '\0';
    return id;
}

/* What an older agent does not say is not compared */
static bool says_other(const json_t *state, const char *key, const char *here)
{
    const char *said = text_of(state, key);

    return *said && strcmp(said, here);
}

/* One that is known to have ended stays so */
static void set_start(json_t *o, uint64_t start)
{
    if (json_integer_value(json_object_get(o, "start")))
        json_object_set_new(o, "start", json_integer((json_int_t)start));
}

bool rundir_is_of_here(json_t *state)
{
    json_t *k;
    size_t i;

    if (says_other(state, "of", rundir_host()) || says_other(state, "machine", this_machine()))
        return false;
    bool elsewhere = says_other(state, "pid-namespace", this_pid_namespace());
    bool other_boot = says_other(state, "boot", this_boot());
    if (elsewhere || other_boot) {
        uint64_t start = elsewhere ? START_ELSEWHERE : *this_boot() ? 0 : START_UNKNOWN;
        set_start(state, start);
        json_array_foreach(json_object_get(state, "children"), i, k)
            set_start(k, start);
    }
    return true;
}

enum process_state rundir_look(const json_t *o, const char *pid)
{
    return process_look((pid_t)json_integer_value(json_object_get(o, pid)),
                        (uint64_t)json_integer_value(json_object_get(o, "start")));
}

/* The file to be written into, which no reader has */
static int open_fresh(const char *path)
{
    int fd = open_to_write(path);

    if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
        return fd;
    close(fd);
    unlink(path);
    fd = open_to_write(path);
    if (fd >= 0)
        flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}

static int write_fresh(const char *path, const char *text)
{
    struct stat st;
    int fd = open_fresh(path);
    int rc = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;

    if (!rc) {
        FF_AUTO_FREE char *padded = xcalloc((size_t)st.st_size + strlen(text) + 1, 1);
        memset(padded, '\n', (size_t)st.st_size);
        memcpy(padded, text, strlen(text));
        rc = whole_file_write(fd, padded, strlen(padded));
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int rundir_write_state(const char *dir, const json_t *state)
{
    FF_AUTO_FREE char *path = xprintf("%s/" STATE_FILE, dir), *fresh = xprintf("%s/" FRESH, dir);
    FF_AUTO_JSON json_t *o = json_copy((json_t *)state);

    json_object_set_new(o, "of", json_string(rundir_host()));
    json_object_set_new(o, "machine", json_string(this_machine()));
    json_object_set_new(o, "boot", json_string(this_boot()));
    json_object_set_new(o, "pid-namespace",
                        json_string(*this_pid_namespace() ? this_pid_namespace() : "cannot be read"));
    FF_AUTO_FREE char *text = json_dumps(o, JSON_INDENT(1));
    int rc = text ? write_fresh(fresh, text) : -EINVAL;
    if (rc)
        return rc;
    /* the first one, or where names cannot be exchanged */
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_EXCHANGE) < 0 && rename(fresh, path) < 0)
        return -errno;
    return 0;
}

static int sync_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? -errno : 0;

    if (fd >= 0)
        close(fd);
    return rc;
}

int rundir_sync_state(const char *dir)
{
    FF_AUTO_FREE char *path = xprintf("%s/" STATE_FILE, dir), *fork_dir = xprintf("%s/..", dir);
    FF_AUTO_FREE char *base = xprintf("%s/../..", dir);
    int rc = sync_path(path);

    if (!rc)
        rc = sync_path(dir);
    if (!rc)
        rc = sync_path(fork_dir);
    return rc ? rc : sync_path(base);
}

static bool is_still(int fd, const char *path)
{
    struct stat a, b;

    return !fstat(fd, &a) && !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

json_t *rundir_read_state(const char *dir)
{
    FF_AUTO_FREE char *path = xprintf("%s/" STATE_FILE, dir);

    for (;;) {
        FILE *f = fopen(path, "re");
        if (!f)
            return NULL;
        bool locked = !flock(fileno(f), LOCK_SH);
        bool still = is_still(fileno(f), path);
        json_t *state = still || !locked ? json_loadf(f, 0, NULL) : NULL;
        fclose(f);
        if (still || !locked)
            return state;
    }
}
