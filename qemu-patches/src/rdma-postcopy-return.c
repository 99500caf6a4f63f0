/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: a guest that visits another host, and comes back
 *
 *   home                                        away, -incoming ...,visit=on
 *     migrate                    -- GO -->        log of all writes, from when devices are loaded
 *     source: finish-migrate, serves faults       dest: fetches what the guest touches
 *     x-rdma-postcopy-return: dest, beside it     migrate: source, beside it
 *     (the way out has no link from here on)  <--  the log; device state
 *     reset, load devices         -- READY -->
 *     runs                       <-- GO --        the process has no guest any more
 *     fetches what was written   -- DONE -->      both sides of it end; postmigrate
 *     both sides end
 *
 * A return that fails before GO leaves the guest away: the library puts memory
 * back as it was, and the way out gets another link; another return may follow.
 *
 * Home loads devices into a QEMU whose own are those of the guest as it went: so
 * they are reset first, as for a snapshot, in the state inmigrate, in which no
 * ROM is written.
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-migration.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/yank.h"
#include <farfork-return.h>
#include "system/runstate.h"
#include "system/system.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

#define IMAGE_NAME "farfork-image"

/* So long a return that nobody came for may take to end */
#define END_MS 5000

static bool tried;              /* home, under the BQL: there was a return */
static char *failure;           /* likewise: why the last one failed */
static int autostart_was;       /* likewise: when it began */
static QemuSemaphore ended;     /* of the two sides here, that the other one waits for has ended */

static void __attribute__((constructor)) init_ended(void)
{
    qemu_sem_init(&ended, 0);
}

void rp_tell_ended(void)
{
    qemu_sem_post(&ended);
}

void rp_wait_ended(void)
{
    qemu_sem_wait(&ended);
}

/* Nobody waited for the end of the last visit */
static void forget_ended(void)
{
    while (!qemu_sem_timedwait(&ended, 0)) {
        continue;
    }
}

void rp_forget_return(void)
{
    tried = false;
    g_clear_pointer(&failure, g_free);
}

/* --- away --- */

/* QEMU has one yank instance for migration: the next `migrate` makes it anew, for the way back */
void rp_visit_begins(void)
{
    forget_ended();
    rp.yanks = false;
    yank_unregister_function(MIGRATION_YANK_INSTANCE, rp_yank_dest, NULL);
    yank_unregister_instance(MIGRATION_YANK_INSTANCE);
}

/* Also while it goes back: the next try reads it, too */
bool rdma_postcopy_keeps_log(void)
{
    return rp_is(&rp.visits) && rp.dest;
}

bool rdma_postcopy_forbids_snapshot(Error **errp)
{
    bool visits = rdma_postcopy_keeps_log(), away = rp_is(&rp.gave_away) || rp_is(&rp.frozen);

    if (visits) {
        error_setg(errp, "this guest visits: no snapshot is made or loaded before it is home, "
                   "which would not learn what it has written");
    } else if (away) {
        error_setg(errp, "the guest is elsewhere by rdma-postcopy, or on its way");
    }
    return visits || away;
}

bool rp_may_go_back(void)
{
    return rp_is(&rp.visits) && rp.dest && rp_is(&rp.here) && !rp.source && !rp.releasing &&
           !rp_is(&rp.gave_away);
}

/* Away: home has made another link: a return that waits to be told learns from it that it was in vain */
void rp_home_serves(void)
{
    QEMU_LOCK_GUARD(&rp.lock);

    if (rp.source && rp_is(&rp.returns) && qatomic_read(&rp.out.recovers)) {
        rp.out.asked = !rp.out.held;
        ff_source_interrupt(rp.source);
        qemu_sem_post(&rp.out.again);
    }
}

RdmaPostcopyWorkingSet *qmp_x_rdma_postcopy_working_set(const char *first, Error **errp)
{
    struct ff_error *err = ff_error_new();
    RdmaPostcopyWorkingSet *w;
    char *text;

    if (!rp_is(&rp.visits) || !rp.dest || (first && rp_is(&rp.here))) {
        error_setg(errp, rp_is(&rp.visits) && rp.dest ? "the guest is here already"
                                              : "no guest visits this QEMU, nor is one to");
        ff_error_free(err);
        return NULL;
    }
    if (first && ff_dest_first(rp.dest, first, err)) {
        rp_take_error(errp, err);
        return NULL;
    }
    ff_error_free(err);
    text = rp_is(&rp.here) ? ff_dest_working_set(rp.dest) : NULL;
    w = g_new0(RdmaPostcopyWorkingSet, 1);
    w->text = g_strdup(text ? text : "");
    free(text);
    return w;
}

/* It runs at home: what it has not fetched here nobody needs */
void rp_went_back(void)
{
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        rp_set(&rp.went_back, true);
        qatomic_set(&rp.in.over, true);
        ff_dest_cancel(rp.dest);
        ff_dest_interrupt(rp.dest);
    }
    qemu_sem_post(&rp.in.again);
}

/* --- home --- */

static void write_name(const char *path, const char *name)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0) { /* else it is not shown */
        (void)!write(fd, name, strlen(name));
        close(fd);
    }
}

/* Who lists processes sees that this one has an image, and no guest (`farfork hosts`) */
void rp_show_image(bool serves)
{
    static const char path[] = "/proc/self/comm"; /* of the main thread, by any */
    static char was[32];

    if (serves && !*was) {
        g_autofree char *now = NULL;

        if (g_file_get_contents(path, &now, NULL, NULL)) {
            g_strlcpy(was, now, sizeof(was));
            write_name(path, IMAGE_NAME);
        }
    } else if (!serves && *was) {
        write_name(path, was);
        *was = '\0';
    }
}

struct load {
    QemuSemaphore changed;      /* it is loaded, or the link broke */
    bool done;
    int ret;
};

static void home_load_bh(void *opaque)
{
    struct load *l = opaque;

    runstate_set(RUN_STATE_PRELAUNCH); /* finish-migrate has no other way there */
    runstate_set(RUN_STATE_INMIGRATE);
    rp.resets = true;
    memory_region_transaction_begin(); /* each device would map its own anew: most of the time */
    qemu_system_reset(SHUTDOWN_CAUSE_SNAPSHOT_LOAD);
    memory_region_transaction_commit();
    rp.resets = false;
    compat_flush_code();
    l->ret = rp_load_devices(rp.state, rp.state_len);
    qatomic_set(&l->done, true);
    qemu_sem_post(&l->changed);
}

static void load_without_link(void *opaque, const char *why)
{
    struct load *l = opaque;

    qemu_sem_post(&l->changed);
}

/* The main thread may wait for a page that will not come; this process has to live on */
int rp_home_load(void)
{
    struct load l = { .done = false };

    qemu_sem_init(&l.changed, 0);
    ff_dest_on_break(rp.dest, load_without_link, &l);
    migration_bh_schedule(home_load_bh, &l);
    qemu_sem_wait(&l.changed);
    while (!qatomic_read(&l.done)) {
        ff_dest_give_up(rp.dest);
        qemu_sem_wait(&l.changed);
    }
    ff_dest_on_break(rp.dest, NULL, NULL);
    qemu_sem_destroy(&l.changed);
    return l.ret;
}

/* GO came: the guest is here again.  Without the BQL: who has that may wait for a page */
void rp_home_arrived(void)
{
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        rp_set(&rp.gave_away, false);
        rp_set(&rp.frozen, false);
        qatomic_set(&rp.in.over, false);
        qatomic_set(&rp.out.over, true);
        ff_source_stop(rp.source);
        ff_source_interrupt(rp.source);
    }
    qemu_sem_post(&rp.out.again);
}

/* Under the BQL */
void rp_home_failed(const Error *err)
{
    g_free(failure);
    failure = g_strdup(error_get_pretty(err));
    if (runstate_check(RUN_STATE_INMIGRATE)) {
        runstate_set(RUN_STATE_FINISH_MIGRATE);
    }
    autostart = autostart_was;
    rp_set(&rp.comes_back, false);
}

void rp_end_return(void)
{
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        if (!rp.dest || rp_is(&rp.here)) {
            return;
        }
        qatomic_set(&rp.in.over, true);
        ff_dest_cancel(rp.dest);
        ff_dest_interrupt(rp.dest);
    }
    qemu_sem_post(&rp.in.again);
}

/* A return that nobody came for, or whose source will not: another takes its place */
static void end_last_return(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    int64_t until = qemu_clock_get_ms(QEMU_CLOCK_REALTIME) + END_MS;
    bool waits = mis->state == MIGRATION_STATUS_SETUP ||
                 mis->state == MIGRATION_STATUS_POSTCOPY_PAUSED;

    if (!rp_is(&rp.comes_back) || rp_is(&rp.here) || !waits) {
        return;
    }
    rp_end_return();
    while (rp.dest && qemu_clock_get_ms(QEMU_CLOCK_REALTIME) < until) {
        rp_let_others_run();
    }
}

void rp_fill_return(RdmaPostcopyInfo *x)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    x->has_return_status = tried;
    x->return_status = tried ? mis->state : 0;
    x->return_error = g_strdup(failure);
}

static bool can_come_back(Error **errp)
{
    end_last_return(); /* others run meanwhile */
    if (!rp.source || !rp_is(&rp.gave_away) || !rp_is(&rp.serves) ||
        !ff_source_runs_there(rp.source)) {
        error_setg(errp, "no guest of this QEMU runs elsewhere by an rdma-postcopy migration, with "
                   "visit=on there");
    } else if (rp.dest) {
        error_setg(errp, "the guest is on its way back already");
    } else if (!runstate_check(RUN_STATE_FINISH_MIGRATE)) {
        error_setg(errp, "the guest cannot come back to a QEMU in state %s",
                   RunState_str(runstate_get()));
    } else if (rp_blocks_changed()) {
        error_setg(errp, "memory was plugged or unplugged here since the guest went");
    } else {
        return true;
    }
    return false;
}

void qmp_x_rdma_postcopy_return(const char *uri, Error **errp)
{
    const char *address;
    struct ff_address *a;

    if (!strstart(uri, "rdma-postcopy:", &address)) {
        error_setg(errp, "a guest comes back by rdma-postcopy:HOST:PORT alone");
        return;
    }
    if (!can_come_back(errp)) {
        return;
    }
    a = rp_address(address, true, errp);
    if (!a) {
        return;
    }
    forget_ended();
    compat_flush_code(); /* here nobody waits for it; with nothing translated it takes less */
    autostart_was = autostart;
    autostart = 1; /* whether it runs is said with it */
    g_clear_pointer(&failure, g_free);
    rp_set(&rp.comes_back, true);
    if (rp_listen(a, address, errp)) {
        tried = true;
    } else {
        rp_set(&rp.comes_back, false);
        autostart = autostart_was;
    }
}
