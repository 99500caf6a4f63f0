/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: the destination, from -incoming to the last page.
 * rdma-postcopy.c has the picture.
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/madvise.h"
#include "qemu/yank.h"
#include <farfork-return.h>
#include "system/runstate.h"
#include "system/system.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

static int incoming_prepare(void)
{
    Error *err = NULL;

    if (rp_blocks_changed()) {
        error_report("rdma-postcopy: memory was plugged or unplugged since "
                     "-incoming: use migrate-incoming after that");
        return -EBUSY;
    }
    /* a device that was plugged since may forbid it */
    if (!rp_check_creds(&err) || (!rp_is(&rp.comes_back) && (!rp_check_emptying(&err) ||
                                                     !rp_hold_discards(&err)))) {
        error_report_err(err);
        return -EBUSY;
    }
    /* what is unplugged before all of it is here stays until then */
    if (!rp_is(&rp.comes_back)) { /* else both are held already */
        rp_hold_blocks();
    }
    rp.prepared = true;
    if (should_mlock(mlock_state)) {
        munlockall(); /* locked memory cannot be discarded; see complete */
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        qemu_madvise(qemu_ram_get_host_addr(rp_block[i]),
                     qemu_ram_get_used_length(rp_block[i]),
                     QEMU_MADV_NOHUGEPAGE);
    }
    if (rp_is(&rp.comes_back)) {
        ff_dest_refuse_lease(rp.dest, "its guest comes home");
    } else {
        rp_offer_lease();
    }
    return 0;
}

/*
 * Empty RAM, so that every page is fetched or faults.  The pager watches it
 * by now, so nobody can put a page there behind; without the BQL, since the
 * main thread may wait for a page already (a display that is refreshed).
 * The pager has emptied a file itself that pages are ready in.
 */
static int incoming_empty_ram(void)
{
    int ret = 0;

    RCU_READ_LOCK_GUARD();
    for (unsigned i = 0; i < rp_n_blocks && !ret; i++) {
        RAMBlock *b = rp_block[i];

        if (ff_dest_is_emptied(rp.dest, i)) {
            continue;
        }
        ret = ram_block_discard_range(b, 0, qemu_ram_get_used_length(b));
        if (ret) {
            error_report("rdma-postcopy: cannot empty memory region %s: %s",
                         b->idstr, strerror(-ret));
        }
    }
    return ret;
}

static int incoming_load(void)
{
    Error *err = NULL;
    int ret = rp_load_devices(rp.state, rp.state_len);

    if (!ret && rp_is(&rp.visits) && !rp_log_start_loaded(rp.dest, &err)) {
        error_report_err(err);
        return -EINVAL;
    }
    return ret;
}

static void incoming_run(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    if (rp_is(&rp.quitting)) {
        migrate_set_state(&mis->state, MIGRATION_STATUS_ACTIVE,
                          MIGRATION_STATUS_POSTCOPY_ACTIVE);
        return;
    }
    if (rp_is(&rp.visits)) {
        rp_visit_begins();
    }
    qemu_announce_self(&mis->announce_timer, migrate_announce_params());
    rp_run_guest();
}

/* QMP yank: break the link, from any thread; not while it is unregistered */
void rp_yank_dest(void *opaque)
{
    if (ff_dest_is_ready(rp.dest) && rp.in.reconnect_ms) {
        ff_dest_pause(rp.dest);
    } else {
        ff_dest_cancel(rp.dest);
    }
}

/* When nobody watches memory any more, who would be told of all of it */
static void lock_memory_again(void)
{
    if (should_mlock(mlock_state) && os_mlock(is_mlock_on_fault(mlock_state)) < 0) {
        error_report("mlock: %s", strerror(errno));
    }
}

/* Undo incoming_prepare(), as far as it came; the handle is the caller's */
static struct ff_dest *incoming_release(void)
{
    struct ff_dest *dest = rp.dest;

    if (rp.prepared) {
        for (unsigned i = 0; i < rp_n_blocks; i++) {
            qemu_madvise(qemu_ram_get_host_addr(rp_block[i]),
                         qemu_ram_get_used_length(rp_block[i]),
                         QEMU_MADV_HUGEPAGE);
        }
        if (!rp_is(&rp.comes_back)) {
            ram_block_discard_disable(false);
        }
        rp.prepared = false;
    }
    if (rp.yanks) {
        yank_unregister_function(MIGRATION_YANK_INSTANCE, rp_yank_dest, NULL);
        rp.yanks = false;
    }
    if (!rp_is(&rp.went_back)) { /* else those of the return are shown */
        ff_dest_stats(rp.dest, &rp.stats);
        rp.poisoned |= rp.stats.bytes_poisoned;
        ff_dest_stages(rp.dest, rp.stages);
        rp.link = ff_dest_link(rp.dest);
        ff_dest_link_detail(rp.dest, rp.link_detail);
    }
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        rp.dest = NULL;
        rp_set(&rp.here, false);
    }
    return dest;
}

/* Memory that was plugged may be unplugged, and then be unmapped */
static void dest_block_removed(RAMBlockNotifier *n, void *host, size_t size,
                               size_t max_size)
{
    rp_collapse_stop();
}

/* Complete, and MADV_HUGEPAGE again: memory came in small pages */
static void collapse_start(void)
{
    static RAMBlockNotifier notifier = { .ram_block_removed = dest_block_removed };
    g_autofree struct ff_region *r = g_new0(struct ff_region, rp_n_blocks);

    for (unsigned i = 0; i < rp_n_blocks; i++) {
        r[i] = rp_region(i);
    }
    if (!ff_collapse_start(r, rp_n_blocks, &rp.collapse, NULL)) {
        ram_block_notifier_add(&notifier);
    }
}

/* Of a visit QEMU's own part is over: the other side here has the yank instance */
static void incoming_end(MigrationIncomingState *mis)
{
    if (rp_is(&rp.comes_back) || rp_is(&rp.went_back)) {
        migration_incoming_transport_cleanup(mis);
    } else {
        migration_incoming_state_destroy();
    }
    migrate_incoming_unref_outgoing_state();
}

/* The guest has gone home */
static int incoming_gone(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    rp_release_output(true); /* nobody can take it back */
    rp_log_stop();
    ff_dest_free(incoming_release());
    rp_drop_blocks();
    postcopy_state_set(POSTCOPY_INCOMING_END);
    migrate_set_state(&mis->state, mis->state, MIGRATION_STATUS_COMPLETED);
    incoming_end(mis);
    rp_set(&rp.visits, false);
    rp_set(&rp.went_back, false);
    return 0;
}

static int incoming_complete(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    struct ff_dest *dest = incoming_release();

    lock_memory_again();
    rp_release_output(true);
    if (!rp.lingers) {
        ff_dest_free(dest);
    }
    if (!rp_is(&rp.quitting)) {
        collapse_start();
    }
    if (!rp_is(&rp.comes_back)) {
        rp_drop_blocks();
    }
    postcopy_state_set(POSTCOPY_INCOMING_END);
    migrate_set_state(&mis->state, MIGRATION_STATUS_POSTCOPY_ACTIVE,
                      MIGRATION_STATUS_COMPLETED);
    incoming_end(mis);
    return 0;
}

/* Before GO: the guest goes on at the source, this side has nothing to keep */
static void incoming_failed_bh(void *opaque)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    Error *err = opaque;

    if (rp_is(&rp.comes_back)) {
        ff_dest_free(incoming_release()); /* memory is as it was at the guest's GO */
        lock_memory_again();
        rp_home_failed(err);
        error_report_err(err);
        migrate_set_state(&mis->state, mis->state, MIGRATION_STATUS_FAILED);
        migration_incoming_transport_cleanup(mis);
        migrate_incoming_unref_outgoing_state();
        rp_tell_ended();
        return;
    }
    migrate_set_error(migrate_get_current(), err);
    error_report_err(err);
    rp.refused = true;
    rp_log_stop();
    rp_release_output(false);
    ff_dest_free(incoming_release());
    lock_memory_again();
    rp_drop_blocks();
    migrate_set_state(&mis->state, mis->state, MIGRATION_STATUS_FAILED);
    migration_incoming_state_destroy();
    if (mis->exit_on_error) {
        exit(EXIT_FAILURE);
    }
    migrate_incoming_unref_outgoing_state();
}

/*
 * Faults cannot be served while the main thread loads devices: it may wait
 * for one, with the BQL, for ever.  The guest is still the source's.
 */
static void die_while_loading(void *opaque, const char *why)
{
    error_report("rdma-postcopy: %s; the guest goes on at the source", why);
    _exit(EXIT_FAILURE);
}

/* Up to GO: 0, or the reason why the guest must not run here */
static int incoming_until_go(MigrationIncomingState *mis, struct ff_error *err)
{
    int rc = ff_dest_accept(rp.dest, rp_machine_config(), err);

    if (rc) {
        return rc;
    }
    migrate_set_state(&mis->state, MIGRATION_STATUS_SETUP,
                      MIGRATION_STATUS_ACTIVE);
    rc = rp_main_thread(incoming_prepare);
    if (!rc) {
        rc = ff_dest_start(rp.dest, err);
    }
    if (!rc && !rp_is(&rp.comes_back)) {
        rc = incoming_empty_ram();
    }
    if (!rc) {
        rc = ff_dest_recv_state(rp.dest, &rp.state, &rp.state_len, err);
    }
    if (!rc && rp_is(&rp.comes_back)) {
        rc = rp_home_load();
        free(g_steal_pointer(&rp.state));
    } else if (!rc) {
        ff_dest_on_break(rp.dest, die_while_loading, NULL);
        rc = rp_main_thread(incoming_load);
        ff_dest_on_break(rp.dest, NULL, NULL);
        free(g_steal_pointer(&rp.state));
    }
    if (!rc) {
        rc = ff_dest_ready(rp.dest, err);
    }
    if (!rc) {
        rc = ff_dest_wait_go(rp.dest, err);
        rp_set(&rp.here, !rc);
    }
    if (!rc && rp_is(&rp.comes_back)) {
        rp_home_arrived();
    }
    return rc;
}

/*
 * After GO, in incoming_thread(): pages cannot be installed for want of
 * memory (why), or can be again (NULL).  Nothing is lost meanwhile.
 */
static void memory_is_short(void *opaque, const char *why)
{
    MigrationIncomingState *mis = opaque;

    if (why) {
        g_autofree char *text = g_strdup_printf(
            "rdma-postcopy: %s; the guest goes on until it touches missing memory, and waits "
            "there until this host has memory for it", why);

        rp_set_reason(&rp.in, text);
        rp_set(&rp.short_of_memory, true);
        migrate_set_state(&mis->state, MIGRATION_STATUS_POSTCOPY_ACTIVE,
                          MIGRATION_STATUS_POSTCOPY_PAUSED);
        return;
    }
    rp_set(&rp.short_of_memory, false);
    rp_set_reason(&rp.in, NULL);
    migrate_set_state(&mis->state, MIGRATION_STATUS_POSTCOPY_PAUSED,
                      MIGRATION_STATUS_POSTCOPY_ACTIVE);
}

static int listen_again(int timeout_ms, struct ff_error *err)
{
    return ff_dest_recover(rp.dest, timeout_ms, err);
}

/* The link broke, for the reason @text.  0: there is another */
static int incoming_recover(MigrationIncomingState *mis, const char *text, struct ff_error *err)
{
    const struct rp_side side = {
        .wait = &rp.in,
        .state = &mis->state,
        .attempt = listen_again,
        .listens = true,
        .meanwhile = rp_is(&rp.here)
                     ? "the guest goes on until it touches missing memory"
                     : rp_is(&rp.comes_back)
                         ? "no GO came, and the guest is not here, which the other side is told when it "
                           "comes; if the guest goes on there, x-rdma-postcopy-return lets it try again"
                         : "no GO came, and nothing runs here, which the source is told "
                           "when it comes; quit this one if the guest goes on there",
    };
    g_autofree char *missing = rp_is(&rp.here) ? rp_missing_text() : NULL;
    g_autofree char *why = g_strdup_printf("rdma-postcopy: %s%s%s", text, missing ? "; " : "",
                                           missing ? missing : "");
    int rc;

    rp_set(&rp.short_of_memory, false);
    rc = rp_recover(&side, why, err);
    if (rc == -EKEYREVOKED) {
        rp_end_revoked(ff_error_message(err));
    }
    if (!rc) {
        rp_home_serves();
    }
    return rc;
}

/*
 * READY was sent and no GO was read.  A source that has said why is not to
 * come back; any other may have sent it, and waits to be told that it did not
 * arrive.
 */
static void incoming_refuse_go(MigrationIncomingState *mis, struct ff_error *err)
{
    int code = ff_error_code(err);

    if (ff_dest_is_ready(rp.dest) && rp.in.reconnect_ms && code != EREMOTEIO && code != ECANCELED) {
        incoming_recover(mis, ff_error_message(err), err);
    }
}

/* Complete, and the source may not know: tell it when it asks */
static void incoming_linger(struct ff_dest *dest, struct ff_error *err)
{
    int rc;

    do {
        rc = ff_dest_recover(dest, rp.in.reconnect_ms, err);
    } while (rc == -EINTR); /* migrate-pause came as the last page did */
    if (rc) {
        warn_report("rdma-postcopy: complete, but the source was not told: %s",
                    ff_error_message(err));
    }
    ff_dest_free(dest);
}

struct start {
    QemuSemaphore changed;      /* the guest runs, or the link broke */
    bool runs;
    char *why;                  /* it broke */
};

static void start_guest_bh(void *opaque)
{
    struct start *s = opaque;

    if (rp_start_needs_lease(start_guest_bh, s)) {
        return;
    }
    rp_change_guest(incoming_run);
    qatomic_set(&s->runs, true);
    qemu_sem_post(&s->changed);
}

static void start_without_link(void *opaque, const char *why)
{
    struct start *s = opaque;

    g_free(s->why);
    s->why = g_strdup(why);
    qemu_sem_post(&s->changed);
}

/* The main thread may wait for a page with the BQL, and start the guest when there is a link */
static void incoming_start(MigrationIncomingState *mis, struct ff_error *err)
{
    struct start s = { .runs = false };

    qemu_sem_init(&s.changed, 0);
    migration_bh_schedule(start_guest_bh, &s);
    if (rp.in.reconnect_ms) {
        ff_dest_on_break(rp.dest, start_without_link, &s);
    }
    qemu_sem_wait(&s.changed);
    while (!qatomic_read(&s.runs)) {
        g_autofree char *why = g_steal_pointer(&s.why);

        incoming_recover(mis, why, err);
        qemu_sem_wait(&s.changed);
    }
    ff_dest_on_break(rp.dest, NULL, NULL);
    g_free(s.why);
    qemu_sem_destroy(&s.changed);
}

/* GO was read: 0: all memory is here */
static int incoming_fetch(MigrationIncomingState *mis, struct ff_error *err)
{
    int rc;

    incoming_start(mis, err);
    ff_dest_on_shortage(rp.dest, memory_is_short, mis);
    rc = ff_dest_running(rp.dest, err);
    if (!rc) {
        rc = ff_dest_wait_done(rp.dest, err);
    }
    while (rc && rp.in.reconnect_ms && !incoming_recover(mis, ff_error_message(err), err)) {
        rc = ff_dest_wait_done(rp.dest, err);
    }
    return rc;
}

/* The link has broken for good: what came is here, what did not is not */
static void incoming_stuck(MigrationIncomingState *mis, struct ff_error *err)
{
    g_autofree char *missing = rp_missing_text();
    Error *qerr = NULL;

    error_setg(&qerr, "rdma-postcopy: %s; %s", ff_error_message(err), missing);
    migrate_set_error(migrate_get_current(), qerr);
    error_report("%s; the guest goes on until it touches missing memory", error_get_pretty(qerr));
    error_free(qerr);
    rp_set(&rp.short_of_memory, false);
    migrate_set_state(&mis->state, MIGRATION_STATUS_POSTCOPY_ACTIVE,
                      MIGRATION_STATUS_POSTCOPY_PAUSED);
}

/* All memory is here */
static void incoming_done(struct ff_dest *dest, struct ff_error *err)
{
    rp.lingers = rp.in.reconnect_ms && !ff_dest_is_told(dest);
    rp_main_thread(incoming_complete);
    if (rp.lingers) {
        incoming_linger(dest, err);
    }
    if (rp_is(&rp.comes_back)) {
        rp_set(&rp.comes_back, false);
        rp_tell_ended();
    }
}

static void *incoming_thread(void *opaque)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    struct ff_dest *dest = rp.dest;
    struct ff_error *err = ff_error_new();
    Error *qerr = NULL;

    rcu_register_thread();
    rp.incoming_tid = qemu_get_thread_id();
    if (incoming_until_go(mis, err)) {
        incoming_refuse_go(mis, err);
        error_setg(&qerr, "rdma-postcopy: %s; nothing ran here",
                   ff_error_code(err) ? ff_error_message(err)
                                      : "see the message before");
        ff_dest_give_up(rp.dest); /* the main thread may wait for a page */
        migration_bh_schedule(incoming_failed_bh, qerr);
    } else if (!incoming_fetch(mis, err)) {
        incoming_done(dest, err);
    } else if (rp_is(&rp.went_back)) {
        ff_dest_has_gone(rp.dest); /* the main thread may wait for a page */
        rp_wait_ended();
        rp_main_thread(incoming_gone);
    } else {
        incoming_stuck(mis, err);
    }
    ff_error_free(err);
    rcu_unregister_thread();
    return NULL;
}

/* QEMU takes it for set up by now: what was refused can be tried again */
static void not_set_up(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    migrate_set_state(&mis->state, MIGRATION_STATUS_SETUP,
                      MIGRATION_STATUS_NONE);
}

bool rp_listen(struct ff_address *a, const char *address, Error **errp)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    struct ff_error *err = ff_error_new();
    QemuThread thread;

    if (ff_dest_new(a, &rp.dest, err)) {
        goto fail;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        struct ff_region r = rp_region(i);
        if (ff_dest_add_region(rp.dest, &r, err)) {
            goto fail;
        }
    }
    if (rp_is(&rp.comes_back) && ff_dest_keep(rp.dest, rp.source, err)) {
        goto fail;
    }
    rp_publish_address(address);
    rp_resume_reset(&rp.in, a);
    rp_note_creds();
    rp_watch_shutdown();
    ff_address_free(a);
    ff_error_free(err);
    rp.used = true;
    if (rp_is(&rp.comes_back)) {
        migrate_set_state(&mis->state, mis->state, MIGRATION_STATUS_SETUP);
        object_ref(OBJECT(migrate_get_current()));
    } else {
        yank_register_function(MIGRATION_YANK_INSTANCE, rp_yank_dest, NULL);
        rp.yanks = true;
    }
    qemu_thread_create(&thread, "mig/dst/rdma-pc", incoming_thread, NULL,
                       QEMU_THREAD_DETACHED);
    return true;

fail:
    ff_dest_free(rp.dest);
    rp.dest = NULL;
    ff_address_free(a);
    rp_take_error(errp, err);
    return false;
}

void rdma_postcopy_start_incoming(const char *address, Error **errp)
{
    struct ff_address *a = rp_address(address, true, errp);

    ff_set_log(rp_log_line, FF_INFO);
    rp_set(&rp.visits, a && ff_address_visit(a));
    if (!a || !rp_collect_blocks(errp) || !rp_check_emptying(errp)) {
        ff_address_free(a);
        not_set_up();
    } else if (!rp_listen(a, address, errp)) {
        not_set_up();
    }
}
