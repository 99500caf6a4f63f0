/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside.h - the memory of a QEMU, seen by another process
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a process beside a QEMU needs two things of its memory: where each RAM block is in its address space, and
 *              the file that holds it, if one does.
 *
 * Picture      outside_may() -> outside_list() -> outside_place() -> outside_open()
 *              without a monitor of its own: outside_locate() with the names that the source has
 *
 * Threads      any; the calls of one struct qmp not at the same time.
 * Ownership    nothing is kept: a list and a descriptor are the caller's.
 * Limits       An address is as of the call. QEMU moves no block of a guest that runs; who adds
 *              memory to the guest meanwhile calls again.
 */
#ifndef FF_VM_OUTSIDE_H
#define FF_VM_OUTSIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "qmp.h"

struct outside_block {           /* one RAMBlock */
    char name[256];              /* idstr, as in the migration stream */
    uint64_t len_bytes, hva;     /* used length; address in the QEMU; 0: this QEMU does not tell */
    uint64_t max_bytes;          /* QEMU has mapped so much: a resizable block; 0: not known */
    uint32_t psize;
};

enum outside_kind {
    OUTSIDE_ANONYMOUS,
    OUTSIDE_MEMFD, /* a file without a path: a memfd, shared anonymous memory */
    OUTSIDE_FILE,
};

struct outside_memory {
    int fd;             /* -1: in no shared file, or in one that this process cannot open */
    uint64_t fd_offset; /* of the block's first byte in it */
    enum outside_kind kind;
    bool is_shared, is_hugetlb;
    bool has_file;      /* what nobody touched may hold something: memory of a file, or shared */
};

/**
 * outside_list() - every RAM block that QEMU migrates, small ones too, as QEMU tells them
 * @out: to be freed; @hva is 0 before QEMU 8.0
 *
 * Cost:   one command
 * Return: 0; -EPROTO: an answer that this code does not know; else as qmp_command()
 */
int outside_list(struct qmp *q, struct outside_block **out, unsigned *n, struct ff_error *err);

/**
 * outside_place() - the addresses of all of these blocks, each of them verified
 *
 * QEMU's monitor tells an address (`info ramblock`, `gpa2hva`), or the record that QEMU keeps of
 * the block does (outside_record.c); where both do they have to agree. At the address there has to
 * be readable memory of @max_bytes, of one file or of none, that no other of the blocks shares.
 * Nothing is concluded from lengths or from the order of mappings.
 *
 * Cost:   without addresses in @b: `info mtree -f`, a command a block that the guest has mapped,
 *         and QEMU's heap read once
 * Return: 0; -ENOENT: nothing tells an address, or it is not mapped as QEMU says; -ENOTUNIQ: two
 *         addresses of a block, or two blocks at one; -EACCES: not readable: the error names the
 *         block; else as outside_list(), outside_may()
 */
int outside_place(struct qmp *q, pid_t pid, struct outside_block *b, unsigned n,
                  struct ff_error *err);

/**
 * outside_check_places() - whether at each of these addresses there is memory that a block can have, and no other of them
 *
 * Cost:   maps is read
 * Return: 0; -ENOENT: a hole, a stack, more than one memory; -EACCES: no memory to read and write; -ENOTUNIQ: two share bytes;
 *         else as outside_may()
 */
int outside_check_places(pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err);

struct outside_mapping {
    uint64_t at, len_bytes;
};

/**
 * outside_list_others() - what that process has mapped of the memfds that hold these blocks, and is none of the blocks
 * @out: to be freed
 *
 * Cost:   maps is read
 * Return: 0; else as outside_may()
 */
int outside_list_others(pid_t pid, const struct outside_block *b, unsigned n, struct outside_mapping **out, unsigned *n_out,
                        struct ff_error *err);

/**
 * outside_check_whole() - whether all memory of these blocks has arrived, where it came by post-copy
 *
 * A page that is missing there would be taken for one that nobody has touched, and so for zeros.
 *
 * Cost:   a process that has no userfaultfd: its descriptors are looked at; else smaps is read, 20 ms a GiB
 * Return: 0; -EBUSY: a userfaultfd watches for missing pages of a block, which is named; else as outside_may()
 */
int outside_check_whole(pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err);

/**
 * outside_locate() - fill in @b->hva where it is 0, by QEMU's record of its name, else its length
 *
 * Return: 0; -ENOENT: no mapping has this length; -ENOTUNIQ: several have, and there is no record;
 *         -EPERM as outside_may()
 */
int outside_locate(pid_t pid, struct outside_block *b, struct ff_error *err);

/**
 * outside_open() - open the file that holds a block whose address is known
 * @writable: open it for writing too
 * @out:      @fd is the caller's, also when it is -1
 *
 * Private memory has @fd -1 and not @is_shared. Shared memory has @fd -1 where the QEMU keeps no
 * descriptor of it and this process may not open /proc/PID/map_files.
 *
 * Return: 0; -ENOENT: nothing, or not one memory, is mapped there; -EACCES: the file does not
 *         permit it; -EPERM as outside_may()
 */
int outside_open(pid_t pid, const struct outside_block *b, bool writable,
                 struct outside_memory *out, struct ff_error *err);

/**
 * outside_open_view() - open for reading the memfd of which a block is a private view
 * @holder: another process that may have the file open, where @pid does not; 0: none
 * @out:    as outside_open(); its @fd is that of the file behind the view
 *
 * What is in the file and not in the view is what that process has not written.
 *
 * Return: 0; -ENOTSUP: the block is no private view, or one of a named file, which others may write; -EACCES: nobody who has
 *         it open can be asked, and this process may not open /proc/PID/map_files; else as outside_open()
 */
int outside_open_view(pid_t pid, pid_t holder, const struct outside_block *b, struct outside_memory *out, struct ff_error *err);

/* Descriptor @number of a process: a duplicate, the caller's; -EBADF: it has none; else -errno */
int outside_take_fd(pid_t pid, int number);

/* A number of /proc/PID/status, as "PPid:"; -1: unknown */
int outside_number(pid_t pid, const char *name);

/**
 * outside_may() - find out whether this process may do all that
 * @attach: also take descriptors and read memory (pidfd_getfd(), process_vm_readv()), not just
 *          look at /proc
 *
 * Return: 0; -ESRCH: no such process; -ENOSYS: the kernel cannot; -EPERM: the error says what
 *         forbids it, and the remedy
 */
int outside_may(pid_t pid, bool attach, struct ff_error *err);

/**
 * outside_may_stranger() - the same for a process of this user that this one did not start
 *
 * Cost:    starts two processes, and waits for them
 * Threads: while the caller has no other one
 * Return:  as outside_may(); -EIO: no process can be started
 */
int outside_may_stranger(struct ff_error *err);

#endif
