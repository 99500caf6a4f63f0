/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_port.c - the port of a guest that has asked for its visit, on the host that it visits
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the port's socket there, as its command line there has it
 *              say -> the agent there connects to it, when the guest is there: visiting WORD
 *              guest: return WORD -> agent -> event -> it is to come home
 * Failure      a port that is not to be had there: the guest comes home.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "guest_port.h"
#include "qemu_opts.h"
#include "visit.h"

/* What is behind the port; NULL: there is none */
static char *port_chardev(const struct strv *argv)
{
    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *name = qemu_option_is(argv->v[i - 1], "device") ? qemu_opts_get(argv->v[i], "name") : NULL;
        if (name && !strcmp(name, GUEST_CHANNEL))
            return qemu_opts_get(argv->v[i], "chardev");
    }
    return NULL;
}

int visit_port_find(struct move *m, const struct strv *argv, struct ff_error *why)
{
    FF_AUTO_FREE char *want = port_chardev(argv);

    for (size_t i = 1; want && i < argv->n && !m->guest_port; i++) {
        FF_AUTO_FREE char *id = qemu_option_is(argv->v[i - 1], "chardev") ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (id && !strcmp(id, want) && qemu_opts_is(argv->v[i], "server"))
            m->guest_port = qemu_opts_get(argv->v[i], "path");
    }
    return m->guest_port ? 0
                         : ff_error_set(why, ENOENT, "this guest has no port " GUEST_CHANNEL " with a UNIX socket that "
                                        "listens: nobody would hear it there");
}

int visit_port_say(struct move *m, char *text, struct ff_error *why)
{
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{s{si ss ss}}", "say", "child", 1, "path", m->guest_port, "text", text));
    free(text);
    int rc = move_wait_answer(m, "say", "the agent there", why);
    const char *error = rc ? "" : text_of(m->s.answer, "error");

    return *error ? ff_error_set(why, EREMOTEIO, "the agent on %s: %s", move_host(m)->node->host, error) : rc;
}

void visit_port_hear(struct move *m)
{
    struct visit *v = m->visit;
    struct vm *k = move_child(m);

    if (!k->returns || !v->o.word)
        return;
    free(v->asked);
    v->asked = k->returns;
    k->returns = NULL;
    if (!v->wanted)
        visit_say(m, "the guest asks to go home");
    v->wanted = true;
}
