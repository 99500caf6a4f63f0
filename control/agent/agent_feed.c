/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_feed.c - an agent serves its image to another one; see migrate/relay.h
 */
#include <errno.h>
#include <string.h>

#include "agent_state.h"

static json_t *unfed(const char *to, const char *why)
{
    return json_pack("{ss ss ss}", "event", "feed", "to", to, "error", why);
}

json_t *agent_unfed(const char *host, const char *port, const char *why)
{
    if (!host)
        return json_pack("{ss ss}", "event", "misfed", "error", why);
    FF_AUTO_FREE char *to = xprintf(strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);

    return unfed(to, why);
}

void agent_feed(struct agent *a, const char *to)
{
    struct ff_address *address = NULL;
    struct ff_error why;

    int rc = a->ff ? ff_address_parse(to, &address, &why)
                   : ff_error_set(&why, EINVAL, "it has no image");
    if (!rc)
        rc = ff_agent_feed(a->ff, address, &why);
    ff_address_free(address);
    if (rc)
        agent_send(a, unfed(to, why.text));
}
