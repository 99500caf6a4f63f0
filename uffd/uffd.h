/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * uffd.h - userfaultfd: register, read faults, install pages, wake
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the one place that speaks to userfaultfd(2). It knows ranges of memory,
 *              not guests; what a page contains is the caller's business.
 *
 * Picture      landing COPY:      bounce --UFFDIO_COPY--> page appears, waiters wake
 *              landing CONTINUE:  the bytes are put into an alias mapping of the same
 *                                 file (by the link itself: zero-copy; or by memcpy), then
 *                                 UFFDIO_CONTINUE maps the page, waiters wake
 *              ready ahead:       COPY, but pages that lie in the file already land as by CONTINUE
 *              MOVE:              staging --UFFDIO_MOVE--> the very page appears, and a
 *                                 huge page stays one; staging becomes a hole
 *              zeros:             UFFDIO_ZEROPAGE, or the above with zeros (hugetlb)
 *              nothing:           UFFDIO_POISON: the bytes are lost, and who touches them learns it
 *
 * Threads      every call from any thread; the kernel orders installs of one page.
 * Invariants   1. A page becomes visible only when it is whole. CONTINUE is used with
 *                 MISSING and MINOR both registered: with MISSING alone a filled alias
 *                 would be mapped half-written (tests/platform/alias_memcpy_torn.c), with
 *                 MINOR alone an absent page would read as zeros (minor_alone_zero.c).
 *              2. An install of a page that is there already is an error (-EEXIST), never
 *                 ignored: somebody else put bytes there. Only COPY and ZEROPAGE can tell,
 *                 so page claims, not this check, are what keeps installs apart. An empty pool
 *                 of huge pages, of which the kernel says the same, is -ENOMEM.
 *              3. A second descriptor of the same userfaultfd is kept: closing one by
 *                 mistake does not let blocked threads run on and read zeros
 *                 (tests/platform/last_uffd_closed.c).
 * Sources      userfaultfd(2), ioctl_userfaultfd(2), Documentation/admin-guide/mm/userfaultfd.rst
 */
#ifndef FF_UFFD_UFFD_H
#define FF_UFFD_UFFD_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

struct ff_error;

enum ff_uffd_memory { FF_UFFD_ANON, FF_UFFD_SHMEM, FF_UFFD_HUGETLB };
enum ff_uffd_landing { FF_UFFD_COPY, FF_UFFD_CONTINUE };

struct ff_uffd {
    int fd, keep_fd;
    bool may_block;    /* a read: this kernel has no other */
    uint64_t features; /* that the kernel has and we enabled */
    const char *way;   /* "/dev/userfaultfd" or "userfaultfd(2)" */
    bool protects;     /* what is copied lands write-protected: the kernel logs the first write to it */
};

struct ff_uffd_range {
    uint8_t *host;
    uint64_t len_bytes;
    uint32_t psize; /* page size in bytes */
    enum ff_uffd_memory memory;
    enum ff_uffd_landing landing;
    uint8_t *alias; /* CONTINUE, ready_bytes: second mapping of the same file, same length */
    uint64_t ready_bytes; /* COPY: so much, from the start, is in the file and mapped at alias */
    bool shared;    /* a shared mapping of a file */
    bool guarded;   /* writes to what is there can be reported, too: ff_uffd_protect() */
    bool elsewhere; /* of the process whose userfaultfd was adopted, which may install pages itself */
};

/* What this host's kernel offers; for refusals and `farfork doctor` */
struct ff_uffd_probe {
    int dev_errno, syscall_errno; /* 0: that way works */
    int unprivileged;             /* sysctl vm.unprivileged_userfaultfd, -1: not there */
    uint64_t features;
    bool moves, poisons, continues; /* UFFDIO_MOVE, UFFDIO_POISON, UFFDIO_CONTINUE for memfds */
    bool reads_now;      /* never waits in a read, whatever another holder does to the flags */
};

void ff_uffd_probe(struct ff_uffd_probe *p);

/* Names of the features in @features, separated by blanks */
void ff_uffd_feature_names(uint64_t features, char *out, unsigned len);

/* Open for faults from user space and the kernel (KVM, vhost): 0, or -EPERM, -ENOSYS...
 * naming every remedy */
int ff_uffd_open(struct ff_uffd *u, struct ff_error *err);
void ff_uffd_close(struct ff_uffd *u);

/* @fd was opened by another process, which watches [@start, @start + @len) of its memory: take it
 * over, for ff_uffd_read() and ff_uffd_wake() alone. -EINVAL: it is no such descriptor */
int ff_uffd_adopt(struct ff_uffd *u, int fd, uint64_t start, uint64_t len, struct ff_error *err);

/* Is @r, which is elsewhere, registered with the userfaultfd that was adopted? Then pages can be
 * installed there. 0; -EINVAL: not its first page or not its last; -ESRCH: that process has ended */
int ff_uffd_check(struct ff_uffd *u, const struct ff_uffd_range *r, const char *name,
                  struct ff_error *err);

/* Watch @r for missing pages; @name is for messages */
int ff_uffd_register(struct ff_uffd *u, const struct ff_uffd_range *r, const char *name,
                     struct ff_error *err);
int ff_uffd_unregister(struct ff_uffd *u, const struct ff_uffd_range *r, struct ff_error *err);

#define FF_UFFD_WRITE 1u /* in an address: it is there, and protected, and the thread is to write */

/* Addresses that threads wait for, not aligned: how many, 0 when there are none now. Does not wait,
 * whatever another holder of the userfaultfd does to its flags; before Linux 6.10 it may, when they
 * are changed at just that moment */
int ff_uffd_read(struct ff_uffd *u, uint64_t *addr, unsigned n, struct ff_error *err);

/* Install [@offset, @offset + @len) of @r, whole pages, from @src; NULL: zeros; CONTINUE: @src
 * may be the alias itself, which holds the bytes by now. Not @wake: ff_uffd_wake() follows.
 * @done: bytes that were installed, from the first on, also after a failure. ff_uffd_may_pass():
 * the rest may be tried again later. Where @r is elsewhere, a page that is there by now counts as
 * installed; -ESRCH: that process has ended */
int ff_uffd_install(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                    const void *src, uint64_t len, bool wake, uint64_t *done, struct ff_error *err);

/* Did an install or a move fail for what may end by itself? There is no memory now (of this host,
 * a cgroup, the pool of huge pages), or the address space changes */
static inline bool ff_uffd_may_pass(int rc)
{
    return rc == -ENOMEM || rc == -EAGAIN;
}

/* Does @r report pages that are in the file, but not in its page table? */
static inline bool ff_uffd_is_minor(const struct ff_uffd_range *r)
{
    return r->landing == FF_UFFD_CONTINUE || r->ready_bytes;
}

/* Of [@offset, @offset + @len) of @r, bytes that are ready */
static inline uint64_t ff_uffd_ready(const struct ff_uffd_range *r, uint64_t offset, uint64_t len)
{
    return offset >= r->ready_bytes ? 0
           : len < r->ready_bytes - offset ? len : r->ready_bytes - offset;
}

/* What is ready of these missing pages leaves the file: whoever touches them waits as before. False:
 * it is there still, and may hold anything */
bool ff_uffd_drop_ready(const struct ff_uffd_range *r, uint64_t offset, uint64_t len);

/* @r, which is watched and of which nothing is installed, was touched before perhaps: from here on
 * whoever touches any of it waits. 0, or -errno with the reason */
int ff_uffd_empty_ready(const struct ff_uffd_range *r, struct ff_error *err);

/* With these features of a kernel's, can ranges of @memory be guarded? Of anonymous memory Linux 5.7 can,
 * of shared memory 5.19 */
bool ff_uffd_can_protect(uint64_t features, enum ff_uffd_memory memory);

/**
 * ff_uffd_protect() - @on: whoever writes to a page of @r that is there waits from now on; else nobody does
 *
 * @r is guarded. What nothing lies in is missing, and not protected; an install protects nothing. Of
 * shared memory a page that lies in the file alone is protected, too. A write by another mapping, or to
 * the file, is not seen.
 *
 * Cost:   the mapping's lock, for reading: 0.03 to 0.16 us a page of 4 KiB, less than 1 ns where 2 MiB are
 *         mapped at once
 * Return: 0, or -errno
 */
int ff_uffd_protect(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len, bool on,
                    struct ff_error *err);

/* Can pages be moved in? */
bool ff_uffd_can_move(const struct ff_uffd *u);

/* As ff_uffd_install(), for anonymous memory: the pages of @src (private anonymous, aligned,
 * no holes) become those of @r. What cannot be moved, since it is pinned, is copied.
 * @moved: bytes of @done from @src on that were moved; those behind it, if any, were copied */
int ff_uffd_move(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, void *src,
                 uint64_t len, uint64_t *moved, uint64_t *done, struct ff_error *err);

/* Whoever touches [@offset, @offset + @len) of @r, missing pages, gets SIGBUS as for memory that has
 * failed, from now on and also when nothing is watched any more; a vCPU of KVM's that touches it
 * tells its guest. @done as with ff_uffd_install(). -EINVAL: this kernel cannot (Linux 6.6 can) */
int ff_uffd_poison(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                   uint64_t *done, struct ff_error *err);

/* Instead of that: whoever touches it gets SIGSEGV, and a vCPU's KVM_RUN says EFAULT */
int ff_uffd_forbid(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                   struct ff_error *err);

/**
 * ff_uffd_discard() - make pages that were installed missing again
 * @part: @n parts of @r, whole pages each; at most 1024
 *
 * Whoever touches them from then on waits for an install, as before the first. Memory that lands
 * by CONTINUE is only unmapped: its pages stay in the file, where a device may have them pinned.
 *
 * Return: 0; -errno naming the remedy, where there is one; some pages may be discarded then
 */
struct iovec;
int ff_uffd_discard(const struct ff_uffd_range *r, const struct iovec *part, unsigned n,
                    struct ff_error *err);

/* Wake whoever waits for these pages: they are there */
int ff_uffd_wake(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                 struct ff_error *err);

/* Likewise where the kernel may have taken the page out of the page table again, which it does with
 * shared memory under pressure: a range that lands by CONTINUE reports that as a fault, and a wake
 * alone would bring the same fault again. The page is in the file: it is mapped from there. */
int ff_uffd_map_again(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                      struct ff_error *err);

#endif
