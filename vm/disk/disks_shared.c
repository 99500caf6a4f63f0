/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_shared.c - disks that a guest shares with others that write to them
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      refuse a fork, and a move with --fallback go, of a guest with share-rw=on disks: other
 *              guests write to them. An overlay would separate the parent from them, and they would
 *              change the frozen image.
 * Limits       sharing by file.locking=off alone is not detected.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "disks_private.h"
#include "qmp.h"

/* 1: it is shared; 0: it is not, or its device has no such property */
static int is_shared(struct qmp *q, const char *qdev, struct ff_error *why)
{
    FF_AUTO_JSON json_t *value = NULL;
    FF_AUTO_FREE char *path = *qdev == '/' ? xstrdup(qdev) : xprintf("/machine/peripheral/%s", qdev);
    json_t *what = json_pack("{ss ss}", "path", path, "property", "share-rw");
    int rc = qmp_command(q, "qom-get", what, &value, why);

    return rc == -EREMOTEIO ? 0 : rc ? rc : json_is_true(value);
}

int disks_ask_shared(struct qmp *q, const char *cwd, const json_t *block, json_t **out, struct ff_error *why)
{
    json_t *list = json_array(), *entry;
    size_t i;
    int rc = 0;

    json_array_foreach(block, i, entry) {
        const json_t *in = json_object_get(entry, "inserted");
        if (rc < 0 || !in || json_is_true(json_object_get(in, "ro")) || disk_stores_nothing(in))
            continue;
        rc = *text_of(entry, "qdev") ? is_shared(q, text_of(entry, "qdev"), why) : 0;
        FF_AUTO_FREE char *name = disk_name(entry);
        FF_AUTO_FREE char *file = image_absolute(cwd, text_of(json_object_get(in, "image"), "filename"));
        if (rc > 0)
            json_array_append_new(list, json_pack("{ss ss}", "disk", name, "file", file));
    }
    *out = list;
    return rc < 0 ? rc : 0;
}

int disks_refuse_shared(struct qmp *q, const char *cwd, const json_t *block, struct ff_error *why)
{
    FF_AUTO_JSON json_t *shared = NULL;
    int rc = disks_ask_shared(q, cwd, block, &shared, why);
    const json_t *first = json_array_get(shared, 0);

    if (rc || !first)
        return rc;
    return ff_error_set(why, ENOTSUP, "disk %s: others share %s (share-rw=on): an overlay would part this guest from "
                        "them; start it without share-rw if nobody does", text_of(first, "disk"), text_of(first, "file"));
}
