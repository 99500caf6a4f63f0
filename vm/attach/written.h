/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * written.h - which pages of another process are written while it runs
 */
#ifndef FF_VM_ATTACH_WRITTEN_H
#define FF_VM_ATTACH_WRITTEN_H

#include "outside.h"

struct written {
    pid_t pid;
    int fd;      /* the userfaultfd: no other process has it */
    int pagemap; /* of that process */
    const struct outside_block *blocks; /* borrowed */
    unsigned n;
    bool *is_shared; /* of each block */
    bool is_view; /* of written_view() */
    struct outside_memory *file; /* likewise, of written_look(): a page that is not in it is missing; NULL: none can be */
};

/* Whether this kernel can, for any process: 0; -ENOTSUP with the remedy */
int written_possible(struct ff_error *err);

/**
 * written_begin() - log every write to these blocks from here on, by whichever thread or call of that process
 * @filters: as inject_run() has it
 * @b: with addresses; borrowed until written_end()
 * @w: set, also on failure: written_end() may follow
 *
 * A write that the kernel or a disk has begun before, by direct I/O, may not be logged: who reads the memory
 * waits until all of those have ended.
 *
 * Cost:   a system call of that process, 20 ms a GiB of 4 KiB pages that are there; its threads run on. Then 1 us for
 *         the first write to a page; a huge page of anonymous memory is split by it
 * Return: 0; -ENOTSUP: this kernel cannot, or the hardware may write the memory without a trace; -EBUSY: a
 *         block is watched already; else as inject_run(), outside_open()
 */
int written_begin(struct written *w, pid_t pid, unsigned filters, const struct outside_block *b, unsigned n,
                  struct ff_error *err);

/**
 * written_read() - the pages of block @i that were written since written_begin()
 * @bits:  of its pages, as ff_source_dirty() has them; room for whole words
 * @pages: how many
 *
 * Nothing is forgotten by that. What is not known to be as it was counts as written.
 *
 * Return: 0; -EFAULT: it is mapped otherwise by now; -ESRCH
 */
int written_read(const struct written *w, unsigned i, uint64_t *bits, uint64_t *pages, struct ff_error *err);

/**
 * written_look() - likewise of memory that is watched already, by a userfaultfd that logs writes (watch_begin())
 *
 * written_read() says then what was written since it was watched. What lies there and did not land write-protected, as a
 * page of zeros, counts as written: it may have been discarded before. What is missing still was not.
 *
 * Cost:   nothing is called in that process
 * Return: 0; -ENOTSUP: this kernel cannot; else as outside_open(), open(2)
 */
int written_look(struct written *w, pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err);

/**
 * written_view() - likewise of blocks that are private views of files: what was written since they were mapped so
 *
 * The kernel has a copy of each such page for that process alone; every other page is the file's. Pages that a device writes
 * are of that, too: the kernel copies before it lets the device have one.
 *
 * Cost:   nothing is called in that process; written_read() reads its page tables, 10 ms a GiB, on any Linux
 * Return: 0; -ENOTSUP: a block is no private view of a memfd; else as outside_open(), open(2)
 */
int written_view(struct written *w, pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err);

void written_end(struct written *w); /* nothing of it stays in that process */

#endif
