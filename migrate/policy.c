/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * policy.c - NUMA policies of guest memory; see policy.h
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "policy.h"

#define SAMPLES 64u     /* a block has one policy, mostly */

struct ff_policy ff_policy_at(const void *addr)
{
    struct ff_policy p = {.mode = MPOL_DEFAULT};

    if (syscall(SYS_get_mempolicy, &p.mode, p.nodes, (unsigned long)FF_POLICY_NODES, addr,
                MPOL_F_ADDR))
        p.mode = MPOL_DEFAULT;
    return p;
}

int ff_policy_set(const struct ff_policy *p, void *addr, uint64_t len_bytes)
{
    if (p->mode == MPOL_DEFAULT ||
        !syscall(SYS_mbind, addr, (unsigned long)len_bytes, p->mode, p->nodes,
                 (unsigned long)FF_POLICY_NODES, 0))
        return 0;
    return -errno;
}

bool ff_policy_is_set(const struct ff_region *r)
{
    uint64_t pages = r->len_bytes / r->psize, step = FF_MAX(pages / SAMPLES, 1u);

    for (uint64_t i = 0; i < pages; i += step)
        if (ff_policy_at((const uint8_t *)r->host + i * r->psize).mode != MPOL_DEFAULT)
            return true;
    return false;
}

int ff_policy_copy(const struct ff_region *r, void *alias, struct ff_error *err)
{
    struct ff_policy p = ff_policy_at(r->host);

    int rc = ff_policy_set(&p, alias, r->len_bytes);
    if (rc)
        ff_error_set(err, -rc, "pager: region %s: NUMA policy for its second mapping: %s; use "
                     "landing=copy", r->name, strerror(-rc));
    return rc;
}
