/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * overlay_records.c - which overlays a child owns, and when they go
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an overlay of a child is of no use once nobody reads it. That is not when the child
 *              ends: it may have been forked itself, and its children stand on what it had; or it
 *              has moved, and goes on elsewhere on the same files.
 * Picture      f:  image <- fork-f-1-disk0 <- fork-f-1-disk0.fork-g-disk0     child 1 of f, forked
 *              g:                         <- fork-g-1-disk0                   its child
 *
 *              RUNDIR/f/NODE/1.overlays:  fork-f-1-disk0, fork-f-1-disk0.fork-g-disk0
 *              RUNDIR/g/NODE/1.overlays:  fork-g-1-disk0
 *
 * Ownership    one record for each child, a JSON string a line: all files that exist because of it
 *              alone. A line is written before its file is made: by the agent for the overlays that
 *              a child begins with; by vmclone when it forks that child, for the overlay that the
 *              child goes on in. A move hands the record's files to the agent that looks after the
 *              guest from then on. A guest that is nobody's child has no record, and its overlays
 *              are never removed.
 * Invariants   1. A file that a process has open is not removed, whoever's record it is in.
 *              2. A file is removed only by a record, and stays in it until it is gone.
 *              3. A child that has broken out of its QEMU can write what it likes into its record. So
 *                 only a regular file is removed that has a name as forks give them, of that child; in
 *                 the record of a guest that was moved here, of a child that no record here has which is
 *                 not over. A parent's overlay, IMAGE.fork-ID-diskN.qcow2, is in no child's record.
 * Failure      an agent that dies leaves its records; --kill goes by them. What is in use when its
 *              child ends stays in its record, in a run directory that is left for that; whoever
 *              looks next removes it: each agent of this host when a child has ended, vmclone when
 *              its children run, --kill.
 *              Likewise where the lock of the run directories cannot be had: nobody waits for it
 *              without a limit, least of all an agent.
 * Limits       who has a file open on another host is known by locks alone (in_use.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "folder.h"
#include "in_use.h"
#include "qemu_opts.h"
#include "qcow2_header.h"
#include "overlay_records.h"
#include "rundir.h"
#include "spawn.h"

#define SUFFIX ".overlays"

/* --- one record --- */

static char *record_of(const char *dir, unsigned number)
{
    return xprintf("%s/%u" SUFFIX, dir, number);
}

static char *lines_of(const json_t *files)
{
    char *text = xstrdup("");
    size_t i;
    json_t *f;

    json_array_foreach(files, i, f) {
        FF_AUTO_FREE char *before = text;
        FF_AUTO_FREE char *line = json_dumps(f, JSON_ENCODE_ANY);
        text = xprintf("%s%s\n", before, line);
    }
    return text;
}

static int append_record(const char *path, const json_t *files, struct ff_error *why)
{
    FF_AUTO_FREE char *text = lines_of(files);
    ssize_t len = (ssize_t)strlen(text);

    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    off_t before = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? -1 : write(fd, text, (size_t)len);
    int code = n < 0 ? errno : n < len ? ENOSPC : 0;
    if (fd >= 0 && code && ftruncate(fd, before) < 0)
        unlink(path); /* half a line would spoil the next */
    if (fd >= 0)
        close(fd);
    return code ? ff_error_set(
                      why, code,
                      "overlays: write %s: %s: without that record no command could remove them "
                      "later",
                      path, strerror(code))
                : 0;
}

int overlay_records_add(const char *dir, unsigned number, const json_t *files, struct ff_error *why)
{
    FF_AUTO_FREE char *path = record_of(dir, number);
    size_t i;
    json_t *f;

    json_array_foreach(files, i, f)
        if (!json_is_string(f))
            return ff_error_set(why, EINVAL, "overlays: want their names");
    return json_array_size(files) ? append_record(path, files, why) : 0;
}

/* false: it is there, and cannot be read, or not all of it */
static bool read_record(const char *dir, unsigned number, struct strv *files)
{
    FF_AUTO_FREE char *path = record_of(dir, number);
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    bool ok = true;

    if (!f)
        return errno == ENOENT;
    while (getline(&line, &room, f) > 0) {
        FF_AUTO_JSON json_t *s = json_loads(line, JSON_DECODE_ANY, NULL);
        ok &= json_is_string(s);
        if (json_is_string(s) && !strv_have(files, json_string_value(s)))
            strv_add(files, "%s", json_string_value(s));
    }
    ok &= !ferror(f);
    free(line);
    fclose(f);
    return ok;
}

int overlay_records_read(const char *dir, unsigned number, struct strv *files, struct ff_error *why)
{
    *files = (struct strv){0};
    if (read_record(dir, number, files))
        return 0;
    strv_free(files);
    return ff_error_set(
        why, EIO,
        "overlays: %s/%u" SUFFIX
        " cannot be read, so the files that it names are unknown: mend it, a JSON string a line",
        dir, number);
}

void overlay_records_forget(const char *dir, unsigned number)
{
    FF_AUTO_FREE char *path = record_of(dir, number);

    unlink(path);
}

/* The child whose record a file of this name is; 0: it is none */
static unsigned number_of_record(const char *name)
{
    char *end;
    unsigned long n = strtoul(name, &end, 10);

    return end != name && !strcmp(end, SUFFIX) && n <= UINT32_MAX ? (unsigned)n : 0;
}

static json_t *records_in(const char *dir)
{
    json_t *numbers = json_array();
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (number_of_record(e->d_name))
            json_array_append_new(numbers, json_integer(number_of_record(e->d_name)));
    if (d)
        closedir(d);
    return numbers;
}

bool overlay_records_left(const char *dir)
{
    FF_AUTO_JSON json_t *numbers = records_in(dir);

    return json_array_size(numbers) > 0;
}

static const json_t *find_child(const json_t *state, unsigned number)
{
    size_t i;
    json_t *k;

    json_array_foreach(json_object_get(state, "children"), i, k)
        if (json_integer_value(json_object_get(k, "number")) == number)
            return k;
    return NULL;
}

static pid_t pid_of(const json_t *o, const char *key)
{
    return (pid_t)json_integer_value(json_object_get(o, key));
}

/* A child's last monitor is at DIR/N.qmp, and the state file there must know it */
bool overlay_records_owner(char *const *argv, pid_t pid, struct overlay_owner *out)
{
    *out = (struct overlay_owner){0};
    for (; argv[0] && argv[1]; argv++) {
        const char *value = argv[1];
        if (!qemu_option_is(argv[0], "qmp") || strncmp(value, "unix:/", 6))
            continue;
        FF_AUTO_FREE char *path = xprintf("%.*s", (int)strcspn(value + 5, ","), value + 5);
        char *name = strrchr(path, '/'), *end;
        unsigned long n = strtoul(name + 1, &end, 10);
        if (end == name + 1 || strcmp(end, ".qmp") || !n || n > UINT32_MAX)
            continue;
        *name = '\0';
        overlay_records_owner_free(out);
        *out = (struct overlay_owner){.dir = xstrdup(path), .number = (unsigned)n};
    }
    FF_AUTO_JSON json_t *state =
        out->dir && rundir_is_own(out->dir) ? rundir_read_state(out->dir) : NULL;
    const json_t *k = find_child(state, out->number);
    if (k && pid_of(k, "pid") == pid && rundir_look(k, "pid") == PROCESS_ALIVE)
        return true;
    overlay_records_owner_free(out);
    return false;
}

void overlay_records_owner_free(struct overlay_owner *o)
{
    free(o->dir);
    *o = (struct overlay_owner){0};
}

/* --- files --- */

/* Whoever could read and write the image can do so here, and nobody else */
static void make_like(int fd, const char *like)
{
    struct stat st;

    if (!like || stat(like, &st) < 0)
        return;
    mode_t mode = st.st_mode & 0666;
    if (fchown(fd, st.st_uid, st.st_gid) < 0 && fchown(fd, (uid_t)-1, st.st_gid) < 0)
        mode &= ~(mode_t)060; /* another group */
    (void)!fchmod(fd, mode | 0600);
}

int overlay_records_create(const char *file, const char *like, int *out, struct ff_error *why)
{
    const char *slash = strrchr(file, '/');
    FF_AUTO_FREE char *folder = slash ? xprintf("%.*s", (int)(slash - file) + 1, file) : xstrdup(".");

    if (folder_keeps_names(folder, "folder of the overlay", "--overlays, --scratch", why))
        return -EPERM;
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return ff_error_set(
            why, EEXIST,
            "create overlay %s: the file exists; take another fork id, or remove it if no guest "
            "uses it",
            file);
    if (fd < 0)
        return ff_error_set(why, errno, "create overlay %s: %s", file, strerror(errno));
    make_like(fd, like);
    if (out)
        *out = fd;
    else
        close(fd);
    return 0;
}

int overlay_records_fill(int fd, const char *file, const json_t *words, int limit_ms,
                         struct ff_error *why)
{
    FF_AUTO_FREE char *self = xprintf("/proc/self/fd/%d", fd);
    struct strv argv = {0};
    size_t i;
    json_t *word;

    json_array_foreach(words, i, word) {
        const char *text = json_string_value(word);
        strv_add(&argv, "%s", strcmp(text, file) ? text : self);
    }
    fcntl(fd, F_SETFD, 0);
    int rc = spawn_run(argv.v, limit_ms, why);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    strv_free(&argv);
    return rc;
}

int overlay_records_make(const char *dir, unsigned number, const json_t *files,
                         struct ff_error *why)
{
    int rc = overlay_records_add(dir, number, files, why);
    size_t i, made = 0;
    json_t *f;

    json_array_foreach(files, i, f)
        if (!rc && !(rc = overlay_records_create(json_string_value(f), NULL, NULL, why)))
            made++;
    if (!rc || !json_array_size(files))
        return rc;
    while (made-- > 0) /* those after it are somebody else's */
        unlink(json_string_value(json_array_get(files, made)));
    overlay_records_forget(dir, number);
    return rc;
}

void overlay_records_unmake(const char *dir, unsigned number)
{
    struct strv files;
    struct ff_error ignored;

    if (overlay_records_read(dir, number, &files, &ignored))
        return; /* its files are found by --kill */
    for (size_t i = 0; i < files.n; i++)
        overlay_records_unlink(files.v[i]);
    strv_free(&files);
    overlay_records_forget(dir, number);
}

/* FOLDER/fork-ID-NUMBER-diskN.qcow2 (.iso) of a child, FOLDER/IMAGE.fork-ID-diskN.qcow2 of a parent:
 * disks.c, disks_child.c */
static bool is_named_by_fork(const char *file)
{
    static const char in_id[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *name = strrchr(file, '/'), *id = NULL, *disk = NULL;

    if (*file != '/')
        return false;
    if (!strncmp(name, "/fork-", 6))
        id = name + 6;
    for (const char *at = name; (at = strstr(at, ".fork-"));)
        id = at += 6;
    for (const char *at = id; at && (at = strstr(at, "-disk"));)
        disk = at += 5;
    if (!disk || id[strspn(id, in_id)] || disk - id == 5)
        return false;
    const char *suffix = disk + strspn(disk, "0123456789");
    return suffix != disk && (!strcmp(suffix, ".qcow2") || !strcmp(suffix, ".iso"));
}

int overlay_records_unlink(const char *file)
{
    struct stat st;

    if (lstat(file, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISREG(st.st_mode) || !is_named_by_fork(file))
        return -EINVAL;
    return unlink(file) < 0 && errno != ENOENT ? -errno : 0;
}

/* --- those of children that have ended --- */

struct over {
    char *dir, *id;
    unsigned number;
    bool moved; /* the guest came by a move: its overlays have the name of the fork that made them */
    size_t first, n; /* of its files in all of them */
};

struct sweep {
    struct over *v;
    size_t n;
    struct strv files;
    struct strv needed; /* in records of children that are not over */
    struct strv dirs; /* left for their overlays */
    const char *id;     /* for @kept, which may be NULL */
    struct strv *kept;
    json_t *children;  /* what a process is, by its number */
};

static void add_needed(struct sweep *s, const char *dir, unsigned number)
{
    struct strv files;
    struct ff_error ignored; /* who reads it for its own sake says so */

    overlay_records_read(dir, number, &files, &ignored);
    for (size_t i = 0; i < files.n; i++)
        strv_add(&s->needed, "%s", files.v[i]);
    strv_free(&files);
}

static void add_over(struct sweep *s, const char *dir, const char *id, unsigned number, bool moved)
{
    struct strv files;
    struct ff_error why;

    if (overlay_records_read(dir, number, &files, &why)) { /* later, then */
        if (s->kept && s->id && !strcmp(s->id, id))
            strv_add(s->kept, "%s", why.text);
        return;
    }
    struct over *more = xcalloc(s->n + 1, sizeof(*more));
    if (s->n)
        memcpy(more, s->v, s->n * sizeof(*more));
    free(s->v);
    s->v = more;
    s->v[s->n++] = (struct over){.dir = xstrdup(dir), .id = xstrdup(id), .number = number, .moved = moved,
                                 .first = s->files.n, .n = files.n};
    for (size_t i = 0; i < files.n; i++)
        strv_add(&s->files, "%s", files.v[i]);
    strv_free(&files);
}

/* A child that its agent has not started yet is in no state file; without the agent it never is */
static void find_over(void *opaque, const char *dir, json_t *state)
{
    bool over = rundir_look(state, "agent") == PROCESS_GONE; /* its agent */
    FF_AUTO_JSON json_t *records = records_in(dir);
    struct sweep *s = opaque;
    const char *id = text_of(state, "id");
    size_t i;
    json_t *k, *r;

    if (over && json_is_true(json_object_get(state, "kept")))
        strv_add(&s->dirs, "%s", dir);
    json_array_foreach(json_object_get(state, "children"), i, k) {
        FF_AUTO_FREE char *pid = xprintf("%d", (int)pid_of(k, "pid"));
        FF_AUTO_FREE char *what = xprintf("child %d of fork %s",
                                       (int)json_integer_value(json_object_get(k, "number")), id);
        json_object_set_new(s->children, pid, json_string(what));
    }
    json_array_foreach(records, i, r) {
        unsigned number = (unsigned)json_integer_value(r);
        const json_t *child = find_child(state, number);
        if (child ? rundir_look(child, "pid") == PROCESS_GONE : over)
            add_over(s, dir, id, number, !strcmp(text_of(state, "image"), "none"));
        else
            add_needed(s, dir, number);
    }
}

static char *user_name(const struct sweep *s, pid_t pid)
{
    if (pid == USER_UNSEEN)
        return xstrdup("a process that this host or user cannot see");
    FF_AUTO_FREE char *key = xprintf("%d", (int)pid);
    const char *child = text_of(s->children, key);
    return *child ? xprintf("%s (pid %d)", child, (int)pid) : xprintf("the process %d", (int)pid);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;

    return !strcmp(a, b) || (!stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino &&
                             x.st_dev == y.st_dev);
}

/* FOLDER/fork-ID-NUMBER-diskN.qcow2, or with what later forks put behind that: of the child whose run
 * directory @dir, BASE/ID/NODE, is. The state file there may say anything */
static bool is_of_child(const char *file, const char *dir, unsigned number)
{
    FF_AUTO_FREE char *id = xstrdup(dir);

    *strrchr(id, '/') = '\0';
    FF_AUTO_FREE char *start = xprintf("/fork-%s-%u-disk", strrchr(id, '/') + 1, number);
    const char *name = strrchr(file, '/');
    if (!name || strncmp(name, start, strlen(start)))
        return false;
    const char *disk = name + strlen(start), *end = disk + strspn(disk, "0123456789");
    return end != disk && *end == '.';
}

static bool may_remove(const struct sweep *s, const struct over *o, const char *file)
{
    const char *name = strrchr(file, '/');

    if (is_of_child(file, o->dir, o->number))
        return true;
    if (!o->moved || !name || strncmp(name, "/fork-", 6))
        return false;
    for (size_t i = 0; i < s->needed.n; i++)
        if (is_same_file(s->needed.v[i], file))
            return false;
    return true;
}

static void sweep_one(const struct sweep *s, const struct over *o, const pid_t *users,
                      struct strv *kept)
{
    FF_AUTO_JSON json_t *rest = json_array();
    struct ff_error why;

    for (size_t i = o->first; i < o->first + o->n; i++) {
        const char *file = s->files.v[i];
        int rc = users[i] != USER_NONE       ? 0
                 : may_remove(s, o, file) ? overlay_records_unlink(file)
                                          : -EINVAL;
        if (users[i] == USER_NONE && !rc)
            continue;
        FF_AUTO_FREE char *who = users[i] == USER_NONE ? NULL : user_name(s, users[i]);
        json_array_append_new(rest, json_string(file));
        if (kept && who)
            strv_add(kept, "%s stays: %s needs it, and it goes with that", file, who);
        else if (kept && rc == -EINVAL)
            strv_add(kept, "%s stays: it is no overlay of child %u of fork %s by its name and kind: look who wrote "
                           "it into %s/%u" SUFFIX, file, o->number, o->id, o->dir, o->number);
        else if (kept)
            strv_add(kept, "%s stays: cannot remove it: %s", file, strerror(-rc));
    }
    if (json_array_size(rest) == o->n && o->n)
        return;
    FF_AUTO_FREE char *path = record_of(o->dir, o->number), *aside = xprintf("%s.new", path);
    if (!json_array_size(rest))
        unlink(path);
    else if (append_record(aside, rest, &why) || rename(aside, path) < 0)
        unlink(aside); /* as it was: what is gone is no harm in it */
}

void overlay_records_sweep(const char *base, const char *id, struct strv *kept)
{
    struct sweep s = {.children = json_object(), .id = id, .kept = kept};
    struct ff_error why;
    int lock;

    if (rundir_lock(base, kept ? LOCK_LIMIT_MS : LOCK_SHORT_MS, &lock, &why)) {
        if (kept)
            strv_add(kept, "overlays that no guest needs stay: %s", why.text);
        json_decref(s.children);
        return;
    }
    rundir_each(base, NULL, find_over, &s);
    pid_t *users = xcalloc(s.files.n + 1, sizeof(*users));
    file_users(&s.files, users);
    for (size_t i = 0; i < s.n; i++) {
        sweep_one(&s, &s.v[i], users, id && !strcmp(id, s.v[i].id) ? kept : NULL);
        free(s.v[i].dir);
        free(s.v[i].id);
    }
    for (size_t i = 0; i < s.dirs.n; i++)
        if (!overlay_records_left(s.dirs.v[i]))
            rundir_remove(s.dirs.v[i]);
    rundir_unlock(lock);
    free(users);
    free(s.v);
    strv_free(&s.files);
    strv_free(&s.needed);
    strv_free(&s.dirs);
    json_decref(s.children);
}

struct on {
    const char *image, *but;
    char *found;
};

static void find_on(void *opaque, const char *dir, json_t *state)
{
    FF_AUTO_JSON json_t *records = records_in(dir);
    struct on *on = opaque;
    size_t i;
    json_t *r;

    json_array_foreach(records, i, r) {
        unsigned number = (unsigned)json_integer_value(r);
        struct strv files;
        struct ff_error why;
        if (overlay_records_read(dir, number, &files, &why) && !on->found)
            on->found = xstrdup(why.text);
        for (size_t k = 0; !on->found && k < files.n; k++) {
            FF_AUTO_FREE char *behind =
                strcmp(files.v[k], on->but) ? overlay_backing(files.v[k]) : NULL;
            if (behind && is_same_file(behind, on->image))
                on->found = xprintf("%s of child %u of fork %s has it behind it", files.v[k],
                                    number, text_of(state, "id"));
        }
        strv_free(&files);
    }
}

char *overlay_records_on(const char *base, const char *image, const char *but)
{
    struct on on = {.image = image, .but = but};

    rundir_each(base, NULL, find_on, &on);
    return on.found;
}

void overlay_records_leave(const char *base, const char *dir, const json_t *state)
{
    struct ff_error ignored;
    int lock;

    /* without it too: what is left then goes when somebody looks next */
    rundir_lock(base, LOCK_SHORT_MS, &lock, &ignored);
    if (overlay_records_left(dir)) {
        FF_AUTO_JSON json_t *over = json_copy((json_t *)state);
        json_object_set_new(over, "start", json_integer(0));
        json_object_set_new(over, "kept", json_true());
        rundir_write_state(dir, over);
    } else {
        rundir_remove(dir);
    }
    rundir_unlock(lock);
}
