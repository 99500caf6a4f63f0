/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_pump.c - wait for agents, and look after the fork meanwhile
 */
#include <errno.h>

#include "fork.h"

#define SHOW_MS 200
#define ASK_MS 1000 /* an agent would have said why by then */

/* Some agent waits for another link, and says soon what came of it */
static bool any_paused(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state != HOST_FAILED && f->s.hosts[i].paused_until_ms > ff_now_ms())
            return true;
    return false;
}

int fork_pump(struct fork *f, bool (*done)(const struct fork *), int limit_ms)
{
    uint64_t last = ff_now_ms(), asked = last;

    while (!done(f)) {
        if (f->s.interrupted)
            return -ECANCELED;
        if (session_turn(&f->s, SHOW_MS) || any_paused(f))
            last = ff_now_ms();
        else if (ff_now_ms() > last + (uint64_t)limit_ms)
            return -ETIMEDOUT;
        fork_verify_images(f);
        fork_tree_turn(f);
        if (ff_now_ms() > asked + ASK_MS) {
            fork_ask_export(f, ASK_MS);
            asked = ff_now_ms();
        }
        fork_show(f, false);
    }
    return 0;
}
