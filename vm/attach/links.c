/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * links.c - the links of a QEMU's network cards; see links.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      info network     e1000.0: index=0,type=nic,model=e1000,macaddr=52:54:00:12:34:56
 *                                \ net0: index=0,type=user,net=10.0.2.0,restrict=off
 *              hub 0
 *               \ hub0port0: e1000.1: index=0,type=nic,model=e1000,...
 *              No command names the cards themselves; a name has no ": ", since "index=" follows it.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "links.h"
#include "xalloc.h"

#define INDEX ": index="
#define NIC ",type=nic,"
#define HUB ": "

static int link_down(struct qmp *q, const char *line, struct ff_error *err)
{
    line += strspn(line, " \\");
    const char *end = strstr(line, INDEX);

    if (!strstr(line, NIC))
        return 0;
    if (!end || end == line)
        return ff_error_set(err, EPROTO, "QEMU: info network: read line: no name: %.200s", line);
    for (const char *hub = line; (hub = strstr(hub, HUB)) && hub < end;)
        line = hub += strlen(HUB);
    return qmp_command(q, "set_link", json_pack("{ss% sb}", "name", line, (size_t)(end - line), "up", 0), NULL, err);
}

int links_all_down(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *text = NULL;
    int rc = qmp_hmp(q, "info network", &text, err);

    if (rc)
        return rc;
    FF_AUTO_FREE char *copy = xstrdup(json_string_value(text));
    char *rest;
    for (char *l = strtok_r(copy, "\r\n", &rest); l && !rc; l = strtok_r(NULL, "\r\n", &rest))
        rc = link_down(q, l, err);
    return rc;
}
