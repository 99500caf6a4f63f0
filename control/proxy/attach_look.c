/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_look.c - a QEMU that is attached to: its process, and its memory; see attach.h
 */
#include <errno.h>

#include "attach_private.h"

int attach_look(struct proxy *p, struct ff_error *err)
{
    int rc = proxy_qemu_connect(p, err);

    if (rc)
        return rc;
    p->pid = p->o->pid ? p->o->pid : qmp_pid(p->q);
    if (p->pid <= 0)
        return ff_error_set(err, ESRCH, "QEMU: its process is not of this PID namespace: name it by --pid");
    return outside_may(p->pid, true, err);
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
