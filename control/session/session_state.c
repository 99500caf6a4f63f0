/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_state.c - states of hosts and VMs, and how one fails
 */
#include <stdio.h>

#include "session.h"

const char *vm_state_name(enum vm_state s)
{
    static const char *const names[] = {"waiting", "spawned", "started", "attached", "running",
                                        "complete", "ended", "failed"};
    return names[s];
}

bool vm_runs(const struct vm *vm)
{
    return vm->state == VM_RUNNING || vm->state == VM_COMPLETE || vm->state == VM_ENDED;
}

void vm_fail(struct vm *vm, const char *fmt, ...)
{
    struct ff_error w;
    va_list ap;

    if (vm->state == VM_FAILED) /* the first reason is the cause */
        return;
    va_start(ap, fmt);
    vsnprintf(w.text, sizeof(w.text), fmt, ap);
    va_end(ap);
    vm->state = VM_FAILED;
    vm->error = xstrdup(w.text);
}

void host_fail(struct session *s, struct host *h, const char *fmt, ...)
{
    struct ff_error w;
    va_list ap;

    if (h->state == HOST_FAILED)
        return;
    va_start(ap, fmt);
    vsnprintf(w.text, sizeof(w.text), fmt, ap);
    va_end(ap);
    h->state = HOST_FAILED;
    h->error = xstrdup(w.text);
    for (size_t i = 0; i < s->n_vms; i++)
        if (&s->hosts[s->vms[i].host] == h && s->vms[i].state != VM_COMPLETE &&
            s->vms[i].state != VM_ENDED)
            vm_fail(&s->vms[i], "host %s: %s", h->node->host, w.text);
}
