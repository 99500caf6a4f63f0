/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_argv.c - where a disk is on the parent's command line, and what a child has there
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      devices of a child refer to the same ids and node names as the parent's; what
 *              they refer to is the child's overlay. So an option is changed where it is:
 *                  -drive     its file and format; all else stays (id, if, index, cache, aio)
 *                  -blockdev  of the top node: an overlay with that node name; of the nodes
 *                             below it: gone, unless a read-only disk uses them too
 *                  -hda FILE  the file
 *              A guest that is moved has the same images, so that its options stay, but for those
 *              that name another image than the disk has by now.
 *              A drive whose medium was ejected has none: -drive without a file
 * Order        a disk that has been forked before has an overlay on top that the command line
 *              does not know: the option is then the one that names an image behind it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "disks_private.h"
#include "autojson.h"
#include "qemu_opts.h"

static const char *const short_options[] = {"hda", "hdb", "hdc",   "hdd",    "fda",
                                            "fdb", "sd",  "cdrom", "pflash", "mtdblock"};

static bool is_short(const char *word)
{
    for (size_t i = 0; i < sizeof(short_options) / sizeof(short_options[0]); i++)
        if (qemu_option_is(word, short_options[i]))
            return true;
    return false;
}

static const char *word(const struct disks *d, size_t at)
{
    const char *s = json_string_value(json_array_get(d->argv, at));

    return s ? s : "";
}

/* @at is the argument of option @name */
static bool argument_of(const struct disks *d, size_t at, const char *name)
{
    return at && at < json_array_size(d->argv) && qemu_option_is(word(d, at - 1), name);
}

static bool claimed(const struct disks *d, size_t at)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->disk[i].kind != DISK_NONE && d->disk[i].at == at)
            return true;
    return false;
}

/* What the -blockdev with its argument at @at says; NULL: there is none */
static char *blockdev_get(const struct disks *d, size_t at, const char *key)
{
    return argument_of(d, at, "blockdev") ? qemu_opts_get(word(d, at), key) : NULL;
}

/* An image that has options of its own has them in its name */
static bool has_options(const char *image)
{
    return !strncmp(image, "json:", 5);
}

/* Without them, where it is a file */
static char *image_file(const char *image)
{
    char *file = has_options(image) ? qemu_opts_get(image + 5, "file.filename") : NULL;

    return file ? file : xstrdup(image);
}

/* What the -drive says; NULL: nothing */
static char *drive_file(const char *value)
{
    static const char *const keys[] = {"file", "file.filename", "filename"};
    char *file = NULL;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && !file; i++)
        file = qemu_opts_get(value, keys[i]);
    return file;
}

/* Whether @file names an image of the chain */
static bool in_chain(const struct disks *d, const json_t *image, const char *file)
{
    FF_AUTO_FREE char *want = image_absolute(d->cwd, file);

    for (; image; image = image_backing(image)) {
        const char *name = json_string_value(json_object_get(image, "filename"));
        FF_AUTO_FREE char *below = name ? image_file(name) : NULL;
        FF_AUTO_FREE char *have = below ? image_absolute(d->cwd, below) : NULL;
        if (have && !strcmp(have, want))
            return true;
    }
    return false;
}

/* Whether the -blockdev at @at has @node below it */
static bool refers_to(const struct disks *d, size_t at, const char *node)
{
    static const char *const keys[] = {"file",   "backing",   "data-file",   "target",
                                       "bottom", "file.file", "backing.file"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        FF_AUTO_FREE char *below = blockdev_get(d, at, keys[i]);
        if (below && !strcmp(below, node))
            return true;
    }
    return false;
}

static bool is_top(const struct disks *d, const char *node)
{
    for (size_t i = 1; i < json_array_size(d->argv); i++)
        if (refers_to(d, i, node))
            return false;
    return true;
}

/* --- finding --- */

/* -drive knows two words more than blockdev-add does */
static char *discard_of(const char *value)
{
    char *s = qemu_opts_get(value, "discard");

    if (s && (!strcmp(s, "on") || !strcmp(s, "off"))) {
        const char *same = strcmp(s, "on") ? "ignore" : "unmap";
        free(s);
        s = xstrdup(same);
    }
    return s;
}

static void found_drive(struct disk *disk, size_t at, const char *value)
{
    disk->kind = DISK_DRIVE;
    disk->at = at;
    disk->discard = discard_of(value);
    disk->aio = qemu_opts_get(value, "aio");
}

static void found_blockdev(const struct disks *d, struct disk *disk, size_t at)
{
    FF_AUTO_FREE char *below = blockdev_get(d, at, "file");

    disk->kind = DISK_BLOCKDEV;
    disk->at = at;
    disk->discard = blockdev_get(d, at, "discard");
    disk->aio = blockdev_get(d, at, "file.aio");
    for (size_t i = 1; below && !disk->aio && i < json_array_size(d->argv); i++) {
        FF_AUTO_FREE char *node = blockdev_get(d, i, "node-name");
        if (node && !strcmp(node, below))
            disk->aio = blockdev_get(d, i, "aio");
    }
}

static int refuse_snapshot(const struct disk *disk, struct ff_error *why)
{
    return ff_error_set(why, ENOTSUP,
                  "disk %s: -snapshot or snapshot=on writes to a file without a name, that no "
                  "child could have: start the parent without it",
                  disk->name);
}

/* By its id, or else by the image that it names */
static int find_drive(struct disks *d, struct disk *disk, const json_t *image, bool by_id,
                      struct ff_error *why)
{
    for (size_t i = 1; i < json_array_size(d->argv); i++) {
        if (claimed(d, i))
            continue;
        if (is_short(word(d, i - 1)) && !by_id && in_chain(d, image, word(d, i))) {
            disk->kind = DISK_SHORT;
            disk->at = i;
            return 0;
        }
        if (!argument_of(d, i, "drive"))
            continue;
        FF_AUTO_FREE char *id = qemu_opts_get(word(d, i), "id"), *file = drive_file(word(d, i));
        if (by_id ? !id || strcmp(id, disk->name) : id || !file || !in_chain(d, image, file))
            continue;
        if (disk->writable && qemu_opts_is(word(d, i), "snapshot"))
            return refuse_snapshot(disk, why);
        found_drive(disk, i, word(d, i));
        return 0;
    }
    return 0;
}

/* By its node name, or else by an image that its node has */
static void find_blockdev(struct disks *d, struct disk *disk, const json_t *image,
                          const json_t *nodes)
{
    for (int by_name = 1; by_name >= 0 && disk->kind == DISK_NONE; by_name--) {
        for (size_t i = 1; i < json_array_size(d->argv) && disk->kind == DISK_NONE; i++) {
            FF_AUTO_FREE char *node = claimed(d, i) ? NULL : blockdev_get(d, i, "node-name");
            if (!node)
                continue;
            const json_t *named = json_find(nodes, "node-name", node);
            const char *file = json_string_value(json_object_get(named, "file"));
            if (by_name ? !strcmp(node, disk->node)
                        : file && is_top(d, node) && in_chain(d, image, file))
                found_blockdev(d, disk, i);
        }
    }
}

static int find_one(struct disks *d, struct disk *disk, const json_t *entry, const json_t *nodes,
                    bool move, struct ff_error *why)
{
    const json_t *image = json_object_get(json_object_get(entry, "inserted"), "image");
    const char *device = json_string_value(json_object_get(entry, "device"));
    int rc = 0;

    if (device && *device) {
        rc = find_drive(d, disk, image, true, why);
        if (!rc && disk->kind == DISK_NONE)
            rc = find_drive(d, disk, image, false, why);
    } else {
        find_blockdev(d, disk, image, nodes);
    }
    bool read_only = json_is_true(json_object_get(json_object_get(entry, "inserted"), "ro"));
    if (rc || disk->kind != DISK_NONE || !(disk->writable || read_only || move))
        return rc;
    return ff_error_set(
        why, ENOTSUP,
        "disk %s: no -drive or -blockdev of the parent's command line has its image %s: a child "
        "starts from that command line; before a fork or a move remove a disk that was added "
        "later, and a medium that was inserted into a drive whose -drive has no id= (name what is "
        "there from the start by an id=, or by the node-name of a -blockdev)",
        disk->name, disk->frozen);
}

/* The file that the -blockdev at @at has, or the one that it refers to; NULL: another's */
static char *blockdev_file(const struct disks *d, size_t at)
{
    char *file = blockdev_get(d, at, "file.filename");
    FF_AUTO_FREE char *below = file ? NULL : blockdev_get(d, at, "file");

    if (!file && !below)
        return blockdev_get(d, at, "filename");
    for (size_t i = 1; below && !file && i < json_array_size(d->argv); i++) {
        FF_AUTO_FREE char *node = blockdev_get(d, i, "node-name");
        if (node && !strcmp(node, below))
            file = blockdev_get(d, i, "filename");
    }
    return file;
}

static bool is_elsewhere(const struct disks *d, const struct disk *disk)
{
    const char *value = word(d, disk->at);
    FF_AUTO_FREE char *image = image_file(disk->frozen);

    if (disk->kind == DISK_BLOCKDEV) {
        FF_AUTO_FREE char *node = qemu_opts_get(value, "node-name"), *own = d->foreign ? blockdev_file(d, disk->at) : NULL;
        if (d->foreign) /* its name says nothing */
            return !own || !image_same_file(d->cwd, own, image);
        return !node || strcmp(node, disk->node);
    }
    FF_AUTO_FREE char *file = disk->kind == DISK_SHORT ? xstrdup(value) : drive_file(value);
    if (file)
        return !image_same_file(d->cwd, file, image);
    FF_AUTO_FREE char *driver = qemu_opts_get(value, "driver"),
                      *rest = qemu_opts_drop_below(value, "file");
    return !image_has_protocol(image) ||
           (!driver && !strcmp(rest, value)); /* else it is as file.* has it */
}

/* Of all disks, as -snapshot does it */
static bool all_temporary(const struct disks *d)
{
    for (size_t i = 1; i < json_array_size(d->argv); i++)
        if (qemu_option_is(word(d, i), "snapshot"))
            return true;
    return false;
}

/* It writes to a file without a name, on top of the image that the option names */
static bool is_temporary(const struct disks *d, const struct disk *disk, const json_t *image)
{
    const char *value = word(d, disk->at);
    bool drive = disk->kind == DISK_DRIVE;
    bool temporary = all_temporary(d) || (drive && qemu_opts_is(value, "snapshot"));
    FF_AUTO_FREE char *file = drive ? drive_file(value) : xstrdup(value);

    return temporary && disk->kind != DISK_BLOCKDEV && file && in_chain(d, image, file);
}

int disks_check_temporary(const struct disks *d, const struct disk *disk, const json_t *image,
                          struct ff_error *why)
{
    const char *header = json_string_value(json_object_get(image, "backing-filename"));
    bool temporary = all_temporary(d);

    for (size_t i = 1; !temporary && i < json_array_size(d->argv); i++) {
        FF_AUTO_FREE char *file = argument_of(d, i, "drive") ? drive_file(word(d, i)) : NULL;
        temporary = file && qemu_opts_is(word(d, i), "snapshot") && in_chain(d, image, file);
    }
    return temporary && image_backing(image) && (!header || !*header) ? refuse_snapshot(disk, why)
                                                                      : 0;
}

/* Of the image that a -drive names, which are lost with its name; a backing node is not: the chain
 * is compared with the headers */
static bool has_lost_options(const char *value)
{
    FF_AUTO_FREE char *offset = qemu_opts_get(value, "offset"),
                      *size = qemu_opts_get(value, "size");
    FF_AUTO_FREE char *node = qemu_opts_drop(value, "backing"),
                      *all = qemu_opts_drop_below(value, "backing");

    FF_AUTO_FREE char *creds = qemu_opts_get(value, "file.tls-creds");

    return offset || size || creds || strcmp(node, all);
}

/* What is written anew says the image and its format, no more */
static int check_moved(const struct disks *d, const struct disk *disk, const json_t *image,
                       struct ff_error *why)
{
    if (has_options(disk->frozen) ||
        (disk->kind == DISK_DRIVE && has_lost_options(word(d, disk->at))))
        return ff_error_set(
            why, ENOTSUP,
            "disk %s: it seems to have image %s by now, so that a child would lose the options "
            "(backing.*, offset, size) of %s on the parent's command line: start the parent with "
            "a -blockdev, which has a name, or move this guest by hand, see "
            "farfork-rdma-postcopy(7)",
            disk->name, disk->frozen, word(d, disk->at));
    return image_check_chain(d->cwd, disk->name, image, why);
}

static int find_moved(const struct disks *d, struct disk *disk, const json_t *image,
                      struct ff_error *why)
{
    disk->elsewhere = disk->kind != DISK_NONE && is_elsewhere(d, disk) &&
                      (disk->writable || !is_temporary(d, disk, image));
    if (!disk->elsewhere)
        return 0;
    if (!strcmp(disk->format, "qcow2") ||
        (disk->kind != DISK_BLOCKDEV && !strcmp(disk->format, "raw")))
        return check_moved(d, disk, image, why);
    return ff_error_set(
        why, ENOTSUP,
        "disk %s: its node %s was not on the parent's command line and has driver %s (permitted: "
        "qcow2): end the block job or filter on top of it, or move this guest by hand, see "
        "farfork-rdma-postcopy(7)",
        disk->name, disk->node, disk->format);
}

/* --- ejected: the option has the medium still --- */

static bool is_emptied(const struct disks *d, size_t at)
{
    for (size_t i = 0; i < d->n_emptied; i++)
        if (d->emptied[i] == at)
            return true;
    return false;
}

static bool has_id(const struct disks *d, size_t at, const char *id)
{
    FF_AUTO_FREE char *own = argument_of(d, at, "drive") ? qemu_opts_get(word(d, at), "id") : NULL;

    return own && !strcmp(own, id);
}

static bool names_image(const struct disks *d, size_t at)
{
    FF_AUTO_FREE char *file = argument_of(d, at, "drive") ? drive_file(word(d, at)) : NULL;

    return is_short(word(d, at - 1)) || (file && *file);
}

/* The -device with its argument at @at has a -blockdev that no disk has */
static bool plugs_unused_node(const struct disks *d, size_t at)
{
    FF_AUTO_FREE char *want =
        argument_of(d, at, "device") ? qemu_opts_get(word(d, at), "drive") : NULL;

    for (size_t i = 1; want && i < json_array_size(d->argv); i++) {
        FF_AUTO_FREE char *node = claimed(d, i) ? NULL : blockdev_get(d, i, "node-name");
        if (node && !strcmp(node, want))
            return true;
    }
    return false;
}

/* Where its medium is; 0: nowhere. @device: of an entry of query-block, with nothing inserted */
static size_t find_medium(const struct disks *d, const char *device)
{
    size_t n = json_array_size(d->argv), i;

    for (i = 1; *device && i < n; i++)
        if (has_id(d, i, device))
            return names_image(d, i) ? i : 0;
    for (i = 1; i < n; i++) {
        FF_AUTO_FREE char *id = argument_of(d, i, "drive") ? qemu_opts_get(word(d, i), "id") : NULL;
        if (is_emptied(d, i))
            continue;
        if (*device ? !id && !claimed(d, i) && names_image(d, i) : plugs_unused_node(d, i))
            return i;
    }
    return 0;
}

/* An option for the drive alone can be written */
static bool can_be_empty(const struct disks *d, size_t at)
{
    return argument_of(d, at, "drive") || argument_of(d, at, "cdrom");
}

static int find_ejected(struct disks *d, const json_t *block, struct ff_error *why)
{
    size_t i;
    json_t *entry;

    d->emptied = xcalloc(json_array_size(block) + 1, sizeof(*d->emptied));
    json_array_foreach(block, i, entry) {
        const char *device = json_string_value(json_object_get(entry, "device"));
        const char *path = json_string_value(json_object_get(entry, "qdev"));
        size_t at = json_object_get(entry, "inserted") ? 0 : find_medium(d, device ? device : "");
        if (at && !can_be_empty(d, at))
            return ff_error_set(why, ENOTSUP,
                          "disk %s: its medium was ejected, and would be in the drive again, since "
                          "the parent's command line has it: %s; insert it before a fork or a "
                          "move, or move this guest by hand, see farfork-rdma-postcopy(7)",
                          device && *device ? device : path ? path : "", word(d, at));
        if (at)
            d->emptied[d->n_emptied++] = at;
    }
    return 0;
}

int disks_find(struct disks *d, const struct disks_input *in, struct ff_error *why)
{
    if (d->writable && all_temporary(d))
        return refuse_snapshot(&d->disk[0], why);
    for (size_t k = 0; k < d->n; k++) {
        size_t i;
        json_t *entry;
        json_array_foreach(in->block, i, entry) {
            const json_t *inserted = json_object_get(entry, "inserted");
            const char *node = json_string_value(json_object_get(inserted, "node-name"));
            if (d->disk[k].kind != DISK_NONE || !node || strcmp(node, d->disk[k].node))
                continue;
            int rc = find_one(d, &d->disk[k], entry, in->nodes, in->move, why);
            if (!rc && (in->move || !d->disk[k].writable)) /* the others get overlays */
                rc = find_moved(d, &d->disk[k], json_object_get(inserted, "image"), why);
            if (rc)
                return rc;
        }
    }
    return find_ejected(d, in->block, why);
}

/* --- changing --- */

static void replace_text(char **s, char *with)
{
    free(*s);
    *s = with;
}

/* @file NULL: none */
static char *drive_text(const char *old, const char *file, const char *format)
{
    static const char *const image_keys[] = {"file",   "format", "driver",   "backing",
                                             "offset", "size",   "snapshot", "filename"};
    char *s = xstrdup(old);

    for (size_t i = 0; i < sizeof(image_keys) / sizeof(image_keys[0]); i++)
        replace_text(&s, qemu_opts_drop_below(s, image_keys[i]));
    if (!file)
        return s;
    replace_text(&s, qemu_opts_set(s, "file", file));
    replace_text(&s, qemu_opts_set(s, "format", format));
    return s;
}

static json_t *nbd_node(const struct disk *disk, const struct clone_place *p, const char *node)
{
    FF_AUTO_FREE char *export = xprintf("disk%u", disk->index);

    return json_pack("{s:s,s:s,s:b,s:{s:s,s:o,s:s}}", "driver", "raw", "node-name", node,
                     "read-only", 1, "file", "driver", "nbd", "server", disk_nbd_address(p->nbd),
                     "export", export);
}

static json_t *file_node(const char *node, const char *file)
{
    return json_pack("{s:s,s:s,s:b,s:{s:s,s:s,s:b}}", "driver", "raw", "node-name", node,
                     "read-only", 1, "file", "driver", "file", "filename", file, "read-only", 1);
}

static char *blockdev_text(const struct disks *d, const struct disk *disk,
                           const struct clone_place *p, const char *file)
{
    FF_AUTO_FREE char *node = blockdev_get(d, disk->at, "node-name");
    FF_AUTO_JSON json_t *j = disk->writable || !p ? disk_overlay_node(disk, node, file)
                             : disk->seed         ? file_node(node, file)
                                                  : nbd_node(disk, p, node);

    return json_dumps(j, JSON_COMPACT);
}

/* Mark the node at @at, and those that it refers to */
static void keep_node(const struct disks *d, size_t at, bool *keep)
{
    if (keep[at])
        return;
    keep[at] = true;
    for (size_t i = 1; i < json_array_size(d->argv); i++) {
        FF_AUTO_FREE char *node = blockdev_get(d, i, "node-name");
        if (node && refers_to(d, at, node))
            keep_node(d, i, keep);
    }
}

/* With the image that the disk has now */
static char *moved_word(const struct disks *d, const struct disk *disk)
{
    if (disk->kind == DISK_DRIVE)
        return drive_text(word(d, disk->at), disk->frozen, disk->format);
    if (disk->kind == DISK_BLOCKDEV)
        return blockdev_text(d, disk, NULL, disk->frozen);
    return xstrdup(disk->frozen);
}

/* Is it another one than the parent's, of the same bytes? @p NULL: a move */
static bool is_new(const struct disk *k, const struct clone_place *p)
{
    return p && (k->writable || k->seed || disk_served(k, p));
}

static bool is_changed(const struct disk *k, const struct clone_place *p)
{
    return is_new(k, p) || k->elsewhere;
}

/* The argument at @at of a child; NULL: as the parent's */
static char *child_word(const struct disks *d, const struct disk *disk, const struct clone_place *p,
                        unsigned number)
{
    if (!is_changed(disk, p))
        return NULL;
    if (!is_new(disk, p))
        return moved_word(d, disk);
    FF_AUTO_FREE char *file = disk->writable || disk->seed ? disk_overlay(d, disk, p, number)
                                                           : disk_url(disk, p);
    if (disk->kind == DISK_DRIVE)
        return drive_text(word(d, disk->at), file, disk->writable ? "qcow2" : "raw");
    if (disk->kind == DISK_BLOCKDEV)
        return blockdev_text(d, disk, p, file);
    return xstrdup(file);
}

json_t *disks_child_argv(const struct disks *d, const struct clone_place *p, unsigned number)
{
    size_t n = json_array_size(d->argv);
    bool *keep = xcalloc(n + 1, sizeof(*keep));
    json_t *argv = json_array();

    for (const struct disk *k = d->disk; k < d->disk + d->n; k++) {
        if (k->kind != DISK_BLOCKDEV)
            continue;
        if (is_changed(k, p))
            keep[k->at] = true;
        else
            keep_node(d, k->at, keep);
    }
    for (size_t i = 0; i < n; i++) {
        FF_AUTO_FREE char *changed = NULL;
        if (argument_of(d, i + 1, "blockdev") && !keep[i + 1]) {
            i++; /* no device of the child has it */
            continue;
        }
        if (is_emptied(d, i + 1) && argument_of(d, i + 1, "cdrom")) {
            json_array_append_new(argv, json_string("-drive"));
            json_array_append_new(argv, json_string("index=2,media=cdrom"));
            i++;
            continue;
        }
        if (is_emptied(d, i))
            changed = drive_text(word(d, i), NULL, NULL);
        for (const struct disk *k = d->disk; k < d->disk + d->n; k++)
            if (k->kind != DISK_NONE && k->at == i)
                changed = child_word(d, k, p, number);
        json_array_append_new(argv, changed ? json_string(changed)
                                            : json_incref(json_array_get(d->argv, i)));
    }
    free(keep);
    return argv;
}

json_t *disks_move_argv(const struct disks *d)
{
    bool changed = d->n_emptied;

    for (const struct disk *k = d->disk; k < d->disk + d->n; k++)
        changed |= k->elsewhere;
    return changed ? disks_child_argv(d, NULL, 0) : json_incref(d->argv);
}
