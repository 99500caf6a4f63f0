/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_held.c - do the names of a guest's images still stand for the files that its QEMU has open?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      detect that an image was renamed or its link changed while QEMU had it open. A new
 *              QEMU, and QEMU itself on reopen, open by name and would use the other file. Compare
 *              device and inode of each name with QEMU's descriptors.
 * Picture      query-named-block-nodes: "file", "host_device", "host_cdrom": a name each
 *              /proc/PID/fd: what QEMU has open
 * Failure      a name that cannot be examined is refused. A missing name is accepted: opening it
 *              fails with an error.
 * Limits       names as this program sees them: those of a QEMU with mounts of its own are another
 *              file's here, or nobody's. Devices are compared by device
 *              number.
 *              Firmware (pflash) that is read alone may be another file: its content goes with the
 *              guest's memory. An update of the package replaces it below running guests.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "disks_private.h"
#include "qemu_opts.h"

struct held {
    struct stat *st;
    size_t n;
};

bool file_is_same(const struct stat *a, const struct stat *b)
{
    if ((a->st_mode & S_IFMT) != (b->st_mode & S_IFMT))
        return false;
    if (S_ISBLK(a->st_mode) || S_ISCHR(a->st_mode))
        return a->st_rdev == b->st_rdev;
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Files and devices alone: a look at a socket or a pipe says nothing */
static int read_held(pid_t pid, struct held *h, struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    const struct dirent *e;
    char target[2];

    if (!d)
        return ff_error_set(why, errno, "%s: %s: which images its QEMU has open cannot be seen", path,
                            strerror(errno));
    for (errno = 0; (e = readdir(d)); errno = 0) {
        if (readlinkat(dirfd(d), e->d_name, target, sizeof(target)) < 1 || *target != '/')
            continue;
        h->st = realloc(h->st, (h->n + 1) * sizeof(*h->st));
        if (!h->st)
            abort();
        h->n += !fstatat(dirfd(d), e->d_name, &h->st[h->n], 0);
    }
    int failed = errno;
    closedir(d);
    return failed ? ff_error_set(why, failed, "%s: %s", path, strerror(failed)) : 0;
}

char *disk_node_file(const char *cwd, const json_t *node)
{
    static const char *const drivers[] = {"file", "host_device", "host_cdrom"};
    const char *name = text_of(node, "file");
    bool is_file = false;

    for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
        is_file |= !strcmp(text_of(node, "drv"), drivers[i]);
    if (!is_file)
        return NULL;
    FF_AUTO_FREE char *own = !strncmp(name, "json:", 5) ? qemu_opts_get(name + 5, "filename") : xstrdup(name);
    char *file = own && *own ? image_absolute(cwd, own) : NULL;
    if (file && (*file != '/' || !strncmp(file, "/dev/fdset/", 11))) {
        free(file);
        return NULL;
    }
    return file;
}

bool disk_is_firmware(const char *cwd, const json_t *block, const char *file, bool writable)
{
    size_t i;
    json_t *entry;

    json_array_foreach(block, i, entry) {
        const json_t *in = json_object_get(entry, "inserted");
        FF_AUTO_FREE char *own = image_absolute(cwd, text_of(in, "file"));
        bool is = !strncmp(text_of(entry, "device"), "pflash", 6) || strstr(text_of(entry, "qdev"), "/system.flash");
        if (is && !strcmp(own, file) && (writable || json_is_true(json_object_get(in, "ro"))))
            return true;
    }
    return false;
}

static int check_one(const struct held *h, const char *file, struct ff_error *why)
{
    struct stat st;

    if (stat(file, &st) < 0)
        return errno == ENOENT ? 0 : ff_error_set(why, errno, "image %s: %s", file, strerror(errno));
    for (size_t i = 0; i < h->n; i++)
        if (file_is_same(&h->st[i], &st))
            return 0;
    return ff_error_set(why, ESTALE, "image %s: there is another file by that name now than its QEMU has open "
                        "(renamed, or a link that was changed): put the one back that it has, or eject it from its drive", file);
}

int disks_check_held(pid_t pid, const char *cwd, const json_t *block, const json_t *nodes, struct ff_error *why)
{
    struct held h = {0};
    int rc = 0;
    size_t i;
    json_t *node;

    json_array_foreach(nodes, i, node) {
        FF_AUTO_FREE char *file = disk_node_file(cwd, node);
        if (!file || rc)
            continue;
        if (!h.n)
            rc = read_held(pid, &h, why);
        if (!rc && !disk_is_firmware(cwd, block, file, false))
            rc = check_one(&h, file, why);
    }
    free(h.st);
    return rc;
}

/* QEMU makes it for -snapshot, and removes its name at once */
static bool is_temporary_file(const char *file)
{
    const char *slash = strrchr(file, '/');

    return slash && !strncmp(slash, "/vl.", 4) && access(file, F_OK) < 0 && errno == ENOENT;
}

json_t *disks_files(const char *cwd, const json_t *block, const json_t *nodes)
{
    json_t *files = json_array(), *node, *old;
    size_t i, k;

    json_array_foreach(nodes, i, node) {
        FF_AUTO_FREE char *file = disk_node_file(cwd, node);
        bool known = !file || is_temporary_file(file) || disk_is_firmware(cwd, block, file, true);
        json_array_foreach(files, k, old)
            known = known || !strcmp(json_string_value(old), file);
        if (!known)
            json_array_append_new(files, json_string(file));
    }
    return files;
}
