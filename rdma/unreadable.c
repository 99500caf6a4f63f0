/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unreadable.c - which granules of memory cannot be read; see mr.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a page whose memory has failed (hwpoison), or that its file has lost, ends who
 *              touches it by SIGBUS. So the kernel reads a byte of it first, which says EFAULT
 *              instead: process_vm_writev(2) copies the bytes of many pages to a buffer of ours. It
 *              takes 1 us, and 0.2 us for each page more. Of many pages /proc/self/pagemap first
 *              tells which are in the page table (17 us for 512 of them): a page that has failed
 *              is not.
 *              A sandbox may deny the call: that of an agent does, since the call reaches other
 *              processes, and every QEMU that an agent starts is in it. There the kernel maps
 *              what it can, MADV_POPULATE_READ, and fails at a page that nobody can read. It takes
 *              up to 137 us for 512 pages, and does not say where it has stopped.
 * Limits       memory that fails after the look still ends the process, and so does memory whose
 *              failure nobody has noticed yet: the processor finds it where it is read first.
 *              In such a sandbox on a kernel before Linux 5.14 all memory counts as readable.
 * Sources      madvise(2); process_vm_writev(2)
 */
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "mr.h"
#include "pagemap.h"
#include "populate.h"

#define PAGE 4096u
#define BATCH 512u /* pages; a chunk of 2 MiB */
#define FEW 8u     /* to ask for them takes less than to open pagemap */

static int populate(uintptr_t from, uintptr_t end)
{
    return madvise((void *)from, end - from, MADV_POPULATE_READ) ? errno : 0;
}

/* As readable_pages(), whose system call is denied. EINVAL: the page is forbidden (PROT_NONE) */
static uint32_t populated_pages(const struct iovec *at, uint32_t n)
{
    uintptr_t first = (uintptr_t)at[0].iov_base / PAGE * PAGE;
    uintptr_t end = (uintptr_t)at[n - 1].iov_base / PAGE * PAGE + PAGE;
    bool unknown = populate(first, first); /* to this kernel */

    if (unknown || !populate(first, end))
        return n;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t page = (uintptr_t)at[i].iov_base / PAGE * PAGE;
        int e = populate(page, page + PAGE);
        if (e == EFAULT || e == EHWPOISON || e == EINVAL)
            return i;
    }
    return n;
}

/* Of @n bytes, a page each, how many can be read, up to the first that cannot */
static uint32_t readable_pages(const struct iovec *at, uint32_t n)
{
    uint8_t bytes[BATCH];
    struct iovec to = {.iov_base = bytes, .iov_len = n};
    ssize_t got = process_vm_writev(getpid(), at, n, &to, 1, 0);

    if (got < 0)
        return errno == EFAULT ? 0 : populated_pages(at, n);
    return (uint32_t)got;
}

uint32_t ff_readable(const void *addr, uint32_t len)
{
    FF_AUTO_CLOSE int fd = len > FEW * PAGE ? ff_pagemap_open() : -1;
    uintptr_t from = (uintptr_t)addr, first = from / PAGE, end = (from + len + PAGE - 1) / PAGE;
    struct iovec at[BATCH];
    uint64_t entry[BATCH];

    for (uint32_t pages; first < end; first += pages) {
        pages = (uint32_t)FF_MIN(end - first, (uintptr_t)BATCH);
        bool known = ff_pagemap_read(fd, (const void *)(first * PAGE), pages, entry);
        uint32_t n = 0;
        for (uint32_t i = 0; i < pages; i++)
            if (!known || !(entry[i] & FF_PM_PRESENT))
                at[n++] = (struct iovec){.iov_base = (void *)FF_MAX((first + i) * PAGE, from),
                                         .iov_len = 1};
        uint32_t ok = n ? readable_pages(at, n) : 0;
        if (ok < n)
            return (uint32_t)((uintptr_t)at[ok].iov_base - from);
    }
    return len;
}

uint32_t ff_poison_scan(const void *addr, uint32_t from, uint32_t to, uint32_t granule,
                        uint8_t *poison)
{
    uint32_t found = 0;

    for (uint32_t i = from; i < to; i++) {
        uint32_t left = (to - i) * granule;
        uint32_t ok = ff_readable((const uint8_t *)addr + (size_t)i * granule, left);
        if (ok == left)
            break;
        i += ok / granule;
        poison[i / 8] |= (uint8_t)(1u << (i % 8));
        found++;
    }
    return found;
}
