/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_warm.c - children that were started ahead, and wait for a fork that may come
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what vmclone --keep (control/fork/pool.c) asks of an agent, beside starting
 *              children.
 * Picture      --background: the session has a tenth of a share of the CPUs, and one child after
 *              the other is started
 *              foreground    all have come: an ordinary share; -> warm: what they cost
 *              unused        a fork has come, with fewer children: this one ends without a word
 *              message       and the others hear when that was, and of how many they are
 */
#include <poll.h>

#include "agent_state.h"
#include "process_argv.h"

#define TURN_MS 10
#define TURNS 50 /* an ordinary user may say so ten times a second, with all others of this host */

static void come_forward(struct agent *a)
{
    json_int_t bytes = 0;

    a->background = false;
    for (int i = 0; i < TURNS && !agent_set_weight(0); i++)
        poll(NULL, 0, TURN_MS);
    agent_count_vms(a);
    for (size_t i = 0; i < a->vms.n; i++)
        if (a->vms.v[i].state != AGENT_VM_ENDED)
            bytes += (json_int_t)process_pss_bytes(a->vms.v[i].pid);
    agent_send(a, json_pack("{ss sI}", "event", "warm", "pss_bytes", bytes));
}

static void end_unused_vm(struct agent *a, json_int_t number)
{
    struct agent_vm *vm = agent_vms_find(&a->vms, number);

    if (vm)
        vm->unused = true;
    agent_kill(a, number);
}

bool agent_warm(struct agent *a, const json_t *o)
{
    const json_t *v;

    if (json_is_true(json_object_get(o, "foreground"))) {
        come_forward(a);
    } else if ((v = json_object_get(o, "unused"))) {
        end_unused_vm(a, json_integer_value(v));
    } else if ((v = json_object_get(o, "message"))) {
        json_int_t number = json_integer_value(json_object_get(v, "child"));
        struct agent_vm *vm = agent_vms_find(&a->vms, number);
        agent_port_say(vm ? vm->channel : NULL, json_string_value(json_object_get(v, "text")));
    } else {
        return false;
    }
    return true;
}
