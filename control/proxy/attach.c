/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach.c - what one side of a move by attaching keeps; see attach.h
 */
#include <errno.h>

#include "attach_private.h"

int attach_new(struct proxy *p, struct ff_error *err)
{
    p->attach = calloc(1, sizeof(*p->attach));
    if (!p->attach)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    p->attach->watch = (struct watch){.fd = -1, .there = -1, .by = -1};
    return 0;
}

void attach_free(struct proxy *p)
{
    struct attach *a = p->attach;

    if (!a)
        return;
    for (unsigned i = 0; a->small && i < a->n_all; i++)
        free(a->small[i]);
    ff_close_fd(&a->watch.fd);
    ff_close_fd(&a->watch.by);
    free(a->small);
    free(a->incoming);
    free(a->all);
    free(a->stream.data);
    free(a);
    p->attach = NULL;
}
