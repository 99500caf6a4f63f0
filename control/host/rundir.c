/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rundir.c - BASE/ID/NODE: where one fork has its sockets, logs and state on one host
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      BASE/ID/NODE   sockets, logs, state.json of fork ID on host NODE
 *              BASE/.vmclone/ID/hosts.json   hosts whose run directory cannot be seen from here
 *              BASE/.vmclone/ID/_new         overlays that are being made (unfinished.c)
 * Invariants   1. What a state names is killed and removed. So the folders belong to this user, nobody
 *                 else can write to them, and a folder of another user is refused.
 *              2. Agents and what they start are confined, and can write to BASE as this user. What
 *                 vmclone takes a command from, or any name of a file to be removed, is in
 *                 BASE/.vmclone, which the profile packaging/farfork-agent denies them.
 *              3. No folder is emptied that a symbolic link below BASE leads to.
 * Limits       a socket's path holds 107 bytes: PATH_MAX_LEN for the folder.
 *              The lock of the run directories is tried by turns: a wait in flock() has no end.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "rundir.h"

#define NAME_MAX_LEN 40
#define LOCK_TURN_MS 10
#define PATH_MAX_LEN 80 /* of the folder: a socket's path holds 107 bytes */

static char *default_base(void)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");

    if (geteuid() == 0)
        return xstrdup("/run/farfork");
    if (xdg && *xdg)
        return xprintf("%s/farfork", xdg);
    return xprintf("/tmp/farfork-%u", (unsigned)geteuid());
}

char *rundir_base(void)
{
    const char *named = getenv("FARFORK_RUNDIR");

    return named && *named ? xstrdup(named) : default_base();
}

static char *default_lasting(void)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (geteuid() == 0)
        return xstrdup("/var/lib/farfork");
    if (xdg && *xdg)
        return xprintf("%s/farfork", xdg);
    return home && *home ? xprintf("%s/.local/state/farfork", home) : NULL;
}

char *rundir_lasting_base(const char *base)
{
    const char *named = getenv("FARFORK_STATEDIR");
    FF_AUTO_FREE char *usual = default_base();

    if (named && *named)
        return xstrdup(named);
    return base && strcmp(base, usual) ? NULL : default_lasting();
}

bool rundir_name_valid(const char *name)
{
    if (!isalnum((unsigned char)*name) || strlen(name) > NAME_MAX_LEN)
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && !strchr("._-", *name))
            return false;
    return true;
}

char *rundir_name_from(const char *text)
{
    char *name = xprintf("%s%.*s", isalnum((unsigned char)*text) ? "" : "x", NAME_MAX_LEN - 1,
                         *text ? text : "x");

    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
            *c = '-';
    return name;
}

/* Nobody else has made it, or can put anything there */
bool rundir_is_own(const char *path)
{
    struct stat st;

    return !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 022);
}

/* A folder for this user; one that is there must be this user's, or it could be anybody's trap */
static int make_own(const char *path, bool must_be_new, struct ff_error *why)
{
    if (!mkdir(path, 0700))
        return 0;
    if (errno != EEXIST || must_be_new)
        return ff_error_set(why, errno, "run directory %s: %s", path, strerror(errno));
    if (!rundir_is_own(path))
        return ff_error_set(why, EPERM,
                            "run directory %s: not a folder that only this user (uid %u) can write to: "
                            "name another one by --rundir or FARFORK_RUNDIR",
                            path, (unsigned)geteuid());
    return 0;
}

/* Nobody else can open it, and hold the lock that all processes of this user wait for */
static int check_closed(const char *base, const struct stat *st, struct ff_error *why)
{
    if (!(st->st_mode & 066))
        return 0;
    return ff_error_set(
        why, EPERM,
        "run directory %s: other users can open it (mode %03o), and so hold its lock: chmod 700 "
        "it, or name another one by --rundir",
        base, st->st_mode & 0777);
}

int rundir_make_base(const char *base, struct ff_error *why)
{
    struct stat st;
    int rc = make_own(base, false, why);

    return rc || lstat(base, &st) < 0 ? rc : check_closed(base, &st, why);
}

static int make_in(const char *base, const char *id, const char *node, char **out,
                   struct ff_error *why)
{
    FF_AUTO_FREE char *fork_dir = xprintf("%s/%s", base, id);
    char *dir = xprintf("%s/%s", fork_dir, node);
    int rc = rundir_make_base(base, why);

    if (!rc && !(rc = make_own(fork_dir, false, why)) &&
        (rc = make_own(dir, true, why)) == -EEXIST)
        ff_error_set(why, EEXIST,
                     "fork %s: %s is there: end that fork by `vmclone --kill %s`, or name "
                     "another --id",
                     id, dir, id);
    if (rc) {
        if (rc != -EEXIST)
            rmdir(fork_dir); /* unless somebody else is in it */
        free(dir);
        return rc;
    }
    *out = dir;
    return 0;
}

int rundir_make(const char *base, const char *id, const char *node, char **out,
                struct ff_error *why)
{
    if (*base != '/' || strchr(base, ',') ||
        strlen(base) + strlen(id) + strlen(node) + 2 > PATH_MAX_LEN)
        return ff_error_set(why, ENAMETOOLONG,
                            "run directory %s/%s/%s: want an absolute path without commas of "
                            "at most %d bytes: name another one by --rundir, or a "
                            "shorter --id",
                            base, id, node, PATH_MAX_LEN);
    return make_in(base, id, node, out, why);
}

static char *records_of(const char *base)
{
    return xprintf("%s/" RECORDS_FOLDER, base);
}

int rundir_make_record(const char *base, const char *id, const char *node, char **out,
                       struct ff_error *why)
{
    FF_AUTO_FREE char *records = records_of(base);
    int rc = rundir_make_base(base, why);

    return rc ? rc : make_in(records, id, node, out, why);
}

/* A home has no ~/.local/state, perhaps */
static void make_parents(const char *path)
{
    FF_AUTO_FREE char *p = xstrdup(path);

    for (char *slash = p; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(p, 0700);
        *slash = '/';
    }
}

char *rundir_make_lasting_base(const char *base)
{
    char *lasting = rundir_lasting_base(base);

    if (lasting) {
        make_parents(lasting);
        mkdir(lasting, 0700); /* who uses it says what is wrong with it */
    }
    return lasting;
}

int rundir_make_lasting(const char *base, const char *id, const char *node, char **out,
                        struct ff_error *why)
{
    FF_AUTO_FREE char *lasting = rundir_make_lasting_base(base);

    if (!lasting)
        return 0;
    int rc = rundir_make(lasting, id, node, out, why);
    return rc == -EEXIST ? rc : 0; /* else it is as if the host kept nothing */
}

enum rundir_left rundir_was_left(const char *file)
{
    struct stat st;

    if (!file || !*file)
        return LEFT_NO;
    if (!lstat(file, &st))
        return LEFT_YES;
    return errno == ENOENT ? LEFT_NO : LEFT_UNKNOWN;
}

char *rundir_mark(const char *file)
{
    char text[64] = "";
    int fd = file && *file ? open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        close(fd);
    text[strcspn(text, "\n")] = '\0';
    /* else it is none: a child that has broken out may name another file */
    return n < 0 || text[strspn(text, "0123456789abcdef")] ? NULL : xstrdup(text);
}

/* Cut the last name off @path; NULL: it has one alone */
static const char *cut_name(char *path)
{
    char *slash = strrchr(path, '/');

    if (!slash || slash == path)
        return NULL;
    *slash = '\0';
    return slash + 1;
}

static int open_no_link(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void rundir_remove(const char *dir)
{
    FF_AUTO_FREE char *base = xstrdup(dir);
    const char *node = cut_name(base), *id = node ? cut_name(base) : NULL;
    FF_AUTO_CLOSE int base_fd = id ? open_no_link(AT_FDCWD, base) : -1;
    FF_AUTO_CLOSE int fork_fd = base_fd < 0 ? -1 : open_no_link(base_fd, id);
    int fd = fork_fd < 0 ? -1 : open_no_link(fork_fd, node);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (fd >= 0 && !d)
        close(fd);
    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    if (fork_fd >= 0)
        unlinkat(fork_fd, node, AT_REMOVEDIR);
    if (base_fd >= 0)
        unlinkat(base_fd, id, AT_REMOVEDIR); /* unless somebody else is in it */
}

static int write_at_once(const char *path, const json_t *value)
{
    FF_AUTO_FREE char *fresh = xprintf("%s.new", path);

    if (json_dump_file(value, fresh, JSON_INDENT(1)) || rename(fresh, path) < 0) {
        int code = errno ? errno : EIO;
        unlink(fresh);
        return -code;
    }
    return 0;
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* What it says is killed and removed: that must not be somebody else's choice */
static bool is_trusted(const char *base)
{
    struct stat st;

    if (rundir_is_own(base))
        return true;
    if (!stat(base, &st) && S_ISDIR(st.st_mode))
        fprintf(stderr,
                "run directory %s: not a folder that only this user can write to: skipped\n", base);
    return false;
}

/* Names in @dir, in order */
static json_t *names_in(const char *dir)
{
    struct dirent **list = NULL;
    json_t *names = json_array();
    int n = scandir(dir, &list, visible, alphasort);

    for (int i = 0; i < n; i++) {
        json_array_append_new(names, json_string(list[i]->d_name)); /* none for what is not UTF-8 */
        free(list[i]);
    }
    free(list);
    return names;
}

static json_t *trusted_names_in(const char *base)
{
    return is_trusted(base) ? names_in(base) : json_array();
}

json_t *rundir_recorded(const char *base)
{
    FF_AUTO_FREE char *records = records_of(base);

    return trusted_names_in(records);
}

/* Those that are in @but, too, are left out; NULL: none. @recorded: they are vmclone's own records,
 * the only ones that name files to be removed */
static void each_in(const char *base, const char *id, const char *but, bool recorded,
                    void (*fn)(void *opaque, const char *dir, json_t *state), void *opaque)
{
    FF_AUTO_JSON json_t *forks = trusted_names_in(base);
    size_t i, k;
    json_t *fork, *node;

    json_array_foreach(forks, i, fork) {
        if (id && strcmp(id, json_string_value(fork)))
            continue;
        FF_AUTO_FREE char *fork_dir = xprintf("%s/%s", base, json_string_value(fork));
        FF_AUTO_JSON json_t *nodes = trusted_names_in(fork_dir);
        json_array_foreach(nodes, k, node) {
            FF_AUTO_FREE char *dir = xprintf("%s/%s", fork_dir, json_string_value(node));
            FF_AUTO_FREE char *other = but ? xprintf("%s/%s/%s", but, json_string_value(fork),
                                                     json_string_value(node)) : NULL;
            if (other && !access(other, F_OK))
                continue;
            if (!is_trusted(dir))
                continue;
            FF_AUTO_JSON json_t *state = rundir_read_state(dir);
            if (!recorded)
                json_object_del(state, "unfinished");
            if (state && rundir_is_of_here(state))
                fn(opaque, dir, state);
        }
    }
}

void rundir_each(const char *base, const char *id,
                 void (*fn)(void *opaque, const char *dir, json_t *state), void *opaque)
{
    FF_AUTO_FREE char *lasting = rundir_lasting_base(base), *records = records_of(base);

    each_in(base, id, NULL, false, fn, opaque);
    each_in(records, id, NULL, true, fn, opaque);
    if (lasting)
        each_in(lasting, id, base, false, fn, opaque);
}

/* --- hosts that are not to be seen from here --- */

/* By turns, not by a wait in flock(): that has no end */
int lock_within(int fd, int limit_ms)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;

    while (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno != ENOLCK &&
           errno != EBADF) { /* NFS has none */
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (ff_now_ms() >= end)
            return -EBUSY;
        poll(NULL, 0, LOCK_TURN_MS);
    }
    return 0;
}

static int lock_base(int fd, const char *base, int limit_ms, struct ff_error *why)
{
    int rc = lock_within(fd, limit_ms);

    if (rc == -EBUSY)
        return ff_error_set(
            why, EBUSY,
            "run directory %s: another vmclone or farfork of this user has had its lock for "
            "%d s, or was stopped with it (`fuser -v %s` names it): end it, then try again",
            base, limit_ms / 1000, base);
    return rc ? ff_error_set(why, -rc, "run directory %s: lock: %s", base, strerror(-rc)) : 0;
}

int rundir_lock(const char *base, int limit_ms, int *lock, struct ff_error *why)
{
    int fd = rundir_is_own(base) ? open_no_link(AT_FDCWD, base) : -1;
    struct stat st;

    *lock = -1;
    if (fd < 0)
        return 0;
    int rc = fstat(fd, &st) < 0
                 ? ff_error_set(why, errno, "run directory %s: %s", base, strerror(errno))
                 : check_closed(base, &st, why);
    if (!rc)
        rc = lock_base(fd, base, limit_ms, why);
    if (rc)
        close(fd);
    else
        *lock = fd;
    return rc;
}

void rundir_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}

int rundir_write_hosts(const char *base, const char *id, const json_t *hosts, struct ff_error *why)
{
    FF_AUTO_FREE char *records = records_of(base), *dir = xprintf("%s/%s", records, id);
    FF_AUTO_FREE char *path = xprintf("%s/" HOSTS_FILE, dir);

    if (!json_array_size(hosts)) {
        if (!rundir_is_own(records) || !rundir_is_own(dir))
            return 0;
        unlink(path);
        rmdir(dir); /* unless somebody else is in it */
        return 0;
    }
    int rc = rundir_make_base(base, why);
    if (!rc)
        rc = make_own(records, false, why);
    if (!rc)
        rc = make_own(dir, false, why);
    if (!rc && (rc = write_at_once(path, hosts))) {
        ff_error_set(
            why, -rc,
            "run directory: write %s: %s: --list, --wait and --kill find the hosts of the fork by "
            "that file; make room, or name another folder by --rundir",
            path, strerror(-rc));
        rmdir(dir); /* unless somebody else is in it */
    }
    return rc;
}

json_t *rundir_read_hosts(const char *base, const char *id)
{
    FF_AUTO_FREE char *records = records_of(base), *dir = xprintf("%s/%s", records, id);
    FF_AUTO_FREE char *path = xprintf("%s/" HOSTS_FILE, dir);
    json_error_t e;
    json_t *hosts = rundir_is_own(base) && rundir_is_own(records) && rundir_is_own(dir)
                        ? json_load_file(path, 0, &e) : NULL;

    if (json_is_array(hosts))
        return hosts;
    json_decref(hosts);
    if (!access(path, F_OK))
        fprintf(stderr, "%s: cannot be read, so the other hosts with children are unknown\n", path);
    return NULL;
}
