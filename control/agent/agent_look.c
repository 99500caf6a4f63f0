/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_look.c - what becomes of the children that an agent has started
 */
#include <errno.h>
#include <signal.h>

#include "agent_state.h"
#include "overlay_records.h"

#define EVENTS_A_TURN 64
#define EXIT_LIMIT_MS 30000 /* what QEMU may take to end in good order: disks are flushed */

/* A child of a fork has a thread beside it. Without one it would wait for ever */
static int begin_beside(struct agent *a, struct agent_vm *vm, struct ff_error *why)
{
    FF_AUTO_FREE char *watcher = xprintf("%s/" AGENT_WATCHER_SOCKET, a->dir);
    const struct beside_child c = {.number = vm->number, .pid = vm->pid, .agent = a->socket, .watcher = watcher,
                                   .log = vm->log, .how = vm->beside, .failed = a->beside_failed, .opaque = a};
    int rc = !vm->beside || vm->how ? 0 : agent_beside_begin(&a->beside, &c, why);

    if (rc)
        agent_vm_kill(vm);
    return rc;
}

void agent_on_exec_status(struct agent *a, struct agent_vm *vm)
{
    struct ff_error why;
    int rc = agent_vms_on_exec_status(vm, &why);

    if (!rc) {
        agent_metrics_started(a);
        agent_tell_started(a, vm);
        rc = begin_beside(a, vm, &why);
    }
    if (!rc && (vm->state == AGENT_VM_STARTED || vm->state == AGENT_VM_CONNECTED))
        agent_send_child(a, vm, "started");
    else if (rc && rc != -EAGAIN)
        agent_send_error(a, vm->number, why.text);
}

bool agent_on_guest(struct agent *a, struct agent_vm *vm)
{
    enum channel_event e;
    int code = 0, events = 0;

    for (; events < EVENTS_A_TURN && !vm->exited && agent_port_fd(vm->channel) >= 0; events++) {
        e = agent_port_on_input(vm->channel, &code);
        if (e == CHANNEL_NOTHING)
            break;
        if (e == CHANNEL_READY) {
            if (!vm->ready)
                agent_send_child(a, vm, "ready");
            vm->ready = true;
            continue;
        }
        if (e == CHANNEL_RETURN) {
            agent_visit_return(a, vm);
            continue;
        }
        vm->exited = true;
        agent_send(a, json_pack("{ss si ss si si}", "event", "child", "child", (int)vm->number,
                                "what", "exit", "pid", (int)vm->pid, "code", code));
        if (vm->state != AGENT_VM_ENDED) { /* its number may be another's by now */
            kill(vm->pid, SIGTERM); /* QEMU ends in good order */
            vm->end_ms = ff_now_ms() + EXIT_LIMIT_MS;
        }
    }
    if (vm->state == AGENT_VM_ENDED)
        return false;
    if (vm->end_ms && ff_now_ms() > vm->end_ms)
        agent_vm_kill(vm);
    return agent_port_raise_links(vm->channel, vm->qmp) || vm->end_ms || vm->word_ms || events == EVENTS_A_TURN;
}

/* Overlays are gone by the time that the end is told */
void agent_reap(struct agent *a)
{
    if (!agent_vms_reap(&a->vms))
        return;
    overlay_records_sweep(a->base, NULL, NULL);
    for (size_t i = 0; i < a->vms.n; i++) {
        struct agent_vm *vm = &a->vms.v[i];
        if (!vm->how || vm->told)
            continue;
        vm->told = true;
        if (vm->exec_status_fd >= 0)
            agent_on_exec_status(a, vm);
        agent_on_guest(a, vm); /* its last words come before its end */
        if (!vm->unused)
            agent_send_ended(a, vm);
        agent_metrics_ended(a, vm);
        agent_count_vms(a);
        agent_write_state(a);
    }
}

