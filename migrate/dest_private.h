/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_private.h - what dest.c and dest_accept.c share
 */
#ifndef FF_MIGRATE_DEST_PRIVATE_H
#define FF_MIGRATE_DEST_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "beat.h"
#include "control.h"
#include "dest.h"
#include "pager.h"

struct ff_dest {
    struct ff_address addr;
    struct ff_regions regions;
    struct ff_control ctl;
    struct ff_hello peer;
    struct ff_publish publish;
    uint32_t map[FF_WIRE_REGIONS_MAX]; /* the source's number of a region -> ours */
    struct ff_dest_owner owner; /* an agent, if its adopt is set */
    void (*on_shortage)(void *opaque, const char *why);
    void *on_shortage_opaque;
    bool lent[FF_WIRE_REGIONS_MAX]; /* by our number */
    uint8_t session[FF_SESSION_LEN];
    struct ff_pager pager;
    pthread_mutex_t pager_lock; /* starting and finishing it */
    struct ff_page_pool pool;
    struct ff_beat beat; /* from READY to RUNNING */
    bool prefill_due;    /* its thread could not be started */
    _Atomic bool pager_used; /* set when the pager is whole: ff_dest_stats() may look at it */
    uint64_t state_ns, go_ns, running_ns;
    _Atomic uint64_t load_ns, start_ns, complete_ns;
    _Atomic bool cancelled;

    pthread_mutex_t lock;
    struct ff_port *port;
    struct ff_link *link;
};

#endif
