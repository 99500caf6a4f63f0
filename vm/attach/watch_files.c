/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch_files.c - private views of files instead of the memory of another process; see watch_files.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      its main thread stands still:
 *              mmap(PROT_NONE, MAP_PRIVATE) each block -> userfaultfd -> registered, through a duplicate here
 *                                                                  -> mprotect: accessible
 * Invariants   1. A page that the file lacks is never touched unwatched: that would put a page of zeros into the file, for
 *                 everybody who maps it. So nothing is accessible before it is watched: not to another thread, not
 *                 to the kernel, which populates what is locked.
 *              2. That process has a descriptor of the userfaultfd of its own: watch.c.
 * Limits       A NUMA policy of the memory that was there is not the new one's.
 * Sources      clone/child.c, which does the same in its own process
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "inject.h"
#include "watch_files.h"
#include "watch_private.h"

struct view {
    struct watch *w;
    int device;
    const struct watch_file *f;
    unsigned advice;
};

static bool misses_any(const struct view *v)
{
    bool any = false;

    for (unsigned i = 0; i < v->w->n; i++)
        any |= !v->f[i].is_complete;
    return any;
}

static int call(struct inject *in, long nr, const uint64_t *args, const struct outside_block *b, const char *what,
                struct ff_error *err)
{
    int64_t got;
    int rc = inject_call(in, nr, args, &got, err);

    if (rc || got >= 0 || got < -4095)
        return rc;
    return ff_error_set(err, (int)-got, "QEMU: block %s: %s 0x%llx bytes: %s%s", b->name, what,
                        (unsigned long long)b->len_bytes, strerror((int)-got),
                        got == -ENOMEM && b->psize > 4096
                            ? "; a child needs as many free huge pages as it has memory (see HugePages_Free in /proc/meminfo)"
                            : "");
}

static int advise_block(struct inject *in, const struct outside_block *b, int advice, struct ff_error *err)
{
    const uint64_t args[INJECT_ARGS] = {b->hva, b->len_bytes, (uint64_t)advice};

    return call(in, SYS_madvise, args, b, "madvise", err);
}

static int map_block(struct inject *in, const struct view *v, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &v->w->blocks[i];
    const uint64_t args[INJECT_ARGS] = {b->hva, b->len_bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED,
                                        (uint64_t)v->f[i].there, v->f[i].offset};
    int rc = call(in, SYS_mmap, args, b, "map", err);

    if (!rc)
        rc = advise_block(in, b, MADV_DONTFORK, err);
    if (!rc && v->advice & WATCH_NO_DUMP)
        rc = advise_block(in, b, MADV_DONTDUMP, err);
    if (!rc && v->advice & WATCH_MERGE) /* a kernel without KSM knows no such advice */
        advise_block(in, b, MADV_MERGEABLE, NULL);
    if (!rc && !v->f[i].is_complete) /* as clone/memory.c has it; of huge pages there is none */
        advise_block(in, b, MADV_NOHUGEPAGE, NULL);
    return rc;
}

static int map_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct view *v = opaque;
    struct watch *w = v->w;
    int rc = 0;

    for (unsigned i = 0; i < w->n && !rc; i++)
        rc = map_block(in, v, i, err);
    if (!rc && misses_any(v)) {
        rc = watch_make(in, w, v->device, err);
        if (!rc)
            rc = watch_take(w, err);
        for (unsigned i = 0; i < w->n && !rc; i++)
            rc = v->f[i].is_complete ? 0 : watch_register(w, &w->blocks[i], err);
    }
    for (unsigned i = 0; i < w->n && !rc; i++) {
        const uint64_t args[INJECT_ARGS] = {w->blocks[i].hva, w->blocks[i].len_bytes, PROT_READ | PROT_WRITE};

        rc = call(in, SYS_mprotect, args, &w->blocks[i], "make accessible", err);
    }
    return rc;
}

int watch_files_begin(struct watch *w, pid_t pid, unsigned filters, int device, const struct outside_block *b,
                      const struct watch_file *f, unsigned n, unsigned advice, struct ff_error *err)
{
    struct view v = {.w = w, .device = device, .f = f, .advice = advice};
    int rc = 0;

    *w = (struct watch){.pid = pid, .fd = -1, .there = -1, .by = -1, .filters = filters, .blocks = b, .n = n};
    if (outside_number(pid, "VmLck:") != 0)
        return ff_error_set(err, ENOTSUP, "process %d has locked memory, or does not show whether it has: start the guest "
                            "without -overcommit mem-lock, and without devices that lock memory", (int)pid);
    for (unsigned i = 0; i < n && !rc; i++)
        if (!b[i].hva || !b[i].len_bytes || b[i].hva % b[i].psize || b[i].len_bytes % b[i].psize ||
            f[i].offset % b[i].psize)
            rc = ff_error_set(err, EINVAL, "QEMU: block %s: 0x%llx bytes at 0x%llx, of a file's at 0x%llx: not whole pages of %u",
                              b[i].name, (unsigned long long)b[i].len_bytes, (unsigned long long)b[i].hva,
                              (unsigned long long)f[i].offset, b[i].psize);
    if (!rc) /* who asks may know no better: what is replaced is memory of a guest */
        rc = outside_check_places(pid, b, n, err);
    if (!rc && device >= 0 && misses_any(&v))
        rc = watch_check_device(pid, device, err);
    return rc ? rc : inject_run(pid, filters, map_there, &v, err);
}
