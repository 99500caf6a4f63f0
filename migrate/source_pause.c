/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_pause.c - one deadline for all messages sent while the source guest is paused
 */
#include <errno.h>

#include "cleanup.h"
#include "error.h"
#include "source_private.h"

void ff_source_begin_pause(struct ff_source *s)
{
    if (!s->paused_ns)
        s->paused_ns = ff_boot_ns();
}

int ff_source_pause_left_ms(const struct ff_source *s)
{
    uint64_t ms = (ff_boot_ns() - s->paused_ns) / 1000000u;

    return (int)((uint64_t)s->addr.pause_ms - FF_MIN(ms, (uint64_t)s->addr.pause_ms));
}

int ff_source_send_msg(struct ff_source *s, int len, struct ff_error *err)
{
    if (s->paused_ns) {
        int left = ff_source_pause_left_ms(s);
        if (!left)
            return ff_error_set(err, ETIMEDOUT, "source: the guest was paused for %d ms, and the "
                                "destination has not got its state: too slow", s->addr.pause_ms);
        if (left < s->addr.timeout_ms)
            s->link->ops->set_timeout(s->link, left);
    }
    return ff_control_send(&s->ctl, len, err);
}
