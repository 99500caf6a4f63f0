/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * same_file.c - do two hosts mean the same file by a name?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      detect that an image name means another file on the destination, such as a stale
 *              copy: QEMU would use it without an error.
 * Picture      here                                       there
 *              one kernel:  device and inode       ->     equal
 *              lock:        a read lock, of a      ->     F_OFD_GETLK sees a lock of that range:
 *                           range by chance                NFS, CephFS, OCFS2, GFS2 carry them
 *              mark:        a file by a name of    ->     it is in the folder of the file there,
 *                           chance beside it               which has the same last name
 *              device:      its WWID or UUID       ->     equal
 *              A move makes a mark only if the lock was not seen; a fork makes both.
 * Invariants   1. What is not shown is not the same: no answer, no lock, no permission.
 *              2. A range and a name have 64 random bits or more: nobody else's fits.
 * Limits       The change time is not compared: a guest that writes changes it between two looks.
 *              A device without WWID and UUID of device-mapper is not recognized, nor is a file in a folder
 *              that is not writable here, on a file system that keeps locks to each host.
 *              Killed at the wrong moment this program leaves an empty file .farfork-same-*.
 * Sources      fcntl(2); nfs(5); Documentation/ABI/stable/sysfs-block
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "autojson.h"
#include "cleanup.h"
#include "same_file.h"
#include "strv.h"

#define LOCK_FROM (1ull << 40) /* beyond QEMU's own locks, and what a file has */
#define LOCK_BITS 60
#define LEN_BITS 20
#define ID_BYTES 256

struct same_file {
    char *path, *real; /* real: without links; NULL: it cannot be found */
    struct stat st;
    int fd;            /* that has the lock; -1 */
    uint64_t lock_start, lock_len;
    char *mark;        /* its name; NULL: there is none */
    bool same;
    char *why;         /* not */
};

struct same_files {
    struct same_file *v;
    size_t n;
};

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The first line of a file; false: there is none, or it is empty */
static bool read_id(const char *path, char text[static ID_BYTES])
{
    FILE *f = fopen(path, "re");

    text[0] = '\0';
    if (f && !fgets(text, ID_BYTES, f))
        text[0] = '\0';
    if (f)
        fclose(f);
    text[strcspn(text, "\n")] = '\0';
    return text[0];
}

static json_t *boot_id(void)
{
    char text[ID_BYTES];

    return json_string(read_id("/proc/sys/kernel/random/boot_id", text) ? text : "");
}

/* "": it has none that is the same on each host and nowhere else. Names that somebody chose, as of an encrypted
 * one, say nothing; nor does a vendor's (t10.): each virtual machine has "QEMU HARDDISK QM00001" */
static char *device_id(const struct stat *st)
{
    static const char *const files[] = {"dm/uuid", "wwid", "device/wwid"};
    static const char *const unique[] = {"LVM-", "mpath-", "naa.", "eui.", "uuid."};
    char text[ID_BYTES];

    for (size_t i = 0; i < FF_ARRAY_LEN(files) && S_ISBLK(st->st_mode); i++) {
        FF_AUTO_FREE char *path =
            xprintf("/sys/dev/block/%u:%u/%s", major(st->st_rdev), minor(st->st_rdev), files[i]);
        bool is = read_id(path, text);
        for (size_t k = 0; is && k < FF_ARRAY_LEN(unique); k++)
            if (!strncmp(text, unique[k], strlen(unique[k])))
                return xstrdup(text);
    }
    return xstrdup("");
}

static uint64_t random_bits(unsigned bits)
{
    uint64_t r;

    if (getrandom(&r, sizeof(r), 0) != sizeof(r))
        abort();
    return r & ((1ull << bits) - 1);
}

/* --- the host that has them --- */

static void set_lock(struct same_file *f)
{
    f->lock_start = LOCK_FROM + random_bits(LOCK_BITS);
    f->lock_len = 1 + random_bits(LEN_BITS);
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)f->lock_start,
                      .l_len = (off_t)f->lock_len};

    f->fd = S_ISREG(f->st.st_mode) ? open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (f->fd >= 0 && fcntl(f->fd, F_OFD_SETLK, &l) < 0)
        ff_close_fd(&f->fd);
}

struct same_files *same_files_new(const json_t *names)
{
    struct same_files *s = xcalloc(1, sizeof(*s));
    size_t i;
    json_t *name;

    s->v = xcalloc(json_array_size(names) + 1, sizeof(*s->v));
    json_array_foreach(names, i, name) {
        struct same_file *f = &s->v[s->n++];
        f->path = xstrdup(json_string_value(name));
        f->fd = -1;
        f->real = realpath(f->path, NULL);
        f->why = f->real && !stat(f->real, &f->st) ? NULL : xstrdup(strerror(errno));
        if (!f->why)
            set_lock(f);
    }
    return s;
}

json_t *same_files_ask(const struct same_files *s)
{
    json_t *list = json_array();

    for (const struct same_file *f = s->v; f < s->v + s->n; f++) {
        if (f->same)
            continue;
        FF_AUTO_FREE char *device = device_id(&f->st);
        json_t *o = json_pack("{ss so sI sI sI sI ss ss*}", "path", f->path, "boot", boot_id(), "mode",
                              (json_int_t)f->st.st_mode, "dev", (json_int_t)f->st.st_dev, "ino",
                              (json_int_t)f->st.st_ino, "rdev", (json_int_t)f->st.st_rdev, "device", device,
                              "mark", f->mark);
        if (f->fd >= 0)
            json_object_set_new(o, "lock", json_pack("[I I]", (json_int_t)f->lock_start, (json_int_t)f->lock_len));
        json_object_set_new(o, "name", json_string(last_name(f->real ? f->real : f->path)));
        json_array_append_new(list, o);
    }
    return list;
}

/* Why it is not: what this host could not do comes first */
static char *why_unknown(const struct same_file *f, const json_t *o)
{
    const char *there = text_of(o, "why");

    return f->why ? xstrdup(f->why) : xstrdup(*there ? there : "it does not say");
}

bool same_files_heard(struct same_files *s, const json_t *answer)
{
    bool all = true;

    for (struct same_file *f = s->v; f < s->v + s->n; f++) {
        const json_t *o = json_find(answer, "path", f->path);
        f->same |= json_is_true(json_object_get(o, "same"));
        if (!f->same) {
            char *why = why_unknown(f, o);
            free(f->why);
            f->why = why;
        }
        all &= f->same;
    }
    return all;
}

bool same_files_mark(struct same_files *s)
{
    bool any = false;

    for (struct same_file *f = s->v; f < s->v + s->n; f++) {
        if (f->same || !f->real || !S_ISREG(f->st.st_mode))
            continue;
        f->mark = xprintf(".farfork-same-%016llx%016llx", (unsigned long long)random_bits(63),
                          (unsigned long long)random_bits(63));
        FF_AUTO_FREE char *path = xprintf("%.*s%s", (int)(last_name(f->real) - f->real), f->real, f->mark);
        int fd = open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0) {
            free(f->mark);
            f->mark = NULL;
            continue;
        }
        close(fd);
        free(f->why);
        f->why = NULL;
        any = true;
    }
    return any;
}

static int not_shown(const char *path, const char *host, const char *reason, struct ff_error *why)
{
    return ff_error_set(why, ESTALE, "image %s: nothing shows that it is the same file on %s (%s): a copy there would be "
                        "taken for it; put it on storage that both hosts share, or say --same-disks if you know that it "
                        "is", path, host, reason);
}

int same_files_refuse(const struct same_files *s, const char *host, struct ff_error *why)
{
    for (const struct same_file *f = s->v; f < s->v + s->n; f++)
        if (!f->same)
            return not_shown(f->path, host, f->why ? f->why : "no answer", why);
    return 0;
}

void same_files_free(struct same_files *s)
{
    if (!s)
        return;
    for (struct same_file *f = s->v; f < s->v + s->n; f++) {
        FF_AUTO_FREE char *mark = f->mark ? xprintf("%.*s%s", (int)(last_name(f->real) - f->real), f->real, f->mark)
                                          : NULL;
        if (mark)
            unlink(mark);
        ff_close_fd(&f->fd);
        free(f->path);
        free(f->real);
        free(f->mark);
        free(f->why);
    }
    free(s->v);
    free(s);
}

struct same_files *same_files_marked(const json_t *names)
{
    struct same_files *s = same_files_new(names);

    same_files_mark(s);
    return s;
}

/* --- the other host --- */

static bool is_same_here(const json_t *o, const struct stat *st)
{
    FF_AUTO_JSON json_t *boot = boot_id();
    bool device = S_ISBLK(st->st_mode) || S_ISCHR(st->st_mode);

    if (!*json_string_value(boot) || !json_equal(json_object_get(o, "boot"), boot) ||
        (json_integer_value(json_object_get(o, "mode")) & S_IFMT) != (st->st_mode & S_IFMT))
        return false;
    if (device)
        return json_integer_value(json_object_get(o, "rdev")) == (json_int_t)st->st_rdev;
    return json_integer_value(json_object_get(o, "dev")) == (json_int_t)st->st_dev &&
           json_integer_value(json_object_get(o, "ino")) == (json_int_t)st->st_ino;
}

static bool is_same_device(const json_t *o, const struct stat *st)
{
    FF_AUTO_FREE char *own = device_id(st);

    return *own && !strcmp(own, text_of(o, "device"));
}

static bool sees_lock(const json_t *o, const char *real)
{
    const json_t *lock = json_object_get(o, "lock");
    off_t start = (off_t)json_integer_value(json_array_get(lock, 0)),
          len = (off_t)json_integer_value(json_array_get(lock, 1));
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int fd = lock && start > 0 && len > 0 ? open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) : -1;
    bool seen = fd >= 0 && !fcntl(fd, F_OFD_GETLK, &l) && l.l_type == F_RDLCK && l.l_start == start && l.l_len == len;

    ff_close_fd(&fd);
    return seen;
}

/* 0: it is not known */
static uint64_t mount_of(const char *path)
{
    struct statx sx;

    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MNT_ID, &sx) < 0 || !S_ISREG(sx.stx_mode) ||
                   !(sx.stx_mask & STATX_MNT_ID)
               ? 0 : sx.stx_mnt_id;
}

/* In one folder: another file may be mounted over the one beside it */
static bool sees_mark(const json_t *o, const char *real)
{
    const char *mark = text_of(o, "mark"), *name = last_name(real);
    FF_AUTO_FREE char *path = xprintf("%.*s%s", (int)(name - real), real, mark);
    uint64_t mount = *mark && !strchr(mark, '/') && !strcmp(name, text_of(o, "name")) ? mount_of(path) : 0;

    return mount && mount_of(real) == mount;
}

static json_t *recognize(const json_t *o)
{
    const char *path = text_of(o, "path"), *why = "";
    FF_AUTO_FREE char *real = *path == '/' ? realpath(path, NULL) : NULL;
    struct stat st;
    bool same = false;

    if (!real || stat(real, &st) < 0)
        why = *path == '/' ? strerror(errno) : "no absolute name";
    else if (is_same_here(o, &st) || is_same_device(o, &st) ||
             (S_ISREG(st.st_mode) && (sees_lock(o, real) || sees_mark(o, real))))
        same = true;
    else
        why = S_ISREG(st.st_mode) ? "neither a lock nor a file that was put beside it is seen there"
                                  : "no WWID or UUID that is equal on both hosts";
    return json_pack("{ss sb ss}", "path", path, "same", (int)same, "why", why);
}

json_t *same_files_look(const json_t *ask)
{
    json_t *list = json_array(), *o;
    size_t i;

    json_array_foreach(ask, i, o)
        json_array_append_new(list, recognize(o));
    return list;
}

int same_files_check(const json_t *ask, struct ff_error *why)
{
    FF_AUTO_JSON json_t *found = same_files_look(ask);
    size_t i;
    json_t *o;

    json_array_foreach(found, i, o)
        if (!json_is_true(json_object_get(o, "same")))
            return not_shown(text_of(o, "path"), "this host", text_of(o, "why"), why);
    return 0;
}
