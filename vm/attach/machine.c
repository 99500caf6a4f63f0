/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * machine.c - what a QEMU's machine is called; see machine.h
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "machine.h"
#include "xalloc.h"

#define MACHINE_END "-machine"

int machine_name(struct qmp *q, char **out, struct ff_error *err)
{
    FF_AUTO_JSON json_t *type = NULL;
    int rc = qmp_command(q, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", "type"), &type, err);

    if (rc)
        return rc;
    const char *text = json_is_string(type) ? json_string_value(type) : "";
    const size_t len = strlen(text), end = strlen(MACHINE_END);
    if (len <= end || strcmp(text + len - end, MACHINE_END))
        return ff_error_set(err, EPROTO, "QEMU: its machine has the type '%s' (want NAME-machine)", text);
    *out = xprintf("%.*s", (int)(len - end), text);
    return 0;
}

int machine_config(struct qmp *q, const char *name, unsigned page_bits, char **out, struct ff_error *err)
{
    FF_AUTO_JSON json_t *target = NULL;
    int rc = qmp_command(q, "query-target", NULL, &target, err);

    if (!rc)
        *out = xprintf("%s, %s, page size %u", name, text_of(target, "arch"), 1u << page_bits);
    return rc;
}
