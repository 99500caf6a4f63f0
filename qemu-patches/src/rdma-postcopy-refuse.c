/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: what cannot work is refused by name, before the
 * guest stops
 */
#include "qemu/osdep.h"
#include "block/block_int.h"
#include "block/blockjob.h"
#include "block/export.h"
#include "cpu.h"
#include "hw/virtio/virtio.h"
#include "migration/migration.h"
#include "migration/options.h"
#include "net/net.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-block-export.h"
#include "qemu/config-file.h"
#include "qemu/option.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-ram.h"
#include "rdma-postcopy-state.h"
#include "system/block-backend.h"
#include "system/hw_accel.h"
#include "system/kvm.h"

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
    if (migrate_mode() != MIG_MODE_NORMAL) {
        error_setg(errp, "rdma-postcopy does not combine with a mode other than normal");
        return false;
    }
    return true;
}

/* It builds udmabufs when it is loaded: pages appear behind the pager */
static bool has_blobs(Object *obj)
{
    return object_dynamic_cast(obj, "virtio-gpu-base") &&
           object_property_get_bool(obj, "blob", NULL);
}

/*
 * QEMU leaves out a device without a description of its state without a word:
 * virtio-pmem, and on the VMBus hv-balloon, which maps memory into the guest
 */
static bool is_unsaved(Object *obj)
{
    return (object_dynamic_cast(obj, TYPE_VIRTIO_DEVICE) ||
            object_dynamic_cast(obj, "vmbus-dev")) &&
           !DEVICE_GET_CLASS(obj)->vmsd;
}

struct refused {
    char *device;
    bool unsaved;
};

static int find_refused(Object *obj, void *opaque)
{
    static const char *const prefixes[] = {
        "vfio-", "vhost-user", "vhost-vdpa", "vhost-scsi",
        "cryptodev-vhost", "x-pci-proxy", "ivshmem",
    };
    const char *type = object_get_typename(obj);
    struct refused *r = opaque;
    bool blobs = has_blobs(obj), refused = blobs;

    for (size_t i = 0; i < ARRAY_SIZE(prefixes) && !refused; i++) {
        refused = g_str_has_prefix(type, prefixes[i]);
    }
    r->unsaved = !refused && is_unsaved(obj);
    if (refused || r->unsaved) {
        g_autofree char *path = object_get_canonical_path(obj);
        r->device = g_strdup_printf("%s (%s)%s", type, path,
                                    blobs ? " with blob=on" : "");
    }
    return !!r->device;
}

static bool check_devices(Error **errp)
{
    struct refused r = { 0 };
    int n = qemu_find_net_clients_except(NULL, NULL, NET_CLIENT_DRIVER_NIC, 0);
    g_autofree NetClientState **nc = g_new(NetClientState *, n);

    qemu_find_net_clients_except(NULL, nc, NET_CLIENT_DRIVER_NIC, n);
    object_child_foreach_recursive(object_get_root(), find_refused, &r);
    for (int i = 0; i < n && !r.device; i++) {
        if (nc[i]->info->type == NET_CLIENT_DRIVER_VHOST_USER ||
            nc[i]->info->type == NET_CLIENT_DRIVER_VHOST_VDPA ||
            compat_is_vhost_user(nc[i])) {
            r.device = g_strdup_printf("netdev %s (vhost-user or vhost-vdpa)",
                                       nc[i]->name);
        }
    }
    if (r.device) {
        error_setg(errp, "rdma-postcopy cannot move device %s: %s", r.device,
                   r.unsaved ? "QEMU does not save its state" :
                               "another process or device would touch guest "
                               "memory that is not there yet");
        g_free(r.device);
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

static const char *image_of(BlockDriverState *bs)
{
    bs = bdrv_skip_filters(bs);
    return bs->filename[0] ? bs->filename : bdrv_get_device_or_node_name(bs);
}

/* With the job lock held: what it was started for; "": it is no block job */
static const char *image_of_job(const Job *job)
{
    BlockJob *b = job->id ? block_job_get_locked(job->id) : NULL;
    GSList *first = b ? g_slist_last(b->nodes) : NULL;

    return first ? image_of(((BdrvChild *)first->data)->bs) : "";
}

/* A job writes on to images that were handed over, and asserts that it may; or it is lost */
static bool check_jobs(Error **errp)
{
    JOB_LOCK_GUARD();
    for (Job *job = job_next_locked(NULL); job; job = job_next_locked(job)) {
        const char *image = image_of_job(job);

        if (job->status == JOB_STATUS_CONCLUDED || job->status == JOB_STATUS_NULL) {
            continue;
        }
        error_setg(errp, "job '%s' (%s)%s%s is under way, and would not go along: wait for its "
                   "end, or cancel it (job-cancel)", job->id ? job->id : "", job_type_str(job),
                   *image ? " of disk " : "", image);
        return false;
    }
    return true;
}

/* Who writes to a disk by an export would do so behind the guest's back; a reader is cut off */
static bool check_exports(Error **errp)
{
    BlockExportInfoList *list = qmp_query_block_exports(NULL);
    bool ok = true;

    for (BlockExportInfoList *e = list; e && ok; e = e->next) {
        const BlockExport *export = blk_exp_find(e->value->id);
        uint64_t perm = 0, shared;

        if (export) {
            blk_get_perm(export->blk, &perm, &shared);
        }
        ok = !(perm & (BLK_PERM_WRITE | BLK_PERM_RESIZE));
        if (!ok) {
            error_setg(errp, "export '%s' (%s) of disk %s is writable: end it first "
                       "(block-export-del)", e->value->id, BlockExportType_str(e->value->type),
                       blk_bs(export->blk) ? image_of(blk_bs(export->blk)) : e->value->node_name);
        }
    }
    qapi_free_BlockExportInfoList(list);
    return ok;
}

bool rp_check_disks(Error **errp)
{
    return check_jobs(errp) && check_exports(errp);
}

static int is_denied(void *what, QemuOpts *sandbox, Error **errp)
{
    const char *value = qemu_opt_get(sandbox, what);

    return qemu_opt_get_bool(sandbox, "enable", false) && value &&
           strcmp(value, "allow");
}

/* What this QEMU's -sandbox denies; a process that it forks inherits that */
static bool sandbox_denies(const char *what)
{
    QemuOptsList *list = qemu_find_opts_err("sandbox", NULL);

    return list && qemu_opts_foreach(list, is_denied, (void *)what, NULL);
}

bool rp_check_fallback(const struct ff_address *a, Error **errp)
{
    if (!ff_address_fallback(a)) {
        return true;
    }
    if (sandbox_denies("spawn") || sandbox_denies("elevateprivileges")) {
        error_setg(errp, "rdma-postcopy: fallback=go runs a fence in a session of its own, for "
                   "which -sandbox would end this QEMU: start it with spawn=allow and "
                   "elevateprivileges=allow");
        return false;
    }
    if (!ff_address_reconnect_ms(a)) {
        error_setg(errp, "rdma-postcopy: fallback=go does not combine with reconnect=0");
        return false;
    }
    return true;
}

/*
 * Whose file is it?  One that QEMU makes in a folder is its own: it is
 * unlinked at once.  One that has a name others may map, also where it has
 * been unlinked since.
 */
static bool is_named_file(const RAMBlock *block)
{
    Object *owner = memory_region_owner(block->mr);
    g_autofree char *path = NULL;
    struct stat st;

    if (block->fd < 0 || !(block->flags & RAM_NAMED_FILE)) {
        return false;
    }
    path = object_property_get_str(owner, "mem-path", NULL);
    return !path || stat(path, &st) || !S_ISDIR(st.st_mode);
}

bool rp_check_emptying(Error **errp)
{
    if (ram_block_discard_is_disabled()) {
        error_setg(
            errp,
            "rdma-postcopy: a device has pinned guest memory or shared it with another process, "
            "so QEMU cannot empty it for the incoming guest: start the destination without that "
            "device");
        return false;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        const RAMBlock *block = rp_block[i];

        if (!(block->flags & RAM_SHARED) && is_named_file(block)) {
            error_setg(
                errp,
                "rdma-postcopy: memory region %s is a private mapping of a file; QEMU would empty "
                "that file, which others may use, for the incoming guest: start the destination "
                "with share=on, memory-backend-memfd or anonymous memory",
                block->idstr);
            return false;
        }
    }
    return true;
}
