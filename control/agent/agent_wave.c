/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_wave.c - children are started in waves that the CPUs bear
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a hundred QEMUs that start at once all start late, and together: nothing is ready
 *              for seconds, so that those which came first run (clone/server.c holds them for two)
 *              and take the CPUs from all others. In waves one after the other is ready.
 * States       a request to spawn waits here until fewer than the wave's number are on their way
 *              from spawn to AGENT_VM_CONNECTED; from there on a child needs the CPU for a moment
 *              only.
 * Failure      a child that does not come for STUCK_MS makes room for another: what it waits for,
 *              a disk on the network for one, needs no CPU.
 */
#include <sched.h>

#include "agent_state.h"

#define WAVE_A_CPU 2
#define STUCK_MS 2000

static size_t wave(const struct agent *a)
{
    cpu_set_t set;

    if (a->background)
        return 1;
    return WAVE_A_CPU * (sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set));
}

static bool room(const struct agent *a)
{
    size_t n = 0;

    for (size_t i = 0; i < a->vms.n; i++)
        n +=
            a->vms.v[i].state < AGENT_VM_CONNECTED && ff_now_ms() < a->vms.v[i].begun_ms + STUCK_MS;
    return !a->ff || n < wave(a); /* guests that move come as their sources do */
}

size_t agent_waiting(const struct agent *a)
{
    return json_array_size(a->spawns);
}

void agent_spawn_later(struct agent *a, json_t *spawn)
{
    if (!a->spawns)
        a->spawns = json_array();
    json_array_append(a->spawns, spawn);
    agent_spawn_waiting(a); /* what is asked of it next finds it, where its turn is now */
}

static json_t *spawn_next(struct agent *a)
{
    json_t *spawn = room(a) ? json_incref(json_array_get(a->spawns, 0)) : NULL;

    if (spawn)
        json_array_remove(a->spawns, 0);
    return spawn;
}

/* Whether it waited, and does no more */
static bool spawn_waits_no_more(struct agent *a, json_int_t number)
{
    size_t i;
    json_t *spawn;

    json_array_foreach(a->spawns, i, spawn)
        if (json_integer_value(json_object_get(spawn, "number")) == number) {
            json_array_remove(a->spawns, i);
            return true;
        }
    return false;
}

/* Those that are started at once run together. Until then one guest that is busy in a session of
 * its own, the parent for one, would get as much of the CPUs as all of them */
void agent_count_vms(struct agent *a)
{
    if (!a->ff)
        return;
    size_t starting = agent_vms_starting(&a->vms) + agent_waiting(a);
    ff_agent_together(a->ff, (unsigned)starting);
    size_t sessions = !a->detached && starting ? agent_vms_alive(&a->vms) + agent_waiting(a) : 0;
    agent_set_weight(a->background ? AGENT_BACKGROUND : sessions);
}

void agent_kill(struct agent *a, json_int_t number)
{
    struct agent_vm *vm = agent_vms_find(&a->vms, number);

    if (spawn_waits_no_more(a, number)) {
        agent_send_error(a, (unsigned)number, "ended before its start");
        agent_count_vms(a);
    } else if (vm && vm->state != AGENT_VM_ENDED) {
        agent_vm_kill(vm);
    }
}

static void spawn_vm(struct agent *a, const json_t *o)
{
    struct ff_error why;
    struct agent_vm *vm;

    if (agent_vms_spawn(&a->vms, o, &vm, &why))
        agent_send_error(a, (unsigned)json_integer_value(json_object_get(o, "number")), why.text);
    else
        agent_write_state(a);
}

/* Those whose turn it is */
void agent_spawn_waiting(struct agent *a)
{
    json_t *o;

    while (agent_waiting(a) && (o = spawn_next(a))) {
        spawn_vm(a, o);
        json_decref(o);
        agent_count_vms(a);
    }
}
