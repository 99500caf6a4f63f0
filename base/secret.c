/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * secret.c - memory for keys: in no core dump, wiped when freed
 */
/**
 * DOC: Theory of Operation
 *
 * Invariants   The kernel leaves these pages out of a core dump (MADV_DONTDUMP), or there are none:
 *              a kernel that refuses gives no memory. A heap has no such pages.
 * Limits       mlock() may fail, since RLIMIT_MEMLOCK may be used up: the memory serves without.
 *              A fork has a copy, as it may have to speak with the key.
 */
#include <string.h>
#include <sys/mman.h>

#include "secret.h"

void *ff_secret_new(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (madvise(p, len, MADV_DONTDUMP) < 0) {
        munmap(p, len);
        return NULL;
    }
    (void)mlock(p, len);
    return p;
}

void ff_secret_free(void *p, size_t len)
{
    if (!p)
        return;
    explicit_bzero(p, len);
    munmap(p, len);
}
