/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside.c - take a QEMU's memory files
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a file that holds a block is opened by what is permitted, in this order:
 *                /proc/PID/fd/N           the same inode; needs no capability; else the descriptor
 *                /proc/PID/map_files/A-B  where it is closed; CAP_CHECKPOINT_RESTORE
 *                /proc/PID/root/PATH      likewise, while the path is there
 * Sources      proc_pid_fd(5), proc_pid_map_files(5), pidfd_getfd(2)
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "outside_private.h"
#include "xalloc.h"

#define THP "/sys/kernel/mm/transparent_hugepage" /* without it madvise(2) leaves no sign */

/* --- descriptors of another process --- */

int outside_take_fd(pid_t pid, int number)
{
    FF_AUTO_CLOSE int process = (int)syscall(SYS_pidfd_open, pid, 0);

    if (process < 0)
        return -errno;
    const int fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    return fd >= 0 ? fd : -errno;
}

/* Call @each for every descriptor, until it does not return 0: what it returned */
static int each_fd_of(pid_t pid, int (*each)(pid_t pid, int number, const char *path, void *opaque),
                   void *opaque, struct ff_error *err)
{
    FF_AUTO_FREE char *folder = xprintf("/proc/%d/fd", (int)pid);
    DIR *dir = opendir(folder);
    struct dirent *d;
    int rc = 0;

    if (!dir) {
        const int why = errno;

        if ((rc = outside_may(pid, false, err)))
            return rc;
        return ff_error_set(err, why, "%s: open: %s", folder, strerror(why));
    }
    while (!rc && (d = readdir(dir))) {
        FF_AUTO_FREE char *path = xprintf("%s/%s", folder, d->d_name);

        if (d->d_name[0] != '.')
            rc = each(pid, atoi(d->d_name), path, opaque);
    }
    closedir(dir);
    return rc;
}

/* --- memory that has not all arrived --- */

static int is_userfaultfd(pid_t pid, int number, const char *path, void *opaque)
{
    char what[64];
    const ssize_t len = readlink(path, what, sizeof(what) - 1);

    (void)pid;
    (void)number;
    (void)opaque;
    what[len < 0 ? 0 : len] = '\0';
    return !strcmp(what, "anon_inode:[userfaultfd]");
}

int outside_check_whole(pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n_vmas = 0;
    int rc = each_fd_of(pid, is_userfaultfd, NULL, err);

    if (rc == 1)
        rc = outside_read_maps(pid, true, &v, &n_vmas, err);
    for (unsigned i = 0; !rc && i < n_vmas; i++)
        for (unsigned k = 0; v[i].is_watched && k < n; k++)
            if (v[i].start < b[k].hva + b[k].len_bytes && b[k].hva < v[i].end)
                return ff_error_set(err, EBUSY, "process %d: memory of %s has not all arrived there: pages that are missing "
                                                "would be zeros: move it when its own move is complete", (int)pid, b[k].name);
    return rc;
}

/* --- the file of a block --- */

struct file_search {
    const struct outside_vma *of;
    bool writable;
    int fd, why; /* -1; 0 or -errno of what could not be opened */
};

/* Some file systems (btrfs, overlayfs) show another device in maps than stat(2) does: there the
 * name decides */
static bool is_memory_file(const struct outside_vma *v, const char *path)
{
    struct stat st;
    char name[sizeof(v->name)];

    if (stat(path, &st) || st.st_ino != v->inode)
        return false;
    if (st.st_dev == makedev(v->major, v->minor))
        return true;
    const ssize_t len = readlink(path, name, sizeof(name) - 1);
    if (len < 0)
        return false;
    name[len] = '\0';
    return !strcmp(name, v->name);
}

static int open_memory_file(struct file_search *s, const char *path)
{
    s->fd = open(path, (s->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY);
    if (s->fd < 0)
        s->why = -errno;
    return s->fd >= 0;
}

/* A descriptor that the process has itself will do where the file may not be opened again */
static int take_memory_file(struct file_search *s, pid_t pid, int number)
{
    const int fd = outside_take_fd(pid, number);

    if (fd < 0)
        return 0;
    if (s->writable && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
        close(fd);
        return 0;
    }
    s->fd = fd;
    return 1;
}

static int try_memory_fd(pid_t pid, int number, const char *path, void *opaque)
{
    struct file_search *s = opaque;

    if (!is_memory_file(s->of, path))
        return 0;
    return open_memory_file(s, path) || take_memory_file(s, pid, number);
}

static int find_memory_file(pid_t pid, struct file_search *s, struct ff_error *err)
{
    FF_AUTO_FREE char *map_file = xprintf("/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid,
                                          s->of->start, s->of->end);
    FF_AUTO_FREE char *path = xprintf("/proc/%d/root%s", (int)pid, s->of->name);
    const int rc = each_fd_of(pid, try_memory_fd, s, err);

    if (rc)
        return rc < 0 ? rc : 0;
    if (s->why) /* it is there, and must not be opened */
        return ff_error_set(err, -s->why,
                            "process %d: open the memory file '%s' for %s: %s: run farfork as the "
                            "QEMU's user", (int)pid, s->of->name,
                            s->writable ? "writing" : "reading", strerror(-s->why));
    if (!open_memory_file(s, map_file) && s->of->name[0] == '/' && is_memory_file(s->of, path))
        open_memory_file(s, path);
    return 0;
}

static enum outside_kind kind_of(const struct outside_vma *v)
{
    if (!v->inode)
        return OUTSIDE_ANONYMOUS;
    return strncmp(v->name, "/memfd:", 7) && strcmp(v->name, "/dev/zero (deleted)")
               ? OUTSIDE_FILE
               : OUTSIDE_MEMFD;
}

/* What holds a block: @span, and all of @out but its descriptor */
static int look_at_memory(pid_t pid, const struct outside_block *b, struct outside_span *span, struct outside_memory *out,
                          struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n;
    int rc = outside_read_maps(pid, false, &v, &n, err);

    if (!rc)
        rc = outside_find_span(v, n, b, span, err);
    if (!rc)
        *out = (struct outside_memory){.fd = -1, .fd_offset = span->of.offset,
                                       .kind = kind_of(&span->of), .is_shared = span->of.is_shared,
                                       .has_file = span->of.is_shared || span->of.inode,
                                       .is_hugetlb = b->psize > (uint32_t)sysconf(_SC_PAGESIZE)};
    return rc;
}

/* It is all of the block's */
static int check_memory_file(const struct outside_block *b, const struct outside_vma *of, struct outside_memory *out,
                             struct ff_error *err)
{
    struct statfs fs;
    struct stat st;

    if (!fstatfs(out->fd, &fs))
        out->is_hugetlb = fs.f_type == HUGETLBFS_MAGIC;
    if (fstat(out->fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size >= out->fd_offset + b->len_bytes)
        return 0;
    ff_close_fd(&out->fd);
    return ff_error_set(err, EFBIG,
                        "memory of %s: open '%s': the file ends before the memory does (%jd "
                        "bytes, want %" PRIu64 "): give it its whole length", b->name,
                        of->name, (intmax_t)st.st_size, out->fd_offset + b->len_bytes);
}

int outside_open(pid_t pid, const struct outside_block *b, bool writable,
                 struct outside_memory *out, struct ff_error *err)
{
    struct outside_span span;
    int rc = look_at_memory(pid, b, &span, out, err);

    if (rc || !span.of.is_shared || !span.of.inode)
        return rc;
    struct file_search s = {.of = &span.of, .writable = writable, .fd = -1};
    if ((rc = find_memory_file(pid, &s, err)))
        return ff_error_context(err, "memory of %s", b->name);
    out->fd = s.fd;
    return s.fd < 0 ? 0 : check_memory_file(b, &span.of, out, err);
}

int outside_open_view(pid_t pid, pid_t holder, const struct outside_block *b, struct outside_memory *out, struct ff_error *err)
{
    struct outside_span span;
    int rc = look_at_memory(pid, b, &span, out, err);

    if (rc)
        return rc;
    if (out->is_shared || out->kind != OUTSIDE_MEMFD)
        return ff_error_set(err, ENOTSUP, "memory of %s: process %d has no private view of a memfd there", b->name, (int)pid);
    struct file_search s = {.of = &span.of, .fd = -1};
    rc = find_memory_file(pid, &s, err);
    if (!rc && s.fd < 0 && holder > 0)
        rc = each_fd_of(holder, try_memory_fd, &s, err);
    if (rc < 0)
        return ff_error_context(err, "memory of %s", b->name);
    out->fd = s.fd;
    return s.fd < 0 ? ff_error_set(err, EACCES, "memory of %s: the file behind its private view in process %d cannot be opened: run "
                                   "farfork as root", b->name, (int)pid)
                    : check_memory_file(b, &span.of, out, err);
}
