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
    return xprintf("%s/fork-%s-%u-disk%u.qcow2", p->scratch, d->fork_id, number, disk->index);
}

json_t *disks_child_files(const struct disks *d, const struct clone_place *p, unsigned number)
{
    json_t *files = json_array();

    each_frozen(d, k) {
        FF_AUTO_FREE char *file = disk_overlay(d, k, p, number);
        json_array_append_new(files, json_string(file));
    }
    return files;
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
    return (uint64_t)d->writable * children * DISK_ROOM_BYTES;
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
