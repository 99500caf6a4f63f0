/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * foreign.h - read memory of another process, and leave alone what it never touched
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      process_vm_readv(2) into a buffer. It would populate what nobody touched, so
 *              /proc/PID/pagemap is asked first: a page that is not there reads as zeros, or is
 *              what its file has.
 *
 * Invariants   1. Nothing is invented. A page counts as zeros only if it is mapped, and its process
 *                 lives, after the look: page tables of a process that has ended are as empty as
 *                 those of untouched memory.
 *              2. A page that is mapped and cannot be read is poisoned, as SIGBUS says of own
 *                 memory. One that is not mapped, a process that has ended or runs another program,
 *                 and a permission that is gone fail for good.
 *              3. Bytes are never those of another process that has got the number: a descriptor of
 *                 the process and one of its page tables are looked at after each read.
 * Threads      any number may read at once. lock guards why.
 * Limits       hugetlb before Linux 6.7: pagemap shows neither a poisoned page nor one that the
 *              kernel is moving. So what it does not show is read, which takes a page of the pool.
 *              Whether a page is mapped takes 1 us; before Linux 6.11 all of /proc/PID/maps is read.
 * Sources      process_vm_readv(2); proc_pid_pagemap(5); Documentation/filesystems/proc.rst
 */
#ifndef FF_BASE_FOREIGN_H
#define FF_BASE_FOREIGN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"

#define FF_FOREIGN_MAX (4u << 20) /* bytes of one read; a link's largest request */
#define FF_FOREIGN_GRANULES 1024u

struct ff_foreign {
    pid_t pid;
    int pidfd, pagemap, maps;
    unsigned uses;
    pthread_mutex_t lock;
    struct ff_error why; /* code 0: nothing has failed for good */
};

/* What a page is that the page tables do not have. @file_fd -1: in no file; then zeros, or it has
 * to be read */
struct ff_foreign_rest {
    bool zeros;
    int file_fd;
    uint64_t file_offset; /* where the read begins there */
    uint32_t psize;
};

/* 0; -EPERM with the remedy; -ESRCH; -ENOSYS: this kernel cannot */
int ff_foreign_open(pid_t pid, struct ff_foreign **out, struct ff_error *err);
struct ff_foreign *ff_foreign_ref(struct ff_foreign *f);
void ff_foreign_unref(struct ff_foreign *f);

/* Is the process there, and all of this mapped and readable? Else -ESRCH, -EFAULT, or what has
 * failed before */
int ff_foreign_check(struct ff_foreign *f, uint64_t addr, uint64_t len, struct ff_error *err);

/* Is a page there, swapped out or poisoned, as far as can be found out? */
bool ff_foreign_any(const struct ff_foreign *f, uint64_t addr, uint64_t len, uint32_t psize);

/**
 * ff_foreign_read() - bring granules of @granule bytes to @into, each to its place
 * @len:    at most FF_FOREIGN_MAX, whole granules, at most FF_FOREIGN_GRANULES
 * @zero:   a bit set for each granule that nobody touched, and for each that cannot be read;
 *          its bytes are not brought. The caller clears both
 * @poison: likewise for those that cannot be read
 *
 * Return:  0; -ENOMEM: perhaps not next time; -ESRCH, -EFAULT, -EPERM: for good
 */
int ff_foreign_read(struct ff_foreign *f, const struct ff_foreign_rest *rest, uint64_t addr,
                    uint32_t len, uint32_t granule, uint8_t *zero, uint8_t *poison, uint8_t *into,
                    struct ff_error *err);

#endif
