/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_visit.c - the port of a guest that visits this host: what it is told, and that it wants to go home
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      farfork visit -> {"say": ..} -> the port of the QEMU here, which is connected to then
 *              guest: return [WORD] -> event "child", "return", with the word: farfork visit brings it home
 * Failure      farfork visit is gone: nobody brings it home, and the guest hears that.
 */
#include <errno.h>

#include "agent_guest_port.h"
#include "agent_state.h"
#include "autojson.h"
#include "guest_port.h"

json_t *agent_visit_say(struct agent_vms *k, const json_t *o)
{
    const char *path = json_string_value(json_object_get(o, "path"));
    const char *text = json_string_value(json_object_get(o, "text"));
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    struct agent_vm *vm = agent_vms_find(k, number);
    json_t *e = json_pack("{ss sI}", "event", "say", "child", number);
    struct ff_error why;
    int rc = vm && path && text ? 0 : ff_error_set(&why, EINVAL, "say: want child, path, text");

    if (!rc && !vm->channel)
        vm->channel = agent_port_visit(path);
    if (!rc)
        rc = agent_port_tell(vm->channel, text, &why);
    if (rc)
        json_object_set_new(e, "error", json_string(why.text));
    return e;
}

void agent_visit_return(struct agent *a, struct agent_vm *vm)
{
    const char *word = agent_port_word(vm->channel);
    struct ff_error ignored;

    if (!a->detached) {
        agent_send(a, json_pack("{ss si ss si ss}", "event", "child", "child", (int)vm->number, "what", "return",
                                "pid", (int)vm->pid, "word", word));
        return;
    }
    FF_AUTO_FREE char *text = guest_port_failed_word(word, "no farfork visit --serve is there any more: a person "
                                                           "brings this machine home");
    agent_port_tell(vm->channel, text, &ignored);
}
