/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze_prepare.c - before a process's memory is frozen: what must not be, and all that may be wanting; see freeze.h
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "freeze_private.h"
#include "pagemap.h"
#include "xalloc.h"

#define ALIGN_MAX (1ull << 30) /* what an entry of page tables that moves whole is aligned to */
#define LOOKS 3
#define LOOK_AGAIN_MS 10
#define SMALL_PAGE 4096u

/* --- looking --- */

static void note_number(struct freeze_work *k, int number)
{
    k->numbers = xrealloc(k->numbers, (k->n_numbers + 1) * sizeof(*k->numbers));
    k->numbers[k->n_numbers++] = number;
}

/* Memory that is watched is not here yet. What may write to a file is found, to be closed */
static int look_at_descriptor(struct freeze *z, const char *path, int number, struct ff_error *err)
{
    char to[64] = "";
    struct stat st, its;

    if (readlink(path, to, sizeof(to) - 1) > 0 && !strcmp(to, "anon_inode:[userfaultfd]"))
        return ff_error_set(err, EBUSY, "process %d: some of its memory is still to come, or somebody logs what it writes "
                            "(userfaultfd %d): wait until its guest's own move or fork is complete", (int)z->pid, number);
    if (stat(path, &its))
        return 0; /* closed meanwhile; or no file */
    for (unsigned i = 0; i < z->n; i++)
        if (z->work[i].is_shared && number != z->work[i].reader && !fstat(z->work[i].fd, &st) && st.st_dev == its.st_dev && st.st_ino == its.st_ino)
            note_number(&z->work[i], number);
    return 0;
}

static int look_at_descriptors(struct freeze *z, struct ff_error *err)
{
    FF_AUTO_FREE char *folder = xprintf("/proc/%d/fd", (int)z->pid);
    DIR *d = opendir(folder);
    struct dirent *e;
    int rc = 0;

    if (!d)
        return ff_error_set(err, errno == ENOENT ? ESRCH : errno, "process %d: its descriptors: %s", (int)z->pid,
                            strerror(errno));
    while (!rc && (e = readdir(d))) {
        FF_AUTO_FREE char *path = xprintf("%s/%s", folder, e->d_name);

        if (e->d_name[0] != '.')
            rc = look_at_descriptor(z, path, atoi(e->d_name), err);
    }
    closedir(d);
    for (unsigned i = 0; i < z->n && !rc; i++) {
        if (z->work[i].is_shared && !z->work[i].n_numbers)
            rc = ff_error_set(err, ENOTSUP, "memory of %s: process %d has no descriptor of its file: use "
                              "memory-backend-memfd or anonymous memory", z->b[i].name, (int)z->pid);
        else if (z->work[i].is_shared)
            z->work[i].number = z->work[i].numbers[0];
    }
    return rc;
}

static int refuse_poison(const struct outside_block *b, uint64_t offset, struct ff_error *err)
{
    return ff_error_set(err, ENOTSUP, "cannot freeze memory region %s: page at offset 0x%llx is poisoned: a move could not read it, and "
                        "children would find zeros there: reboot the guest in a QEMU that is new", b->name, (unsigned long long)offset);
}

/* A huge page that moves is swapped, too, for a moment. Without PAGEMAP_SCAN the kernel does not tell of poisoned ones */
static int check_huge_poison(const struct freeze *z, unsigned i, int pagemap, struct ff_error *err)
{
    const struct outside_block *b = &z->b[i];
    struct page_region found;
    struct pm_scan_arg scan = {.size = sizeof(scan), .start = b->hva, .end = b->hva + z->work[i].len, .vec = (uintptr_t)&found,
                               .vec_len = 1, .category_inverted = PAGE_IS_PRESENT,
                               .category_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED, .return_mask = PAGE_IS_SWAPPED};

    for (int tries = 0; ioctl(pagemap, PAGEMAP_SCAN, &scan) > 0; tries++) {
        if (tries == LOOKS)
            return refuse_poison(b, found.start - b->hva, err);
        poll(NULL, 0, LOOK_AGAIN_MS);
    }
    return 0;
}

/* A page that a move could not read is a mark in the page tables alone: a private view of the file would have zeros there. (The
 * kernel's marks of pages that move are swapped for a moment, too, and hold something in the file) */
static int check_poison(const struct freeze *z, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &z->b[i];
    const struct freeze_work *k = &z->work[i];
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = k->len / page;
    FF_AUTO_FREE char *path = xprintf("/proc/%d/pagemap", (int)z->pid);
    FF_AUTO_CLOSE int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t entry[1024];

    if (b->psize > SMALL_PAGE)
        return check_huge_poison(z, i, pagemap, err);
    for (uint64_t at = 0, some; at < n; at += some) {
        some = FF_MIN(n - at, (uint64_t)FF_ARRAY_LEN(entry));
        if (!ff_pagemap_read(pagemap, (void *)(uintptr_t)(b->hva + at * page), some, entry))
            return ff_error_set(err, errno ? errno : EIO, "%s: read: %s", path, strerror(errno));
        for (uint64_t p = 0; (p += ff_pagemap_poison(entry + p, some - p)) < some; p++) {
            const off_t offset = (off_t)(k->fd_offset + (at + p) * page);
            if (lseek(k->fd, offset, SEEK_DATA) != offset)
                return refuse_poison(b, (at + p) * page, err);
        }
    }
    return 0;
}

static int look_at_block(struct freeze *z, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &z->b[i];
    struct freeze_work *k = &z->work[i];
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(z->pid, b, true, &m, err);

    if (rc)
        return rc;
    if (!m.is_shared && m.kind == OUTSIDE_MEMFD) /* without it the view is read whole, which fills the holes of the file */
        outside_open_view(z->pid, outside_number(z->pid, "PPid:"), b, &m, NULL);
    *k = (struct freeze_work){.fd = m.fd, .fd_offset = m.fd_offset, .is_shared = m.is_shared, .has_file = m.has_file,
                              .number = -1, .reader = -1};
    k->len = (FF_MAX(b->len_bytes, b->max_bytes) + b->psize - 1) / b->psize * b->psize;
    if (!m.is_shared && b->psize > SMALL_PAGE) /* the kernel takes such pages from the copy when its pool is empty */
        return ff_error_set(err, ENOTSUP, "cannot freeze memory region %s: private huge pages: use memory-backend-memfd with "
                            "share=on,hugetlb=on", b->name);
    if (!m.is_shared)
        return 0;
    if (m.kind == OUTSIDE_MEMFD && m.fd >= 0)
        return check_poison(z, i, err);
    return ff_error_set(err, ENOTSUP, "cannot freeze memory region %s: other processes can map its file: use "
                        "memory-backend-memfd or anonymous memory", b->name);
}

/* Hardware that writes to memory pins it, or has it locked. Where all is locked the kernel fills a private view at once, of
 * what a guest that still runs has there then */
static int check_pinned(const struct freeze *z, struct ff_error *err)
{
    const int pinned = outside_number(z->pid, "VmPin:"), locked = outside_number(z->pid, "VmLck:");

    if (!pinned && !locked)
        return 0;
    if (pinned < 0 || locked < 0)
        return ff_error_set(err, ENOTSUP, "process %d: /proc/%d/status does not say what of its memory is pinned or locked",
                            (int)z->pid, (int)z->pid);
    return ff_error_set(err, ENOTSUP, "process %d: %d KiB of its memory are pinned, %d KiB locked: hardware may write there "
                        "during a fork: remove that device, and start it without -overcommit mem-lock=on", (int)z->pid,
                        pinned, locked);
}

/* --- there --- */

static int make(struct inject *in, long nr, const uint64_t args[INJECT_ARGS], const struct outside_block *b, const char *what,
                int64_t *got, struct ff_error *err)
{
    int rc = inject_call(in, nr, args, got, err);

    return rc || *got >= 0 ? rc : ff_error_set(err, (int)-*got, "memory of %s: %s: %s", b->name, what,
                                               strerror((int)-*got));
}

/* Address space to which page tables can move by whole entries: as aligned as the block */
static int reserve_elsewhere(struct inject *in, struct freeze_work *k, const struct outside_block *b, struct ff_error *err)
{
    uint64_t align = 2u << 20;
    int64_t got;

    while (align < k->len && align < ALIGN_MAX)
        align *= 2;
    const uint64_t len = k->len + align;
    const uint64_t map[INJECT_ARGS] = {0, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, UINT64_MAX};
    int rc = make(in, SYS_mmap, map, b, "reserve addresses", &got, err);
    if (rc)
        return rc;
    const uint64_t p = (uint64_t)got, at = p + ((b->hva - p) & (align - 1)), end = at + k->len;
    const uint64_t before[INJECT_ARGS] = {p, at - p}, after[INJECT_ARGS] = {end, p + len - end};

    k->away = at;
    if (at > p)
        rc = make(in, SYS_munmap, before, b, "reserve addresses", &got, err);
    if (!rc && end < p + len)
        rc = make(in, SYS_munmap, after, b, "reserve addresses", &got, err);
    return rc;
}

static int prepare_shared(struct inject *in, const struct freeze *z, struct freeze_work *k, const struct outside_block *b,
                          struct ff_error *err)
{
    const uint64_t view[INJECT_ARGS] = {0, k->len, PROT_READ | PROT_WRITE, MAP_PRIVATE, (uint64_t)k->number, k->fd_offset};
    char path[40];
    uint64_t at;
    int64_t got;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", k->number);
    int rc = inject_room(in, path, sizeof(path), &at, err);
    const uint64_t open_args[INJECT_ARGS] = {(uint64_t)AT_FDCWD, at, O_RDONLY | O_CLOEXEC};

    if (!rc && !(rc = make(in, SYS_openat, open_args, b, "open its file for reading", &got, err)))
        k->reader = (int)got;
    if (!rc && !(rc = make(in, SYS_mmap, view, b, b->psize > SMALL_PAGE ? "map it privately: as many huge pages must be free as "
                                                                          "the guest has" : "map it privately", &got, err)))
        k->view = (uint64_t)got;
    const uint64_t advice[INJECT_ARGS] = {k->view, k->len, MADV_HUGEPAGE}, dont[INJECT_ARGS] = {k->view, k->len, MADV_DONTFORK};
    const uint64_t no_dump[INJECT_ARGS] = {k->view, k->len, MADV_DONTDUMP};
    if (!rc) /* of no avail for a file that is not of tmpfs, or of huge pages */
        rc = inject_call(in, SYS_madvise, advice, &got, err);
    if (!rc)
        rc = inject_call(in, SYS_madvise, dont, &got, err);
    if (!rc && z->no_dump)
        rc = make(in, SYS_madvise, no_dump, b, "leave it out of core dumps", &got, err);
    return rc || b->psize > SMALL_PAGE ? rc : reserve_elsewhere(in, k, b, err); /* huge pages are few */
}

static int inherit(struct inject *in, const struct freeze *z, bool on, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < z->n && !rc; i++) {
        const uint64_t args[INJECT_ARGS] = {z->b[i].hva, z->work[i].len, on ? MADV_DOFORK : MADV_DONTFORK};
        int64_t got;

        if (!z->work[i].is_shared && !(z->b[i].hva % SMALL_PAGE)) /* of a part of a page QEMU has not said otherwise */
            rc = make(in, SYS_madvise, args, &z->b[i], "let it be forked", &got, err);
    }
    return rc;
}

static int prepare_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct freeze *z = opaque;
    int rc = 0;

    for (unsigned i = 0; i < z->n && !rc; i++)
        if (z->work[i].is_shared)
            rc = prepare_shared(in, z, &z->work[i], &z->b[i], err);
    z->is_prepared = true;
    return rc ? rc : inherit(in, z, true, err);
}

static int unprepare_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct freeze *z = opaque;
    int64_t got;
    int rc = inherit(in, z, false, err);

    for (unsigned i = 0; i < z->n && rc != -ESRCH; i++) {
        struct freeze_work *k = &z->work[i];
        const uint64_t reader[INJECT_ARGS] = {(uint64_t)k->reader}, view[INJECT_ARGS] = {k->view, k->len};

        if (k->reader >= 0)
            rc = inject_call(in, SYS_close, reader, &got, err);
        if (k->view && !k->is_frozen)
            rc = inject_call(in, SYS_munmap, view, &got, err);
        k->reader = -1;
        k->view = 0;
    }
    return rc;
}

void freeze_unprepare(struct freeze *z)
{
    if (z->is_prepared)
        freeze_run_there(z, unprepare_there, z, NULL);
    z->is_prepared = false;
}

int freeze_look(struct freeze *z, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < z->n && !rc; i++)
        rc = look_at_block(z, i, err);
    if (!rc)
        rc = look_at_descriptors(z, err);
    return rc ? rc : check_pinned(z, err);
}

int freeze_look_again(struct freeze *z, struct ff_error *err)
{
    for (unsigned i = 0; i < z->n; i++)
        z->work[i].n_numbers = 0;
    return look_at_descriptors(z, err);
}

int freeze_prepare(struct freeze *z, struct ff_error *err)
{
    return freeze_run_there(z, prepare_there, z, err);
}
