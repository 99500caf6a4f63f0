/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: freeze it, and let it go on
 *
 *   x-farfork-export         all in the main thread, with the BQL
 *     check, prepare           (guest runs)
 *     stop, actions, save devices, freeze memory, fork()
 *     go on
 *                            holder: farfork-holder.c
 *
 * fork(), because the kernel then keeps memory as it is, for all of QEMU's
 * private memory at once, however often, and copies only what is written.
 *
 * What the two share is one struct fc_progress per target, in shared memory.
 * What ends the holder, the parent sees by its pidfd.
 */
#include "qemu/osdep.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "block/block.h"
#include "migration/global_state.h"
#include "migration/misc.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-migration.h"
#include "qapi/qapi-commands-transaction.h"
#include "qemu/cutils.h"
#include "qemu/main-loop.h"
#include "system/runstate.h"
#include "system/system.h"
#include "farfork-fork.h"
#include "migration/migration.h"

#define TARGETS_MAX 256
#define ENDED_MAX 16            /* so many are remembered */

struct export {
    char *id;
    pid_t pid;
    int pidfd;
    bool alive, template, forgotten;
    unsigned n;
    struct fc_target *target;
    struct fc_progress *progress;
    QTAILQ_ENTRY(export) next;
};

static QTAILQ_HEAD(, export) exports = QTAILQ_HEAD_INITIALIZER(exports);

/* The guest stands still as a template: its children run all the same */
static bool is_template;

/* --- exports --- */

/* With their keys: the holder has its own */
static void drop_addresses(struct export *e)
{
    for (unsigned i = 0; i < e->n; i++) {
        ff_address_free(e->target[i].address);
        e->target[i].address = NULL;
    }
}

static void free_export(struct export *e)
{
    if (e->target) {
        drop_addresses(e);
    }
    for (unsigned i = 0; e->target && i < e->n; i++) {
        g_free(e->target[i].uri);
        g_free(e->target[i].socket);
    }
    if (e->progress) {
        munmap(e->progress, e->n * sizeof(*e->progress));
    }
    g_free(e->target);
    g_free(e->id);
    g_free(e);
}

static void forget_export(struct export *e)
{
    QTAILQ_REMOVE(&exports, e, next);
    free_export(e);
}

/* Of those that have ended only the last few */
static void forget_old(void)
{
    struct export *e, *before;
    unsigned n = 0;

    QTAILQ_FOREACH_REVERSE_SAFE(e, &exports, next, before) {
        if (!e->alive && ++n > ENDED_MAX) {
            forget_export(e);
        }
    }
}

static void holder_ended(void *opaque)
{
    struct export *e = opaque;

    qemu_set_fd_handler(e->pidfd, NULL, NULL, NULL);
    waitpid(e->pid, NULL, WNOHANG);
    close(e->pidfd);
    e->pidfd = -1;
    e->alive = false;
    for (unsigned i = 0; i < e->n; i++) {
        struct fc_progress *p = &e->progress[i];

        if (p->status != FARFORK_TARGET_STATUS_COMPLETED &&
            p->status != FARFORK_TARGET_STATUS_FAILED) {
            strcpy(p->error, "the process that held the memory has ended");
            p->status = FARFORK_TARGET_STATUS_FAILED;
        }
    }
    if (e->forgotten) {
        forget_export(e);
    }
}

static struct export *find_export(const char *id)
{
    struct export *e;

    QTAILQ_FOREACH(e, &exports, next) {
        if (!e->forgotten && !strcmp(e->id, id)) {
            return e;
        }
    }
    return NULL;
}

void qmp_x_farfork_unexport(const char *id, Error **errp)
{
    struct export *e = find_export(id);

    if (!e) {
        error_setg(errp, "no export '%s'", id);
    } else if (!e->alive) {
        forget_export(e);
    } else {
        e->forgotten = true; /* holder_ended() frees it */
        syscall(SYS_pidfd_send_signal, e->pidfd, SIGKILL, NULL, 0);
    }
}

static FarforkTargetInfo *target_info(const struct export *e, unsigned i)
{
    const struct fc_progress *p = &e->progress[i];
    FarforkTargetInfo *info = g_new0(FarforkTargetInfo, 1);

    info->uri = g_strdup(e->target[i].uri);
    info->status = qatomic_read(&p->status);
    smp_rmb(); /* pairs with finish() in the holder */
    info->transferred_bytes = qatomic_read(&p->transferred);
    if (info->status == FARFORK_TARGET_STATUS_FAILED) {
        info->error = g_strdup(p->error);
    }
    info->socket = g_strdup(e->target[i].socket);
    if (qatomic_read(&p->has_session)) {
        smp_rmb(); /* pairs with publish_session() in the holder */
        info->session = g_strdup(p->session);
    }
    return info;
}

FarforkExportInfoList *qmp_query_x_farfork_exports(Error **errp)
{
    FarforkExportInfoList *list = NULL, **tail = &list;
    struct export *e;

    QTAILQ_FOREACH(e, &exports, next) {
        FarforkExportInfo *info;
        FarforkTargetInfoList **target;

        if (e->forgotten) {
            continue;
        }
        info = g_new0(FarforkExportInfo, 1);
        info->id = g_strdup(e->id);
        info->holder_pid = e->pid;
        info->alive = e->alive;
        info->q_template = e->template;
        target = &info->targets;
        for (unsigned i = 0; i < e->n; i++) {
            QAPI_LIST_APPEND(target, target_info(e, i));
        }
        QAPI_LIST_APPEND(tail, info);
    }
    return list;
}

/* --- before the pause --- */

/* Drivers that told a device or another process where guest memory is */
static bool check_disks(Error **errp)
{
    static const char *const drivers[] = {
        "nvme", "nvme-io_uring", "virtio-blk-vfio-pci",
        "virtio-blk-vhost-user", "virtio-blk-vhost-vdpa",
    };
    BlockDriverState *bs = NULL;

    while ((bs = bdrv_next_node(bs))) {
        for (unsigned i = 0; i < ARRAY_SIZE(drivers); i++) {
            if (!g_strcmp0(bdrv_get_format_name(bs), drivers[i])) {
                error_setg(
                    errp,
                    "disk %s: driver %s reaches guest memory by itself, so a fork cannot freeze "
                    "that",
                    bdrv_get_node_name(bs), drivers[i]);
                return false;
            }
        }
    }
    return true;
}

static bool check_guest(Error **errp)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    if (!rdma_postcopy_is_idle(errp) || migration_is_blocked(errp)) {
        return false;
    }
    if (migration_is_running() || migration_in_incoming_postcopy() ||
        mis->state == MIGRATION_STATUS_POSTCOPY_PAUSED) {
        error_setg(errp, "a migration is under way: wait until it has ended");
        return false;
    }
    if (runstate_check(RUN_STATE_INMIGRATE) ||
        runstate_check(RUN_STATE_FINISH_MIGRATE) ||
        runstate_check(RUN_STATE_POSTMIGRATE) || runstate_needs_reset()) {
        error_setg(errp, "cannot export a guest in state '%s'", RunState_str(runstate_get()));
        return false;
    }
    if (should_mlock(mlock_state)) {
        error_setg(
            errp,
            "cannot export a guest with locked memory: start it without -overcommit mem-lock");
        return false;
    }
    if (access("/proc/self/fd", R_OK) || access("/proc/self/maps", R_OK)) {
        error_setg_errno(errp, errno, "a fork needs /proc, to know what to "
                         "close and to unmap: mount it, also in a chroot");
        return false;
    }
    return rp_check_host(true, errp) && check_disks(errp) && rp_check_disks(errp) &&
           rp_collect_blocks(errp);
}

/* What the library refuses it should refuse before anything was done */
static bool check_target(struct fc_target *t, Error **errp)
{
    ERRP_GUARD();
    struct ff_error *err = ff_error_new();
    struct ff_source *s = NULL;
    const char *address;
    int rc;

    if (!strstart(t->uri, "rdma-postcopy:", &address)) {
        error_setg(errp, "target '%s': want rdma-postcopy:HOST:PORT, or "
                   "rdma-postcopy:unix", t->uri);
        ff_error_free(err);
        return false;
    }
    t->passed = !strcmp(address, "unix") || strstart(address, "unix,", NULL);
    if (t->passed && !t->socket) {
        error_setg(errp, "target '%s': want the agent's socket, too", t->uri);
        ff_error_free(err);
        return false;
    }
    t->address = rp_address(address, false, errp);
    if (!t->address) {
        error_prepend(errp, "target '%s': ", t->uri);
        ff_error_free(err);
        return false;
    }
    rc = ff_address_resolve(t->address, err); /* not in the holder */
    if (!rc) {
        rc = ff_source_new(t->address, &s, err);
    }
    for (unsigned i = 0; i < rp_n_blocks && !rc; i++) {
        struct ff_region r = rp_region(i);

        rc = ff_source_add_region(s, &r, err);
    }
    ff_source_free(s);
    if (rc) {
        error_setg(errp, "target '%s': %s", t->uri, ff_error_message(err));
    }
    ff_error_free(err);
    return !rc;
}

static struct export *new_export(const char *id, FarforkTargetList *targets,
                                 bool template, Error **errp)
{
    struct export *e, *old = find_export(id);
    unsigned n = QAPI_LIST_LENGTH(targets);

    if (old && old->alive) {
        error_setg(errp, "there is an export '%s'", id);
        return NULL;
    }
    if (!id[0] || !n || n > TARGETS_MAX) {
        error_setg(errp, "an export needs an id and 1 to %d targets",
                   TARGETS_MAX);
        return NULL;
    }
    e = g_new0(struct export, 1);
    e->id = g_strdup(id);
    e->template = template;
    e->pidfd = -1;
    e->n = n;
    e->target = g_new0(struct fc_target, n);
    e->progress = mmap(NULL, n * sizeof(*e->progress), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (e->progress == MAP_FAILED) {
        e->progress = NULL;
        error_setg_errno(errp, errno, "cannot get memory");
        free_export(e);
        return NULL;
    }
    for (unsigned i = 0; i < n; i++, targets = targets->next) {
        e->target[i].uri = g_strdup(targets->value->uri);
        e->target[i].socket = g_strdup(targets->value->socket);
        if (!check_target(&e->target[i], errp)) {
            free_export(e);
            return NULL;
        }
    }
    if (old) {
        forget_export(old);
    }
    return e;
}

/* --- the pause --- */

static uint64_t realtime_ns(void)
{
    return qemu_clock_get_ns(QEMU_CLOCK_REALTIME);
}

/* How long it is since *since, which becomes now */
static uint64_t lap(uint64_t *since)
{
    uint64_t before = *since;

    *since = realtime_ns();
    return *since - before;
}

/* Memory, and the devices' state, as the holder gets them */
static void describe(struct fc_frozen *f)
{
    bool lends = false;

    for (unsigned i = 0; i < f->n; i++) {
        lends |= !!f->target[i].socket;
    }
    f->n_regions = rp_n_blocks;
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        f->region[i] = fc_region(i);
        if (lends && f->region[i].fd >= 0) {
            f->lent_bytes += f->region[i].len_bytes;
        }
    }
    f->config = rp_machine_config();
    rp_first_touch(&f->first);
}

static void end_holder(struct export *e)
{
    kill(e->pid, SIGKILL);
    waitpid(e->pid, NULL, 0);
    if (e->pidfd >= 0) {
        close(e->pidfd);
    }
    e->pidfd = -1;
}

static bool start_holder(struct export *e, struct fc_frozen *f,
                         Error **errp)
{
    sigset_t all, before;

    fc_inherit(true);
    sigfillset(&all);
    /* the child has QEMU's handlers until it has none */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->pid = fork();
    if (!e->pid) {
        fc_holder_main(f);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fc_inherit(false);
    if (e->pid < 0) {
        error_setg_errno(errp, errno, "cannot fork");
        return false;
    }
    e->pidfd = syscall(SYS_pidfd_open, e->pid, 0);
    if (e->pidfd < 0) {
        error_setg_errno(errp, errno, "cannot watch the forked process");
        end_holder(e);
        return false;
    }
    return true;
}

/*
 * The holder is there first, and hands over what it can while page tables
 * move here: all stands still.  Nobody runs on it before it hears that it
 * will stay so; when it does not, the holder ends, and all that came of it.
 */
static bool hold_memory(struct export *e, struct fc_frozen *f, Error **errp)
{
    if (!fc_freeze(errp)) {
        end_holder(e);
        return false;
    }
    if (write(f->go[1], "g", 1) != 1) {
        error_setg_errno(errp, errno, "cannot tell the forked process");
        end_holder(e);
        return false;
    }
    return true;
}

/* What the guest must not see: it is stopped, and its disks are still */
static bool freeze(struct export *e, struct fc_frozen *f,
                   TransactionActionList *actions, FarforkExportResult *r,
                   uint64_t *t, Error **errp)
{
    ERRP_GUARD();
    bool ok;

    if (qemu_reset_requested_get() || qemu_shutdown_requested_get()) {
        error_setg(errp, "a reset or a shutdown came in between: try again");
        return false;
    }
    if (rp_blocks_changed()) { /* a vCPU did so while the last ones stopped */
        error_setg(errp, "memory was plugged or unplugged in between: try "
                   "again");
        return false;
    }
    if (!rp_check_nested(errp) || !rp_check_disks(errp)) {
        return false;
    }
    if (actions) {
        qmp_transaction(actions, NULL, errp);
        if (*errp) {
            return false;
        }
    }
    r->actions_ns = lap(t);
    bdrv_drain_all_begin();
    ok = rp_save_devices(&f->state, &f->state_len, errp);
    r->state_ns = lap(t);
    if (ok) {
        uint64_t forking;

        describe(f);
        forking = realtime_ns();
        ok = start_holder(e, f, errp);
        r->fork_ns = lap(&forking);
    }
    if (ok) {
        ok = hold_memory(e, f, errp);
    }
    r->memory_ns = lap(t);
    bdrv_drain_all_end();
    return ok;
}

static void guest_runs(void *opaque, bool running, RunState state)
{
    if (running) {
        is_template = false;
    }
}

/* Stop, freeze, go on; whatever fails, the guest is as it was before */
static bool pause_and_freeze(struct export *e, struct fc_frozen *f,
                             TransactionActionList *actions,
                             FarforkExportResult *r, Error **errp)
{
    RunState was = runstate_get();
    uint64_t start, t;
    bool ok;
    int ret;

    if (runstate_is_live(was)) {
        bdrv_flush_all(); /* so that less is left to flush in the pause */
    }
    t = start = realtime_ns();
    if (is_template) {
        global_state_store_running();
    } else {
        global_state_store();
    }
    ret = vm_stop(e->template ? RUN_STATE_PAUSED : RUN_STATE_SAVE_VM);
    if (ret < 0) {
        error_setg_errno(errp, -ret, "cannot stop the guest");
    }
    ok = ret >= 0 && rp_settle_devices(errp);
    r->stop_ns = lap(&t);
    ok = ok && freeze(e, f, actions, r, &t, errp);
    if (!runstate_is_live(was)) {
        ;
    } else if (ok && e->template) {
        static bool watched;

        if (!watched) {
            qemu_add_vm_change_state_handler(guest_runs, NULL);
            watched = true;
        }
        is_template = true;
    } else {
        vm_resume(was);
    }
    r->pause_ns = realtime_ns() - start;
    return ok;
}

/* The end to read from is none of the first three, which the holder gives up */
static bool open_pipe(int fd[2])
{
    int low;

    if (!g_unix_open_pipe(fd, FD_CLOEXEC, NULL)) {
        return false;
    }
    low = fd[0];
    fd[0] = fcntl(low, F_DUPFD_CLOEXEC, 3);
    close(low);
    if (fd[0] < 0) {
        close(fd[1]);
    }
    return fd[0] >= 0;
}

FarforkExportResult *qmp_x_farfork_export(const char *id,
                                          FarforkTargetList *targets,
                                          bool has_actions,
                                          TransactionActionList *actions,
                                          bool has_template, bool template,
                                          Error **errp)
{
    g_autoptr(FarforkExportResult) r = g_new0(FarforkExportResult, 1);
    g_autofree struct fc_frozen *f = g_new0(struct fc_frozen, 1);
    struct export *e;
    bool ok = false;

    if (!check_guest(errp)) {
        return NULL;
    }
    ff_set_log(rp_log_line, FF_INFO);
    e = new_export(id, targets, has_template && template, errp);
    if (!e) {
        return NULL;
    }
    f->n = e->n;
    f->target = e->target;
    f->progress = e->progress;
    f->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (f->null_fd < 0) {
        error_setg_errno(errp, errno, "cannot open /dev/null");
    } else if (!open_pipe(f->go)) {
        error_setg_errno(errp, errno, "cannot make a pipe");
        close(f->null_fd);
    } else {
        ok = fc_freeze_prepare(errp) && fc_holder_prepare(f, errp) &&
             pause_and_freeze(e, f, has_actions ? actions : NULL, r, errp);
        fc_freeze_end();
        close(f->null_fd);
        close(f->go[0]);
        close(f->go[1]);
    }
    g_free(f->state);
    if (!ok) {
        free_export(e);
        return NULL;
    }
    drop_addresses(e);
    e->alive = true;
    QTAILQ_INSERT_TAIL(&exports, e, next);
    qemu_set_fd_handler(e->pidfd, holder_ended, NULL, e);
    forget_old();
    r->id = g_strdup(id);
    r->holder_pid = e->pid;
    r->state_bytes = f->state_len;
    r->lent_bytes = f->lent_bytes;
    return g_steal_pointer(&r);
}
