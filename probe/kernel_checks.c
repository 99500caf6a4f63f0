/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kernel_checks.c - what this kernel lacks of what moves and forks use, and what that costs
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      each of these has a slower way, or one with less comfort, where the kernel lacks it;
 *              no byte depends on one. They are tried, not taken from the version: distributions
 *              add and remove. What moves cannot do without is among host_checks.c.
 * Limits       what only a userfaultfd tells is left out where this user may have none.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "kernel_checks.h"
#include "pagemap.h"
#include "populate.h"
#include "uffd.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#endif

/* The kernel looks at the advice first, then at the length: nothing is done to no memory */
static bool takes_advice(int advice)
{
    static const char none;
    uintptr_t page = (uintptr_t)&none & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);

    return !madvise((void *)page, 0, advice);
}

static bool scans_pages(void)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();

    return pagemap < 0 || ff_pagemap_scans(pagemap);
}

static bool resends_soon(void)
{
    FF_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd < 0 ||
           !setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &(int){20000}, sizeof(int)) ||
           errno != ENOPROTOOPT;
}

unsigned ff_kernel_lacks(void (*fn)(void *opaque, const char *what, const char *since,
                                    const char *cost),
                         void *opaque)
{
    struct ff_uffd_probe p;

    ff_uffd_probe(&p);
    bool unknown = p.dev_errno && p.syscall_errno;
    const struct {
        bool here;
        const char *what, *since, *cost;
    } all[] = {
        {takes_advice(MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE", "5.14",
         "no prealloc; a full file system behind guest memory ends a QEMU (SIGBUS), not a move"},
        {takes_advice(MADV_COLLAPSE), "MADV_COLLAPSE", "6.1",
         "after a move memory becomes huge pages again by khugepaged alone, slowly"},
        {unknown || p.poisons, "UFFDIO_POISON", "6.6",
         "a page that the source cannot read (its memory failed) stops the guest that touches it "
         "instead of a machine check; found before GO, or in a fork, it ends that"},
        {scans_pages(), "PAGEMAP_SCAN", "6.7",
         "memory that nobody touched is looked at page by page; from a parent's second fork on "
         "agents on its host copy its memory"},
        {unknown || p.moves, "UFFDIO_MOVE", "6.8",
         "pages are copied to their place, none is made ready before a source comes (prealloc)"},
        {unknown || p.reads_now, "RWF_NOWAIT", "6.10",
         "who takes over a child's QEMU can stop its agent: reads of a userfaultfd wait"},
        {resends_soon(), "TCP_RTO_MIN_US", "6.15",
         "what a network loses last of a page is sent again after 200 ms, not 20"},
    };
    unsigned n = 0;

    for (unsigned i = 0; i < FF_ARRAY_LEN(all); i++) {
        if (all[i].here)
            continue;
        fn(opaque, all[i].what, all[i].since, all[i].cost);
        n++;
    }
    return n;
}
