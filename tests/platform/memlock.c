/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * memlock.c - how much memory may be pinned, as an RDMA registration does
 *
 * Registering memory counts pinned pages against RLIMIT_MEMLOCK unless CAP_IPC_LOCK is held.
 * Tried by locking more than the usual 8 MiB.
 * Source: getrlimit(2); mlock(2); ibv_reg_mr(3)
 */
#include "platform.h"
#include <sys/resource.h>

int main(void)
{
    const size_t try_len = (size_t)16 << 20;
    struct rlimit lim;
    char limit[32];
    void *p;

    pl_start();
    PL_MUST(getrlimit(RLIMIT_MEMLOCK, &lim) == 0);
    if (lim.rlim_cur == RLIM_INFINITY)
        snprintf(limit, sizeof(limit), "unlimited");
    else
        snprintf(limit, sizeof(limit), "%" PRIu64 " KiB", (uint64_t)lim.rlim_cur / 1024);
    p = pl_anon(try_len);
    if (mlock(p, try_len) != 0) {
        if (errno != ENOMEM && errno != EPERM && errno != EAGAIN)
            pl_fails("mlock of 16 MiB: %s", strerror(errno));
        pl_skip("RLIMIT_MEMLOCK is %s and this user has no CAP_IPC_LOCK: a guest cannot be pinned; "
                "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit", limit);
    }
    if (lim.rlim_cur == RLIM_INFINITY)
        pl_holds("RLIMIT_MEMLOCK is unlimited");
    if (lim.rlim_cur < try_len)
        pl_holds("RLIMIT_MEMLOCK is %s, but does not bind: CAP_IPC_LOCK", limit);
    pl_holds("RLIMIT_MEMLOCK is %s: guests up to about that size can be pinned", limit);
}
