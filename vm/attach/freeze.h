/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze.h - the memory of a process as it was at one instant, while that process goes on
 */
#ifndef FF_VM_ATTACH_FREEZE_H
#define FF_VM_ATTACH_FREEZE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "error.h"
#include "outside.h"

struct freeze;

/* Where the image of a block is */
struct freeze_image {
    int fd;             /* its file is all of the image; borrowed until freeze_end(). -1: freeze_pid() has it, at its address */
    uint64_t fd_offset;
    bool zeros;         /* what is in no page table of freeze_pid() is zeros */
    int view_fd;        /* what is in none is what this file has at @fd_offset: it was frozen before; borrowed, too. -1: none */
};

/**
 * freeze_new() - get ready, while the guest runs
 * @b: with addresses; borrowed until freeze_end()
 * @no_dump: a core dump of that process is not to have this memory
 *
 * Cost:   a few milliseconds
 * Return: 0; -ENOTSUP: memory of a file that others may write to, or in no file that can be opened; -EBUSY: memory that is
 *         still on its way, from another host or an agent; -ENOMEM: too few huge pages; else as inject_run(),
 *         outside_open(). After a failure nothing is left there
 */
int freeze_new(pid_t pid, const struct outside_block *b, unsigned n, bool no_dump, struct freeze **out, struct ff_error *err);

/**
 * freeze_hold(), freeze_take(), freeze_go() - stop every thread of the process; freeze; let them go
 *
 * freeze_hold_at(), freeze_await(): in two, from the moment on at which its main thread has closed @file. The first returns when
 * that may happen; the second with -EAGAIN where it has not happened within @limit_ms. freeze_go() ends that, too.
 *
 * If this process ends, in whatever way, that one goes on as if nothing had been. When freeze_take() has returned the image is
 * made, and changes no more; after a failure of it freeze_go() is due as well.
 *
 * Cost:   half a millisecond; fork(2) of it: about 10 ms a GiB of small pages, anonymous; likewise what KVM forgets of a file
 * Return: 0; -ETIMEDOUT: a thread does not stop; else as inject_fork(), mremap(2). Where it could not be held it goes on
 */
int freeze_hold(struct freeze *z, struct ff_error *err);
int freeze_hold_at(struct freeze *z, const struct stat *file, struct ff_error *err);
int freeze_await(struct freeze *z, int limit_ms, struct ff_error *err);
int freeze_take(struct freeze *z, struct ff_error *err);
void freeze_go(struct freeze *z);

/* Of each block, after freeze_take() */
struct freeze_image freeze_image(const struct freeze *z, unsigned i);

/* The process that has the other memory, and does nothing; 0: none was made, or nobody needs it: freeze_drop() */
pid_t freeze_pid(const struct freeze *z);

/* Once the process goes on: what it had open and mapped for others is closed in the copy; and what is there for the freeze
 * alone goes, but for page tables that were moved away. Those are freeze_sweep()'s, bit by bit: 50 ms a GiB, in which who wants
 * memory mapped there waits for each bit. Nothing is gained by haste: any thread, later */
int freeze_tidy(struct freeze *z, struct ff_error *err);
void freeze_sweep(struct freeze *z);

/* The copy ends: what is not in files is gone */
void freeze_drop(struct freeze *z);
void freeze_end(struct freeze *z);

#endif
