/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_kept.c - children that a guest moves to, whatever becomes of who started the agent
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a guest is being moved to this child. From `keep` on the agent ends nothing: there
 *              must be no moment at which the end of farfork move, or of the way to the agent, ends
 *              a guest. When its QEMU ends before any guest ran in it, or once that has shut itself
 *              down, and farfork move is gone, the run directory stays: only that says so. A run directory goes with the boot of its
 *              host, so the file of until-go, and a state beside it, are where they outlast that.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent_state.h"
#include "autojson.h"
#include "overlay_records.h"
#include "rundir.h"

void agent_vms_keep(struct agent_vms *k)
{
    for (size_t i = 0; i < k->n; i++) {
        agent_private_forget(&k->v[i]); /* it waits for its guest, and was asked so */
        if (k->v[i].state == AGENT_VM_STARTED)
            k->v[i].state = AGENT_VM_ATTACHED;
    }
}

void agent_vms_let_go(struct agent_vms *k)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state == AGENT_VM_ATTACHED) {
            k->v[i].state = AGENT_VM_COMPLETE;
            free(k->v[i].shut_down_file); /* all of its memory is there: nobody takes it back */
            k->v[i].shut_down_file = NULL;
        }
}

bool agent_vms_untold(const struct agent_vms *k)
{
    bool any = false;

    for (size_t i = 0; i < k->n; i++)
        any |= k->v[i].never_ran || k->v[i].shut_down != LEFT_NO;
    return any;
}

int agent_lasting_make(struct agent *a, struct ff_error *why)
{
    return a->listen ? 0 : rundir_make_lasting(a->base, a->id, a->node, &a->lasting, why);
}

/* It need not be there: what cannot be written is not found after a boot, and not believed */
void agent_lasting_write(const struct agent *a)
{
    FF_AUTO_JSON json_t *s = a->lasting ? agent_state(a) : NULL;

    if (s && !rundir_write_state(a->lasting, s))
        rundir_sync_state(a->lasting);
}

void agent_lasting_drop(struct agent *a)
{
    if (a->lasting)
        rundir_remove(a->lasting);
    free(a->lasting);
    a->lasting = NULL;
}

void agent_keep(struct agent *a)
{
    a->kept = true;
    agent_drop_key(a); /* its QEMU has it */
    agent_vms_keep(&a->vms);
    agent_write_state(a);
    agent_lasting_write(a);
    agent_send(a, json_pack("{ss}", "event", "keep"));
}

void agent_vms_plugged(struct agent_vms *k, const json_t *o)
{
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    FF_AUTO_FREE char *path = xprintf("%s/%lld" PLUGGED_FILE, k->dir, (long long)number);

    if (agent_vms_find(k, number))
        json_dump_file(json_object_get(o, "devices"), path, JSON_COMPACT);
}

json_t *agent_vms_adopt(struct agent_vms *k, const json_t *o)
{
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    json_t *e = json_pack("{ss sI}", "event", "adopt", "child", number);
    struct ff_error why;
    int rc = agent_vms_find(k, number)
                 ? overlay_records_add(k->dir, (unsigned)number, json_object_get(o, "files"), &why)
                 : ff_error_set(&why, ENOENT, "adopt: no such child here");

    if (rc)
        json_object_set_new(e, "error", json_string(why.text));
    return e;
}
