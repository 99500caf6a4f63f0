/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks.c - the disks of a fork: what is frozen, and the overlays of parent and children
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      from what the parent's QEMU says about its disks, and its command line, a plan:
 *              data alone. Nothing here talks to a QEMU, runs a program or writes a file.
 * Picture
 *                  before         in the pause             children
 *              device            device                    device        device
 *                |                 |                         |             |
 *              image      ->   overlay (parent's)         overlay 1     overlay 2   (--scratch)
 *                              ...................           |             |
 *                                image: immutable <----------+-------------+   read-only, or NBD
 *
 * Order        steps of prepare; x-farfork-export with the actions; then the NBD server and the
 *              children, which open the image read-only: QEMU reopens it read-only in the
 *              parent at the end of blockdev-snapshot, and drops its write lock with that.
 *              Overlays are created with -u, so that nobody opens the image to make them.
 * Invariants   1. Whatever has been the parent's top node at the fork is never written again.
 *              2. A child's chain is what the headers say; the plan refuses a parent whose
 *                 chain is another one (disks_plan() compares them).
 * Failure      before the pause: undo. After it the parent lives in its overlays, until a
 *              block-commit: that of a fork of which nothing is left (fork_commit.c), or somebody's
 *              who has read the summary, which says where they are.
 * Limits       raw and qcow2. Each fork makes the parent's chain longer by one, but for disks that
 *              a stopped parent (a template) has not written to since.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disks_private.h"
#include "autojson.h"
#include "qcow2_header.h"
#include "folder.h"
#include "instance_data.h"

/* The parent's overlay: the image's name, less what an earlier fork put there */
static char *overlay_name(const struct disks *d, const struct disk *disk, const char *folder)
{
    const char *slash = strrchr(disk->frozen, '/');
    const char *base = slash ? slash + 1 : disk->frozen;
    const char *earlier = strstr(base, ".fork-");
    int base_len = (int)(earlier ? (size_t)(earlier - base) : strlen(base));

    if (folder)
        return xprintf("%s/%.*s.fork-%s-disk%u.qcow2", folder, base_len, base, d->fork_id,
                       disk->index);
    return xprintf("%.*s/%.*s.fork-%s-disk%u.qcow2", (int)(base - disk->frozen) - 1, disk->frozen,
                   base_len, base, d->fork_id, disk->index);
}

/* FNV-1a: node names have at most 31 characters, IDs have more */
static uint64_t hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3;
    return h;
}

/* The name of its overlay is taken: by an earlier fork of this parent, or by nobody knows what */
static int refuse_overlay(const struct disks *d, const struct disk *disk, const json_t *image,
                          struct ff_error *why)
{
    for (const json_t *i = image; i; i = image_backing(i))
        if (image_same_file(d->cwd, text_of(i, "filename"), disk->overlay))
            return ff_error_set(why, EEXIST,
                          "disk %s: fork id '%s' was used before; the parent %s %s now: take "
                          "another id (--id)",
                          disk->name, d->fork_id, i == image ? "writes to" : "reads from",
                          disk->overlay);
    return ff_error_set(
        why, EEXIST,
        "disk %s: create overlay %s: the file exists; take another fork id (--id), or remove it "
        "if no guest uses it",
        disk->name, disk->overlay);
}

static int plan_overlay(const struct disks *d, struct disk *disk, const char *folder,
                        const json_t *image, struct ff_error *why)
{
    if (!folder && (disk->host_device || image_has_protocol(disk->frozen)))
        return ff_error_set(why, EINVAL,
                      "disk %s: %s is no file: say where the parent's overlay is to be "
                      "(--overlays FOLDER)",
                      disk->name, disk->frozen);
    disk->overlay = overlay_name(d, disk, folder);
    disk->overlay_node = xprintf("ff%016llx-%u", (unsigned long long)hash(d->fork_id), disk->index);
    return access(disk->overlay, F_OK) ? 0 : refuse_overlay(d, disk, image, why);
}

static bool is_host_device(const json_t *nodes, const char *file)
{
    size_t i;
    json_t *node;

    json_array_foreach(nodes, i, node)
        if (!strcmp(text_of(node, "file"), file) && !strncmp(text_of(node, "drv"), "host_", 5))
            return true;
    return false;
}

static int check_format(const struct disk *disk, struct ff_error *why)
{
    if (!strncmp(disk->frozen, "/dev/fdset/", 11))
        return ff_error_set(why, ENOTSUP,
                            "disk %s: its image is a descriptor that the parent was given: start the "
                            "parent with the name of the file",
                            disk->name);
    if (strcmp(disk->format, "raw") && strcmp(disk->format, "qcow2"))
        return ff_error_set(
            why, ENOTSUP,
            "disk %s: node %s has driver %s (permitted: raw, qcow2): convert the image, or end "
            "the block job or filter on top of it",
            disk->name, disk->node, disk->format);
    return 0;
}

/* null-co and null-aio, also below raw */
bool disk_stores_nothing(const json_t *inserted)
{
    /* strstr(): to strncmp() with "" gcc objects under a sanitizer */
    const char *drv = text_of(inserted, "drv"), *file = text_of(inserted, "file");

    return strstr(drv, "null-") == drv || strstr(file, "null-") == file;
}

/* The top is an overlay that adds nothing to what is behind it; its name goes to *@file */
static bool is_frozen_already(const char *cwd, const json_t *inserted, char **file)
{
    const json_t *image = json_object_get(inserted, "image"), *next = image_backing(image);
    FF_AUTO_FREE char *name = image_absolute(cwd, text_of(image, "filename"));

    if (strcmp(text_of(inserted, "drv"), "qcow2") || !next || !overlay_is_empty(name) ||
        json_integer_value(json_object_get(next, "virtual-size")) !=
            json_integer_value(json_object_get(image, "virtual-size")))
        return false;
    *file = xstrdup(name);
    return true;
}

/* A fork lays one image more upon it, and QEMU looks through all of them for what it reads */
static int check_length(const struct disks_input *in, const char *name, const json_t *image,
                        struct ff_error *why)
{
    unsigned n = 0;

    for (; image; image = image_backing(image))
        n++;
    if (!in->max_chain || n <= in->max_chain)
        return 0;
    return ff_error_set(
        why, EMLINK,
        "disk %s: %u images lie upon each other (--max-chain permits %u): commit them (QMP "
        "block-commit), or fork a parent that was started anew",
        name, n, in->max_chain);
}

static json_t *chain_of(const char *cwd, const json_t *image)
{
    json_t *chain = json_array();

    for (; image; image = image_backing(image)) {
        FF_AUTO_FREE char *file = image_absolute(cwd, text_of(image, "filename"));
        json_array_append_new(chain, json_string(file));
    }
    return chain;
}

char *disk_name(const json_t *entry)
{
    const char *name = text_of(entry, "device");

    if (!*name)
        name = text_of(entry, "qdev");
    return xstrdup(*name ? name : text_of(json_object_get(entry, "inserted"), "node-name"));
}

static int plan_disk(struct disks *d, const struct disks_input *in, const json_t *entry,
                     struct ff_error *why)
{
    const json_t *inserted = json_object_get(entry, "inserted");
    const json_t *image = json_object_get(inserted, "image");
    const json_t *cache = json_object_get(inserted, "cache");
    struct disk *disk = &d->disk[d->n];
    const char *zeroes = text_of(inserted, "detect_zeroes");

    for (size_t i = 0; i < d->n; i++) /* two devices may share one node */
        if (!strcmp(d->disk[i].node, text_of(inserted, "node-name")))
            return 0;
    disk->index = (unsigned)d->n++;
    disk->writable = !json_is_true(json_object_get(inserted, "ro")) && !disk_stores_nothing(inserted);
    d->writable += disk->writable;
    disk->name = disk_name(entry);
    disk->node = xstrdup(text_of(inserted, "node-name"));
    if (in->stopped && disk->writable && is_frozen_already(in->cwd, inserted, &disk->empty))
        image = image_backing(image);
    disk->format = xstrdup(image_format(disk->empty ? text_of(image, "format")
                                                    : text_of(inserted, "drv")));
    disk->frozen = image_absolute(in->cwd, text_of(image, "filename"));
    disk->chain = chain_of(in->cwd, image);
    disk->size = json_integer_value(json_object_get(image, "virtual-size"));
    disk->direct = json_is_true(json_object_get(cache, "direct"));
    disk->no_flush = json_is_true(json_object_get(cache, "no-flush"));
    disk->detect_zeroes = xstrdup(*zeroes ? zeroes : "off");
    disk->host_device = is_host_device(in->nodes, text_of(image, "filename"));
    disk->seed = in->seeds && !disk->writable && !disk->host_device && *disk->frozen == '/' &&
                 !strcmp(disk->format, "raw") && nocloud_is(disk->frozen);
    if (in->seeds && !disk->seed && *disk->frozen == '/' && !strcmp(disk->format, "raw"))
        disk->instance = instance_data_of(disk->frozen);
    if (!disk->writable || in->move)
        return 0;
    int rc = check_format(disk, why);
    if (!rc)
        rc = disks_check_temporary(d, disk, image, why);
    if (!rc)
        rc = image_check_chain(in->cwd, disk->name, image, why);
    if (!rc)
        rc = check_length(in, disk->name, image, why);
    disk->awaited = !rc && !disk->empty && in->awaited;
    if (!rc && !disk->empty && !in->awaited)
        rc = plan_overlay(d, disk, in->overlays, image, why);
    return rc;
}

int disks_plan(const struct disks_input *in, struct disks **out, struct ff_error *why)
{
    struct disks *d = xcalloc(1, sizeof(*d));
    int rc = 0;
    size_t i;
    json_t *entry;

    json_array_foreach(in->argv, i, entry)
        rc |= !json_is_string(entry);
    if (rc) {
        free(d);
        return ff_error_set(why, EINVAL,
                            "disks: the parent's command line has bytes that are no UTF-8");
    }
    d->fork_id = xstrdup(in->fork_id);
    d->cwd = xstrdup(in->cwd);
    d->foreign = in->foreign;
    d->argv = json_deep_copy(in->argv);
    d->disk = xcalloc(json_array_size(in->block), sizeof(*d->disk));
    json_array_foreach(in->block, i, entry)
        if (!rc && json_object_get(entry, "inserted"))
            rc = plan_disk(d, in, entry, why);
    if (!rc)
        rc = disks_find(d, in, why);
    if (rc < 0)
        disks_free(d);
    else
        *out = d;
    return rc;
}

void disks_free(struct disks *d)
{
    if (!d)
        return;
    free(d->emptied);
    for (size_t i = 0; i < d->n; i++) {
        struct disk *k = &d->disk[i];
        char *all[] = {k->name,    k->node, k->frozen,  k->format,       k->detect_zeroes,
                       k->discard, k->aio,  k->overlay, k->overlay_node, k->empty};
        for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
            free(all[j]);
        json_decref(k->chain);
    }
    free(d->disk);
    json_decref(d->argv);
    free(d->cwd);
    free(d->fork_id);
    free(d);
}

size_t disks_count(const struct disks *d)
{
    return d->writable;
}

/* --- the parent --- */

static json_t *qmp(const char *command, json_t *arguments)
{
    return json_pack("{s:{s:s,s:o}}", "qmp", "execute", command, "arguments", arguments);
}

json_t *disks_prepare(const struct disks *d)
{
    json_t *steps = json_array();

    each_new(d, k) {
        json_t *node = disk_overlay_node(k, k->overlay_node, k->overlay);
        json_object_set_new(node, "backing", json_null());
        json_array_append_new(steps, json_pack("{s:s,s:s}", "create", k->overlay, "like",
                                               k->frozen));
        json_array_append_new(steps,
                              disk_create_overlay(k->frozen, k->format, k->overlay, k->size));
        json_array_append_new(steps, qmp("blockdev-add", node));
    }
    return steps;
}

json_t *disks_actions(const struct disks *d)
{
    json_t *actions = json_array();

    each_new(d, k)
        json_array_append_new(actions,
                              json_pack("{s:s,s:{s:s,s:s}}", "type", "blockdev-snapshot", "data",
                                        "node", k->node, "overlay", k->overlay_node));
    return actions;
}

json_t *disks_undo(const struct disks *d)
{
    json_t *steps = json_array();

    each_new(d, k) {
        json_array_append_new(
            steps, qmp("blockdev-del", json_pack("{s:s}", "node-name", k->overlay_node)));
        json_array_append_new(steps, json_pack("{s:s}", "unlink", k->overlay));
    }
    return steps;
}

/* Of a file; new */
static char *folder_of(const char *file)
{
    const char *slash = strrchr(file, '/');

    return slash > file ? xprintf("%.*s", (int)(slash - file), file) : xstrdup("/");
}

static bool same_device(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev;
}

int disks_check_overlays(const struct disks *d, const char *scratch, uint64_t bytes,
                         struct ff_error *why)
{
    int rc = 0;

    each_new(d, k) {
        FF_AUTO_FREE char *folder = folder_of(k->overlay);
        uint64_t want = scratch && same_device(folder, scratch) ? bytes : 0;
        each_new(d, other) {
            FF_AUTO_FREE char *its = folder_of(other->overlay);
            want += same_device(folder, its) ? DISK_ROOM_BYTES : 0;
        }
        if (!rc)
            rc = folder_has_room(folder, want, "folder of the parent's overlay", "--overlays",
                                  why);
    }
    return rc;
}

int disks_check_still(const struct disks *d, struct ff_error *why)
{
    each_frozen(d, k)
        if (k->empty && !k->awaited && !overlay_is_empty(k->empty))
            return ff_error_set(why, EBUSY,
                          "disk %s: the parent has written to %s although it was "
                          "stopped: was it continued meanwhile? Fork it again",
                          k->name, k->empty);
    return 0;
}

bool disks_gone_over(const struct disks *d, const json_t *block)
{
    size_t i;
    json_t *entry;

    json_array_foreach(block, i, entry) {
        const char *node = text_of(json_object_get(entry, "inserted"), "node-name");
        each_frozen(d, k)
            if (k->overlay_node && !strcmp(k->overlay_node, node))
                return true;
    }
    return false;
}

json_t *disks_overlays(const struct disks *d)
{
    json_t *list = json_array();

    each_frozen(d, k) {
        bool taken = k->awaited && k->empty;
        if (k->overlay || taken)
            json_array_append_new(
                list, json_pack("{s:s,s:s,s:s,s:s,s:s}", "disk", k->name, "node",
                                taken ? "" : k->node, "frozen", k->frozen, "overlay-node",
                                taken ? k->node : k->overlay_node, "overlay",
                                taken ? k->empty : k->overlay));
    }
    return list;
}

void disks_taken_back(struct disks *d, const char *overlay_node)
{
    for (size_t i = 0; i < d->n; i++) {
        struct disk *k = &d->disk[i];
        if (k->overlay && !strcmp(k->overlay_node, overlay_node)) {
            free(k->overlay);
            k->overlay = NULL;
        } else if (k->awaited && k->empty && !strcmp(k->node, overlay_node)) {
            free(k->empty);
            k->empty = NULL;
        }
    }
}

json_t *disks_chains(const struct disks *d)
{
    json_t *files = json_array();

    each_own(d, k)
        json_array_extend(files, k->chain);
    return files;
}

json_t *disks_summary(const struct disks *d)
{
    json_t *list = json_array();

    each_frozen(d, k)
        if (k->empty || k->overlay)
            json_array_append_new(
                list, json_pack("{s:s,s:s,s:s,s:s,s:s}", "disk", k->name, "frozen", k->frozen,
                                "format", k->format, "parent-overlay",
                                k->empty ? k->empty : k->overlay, "parent-node",
                                k->empty ? k->node : k->overlay_node));
    return list;
}
