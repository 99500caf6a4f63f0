/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach.c - what both sides of a move by attaching share; see attach.h
 */
#include <errno.h>

#include "attach_private.h"

int attach_new(struct proxy *p, struct ff_error *err)
{
    p->attach = calloc(1, sizeof(*p->attach));
    if (!p->attach)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    p->attach->watch = (struct watch){.fd = -1, .there = -1};
    return 0;
}

int attach_find_blocks(struct proxy *p, struct ff_error *err)
{
    struct attach *a = p->attach;
    pthread_mutex_lock(&p->qmp_lock);
    int rc = outside_list(p->q, &a->all, &a->n_all, err);

    if (!rc)
        rc = outside_place(p->q, p->pid, a->all, a->n_all, err);
    pthread_mutex_unlock(&p->qmp_lock);
    if (rc)
        return rc;
    a->incoming = calloc(a->n_all + 1, sizeof(*a->incoming));
    a->small = calloc(a->n_all + 1, sizeof(*a->small));
    p->blocks = calloc(a->n_all + 1, sizeof(*p->blocks));
    if (!a->incoming || !a->small || !p->blocks)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (unsigned i = 0; i < a->n_all; i++) {
        a->incoming[i] = (struct incoming_block){.name = a->all[i].name, .len_bytes = a->all[i].len_bytes};
        if (attach_is_main(&a->all[i]))
            p->blocks[p->n_blocks++] = a->all[i];
    }
    return p->n_blocks ? 0 : ff_error_set(err, ENOTSUP, "QEMU: no block of memory of 1 MiB or more");
}

void attach_free(struct proxy *p)
{
    struct attach *a = p->attach;

    if (!a)
        return;
    for (unsigned i = 0; a->small && i < a->n_all; i++)
        free(a->small[i]);
    ff_close_fd(&a->watch.fd);
    free(a->small);
    free(a->incoming);
    free(a->all);
    free(a->stream.data);
    free(a);
    p->attach = NULL;
}
