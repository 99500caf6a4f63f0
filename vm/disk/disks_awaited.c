/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_awaited.c - overlays of the parent that somebody else makes, such as libvirt
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      disks_plan(), disks_awaited(); the freeze, the guest stands still; others make the
 *              overlays; the guest goes on; disks_take_over()
 * Invariants   Between the freeze and the overlay nobody writes to the image: the caller sees to it
 *              that the guest does not go on before.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "disks_private.h"

json_t *disks_awaited(const struct disks *d)
{
    json_t *images = json_array();

    each_frozen(d, k)
        if (k->awaited && !k->empty)
            json_array_append_new(images, json_string(k->frozen));
    return images;
}

/* Of the device that @k was found by */
static const json_t *inserted_now(const json_t *block, const struct disk *k)
{
    size_t i;
    json_t *entry;

    json_array_foreach(block, i, entry) {
        FF_AUTO_FREE char *name = disk_name(entry);
        if (!strcmp(name, k->name))
            return json_object_get(entry, "inserted");
    }
    return NULL;
}

static int take_over(const struct disks *d, struct disk *k, const json_t *block,
                     struct ff_error *why)
{
    const json_t *inserted = inserted_now(block, k);
    const json_t *behind = image_backing(json_object_get(inserted, "image"));

    if (!behind || !image_same_file(d->cwd, text_of(behind, "filename"), k->frozen) ||
        strcmp(text_of(inserted, "drv"), "qcow2"))
        return ff_error_set(why, EPROTO, "disk %s: want a new overlay right on %s, found %s",
                            k->name, k->frozen, text_of(inserted, "file"));
    k->empty = image_absolute(d->cwd, text_of(json_object_get(inserted, "image"), "filename"));
    free(k->node);
    k->node = xstrdup(text_of(inserted, "node-name"));
    return 0;
}

int disks_take_over(struct disks *d, const json_t *block, struct ff_error *why)
{
    int rc = 0;

    for (struct disk *k = d->disk; k < d->disk + d->n && !rc; k++)
        if (k->awaited && !k->empty)
            rc = take_over(d, k, block, why);
    return rc;
}
