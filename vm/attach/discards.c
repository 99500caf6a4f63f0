/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * discards.c - devices by which a guest gives memory back; see discards.h
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "discards.h"
#include "xalloc.h"

#define BALLOON "child<virtio-balloon" /* -pci, -device and others */
#define REPORTS "free-page-reporting"  /* QEMU 5.1 */

static int check_balloon(struct qmp *q, const char *path, struct ff_error *err)
{
    FF_AUTO_JSON json_t *on = NULL;
    int rc = qmp_command(q, "qom-get", json_pack("{ss ss}", "path", path, "property", REPORTS), &on, err);

    if (rc || json_is_false(on))
        return rc;
    return ff_error_set(err, ENOTSUP, "device %s has " REPORTS "=on: memory that the guest gives back would have its old contents again, "
                        "in a child or after a visit: start the guest without it", path);
}

static int check_folder(struct qmp *q, const char *folder, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = qmp_command(q, "qom-list", json_pack("{ss}", "path", folder), &list, err);

    for (size_t i = 0; !rc && i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        FF_AUTO_FREE char *path = xprintf("%s/%s", folder, text_of(o, "name"));

        if (!strncmp(text_of(o, "type"), BALLOON, strlen(BALLOON)))
            rc = check_balloon(q, path, err);
    }
    return rc;
}

int discards_check(struct qmp *q, struct ff_error *err)
{
    int rc = check_folder(q, "/machine/peripheral", err);

    return rc ? rc : check_folder(q, "/machine/peripheral-anon", err);
}
