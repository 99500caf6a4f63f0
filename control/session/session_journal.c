/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_journal.c - what became of a fork or a move, for this host's journal
 */
#include <unistd.h>

#include "journal.h"
#include "session.h"

void session_journal(const struct session *s, const char *event, bool well)
{
    const struct journal_about about = {.event = event};
    char host[256] = "localhost";
    size_t run = 0;

    gethostname(host, sizeof(host) - 1);
    for (size_t i = 0; i < s->n_vms; i++)
        run += vm_runs(&s->vms[i]);
    const struct journal j = {.socket = JOURNAL_SOCKET, .fork = s->o.id, .host = host};
    journal_send(&j, well ? JOURNAL_INFO : JOURNAL_ERROR, &about,
                 "%s %s of %s: %s; %zu of %zu run%s%s", s->kind->program, s->o.id,
                 s->o.parent_path, event, run, s->n_vms, *s->why.text ? ": " : "", s->why.text);
}
