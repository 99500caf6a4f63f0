/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_state.c - states of hosts and VMs, how one fails, and the times of phases
 */
#include <stdio.h>

#include "printable.h"
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

void session_note(struct session *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    strv_take(&s->notes, ff_printable(xvprintf(fmt, ap)));
    va_end(ap);
}

void vm_fail(struct vm *vm, const char *fmt, ...)
{
    va_list ap;

    if (vm->state == VM_FAILED) /* the first reason is the cause */
        return;
    va_start(ap, fmt);
    vm->error = ff_printable(xvprintf(fmt, ap));
    va_end(ap);
    vm->state = VM_FAILED;
}

void host_fail(struct session *s, struct host *h, const char *fmt, ...)
{
    va_list ap;

    if (h->state == HOST_FAILED)
        return;
    va_start(ap, fmt);
    h->error = ff_printable(xvprintf(fmt, ap));
    va_end(ap);
    h->state = HOST_FAILED;
    for (size_t i = 0; i < s->n_vms; i++)
        if (&s->hosts[s->vms[i].host] == h && s->vms[i].state != VM_COMPLETE &&
            s->vms[i].state != VM_ENDED)
            vm_fail(&s->vms[i], "host %s: %s", h->node->host, h->error);
}

void session_print_ms(const char *what, double ms)
{
    if (ms >= 0)
        printf("  %s %.1f ms", what, ms);
}

void session_set_ms(json_t *o, const char *key, double ms)
{
    json_object_set_new(o, key, ms >= 0 ? json_real(ms) : json_null());
}

char *host_at(const struct host *h)
{
    return xprintf("%s:%u", h->address, h->port);
}
