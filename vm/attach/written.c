/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * written.c - which pages of another process are written while it runs
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a QEMU's own dirty log says to itself, said by the kernel of any process: the log that precopy=1
 *              needs. A page is write-protected; its first write takes that away, in the kernel, and nobody waits
 *              for anybody (UFFD_FEATURE_WP_ASYNC).
 *
 * Picture      userfaultfd(2), called there; a duplicate here; close(2) there
 *              private memory   protect what is there      -> written: what is there and not protected
 *              shared memory    protect all, with markers  -> written: what is not known to be protected
 *                               in empty page tables
 *              private view     nothing to protect         -> written: what is there, and no page of the file
 *
 * Invariants   1. This process alone has the userfaultfd. When it ends in whatever way the kernel takes all of it
 *                 away; no reader is needed, so no thread there ever waits.
 *              2. What is not known counts as written. Memory of a file loses a page's entry when that is reclaimed,
 *                 so an empty entry says nothing there; private memory keeps one, in swap.
 *              3. The device of this descriptor reports no fault: UFFD_USER_MODE_ONLY, for which nobody needs a right,
 *                 forbids none of the kernel's.
 * Limits       Writes by page tables of that process alone: by its threads, by KVM, by calls of the kernel for it (read(2),
 *              vhost), by process_vm_writev(2). Not seen: writes of hardware to memory that it keeps pinned (VFIO), which
 *              is refused; and those of another process that maps a shared block, for which movable.h refuses devices. What
 *              a balloon gives back may count as not written: as in QEMU's own pre-copy the guest must not rely on it.
 * Sources      Documentation/admin-guide/mm/userfaultfd.rst, pagemap.rst; fs/proc/task_mmu.c
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bitmap.h"
#include "cleanup.h"
#include "inject.h"
#include "pagemap.h"
#include "watch_private.h"
#include "written.h"
#include "xalloc.h"

#define RANGES 512u
#define PART_BYTES (64ull << 20) /* vCPUs that touch it wait for so much to be protected: a millisecond */

static int no_kernel(struct ff_error *err)
{
    return ff_error_set(err, ENOTSUP, "written pages: this kernel does not tell which pages another process writes "
                        "(Linux 6.7 does): leave precopy=1 out");
}

int written_possible(struct ff_error *err)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();

    return ff_pagemap_scans(pagemap) ? 0 : no_kernel(err); /* the same release brought both */
}

/* --- what writes without a trace --- */

static int refuse_pinned(pid_t pid, struct ff_error *err)
{
    static const char *const devices[] = {"/dev/vfio/", "/dev/iommu", "/dev/vhost-vdpa", "anon_inode:[vfio"};
    FF_AUTO_FREE char *folder = xprintf("/proc/%d/fd", (int)pid);
    int pinned = outside_number(pid, "VmPin:"), rc = 0;
    struct dirent *e;
    char to[64];

    if (pinned)
        return ff_error_set(err, ENOTSUP, "process %d: %d KiB of its memory are pinned, and may be written by hardware: leave "
                            "precopy=1 out", (int)pid, pinned);
    DIR *d = opendir(folder);
    if (!d)
        return ff_error_set(err, errno == ENOENT ? ESRCH : errno, "process %d: its descriptors: %s", (int)pid,
                            strerror(errno));
    while (!rc && (e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);

        to[FF_MAX(len, 0)] = '\0';
        for (unsigned i = 0; !rc && i < FF_ARRAY_LEN(devices); i++)
            if (!strncmp(to, devices[i], strlen(devices[i])))
                rc = ff_error_set(err, ENOTSUP, "process %d has %s open, by which hardware may write its memory: leave "
                                  "precopy=1 out", (int)pid, to);
    }
    closedir(d);
    return rc;
}

/* --- begin --- */

/* This process takes it while that one stands still: it is there for no longer */
static int make_log_there(struct inject *in, void *opaque, struct ff_error *err)
{
    uint64_t args[INJECT_ARGS] = {O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY};
    struct written *w = opaque;
    int64_t fd, closed;
    int rc = inject_call(in, SYS_userfaultfd, args, &fd, err);

    if (rc)
        return rc;
    if (fd < 0)
        return ff_error_set(err, (int)-fd, "process %d: make a userfaultfd: %s", (int)w->pid, strerror((int)-fd));
    w->fd = outside_take_fd(w->pid, (int)fd);
    args[0] = (uint64_t)fd;
    rc = inject_call(in, SYS_close, args, &closed, err);
    if (!rc && w->fd < 0)
        rc = ff_error_set(err, -w->fd, "process %d: take its userfaultfd: %s", (int)w->pid, strerror(-w->fd));
    return rc;
}

static int log_blocks(const struct written *w, struct ff_error *err)
{
    struct uffdio_api api = {.api = UFFD_API, .features = WATCH_LOG_FEATURES};

    if (ioctl(w->fd, UFFDIO_API, &api))
        return errno == EINVAL ? no_kernel(err)
                               : ff_error_set(err, errno, "process %d: userfaultfd: %s", (int)w->pid, strerror(errno));
    for (unsigned i = 0; i < w->n; i++) {
        struct uffdio_register r = {.range = {w->blocks[i].hva, w->blocks[i].len_bytes}, .mode = UFFDIO_REGISTER_MODE_WP};

        if (ioctl(w->fd, UFFDIO_REGISTER, &r))
            return ff_error_set(err, errno, "process %d: log writes to block %s: %s%s", (int)w->pid, w->blocks[i].name,
                                strerror(errno), errno == EBUSY ? ": another userfaultfd watches it" : "");
    }
    return 0;
}

static int protect_all(const struct written *w, const struct outside_block *b, struct ff_error *err)
{
    for (uint64_t at = 0, len; at < b->len_bytes; at += len) {
        len = FF_MIN(PART_BYTES, b->len_bytes - at);
        struct uffdio_writeprotect p = {.range = {b->hva + at, len}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};

        if (ioctl(w->fd, UFFDIO_WRITEPROTECT, &p))
            return ff_error_set(err, errno, "process %d: protect block %s: %s", (int)w->pid, b->name, strerror(errno));
    }
    return 0;
}

/* --- scans --- */

typedef void found_fn(void *opaque, uint64_t first, uint64_t end); /* pages of the block */

/* @arg: its flags and categories */
static int scan_block(const struct written *w, const struct outside_block *b, struct pm_scan_arg arg, found_fn *found,
                      void *opaque, struct ff_error *err)
{
    struct page_region range[RANGES];
    const uint64_t end = b->hva + b->len_bytes;

    arg.size = sizeof(arg);
    arg.vec = (uintptr_t)range;
    arg.vec_len = RANGES;
    for (uint64_t at = b->hva; at < end; at = arg.walk_end) {
        arg.start = at;
        arg.end = FF_MIN(end, at + PART_BYTES);
        arg.walk_end = 0;
        int n = ioctl(w->pagemap, PAGEMAP_SCAN, &arg);
        if (n < 0 && errno == EINTR)
            arg.walk_end = at;
        else if (n < 0 || arg.walk_end <= at || arg.walk_end > arg.end)
            return ff_error_set(err, n >= 0 ? EIO : errno == EPERM ? EFAULT : errno, "process %d: written pages of block %s: %s",
                                (int)w->pid, b->name, n >= 0 ? "the kernel's answer makes no sense"
                                : errno == EPERM ? "it is mapped anew" : strerror(errno));
        for (int i = 0; i < n; i++)
            found(opaque, (range[i].start - b->hva) / b->psize, (range[i].end - b->hva + b->psize - 1) / b->psize);
    }
    return 0;
}

static void forget(void *opaque, uint64_t first, uint64_t end)
{
    (void)opaque;
    (void)first;
    (void)end;
}

/* Not empty entries: they stay empty, since to who reads that memory (ff_foreign_read()) a marker is a page */
static struct pm_scan_arg written_there(uint64_t flags)
{
    return (struct pm_scan_arg){.flags = PM_SCAN_CHECK_WPASYNC | flags,
                                .category_mask = PAGE_IS_WRITTEN,
                                .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                                .return_mask = PAGE_IS_PRESENT};
}

static int protect_there(const struct written *w, const struct outside_block *b, struct ff_error *err)
{
    return scan_block(w, b, written_there(PM_SCAN_WP_MATCHING), forget, NULL, err);
}

static int written_open(struct written *w, pid_t pid, const struct outside_block *b, unsigned n, int rc, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/pagemap", (int)pid);

    *w = (struct written){.pid = pid, .fd = -1, .pagemap = -1, .blocks = b, .n = n};
    w->is_shared = calloc(n + 1, sizeof(*w->is_shared));
    if (!rc && !w->is_shared)
        rc = ff_error_set(err, ENOMEM, "written pages: out of memory");
    if (!rc && (w->pagemap = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        rc = ff_error_set(err, errno, "%s: %s", path, strerror(errno));
    return rc;
}

int written_begin(struct written *w, pid_t pid, unsigned filters, const struct outside_block *b, unsigned n,
                  struct ff_error *err)
{
    int rc = written_open(w, pid, b, n, written_possible(err), err);

    for (unsigned i = 0; i < n && !rc; i++) {
        struct outside_memory m = {.fd = -1};

        rc = outside_open(pid, &b[i], false, &m, err);
        ff_close_fd(&m.fd);
        w->is_shared[i] = m.is_shared;
    }
    if (!rc)
        rc = refuse_pinned(pid, err);
    if (!rc)
        rc = inject_run(pid, filters, make_log_there, w, err);
    if (!rc)
        rc = log_blocks(w, err);
    for (unsigned i = 0; i < n && !rc; i++)
        rc = w->is_shared[i] ? protect_all(w, &b[i], err) : protect_there(w, &b[i], err);
    return rc;
}

int written_look(struct written *w, pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err)
{
    int rc = written_open(w, pid, b, n, written_possible(err), err);

    w->file = calloc(n + 1, sizeof(*w->file));
    if (!rc && !w->file)
        rc = ff_error_set(err, ENOMEM, "written pages: out of memory");
    for (unsigned i = 0; w->file && i < n; i++)
        w->file[i].fd = -1;
    for (unsigned i = 0; i < n && !rc; i++) {
        rc = outside_open(pid, &b[i], false, &w->file[i], err);
        w->is_shared[i] = w->file[i].is_shared;
        if (!rc && w->is_shared[i] && w->file[i].fd < 0)
            rc = ff_error_set(err, EACCES, "process %d: block %s: its file cannot be opened", (int)pid, b[i].name);
    }
    return rc ? rc : refuse_pinned(pid, err);
}

int written_view(struct written *w, pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err)
{
    int rc = written_open(w, pid, b, n, 0, err);

    w->is_view = true;
    for (unsigned i = 0; i < n && !rc; i++) {
        struct outside_memory m = {.fd = -1};

        rc = outside_open(pid, &b[i], false, &m, err);
        ff_close_fd(&m.fd);
        if (!rc && (m.is_shared || m.kind != OUTSIDE_MEMFD))
            rc = ff_error_set(err, ENOTSUP, "process %d: block %s is no private view of an image", (int)pid, b[i].name);
    }
    return rc;
}

/* --- what was written --- */

static void set_bits(void *opaque, uint64_t first, uint64_t end)
{
    for (; first < end; first++)
        ff_bitmap_set(opaque, first);
}

/* A huge page is one entry: no part of it comes alone */
static void clear_bits(void *opaque, uint64_t first, uint64_t end)
{
    uint64_t *bits = opaque;

    for (; first < end; first++)
        bits[first / 64] &= ~(1ull << (first % 64));
}

/* What is not in the file is missing, whatever the page tables say */
static int clear_holes(const struct outside_block *b, const struct outside_memory *m, uint64_t *bits, struct ff_error *err)
{
    const off_t from = (off_t)m->fd_offset, end = from + (off_t)b->len_bytes;

    for (off_t at = from; at < end;) {
        off_t data = lseek(m->fd, at, SEEK_DATA);

        if (data < 0 && errno != ENXIO)
            return ff_error_set(err, errno, "written pages of block %s: its file: %s", b->name, strerror(errno));
        data = data < 0 ? end : FF_MIN(data, end);
        clear_bits(bits, (uint64_t)(at - from) / b->psize, (uint64_t)(data - from) / b->psize);
        at = data < end ? lseek(m->fd, data, SEEK_HOLE) : end;
        if (at < 0)
            return ff_error_set(err, errno, "written pages of block %s: its file: %s", b->name, strerror(errno));
        at += (off_t)(b->psize - 1) - ((at - from) + (off_t)(b->psize - 1)) % (off_t)b->psize;
    }
    return 0;
}

/* What is in the page tables, or swapped out, and is no page of the file */
static int read_view(const struct written *w, const struct outside_block *b, uint64_t *bits, struct ff_error *err)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t entry[4096], some;

    for (uint64_t at = 0; at < b->len_bytes; at += some * page) {
        some = FF_MIN((uint64_t)FF_ARRAY_LEN(entry), (b->len_bytes - at) / page);
        if (!ff_pagemap_read(w->pagemap, (const void *)(uintptr_t)(b->hva + at), some, entry))
            return ff_error_set(err, EIO, "process %d: its page tables of block %s cannot be read", (int)w->pid, b->name);
        for (uint64_t i = 0; i < some; i++)
            if (entry[i] & (FF_PM_PRESENT | FF_PM_SWAPPED) && !(entry[i] & FF_PM_FILE))
                ff_bitmap_set(bits, (at + i * page) / b->psize);
    }
    return 0;
}

int written_read(const struct written *w, unsigned i, uint64_t *bits, uint64_t *pages, struct ff_error *err)
{
    static const struct pm_scan_arg protected = {.flags = PM_SCAN_CHECK_WPASYNC, .category_mask = PAGE_IS_WRITTEN,
                                                 .category_inverted = PAGE_IS_WRITTEN,
                                                 .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                                                 .return_mask = PAGE_IS_PRESENT};
    const struct outside_block *b = &w->blocks[i];
    const uint64_t n = b->len_bytes / b->psize, words = (n + 63) / 64;
    int rc;

    memset(bits, 0, words * sizeof(*bits));
    if (w->is_view) {
        rc = read_view(w, b, bits, err);
    } else if (w->is_shared[i]) {
        set_bits(bits, 0, n);
        rc = scan_block(w, b, protected, clear_bits, bits, err);
        if (!rc && w->file)
            rc = clear_holes(b, &w->file[i], bits, err);
    } else {
        rc = scan_block(w, b, written_there(0), set_bits, bits, err);
    }
    *pages = 0;
    for (uint64_t k = 0; k < words; k++)
        *pages += (uint64_t)__builtin_popcountll(bits[k]);
    return rc;
}

void written_end(struct written *w)
{
    ff_close_fd(&w->fd);
    ff_close_fd(&w->pagemap);
    for (unsigned i = 0; w->file && i < w->n; i++)
        ff_close_fd(&w->file[i].fd);
    free(w->file);
    free(w->is_shared);
    w->file = NULL;
    w->is_shared = NULL;
}
