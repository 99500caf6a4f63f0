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

#define NODES_MAX 4096u /* more than any kernel is built for: 1024 */
#define SAMPLES 64u     /* a block has one policy, mostly */

struct policy {
    int mode;
    unsigned long nodes[NODES_MAX / 8 / sizeof(unsigned long)];
};

static struct policy policy_of(const uint8_t *addr)
{
    struct policy p = {.mode = MPOL_DEFAULT};

    if (syscall(SYS_get_mempolicy, &p.mode, p.nodes, (unsigned long)NODES_MAX, addr, MPOL_F_ADDR))
        p.mode = MPOL_DEFAULT;
    return p;
}

bool ff_policy_is_set(const struct ff_region *r)
{
    uint64_t pages = r->len_bytes / r->psize, step = FF_MAX(pages / SAMPLES, 1u);

    for (uint64_t i = 0; i < pages; i += step)
        if (policy_of((const uint8_t *)r->host + i * r->psize).mode != MPOL_DEFAULT)
            return true;
    return false;
}

int ff_policy_copy(const struct ff_region *r, void *alias, struct ff_error *err)
{
    struct policy p = policy_of(r->host);

    if (p.mode == MPOL_DEFAULT ||
        !syscall(SYS_mbind, alias, (unsigned long)r->len_bytes, p.mode, p.nodes,
                 (unsigned long)NODES_MAX, 0))
        return 0;
    return ff_error_set(err, errno, "pager: region %s: NUMA policy for its second mapping: %s; use "
                        "landing=copy", r->name, strerror(errno));
}
