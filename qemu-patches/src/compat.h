/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What differs between the versions of QEMU that these files are built into:
 * 10.0 and 10.2.  The hooks into QEMU's own files are apart, by version.
 */
#ifndef MIGRATION_FARFORK_COMPAT_H
#define MIGRATION_FARFORK_COMPAT_H

#include "migration/migration.h"
#include "migration/savevm.h"
#include "net/net.h"
#include "qapi/error.h"
#include "qemu/error-report.h"

#if QEMU_VERSION_MAJOR > 10 || QEMU_VERSION_MINOR >= 2
#include "exec/tb-flush.h"
#include "system/address-spaces.h"
#include "system/memory.h"
#include "system/physmem.h"
#include "system/ram_addr.h"
#include "system/ramblock.h"
#include "system/tcg.h"

typedef const void compat_class_data;

/* The migration's thread stands in pre-switchover: it is to look at its state */
static inline void compat_end_pre_switchover(MigrationState *s)
{
    qemu_event_set(&s->pause_event);
}

/* Memory has changed behind TCG: loading a CPU does not flush what was translated from it */
static inline void compat_flush_code(void)
{
    if (tcg_enabled()) {
        tb_flush__exclusive_or_serial();
    }
}

/* On failure it says why */
static inline int compat_load_device_state(QEMUFile *f)
{
    Error *err = NULL;
    int ret = qemu_load_device_state(f, &err);

    if (err) {
        error_report_err(err);
    }
    return ret;
}

static inline void compat_clear_dirty(RAMBlock *b, unsigned client)
{
    physical_memory_test_and_clear_dirty(b->offset, qemu_ram_get_used_length(b), client);
}

/* Does another process have guest memory for this netdev, which is of another type? */
static inline bool compat_is_vhost_user(NetClientState *nc)
{
#ifdef CONFIG_PASST
    return nc->info->type == NET_CLIENT_DRIVER_PASST && qemu_has_vnet_hdr(nc);
#else
    return false;
#endif
}
#else
#include "exec/address-spaces.h"
#include "exec/memory.h"
#include "exec/ram_addr.h"
#include "exec/ramblock.h"
#include "exec/tb-flush.h"
#include "system/tcg.h"

typedef void compat_class_data;

static inline void compat_end_pre_switchover(MigrationState *s)
{
    qemu_sem_post(&s->pause_sem);
}

/* Also as each CPU is loaded */
static inline void compat_flush_code(void)
{
    if (tcg_enabled()) {
        tb_flush(first_cpu);
    }
}

static inline int compat_load_device_state(QEMUFile *f)
{
    return qemu_load_device_state(f);
}

static inline void compat_clear_dirty(RAMBlock *b, unsigned client)
{
    cpu_physical_memory_test_and_clear_dirty(b->offset, qemu_ram_get_used_length(b), client);
}

static inline bool compat_is_vhost_user(NetClientState *nc)
{
    return false;
}
#endif

#endif
