/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: the guest runs on the destination at once, its
 * memory follows page by page.  The engine is libfarfork; this is its glue.
 */
#ifndef MIGRATION_RDMA_POSTCOPY_H
#define MIGRATION_RDMA_POSTCOPY_H

#include "qapi/qapi-types-migration.h"
#include "qapi/qapi-types-run-state.h"
#include "system/memory_mapping.h"

typedef struct MigrationState MigrationState;

#ifdef CONFIG_FARFORK
/* Can this transport be used with the capabilities and devices of now? */
bool rdma_postcopy_check_transport(MigrationAddress *addr, Error **errp);

void rdma_postcopy_start_outgoing(MigrationState *s, const char *address,
                                  Error **errp);
void rdma_postcopy_start_incoming(const char *address, Error **errp);

/* True: the outgoing migration is ours, and was told if it is not too late */
bool rdma_postcopy_cancel(MigrationState *s);

/* migrate-pause, migrate-recover, with or without the BQL: true: it is ours */
bool rdma_postcopy_pause(Error **errp);
bool rdma_postcopy_recover(const char *uri, Error **errp);

/* Under the BQL, as the migration ends: say that ours failed, if it did */
void rdma_postcopy_settle(MigrationState *s);

/* The process ends: let go of guest memory */
void rdma_postcopy_shutdown(MigrationState *s);

/* Whether this process may not run its guest, or write its memory */
bool rdma_postcopy_forbids_cont(Error **errp);
bool rdma_postcopy_forbids_run(void);
bool rdma_postcopy_forbids_reset(void);

/*
 * Under the BQL: a guest that visits: what it writes is in the log that
 * migrations share, which no other one may stop or read
 */
bool rdma_postcopy_keeps_log(void);
bool rdma_postcopy_forbids_snapshot(Error **errp);

/* `stop` and `cont`, under the BQL, for a guest that waits for its lease */
void rdma_postcopy_wish_run(bool runs);

/*
 * dump-guest-memory, under the BQL.  Does this process have a guest, no link,
 * and not all memory?  Then, instead of vm_stop(), begin; end undoes it.
 * @reads_memory: the dump would read memory to find its way
 */
bool rdma_postcopy_misses_memory(void);
bool rdma_postcopy_dump_begin(bool reads_memory, Error **errp);
void rdma_postcopy_dump_end(void);

/* Leave out of @list what is not here; whether @len bytes from @at are in it */
void rdma_postcopy_dump_present(GuestPhysBlockList *list);
bool rdma_postcopy_dump_reads(const GuestPhysBlockList *list, uint64_t at, uint64_t len);

void rdma_postcopy_fill_info(MigrationInfo *info);
void rdma_postcopy_print_info(Monitor *mon, const MigrationInfo *info);
#else
static inline bool rdma_postcopy_check_transport(MigrationAddress *addr,
                                                 Error **errp)
{
    return true;
}

static inline void rdma_postcopy_start_outgoing(MigrationState *s,
                                                const char *address,
                                                Error **errp)
{
    error_setg(errp, "this QEMU was built without libfarfork");
}

static inline void rdma_postcopy_start_incoming(const char *address,
                                                Error **errp)
{
    error_setg(errp, "this QEMU was built without libfarfork");
}

static inline bool rdma_postcopy_cancel(MigrationState *s)
{
    return false;
}

static inline bool rdma_postcopy_pause(Error **errp)
{
    return false;
}

static inline bool rdma_postcopy_recover(const char *uri, Error **errp)
{
    return false;
}

static inline void rdma_postcopy_settle(MigrationState *s)
{
}

static inline void rdma_postcopy_shutdown(MigrationState *s)
{
}

static inline bool rdma_postcopy_forbids_cont(Error **errp)
{
    return false;
}

static inline bool rdma_postcopy_forbids_run(void)
{
    return false;
}

static inline bool rdma_postcopy_forbids_reset(void)
{
    return false;
}

static inline void rdma_postcopy_wish_run(bool runs)
{
}

static inline bool rdma_postcopy_keeps_log(void)
{
    return false;
}

static inline bool rdma_postcopy_forbids_snapshot(Error **errp)
{
    return false;
}

static inline bool rdma_postcopy_misses_memory(void)
{
    return false;
}

static inline bool rdma_postcopy_dump_begin(bool reads_memory, Error **errp)
{
    return true;
}

static inline void rdma_postcopy_dump_end(void)
{
}

static inline void rdma_postcopy_dump_present(GuestPhysBlockList *list)
{
}

static inline bool rdma_postcopy_dump_reads(const GuestPhysBlockList *list, uint64_t at,
                                            uint64_t len)
{
    return true;
}

static inline void rdma_postcopy_fill_info(MigrationInfo *info)
{
}

static inline void rdma_postcopy_print_info(Monitor *mon,
                                            const MigrationInfo *info)
{
}
#endif

/* What the glue uses of migration.c */
void migration_downtime_end(MigrationState *s);
int migration_stop_vm(MigrationState *s, RunState state);
bool migration_switchover_prepare(MigrationState *s);
void migration_completion_end(MigrationState *s);
void migration_iteration_finish(MigrationState *s);
void migration_cleanup_bh(void *opaque);
void migrate_incoming_unref_outgoing_state(void);

#endif
