/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files of rdma-postcopy migration share
 */
#ifndef MIGRATION_RDMA_POSTCOPY_RAM_H
#define MIGRATION_RDMA_POSTCOPY_RAM_H

#include <farfork.h>
#include "qapi/qapi-types-migration.h"

#define RP_REGIONS_MAX 512
#define RP_FIRST_MAX 1024

/* RAM blocks in the order of libfarfork's regions; used under the BQL */
extern RAMBlock *rp_block[RP_REGIONS_MAX];
extern unsigned rp_n_blocks;

struct rp_first_touch {
    struct ff_page_ref page[RP_FIRST_MAX];
    unsigned n;
};

bool rp_check_host(Error **errp);

/*
 * Under the BQL, of a guest that is to leave: does no job and
 * no export write to a disk of this QEMU's?
 */
bool rp_check_disks(Error **errp);

/*
 * ff_address_parse(), and key=ID: the secret object that has the key, or under
 * the BQL the parameter tls-creds.  @incoming: a destination's.  NULL with a
 * reason; free it with ff_address_free()
 */
struct ff_address *rp_address(const char *text, bool incoming, Error **errp);

/* Destination, under the BQL: it begins to wait; has tls-creds changed since? */
void rp_note_creds(void);
bool rp_check_creds(Error **errp);

/* Source: if @a says fallback=go, could this QEMU take its guest back? */
bool rp_check_fallback(const struct ff_address *a, Error **errp);

/* Destination, after rp_collect_blocks(): may all blocks be emptied? */
bool rp_check_emptying(Error **errp);

bool rp_collect_blocks(Error **errp);

/* Under the BQL: was one added, unplugged or removed since they were collected? */
bool rp_blocks_changed(void);

/* Under the BQL: what is unplugged or deleted meanwhile keeps its memory */
void rp_hold_blocks(void);
void rp_drop_blocks(void);
struct ff_region rp_region(unsigned i);

/*
 * Source: as rp_region().  A process that has forked the guest from outside
 * has put a private view of a file there, of which QEMU knows nothing
 */
struct ff_region rp_region_to_leave(unsigned i);
const char *rp_machine_config(void);
void rp_first_touch(struct rp_first_touch *ft);
void rp_log_line(enum ff_level level, const char *line);

/*
 * In the main thread, under the BQL, the guest paused, before its disks are given up or get overlays:
 * devices finish what the guest has asked them for.  False: they do not come to an end
 */
bool rp_settle_devices(Error **errp);

/* Under the BQL, the guest paused; *state is to be freed with g_free() */
bool rp_save_devices(void **state, size_t *len, Error **errp);
int rp_load_devices(const void *state, size_t len);

/* Under the BQL: all is loaded; run the guest, if it ran where it came from */
void rp_run_guest(void);

/* Run @fn in the main thread, which holds the BQL, and wait for it */
int rp_main_thread(int (*fn)(void));

/* Under the BQL: log what is written to guest memory, from when it returns */
bool rp_log_start(Error **errp);
void rp_log_stop(void);
/* Likewise, of a visit, once devices are loaded: what they have written to @dest's memory is in it */
bool rp_log_start_loaded(const struct ff_dest *dest, Error **errp);

/*
 * Under the BQL: take down what was written; @last: nothing writes any more.
 * *pages becomes the number of pages in the log.
 */
bool rp_log_read(bool last, uint64_t *pages, Error **errp);
bool rp_is_logging(void);

/* Without the BQL: tell the destination what was taken down */
int rp_log_send(struct ff_source *source, struct ff_error *err);
void rp_fill_info(MigrationInfo *info, const struct ff_stats *st,
                  const struct ff_stage_time *stages, const char *link,
                  const char *link_detail);

#endif
