/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration and forks: what cannot work is refused by name,
 * before the guest stops
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "migration/options.h"
#include "net/net.h"
#include "qapi/error.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-ram.h"

static bool check_capabilities(Error **errp)
{
    const struct {
        bool on;
        const char *name;
    } caps[] = {
        { migrate_xbzrle(), "xbzrle" },
        { migrate_multifd(), "multifd" },
        { migrate_postcopy_ram(), "postcopy-ram" },
        { migrate_postcopy_preempt(), "postcopy-preempt" },
        { migrate_release_ram(), "release-ram" },
        { migrate_dirty_bitmaps(), "dirty-bitmaps" },
        { migrate_background_snapshot(), "background-snapshot" },
        { migrate_mapped_ram(), "mapped-ram" },
        { migrate_zero_copy_send(), "zero-copy-send" },
        { migrate_rdma_pin_all(), "rdma-pin-all" },
        { migrate_ignore_shared(), "x-ignore-shared" },
        { migrate_colo(), "x-colo" },
        { migrate_validate_uuid(), "validate-uuid" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(caps); i++) {
        if (caps[i].on) {
            error_setg(errp, "rdma-postcopy does not combine with the "
                       "capability %s: turn it off on both sides", caps[i].name);
            return false;
        }
    }
    if (migrate_tls() || migrate_mode() != MIG_MODE_NORMAL) {
        error_setg(errp, "rdma-postcopy does not combine with %s",
                   migrate_tls() ? "tls-creds" : "a mode other than normal");
        return false;
    }
    return true;
}

static int find_refused(Object *obj, void *opaque)
{
    static const char *const prefixes[] = {
        "vfio-", "vhost-user", "vhost-vdpa", "vhost-scsi",
        "cryptodev-vhost", "x-pci-proxy", "ivshmem",
    };
    const char *type = object_get_typename(obj);
    char **found = opaque;

    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
        if (g_str_has_prefix(type, prefixes[i])) {
            g_autofree char *path = object_get_canonical_path(obj);
            *found = g_strdup_printf("%s (%s)", type, path);
            return 1;
        }
    }
    return 0;
}

static bool check_devices(Error **errp)
{
    g_autofree char *found = NULL;
    NetClientState *nc[64];
    int n = qemu_find_net_clients_except(NULL, nc, NET_CLIENT_DRIVER_NIC,
                                         ARRAY_SIZE(nc));

    object_child_foreach_recursive(object_get_root(), find_refused, &found);
    for (int i = 0; i < MIN(n, (int)ARRAY_SIZE(nc)) && !found; i++) {
        if (nc[i]->info->type == NET_CLIENT_DRIVER_VHOST_USER ||
            nc[i]->info->type == NET_CLIENT_DRIVER_VHOST_VDPA) {
            found = g_strdup_printf("netdev %s (vhost-user or vhost-vdpa)",
                                    nc[i]->name);
        }
    }
    if (found) {
        error_setg(errp, "rdma-postcopy cannot move device %s: another process "
                   "or device would touch guest memory that is not there yet",
                   found);
        return false;
    }
    return true;
}

bool rp_check_host(Error **errp)
{
#ifndef TARGET_X86_64
    error_setg(errp, "rdma-postcopy moves x86_64 guests only");
    return false;
#endif
    return check_capabilities(errp) && check_devices(errp);
}
