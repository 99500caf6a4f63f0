/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_child.c - the disks of a child: overlays in a scratch folder, and the NBD server
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      files, steps and names for the children of one place; what becomes of their
 *              command line is in disks_argv.c.
 * Limits       the server has no authentication: whoever reaches its address may read the disks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disks_private.h"
#include "autojson.h"

bool disk_served(const struct disk *disk, const struct clone_place *p)
{
    return p->nbd && disk->frozen[0] == '/';
}

char *disk_url(const struct disk *disk, const struct clone_place *p)
{
    if (!strncmp(p->nbd, "unix:", 5))
        return xprintf("nbd+unix:///disk%u?socket=%s", disk->index, p->nbd + 5);
    return xprintf("nbd://%s/disk%u", p->nbd, disk->index);
}

char *disk_overlay(const struct disks *d, const struct disk *disk, const struct clone_place *p,
                   unsigned number)
{
    return xprintf("%s/fork-%s-%u-disk%u.%s", p->scratch, d->fork_id, number, disk->index,
                   disk->seed ? "iso" : "qcow2");
}

json_t *disks_child_files(const struct disks *d, const struct clone_place *p, unsigned number)
{
    json_t *files = json_array();

    each_own(d, k) {
        FF_AUTO_FREE char *file = disk_overlay(d, k, p, number);
        json_array_append_new(files, json_string(file));
    }
    return files;
}

json_t *disks_child_map(const struct disks *d, const struct clone_place *p, unsigned number)
{
    json_t *list = json_array();

    each_own(d, k) {
        FF_AUTO_FREE char *file = disk_overlay(d, k, p, number);
        if (k->writable) /* what is read alone children share */
            json_array_append_new(list, json_pack("{ss ss ss}", "frozen", k->frozen, "empty", k->empty ? k->empty : "", "overlay",
                                                  file));
    }
    return list;
}

json_t *disks_child_steps(const struct disks *d, const struct clone_place *p, unsigned number)
{
    json_t *steps = json_array();

    each_frozen(d, k) {
        FF_AUTO_FREE char *file = disk_overlay(d, k, p, number);
        FF_AUTO_FREE char *url = disk_served(k, p) ? disk_url(k, p) : NULL;
        json_array_append_new(steps, disk_create_overlay(url ? url : k->frozen,
                                                         url ? "raw" : k->format, file, k->size));
    }
    return steps;
}

uint64_t disks_room(const struct disks *d, unsigned children)
{
    uint64_t each = 0;

    each_own(d, k)
        each += k->writable ? DISK_ROOM_BYTES : (uint64_t)k->size;
    return each * children;
}

/* --- NoCloud data --- */

void disks_try_seeds(struct disks *d, const struct nocloud *n, struct strv *notes)
{
    for (struct disk *k = d->disk; k < d->disk + d->n; k++) {
        bool addresses = false;
        struct ff_error why;
        FF_AUTO_FREE char *note = NULL;
        if (k->instance)
            note = xprintf("disk %s is %s: children keep the parent's, and one that starts anew takes "
                           "itself for the parent: eject it in them first", k->name, k->instance);
        if (note && !strv_have(notes, note))
            strv_add(notes, "%s", note);
        if (!k->seed)
            continue;
        k->seed = !nocloud_change(k->frozen, n, true, &addresses, &why);
        if (!k->seed)
            note = xprintf("disk %s: children keep the parent's cloud-init data, as a start anew "
                           "would show: %s", k->name, why.text);
        else if (addresses)
            note = xprintf("disk %s: children have cloud-init data of their own, but for the "
                           "addresses in network-config: a child that starts anew has the parent's",
                           k->name);
        if (note && !strv_have(notes, note))
            strv_add(notes, "%s", note);
    }
}

json_t *disks_seed_steps(const struct disks *d, const struct clone_place *p, unsigned number,
                         const char *program, const struct nocloud *n)
{
    json_t *steps = json_array();

    for (const struct disk *k = d->disk; k < d->disk + d->n; k++) {
        if (!k->seed)
            continue;
        FF_AUTO_FREE char *file = disk_overlay(d, k, p, number);
        FF_AUTO_FREE char *url = disk_served(k, p) ? disk_url(k, p) : NULL;
        json_t *change = json_pack("[s,s,s,s,s,s]", program, "nocloud", "--instance-id",
                                   n->instance_id, "--hostname", n->hostname);
        for (size_t i = 0; i < n->macs.n; i++) {
            json_array_append_new(change, json_string("--mac"));
            json_array_append_new(change, json_string(n->macs.v[i]));
        }
        json_array_append_new(change, json_string(file));
        json_array_append_new(steps, json_pack("{s:[s,s,s,s,s,s,s,s,s,s]}", "argv", "qemu-img",
                                               "convert", "-q", "-U", "-f", "raw", "-O", "raw",
                                               url ? url : k->frozen, file));
        json_array_append_new(steps, json_pack("{s:o}", "argv", change));
    }
    return steps;
}

/* --- the server --- */

static json_t *served_node(const struct disk *disk)
{
    FF_AUTO_FREE char *name = xprintf("disk%u", disk->index);

    return json_pack("{s:s,s:s,s:b,s:{s:s,s:s,s:b}}", "driver", disk->format, "node-name", name,
                     "read-only", 1, "file", "driver", disk->host_device ? "host_device" : "file",
                     "filename", disk->frozen, "read-only", 1);
}

json_t *disk_nbd_address(const char *where)
{
    const char *colon = strrchr(where, ':');

    if (!strncmp(where, "unix:", 5))
        return json_pack("{s:s,s:s}", "type", "unix", "path", where + 5);
    FF_AUTO_FREE char *host = xstrdup(where);
    char *bare = host;
    if (colon)
        host[colon - where] = '\0';
    if (*bare == '[') { /* IPv6 */
        bare++;
        bare[strcspn(bare, "]")] = '\0';
    }
    return json_pack("{s:s,s:s,s:s}", "type", "inet", "host", bare, "port",
                     colon ? colon + 1 : NBD_PORT);
}

static void add_json(json_t *argv, const char *option, json_t *value)
{
    FF_AUTO_FREE char *s = json_dumps(value, JSON_COMPACT);

    json_array_append_new(argv, json_string(option));
    json_array_append_new(argv, json_string(s));
    json_decref(value);
}

json_t *disks_server(const struct disks *d, const char *listen, const char *pidfile)
{
    const struct clone_place any = {.nbd = listen};
    json_t *argv =
        json_pack("[s,s,s,s]", "qemu-storage-daemon", "--daemonize", "--pidfile", pidfile);
    size_t served = 0;

    add_json(argv, "--nbd-server",
             json_pack("{s:o,s:i}", "addr", disk_nbd_address(listen), "max-connections", 0));
    for (const struct disk *k = d->disk; k < d->disk + d->n; k++) {
        if (!disk_served(k, &any))
            continue;
        FF_AUTO_FREE char *name = xprintf("disk%u", k->index);
        add_json(argv, "--blockdev", served_node(k));
        add_json(argv, "--export",
                 json_pack("{s:s,s:s,s:s,s:s,s:b}", "type", "nbd", "id", name, "node-name", name,
                           "name", name, "writable", 0));
        served++;
    }
    if (served)
        return argv;
    json_decref(argv);
    return NULL;
}
