/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: the source, from `migrate` to the last page.
 * rdma-postcopy.c has the picture.
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "migration/migration-stats.h"
#include "migration/options.h"
#include "migration/savevm.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/yank.h"
#include <farfork-return.h>
#include "system/runstate.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

/*
 * What was written during a pass is discarded before the pause: in rounds,
 * each for what was written during the one before, until that is little.
 */
#define LOG_ROUNDS 8
#define LOG_LITTLE_PAGES 512

static bool outgoing_prepare(MigrationState *s, Error **errp)
{
    struct ff_error *err = ff_error_new();
    int64_t start = qemu_clock_get_ms(QEMU_CLOCK_REALTIME);

    if (ff_source_connect(rp.source, rp_machine_config(), err) ||
        ff_source_publish(rp.source, err) ||
        ff_source_wait_watched(rp.source, err)) {
        rp_take_error(errp, err);
        return false;
    }
    ff_error_free(err);
    s->setup_time = qemu_clock_get_ms(QEMU_CLOCK_REALTIME) - start;
    migrate_set_state(&s->state, MIGRATION_STATUS_SETUP,
                      MIGRATION_STATUS_ACTIVE);
    return true;
}

/* precopy=1: the destination reads all memory once while the guest runs */
static bool outgoing_precopy(Error **errp)
{
    uint64_t pages = 0, before = 0;
    struct ff_stats st;
    struct ff_error *err;
    bool ok;

    if (rp_is(&rp.returns) || !ff_source_wants_precopy(rp.source)) {
        return true;
    }
    bql_lock();
    ok = rp_log_start(errp);
    bql_unlock();
    if (!ok) {
        return false;
    }
    err = ff_error_new();
    if (ff_source_precopy(rp.source, err)) {
        rp_take_error(errp, err);
        return false;
    }
    for (int i = 0; i < LOG_ROUNDS && ok; i++) {
        bql_lock();
        ok = rp_log_read(false, &pages, errp);
        bql_unlock();
        if (ok && (rp_log_send(rp.source, err) ||
                   ff_source_precopy(rp.source, err))) {
            rp_take_error(errp, err);
            return false;
        }
        if (pages - before <= LOG_LITTLE_PAGES) {
            break;
        }
        before = pages;
    }
    ff_error_free(err);
    ff_source_stats(rp.source, &st); /* as the destination said with PASSED */
    stat64_set(&mig_stats.precopy_bytes, st.bytes_prefill + st.bytes_fault);
    return ok;
}

/* Up to the point of no return; *gone tells whether that was passed */
static bool outgoing_switchover(MigrationState *s, bool *gone, Error **errp)
{
    g_autofree struct rp_first_touch *ft = g_new0(struct rp_first_touch, 1);
    struct ff_error *err;
    int rc;

    if (!rp_stop_and_save(s, ft, errp)) {
        bql_lock();
        rp_set(&rp.frozen, false); /* nothing was sent */
        bql_unlock();
        g_clear_pointer(&rp.state, g_free);
        return false;
    }
    err = ff_error_new();
    rc = rp_is_logging() ? rp_log_send(rp.source, err) : 0;
    if (!rc) {
        rc = ff_source_send_state(rp.source, rp.state, rp.state_len, ft->page,
                                  ft->n, err);
    }
    g_clear_pointer(&rp.state, g_free);
    stat64_set(&mig_stats.downtime_bytes, rp.state_len);
    if (rc || ff_source_wait_ready(rp.source, err)) {
        rp_take_error(errp, err);
        return false;
    }
    /* A cancel wins here or comes too late: the state changes atomically */
    migrate_set_state(&s->state, MIGRATION_STATUS_DEVICE,
                      MIGRATION_STATUS_POSTCOPY_ACTIVE);
    if (qatomic_read(&s->state) != MIGRATION_STATUS_POSTCOPY_ACTIVE) {
        error_setg(errp, "rdma-postcopy: canceled");
        ff_error_free(err);
        return false;
    }
    rp_set(&rp.gave_away, true);
    rc = ff_source_go(rp.source, err);
    if (rc == -ETIME) {
        rp_set(&rp.gave_away, false); /* nothing was sent */
    }
    *gone = rp_is(&rp.gave_away);
    if (rc) {
        rp_take_error(errp, err);
        return false;
    }
    ff_error_free(err);
    return true;
}

/* @runs: the destination has said once that the guest runs there */
static bool outgoing_serve(MigrationState *s, bool *runs, Error **errp)
{
    struct ff_error *err = ff_error_new();

    if (ff_source_wait_running(rp.source, err)) {
        rp_take_error(errp, err);
        return false;
    }
    if (!*runs) {
        *runs = true;
        if (rp_is(&rp.returns)) { /* before the BQL, which who waits for a page may have */
            rp_went_back();
        } else {
            rp_show_image(true);
        }
        bql_lock();
        migration_downtime_end(s);
        migration_call_notifiers(s, MIG_EVENT_PRECOPY_DONE, NULL);
        bql_unlock();
    }
    if (ff_source_wait_done(rp.source, err)) {
        rp_take_error(errp, err);
        return false;
    }
    ff_error_free(err);
    return true;
}

static int connect_again(int timeout_ms, struct ff_error *err)
{
    return ff_source_resume(rp.source, rp.to, timeout_ms, err);
}

/*
 * The link broke after GO, for the reason *errp.  True: there is another.
 * *gone becomes false when the destination says that GO never came there, and
 * never will, or x-rdma-postcopy-not-started does, or when the guest was taken
 * back (*taken): the only ways back.
 */
static bool outgoing_recover(MigrationState *s, bool *gone, bool *taken, Error **errp)
{
    const struct rp_side side = {
        .wait = &rp.out,
        .state = &s->state,
        .attempt = connect_again,
        .meanwhile = "this side keeps the guest's memory and does not run it",
    };
    struct ff_error *err;
    int rc;

    if (!*gone || !rp.out.reconnect_ms) {
        return false;
    }
    err = ff_error_new();
    rc = rp_recover(&side, ff_source_is_held(rp.source) ? "rdma-postcopy: the guest is on its way back"
                                                        : error_get_pretty(*errp), err);
    *taken = rc == -EKEYREVOKED;
    if (rc == -ETIME || *taken) {
        rp_set_reason(&rp.out, NULL);
        rp_set(&rp.gave_away, false);
        *gone = false;
    }
    g_clear_pointer(errp, error_free);
    if (rc && !*taken) {
        rp_take_error(errp, err);
        return false;
    }
    ff_error_free(err);
    if (*taken) {
        QEMU_LOCK_GUARD(&rp.lock);
        error_setg(errp, "rdma-postcopy: the guest was taken back from %s, as it was when it was "
                   "handed over; what the world has seen of it since is forgotten", rp.sent_to);
    }
    return !rc;
}

/*
 * QMP yank: break the link, from any thread; not while it is unregistered.
 * After GO it is an outage like any other.
 */
static void yank_source(void *opaque)
{
    MigrationState *s = migrate_get_current();

    if (rp_is(&rp.gave_away) && rp.out.reconnect_ms) {
        ff_source_pause(rp.source);
        return;
    }
    ff_source_stop(rp.source);
    if (qatomic_read(&s->state) == MIGRATION_STATUS_PRE_SWITCHOVER) {
        compat_end_pre_switchover(s);
    }
}

/* One try, for which no guest waits: most of the time nobody is there to hear it */
static void *tell_taken_back(void *opaque)
{
    struct ff_source *source = opaque;
    struct ff_error *err = ff_error_new();

    if (ff_source_tell_taken_back(source, err)) {
        info_report("rdma-postcopy: %s", ff_error_message(err));
    }
    ff_error_free(err);
    ff_source_free(source);
    return NULL;
}

/*
 * Freeing waits for threads and perhaps for the peer: not with the BQL.
 * @taken: the destination, if it is still there, is to hear of it
 */
static void release_source(bool taken)
{
    struct ff_source *source = rp.source;
    QemuThread thread;

    rp_show_image(false);
    bql_lock();
    yank_unregister_function(MIGRATION_YANK_INSTANCE, yank_source, NULL);
    if (!rp_is(&rp.returns)) { /* else it goes on for the next try */
        rp_log_stop();
    }
    if (!ff_source_has_returned(source)) { /* else those of the return are shown */
        ff_source_stats(source, &rp.stats);
        rp.link = ff_source_link(source);
        ff_source_link_detail(source, rp.link_detail);
    }
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        rp.source = NULL;
        g_clear_pointer(&rp.to, ff_address_free);
        g_clear_pointer(&rp.next_to, ff_address_free);
        rp_set_sent_to(NULL);
    }
    rp.releasing = true;
    bql_unlock();
    if (taken) {
        qemu_thread_create(&thread, "mig/src/rdma-bk", tell_taken_back, source,
                           QEMU_THREAD_DETACHED);
    } else {
        ff_source_free(source);
    }
    bql_lock();
    if (!rp_is(&rp.returns)) { /* the destination's */
        rp_drop_blocks();
        ram_block_discard_disable(false);
    }
    rp_set(&rp.returns, false);
    rp_set(&rp.frozen, false);
    rp.releasing = false;
    bql_unlock();
}

/* Who sees "failed" may begin another migration: not before all is released */
void rdma_postcopy_settle(MigrationState *s)
{
    if (rp.failure && qatomic_read(&s->state) != MIGRATION_STATUS_CANCELLING) {
        rp_set_reason(&rp.out, error_get_pretty(rp.failure));
        migrate_set_state(&s->state, s->state, MIGRATION_STATUS_FAILED);
    }
    error_free(rp.failure);
    rp.failure = NULL;
}

/* Switches have learnt that it is elsewhere */
static void announce_guest(void)
{
    bql_lock();
    if (runstate_is_running()) {
        qemu_announce_self(&migration_incoming_get_current()->announce_timer,
                           migrate_announce_params());
    }
    bql_unlock();
}

static void visit_ended_bh(void *opaque)
{
    MigrationState *s = opaque;

    migrate_set_state(&s->state, s->state, MIGRATION_STATUS_COMPLETED);
    migration_cleanup_bh(s);
}

/* The guest that went is here again, when all that it wrote is: its image is served no more */
static void end_visit(MigrationState *s)
{
    rp_set_reason(&rp.out, NULL);
    migrate_set_state(&s->state, s->state, MIGRATION_STATUS_POSTCOPY_ACTIVE);
    rp_wait_ended();
    release_source(false);
    migration_bh_schedule(visit_ended_bh, s);
}

/* It goes on here without having come back: nobody need wait for that any more */
static void end_return(void)
{
    bool waits;

    bql_lock();
    waits = rp_is(&rp.comes_back);
    bql_unlock();
    if (waits) {
        rp_end_return();
        rp_wait_ended();
    }
}

/*
 * A return came to nothing.  Home hears that before the BQL is taken, which who
 * waits for a page of its may have.  A lease may have ended meanwhile: then the
 * guest goes on when there is one again.
 */
static void end_attempt(void)
{
    ff_source_stop(rp.source);
    while (rp_is(&rp.no_lease) && !rp_is(&rp.quitting)) {
        g_usleep(20000);
    }
}

static void *outgoing_thread(void *opaque)
{
    MigrationState *s = opaque;
    Error *err = NULL;
    bool gone = false, runs = false, taken = false;
    bool done = false;

    rcu_register_thread();
    rp_set(&rp.serves, true);
    if (outgoing_prepare(s, &err) && outgoing_precopy(&err) &&
        outgoing_switchover(s, &gone, &err)) {
        done = outgoing_serve(s, &runs, &err);
    }
    while (!done && outgoing_recover(s, &gone, &taken, &err)) {
        done = outgoing_serve(s, &runs, &err);
    }
    if (done) {
        release_source(false);
        if (rp_is(&rp.went_back)) {
            rp_tell_ended();
        }
        migration_completion_end(s);
        migration_iteration_finish(s);
    } else if (ff_source_has_returned(rp.source)) {
        end_visit(s);
    } else if (gone) {
        /*
         * The guest is the destination's, or on its way there.  Its memory
         * here stays as it is; it is not known here whether all is needed.
         */
        rp_set(&rp.serves, false);
        migrate_set_error(s, err);
        error_report("%s; this side keeps the guest's memory and does not "
                     "run it", error_get_pretty(err));
        migrate_set_state(&s->state, MIGRATION_STATUS_POSTCOPY_ACTIVE,
                          MIGRATION_STATUS_POSTCOPY_PAUSED);
    } else {
        if (rp_is(&rp.returns)) {
            end_attempt();
        } else {
            end_return();
        }
        release_source(taken);
        rp.failure = g_steal_pointer(&err);
        migration_iteration_finish(s); /* the guest goes on here */
        if (taken) {
            announce_guest();
        }
    }
    error_free(err);
    object_unref(OBJECT(s));
    rcu_unregister_thread();
    return NULL;
}

/* What the guest has written is home when it is: there is nothing to take back */
static bool check_return(const struct ff_address *a, Error **errp)
{
    if (ff_address_fallback(a)) {
        error_setg(errp, "rdma-postcopy: fallback=go is not for a guest that goes back");
        return false;
    }
    if (rp_blocks_changed()) {
        error_setg(errp, "rdma-postcopy: memory was plugged or unplugged during the visit, which "
                   "the other side has not: undo that first");
        return false;
    }
    if (qatomic_read(&rp.in.recovers)) {
        error_setg(errp, RP_NO_LINK_HOME);
        return false;
    }
    return rp_check_overlays(errp);
}

void rdma_postcopy_start_outgoing(MigrationState *s, const char *address,
                                  Error **errp)
{
    struct ff_address *a = rp_address(address, false, errp);
    struct ff_error *err;
    bool returns;

    if (!a) {
        return;
    }
    if (rp.source || s->state == MIGRATION_STATUS_POSTCOPY_RECOVER_SETUP) {
        rp_resume_by_hand(a, address, errp);
        return;
    }
    returns = rp_may_go_back();
    /* with a stop before the switch-over jobs may be ended there, as those that copy disks are */
    if ((!migrate_pause_before_switchover() && !rp_check_disks(errp)) ||
        !(returns ? check_return(a, errp) : rp_check_fallback(a, errp))) {
        ff_address_free(a);
        return;
    }
    ff_set_log(rp_log_line, FF_INFO);
    err = ff_error_new();
    if (qemu_savevm_state_guest_unplug_pending()) {
        error_setg(errp, "rdma-postcopy cannot move a guest with a network "
                   "failover pair: unplug its primary device first");
        ff_address_free(a);
        ff_error_free(err);
        return;
    }
    /* a page that is discarded after it was registered would not be read */
    if (!returns && (!rp_collect_blocks(errp) || !rp_hold_discards(errp))) {
        ff_address_free(a);
        ff_error_free(err);
        return;
    }
    if (!returns) {
        rp_hold_blocks();
    }
    if (ff_source_new(a, &rp.source, err)) {
        goto fail;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        struct ff_region r = rp_region_to_leave(i);

        if (rp.poisoned && (r.fd >= 0 || r.is_private)) { /* its holes are zeros, or poisoned here */
            r.zero_fill = false;
        }
        if (ff_source_add_region(rp.source, &r, err)) {
            goto fail;
        }
    }
    if (returns && ff_source_return(rp.source, rp.dest, err)) {
        goto fail;
    }
    if (migration_call_notifiers(s, MIG_EVENT_PRECOPY_SETUP, errp)) {
        goto fail;
    }
    rp_set(&rp.returns, returns);
    rp_resume_reset(&rp.out, a);
    rp_forget_return();
    ff_address_free(a); /* the library has it: rp.to is what an operator gave */
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        rp_set_sent_to(address);
    }
    ff_error_free(err);
    rp.used = true;
    memset(&rp.stats, 0, sizeof(rp.stats));
    memset(rp.stages, 0, sizeof(rp.stages));
    yank_register_function(MIGRATION_YANK_INSTANCE, yank_source, NULL);
    object_ref(OBJECT(s));
    qemu_thread_create(&s->thread, "mig/src/rdma-pc", outgoing_thread, s,
                       QEMU_THREAD_JOINABLE);
    s->migration_thread_running = true;
    return;

fail:
    if (!returns) {
        rp_drop_blocks();
        ram_block_discard_disable(false);
    }
    ff_source_free(rp.source);
    rp.source = NULL;
    ff_address_free(a);
    if (ff_error_code(err)) {
        rp_take_error(errp, err);
    } else {
        ff_error_free(err);
    }
}

/*
 * Before GO: ask the thread to end.  Afterwards there is nothing to cancel:
 * a state of post-copy is never left for "cancelling".
 */
bool rdma_postcopy_cancel(MigrationState *s)
{
    static const MigrationStatus early[] = {
        MIGRATION_STATUS_SETUP, MIGRATION_STATUS_ACTIVE,
        MIGRATION_STATUS_PRE_SWITCHOVER, MIGRATION_STATUS_DEVICE,
    };
    MigrationStatus was = qatomic_read(&s->state);

    if (!rp.source) {
        return rp_is(&rp.gave_away); /* complete, or about to be */
    }
    for (size_t i = 0; i < ARRAY_SIZE(early); i++) {
        migrate_set_state(&s->state, early[i], MIGRATION_STATUS_CANCELLING);
    }
    if (qatomic_read(&s->state) == MIGRATION_STATUS_CANCELLING) {
        if (was == MIGRATION_STATUS_PRE_SWITCHOVER) {
            compat_end_pre_switchover(s);
        }
        ff_source_cancel(rp.source);
    }
    return true;
}
