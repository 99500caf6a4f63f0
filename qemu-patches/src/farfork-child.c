/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: a child, -incoming farfork-clone:SOCKET[,option=value...]
 *
 *   thread: attach: wait for the image, map it privately over RAM; from here
 *           on missing pages are fetched by the agent
 *   main:   note what is mapped now, load the devices, links down: loaded
 *   thread: meanwhile wait until the agent says that the image is for good
 *   main:   run all but the vCPUs: ready
 *   thread: meanwhile wait until the agent lets it run, with others
 *   main:   run, and tell the agent
 *   thread: meanwhile wait until all memory is here
 *   main:   complete: the child needs the agent no more
 *
 * When the agent is lost before that, the process ends: a vCPU may wait in a
 * page for ever, and must not be woken to read zeros.  So it never frees the
 * handle before it is complete.  A quit needs nothing special: while the agent
 * is there, whoever waits for a page gets it.
 *
 * Neither QEMU nor its guest announces the child to a switch, for its MAC is
 * its parent's at first.  When all memory is here the child is a guest like
 * any other, and may be forked itself.
 */
#include "qemu/osdep.h"
#include <sys/resource.h>
#include <sys/syscall.h>
#include "hw/pci/pci_device.h"
#include "hw/virtio/virtio-net.h"
#include "migration/misc.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "net/net.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-net.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/rcu.h"
#include "system/cpus.h"
#include "system/runstate.h"
#include "system/system.h"
#include "farfork-fork.h"
#include "migration/migration.h"
#include "migration/postcopy-ram.h"

static struct {
    struct ff_child *child;     /* NULL: there is none, or it is complete */
    unsigned number;
    bool isolated;
    bool here;                  /* loaded, and the agent says: may run */
    bool resume;                /* vCPUs, when others have come so far */
    QemuSemaphore loaded, started;
    bool refused;               /* failed, must never run */
    QemuMutex lock;             /* guards quitting */
    bool quitting;              /* the main thread will run no more for us */
} fc;

bool farfork_child_is_idle(Error **errp)
{
    if (fc.child) {
        error_setg(errp, "this clone lacks memory yet: wait until query-migrate says completed");
    }
    return !fc.child;
}

bool farfork_child_forbids_run(void)
{
    return fc.refused || (fc.child && !fc.here);
}

void farfork_child_shutdown(void)
{
    if (!fc.child) {
        return;
    }
    qemu_mutex_lock(&fc.lock);
    fc.quitting = true;
    qemu_mutex_unlock(&fc.lock);
    if (!fc.here) {
        ff_child_cancel(fc.child);
    }
}

/* False: the process ends */
static bool in_main_thread(void (*bh)(void *), void *opaque)
{
    bool ok;

    qemu_mutex_lock(&fc.lock);
    ok = !fc.quitting;
    if (ok) {
        migration_bh_schedule(bh, opaque);
    }
    qemu_mutex_unlock(&fc.lock);
    return ok;
}

/*
 * This thread is run soon when it wakes, though guests of other children take
 * all CPUs: it asks for short slices.  Linux has that from 6.12 on.
 */
static void hurry(bool on)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {
        .size = sizeof(attr),
        .flags = 8, /* SCHED_FLAG_KEEP_POLICY: not of a real-time thread */
        .runtime = on ? 100000 : 0,
    };

    attr.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

/* --- loading --- */

static void add_name(NICState *nic, void *opaque)
{
    GPtrArray *names = opaque;

    g_ptr_array_add(names, g_strdup(qemu_get_queue(nic)->name));
}

/* After loading, which says what the parent's links were */
static int links_down(void)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    Error *err = NULL;

    qemu_foreach_nic(add_name, names);
    for (unsigned i = 0; i < names->len && !err; i++) {
        qmp_set_link(names->pdata[i], false, &err);
    }
    if (err) {
        error_report_err(err);
        return -EINVAL;
    }
    return 0;
}

/* RAM is now a private mapping of the agent's files, which others map too */
static int adopt_memory(void)
{
    if (rp_blocks_changed()) {
        error_report("farfork: memory was plugged or unplugged since "
                     "-incoming: use migrate-incoming after that");
        return -EBUSY;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        uint64_t offset;
        int fd = fcntl(ff_child_fd(fc.child, i, &offset), F_DUPFD_CLOEXEC, 3);

        if (fd < 0) {
            error_report("farfork: cannot keep the file of memory region %s: "
                         "%s", rp_block[i]->idstr, strerror(errno));
            return -errno;
        }
        fc_image_adopt(rp_block[i], fd, offset);
        fc_advise(rp_block[i], rp_block[i]->host);
        /* a huge page would be one with pages that are not here yet */
        fc_advise_huge(rp_block[i], false);
    }
    return 0;
}

/*
 * virtio-net, once loaded, has its guest announce itself: the guest knows only
 * its parent's addresses.  A Linux guest (6.12) also hangs for good if it takes
 * a link down meanwhile, as farfork-guest does for a MAC: virtnet_close() holds
 * the lock that the announcement needs, and waits for its end.  A request that
 * the parent's guest had not answered yet is not the child's either.  The timer
 * stays, since a reset of the device stops it.
 */
static int quieten(Object *o, void *opaque)
{
    VirtIONet *n = (VirtIONet *)object_dynamic_cast(o, TYPE_VIRTIO_NET);

    if (n) {
        if (n->announce_timer.tm) {
            timer_del(n->announce_timer.tm);
        }
        n->announce_timer.round = 0;
        n->status &= ~VIRTIO_NET_S_ANNOUNCE;
    }
    return 0;
}

/*
 * The PCIe serial number of some NICs (e1000e, vmxnet3) is their MAC, and the
 * child's is another one: that the parent's differs is no reason to refuse its
 * state.  The child keeps its own: the QEMU that it moves to one day has that.
 */
#define SERIAL_BYTES 8

typedef struct Serial {
    PCIDevice *dev;
    uint16_t at;
    uint8_t own[SERIAL_BYTES];
} Serial;

static int allow_serial(Object *o, void *opaque)
{
    PCIDevice *d = (PCIDevice *)object_dynamic_cast(o, TYPE_PCI_DEVICE);
    uint16_t cap = d && pci_is_express(d)
                   ? pcie_find_capability(d, PCI_EXT_CAP_ID_DSN) : 0;
    Serial s = {.dev = d, .at = cap + 4}; /* behind its header */

    if (cap) {
        memcpy(s.own, d->config + s.at, SERIAL_BYTES);
        memset(d->cmask + s.at, 0, SERIAL_BYTES);
        g_array_append_val((GArray *)opaque, s);
    }
    return 0;
}

static int load_quietly(void)
{
    g_autoptr(GArray) serials = g_array_new(false, false, sizeof(Serial));
    const void *state;
    size_t len;
    int ret;

    ff_child_state(fc.child, &state, &len);
    object_child_foreach_recursive(object_get_root(), allow_serial, serials);
    ret = rp_load_devices(state, len);
    for (unsigned i = 0; i < serials->len; i++) {
        Serial *s = &g_array_index(serials, Serial, i);
        memcpy(s->dev->config + s->at, s->own, SERIAL_BYTES);
    }
    object_child_foreach_recursive(object_get_root(), quieten, NULL);
    return ret;
}

static int load(void)
{
    int ret = adopt_memory();

    if (!ret) {
        ret = load_quietly();
    }
    return ret || !fc.isolated ? ret : links_down();
}

static bool tell_agent(int (*say)(struct ff_child *, struct ff_error *))
{
    struct ff_error *err = ff_error_new();
    int rc = say(fc.child, err);

    if (rc) {
        warn_report("farfork: clone %u: %s", fc.number, ff_error_message(err));
    }
    ff_error_free(err);
    return !rc;
}

/* An agent that does not know how far it is would never let it run */
static void tell_agent_or_end(int (*say)(struct ff_child *, struct ff_error *))
{
    if (!tell_agent(say)) {
        error_report("farfork: clone %u: nothing ran here", fc.number);
        _exit(EXIT_FAILURE);
    }
}

static void load_bh(void *opaque)
{
    if (!fc.quitting) { /* its memory is nobody's any more */
        hurry(true);
        if (load()) {
            error_report("farfork: clone %u: cannot load the devices; nothing "
                         "ran here", fc.number);
            _exit(EXIT_FAILURE);
        }
        tell_agent_or_end(ff_child_loaded);
    }
    qemu_sem_post(&fc.loaded);
}

/*
 * Here it waits for kernel threads (KVM's timer), which guests that run leave
 * no CPU: nobody's vCPUs run before all are through with this.
 */
static void start_bh(void *opaque)
{
    if (!fc.quitting) {
        fc.here = true;
        fc.resume = rp_prepare_guest();
        tell_agent_or_end(ff_child_ready);
    }
    qemu_sem_post(&fc.started);
}

static void run_bh(void *opaque)
{
    QemuSemaphore *done = opaque;

    if (!fc.quitting) {
        if (fc.resume && runstate_is_running()) { /* else a user stopped it */
            resume_all_vcpus();
        }
        hurry(false);
        tell_agent(ff_child_running);
    }
    qemu_sem_post(done);
}

/* --- the end --- */

static void complete_bh(void *opaque)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    if (fc.quitting) {
        return;
    }
    for (unsigned i = 0; i < rp_n_blocks && !rp_blocks_changed(); i++) {
        fc_advise_huge(rp_block[i], true);
    }
    ff_child_free(fc.child);
    fc.child = NULL;
    postcopy_state_set(POSTCOPY_INCOMING_END);
    migrate_set_state(&mis->state, MIGRATION_STATUS_POSTCOPY_ACTIVE,
                      MIGRATION_STATUS_COMPLETED);
    migration_incoming_state_destroy();
    migrate_incoming_unref_outgoing_state();
}

/* Nothing ran here, and nothing was mapped */
static void failed_bh(void *opaque)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    Error *err = opaque;

    migrate_set_error(migrate_get_current(), err);
    error_report_err(err);
    fc.refused = true;
    ff_child_free(fc.child);
    fc.child = NULL;
    migrate_set_state(&mis->state, mis->state, MIGRATION_STATUS_FAILED);
    migration_incoming_state_destroy();
    if (mis->exit_on_error) {
        exit(EXIT_FAILURE);
    }
    migrate_incoming_unref_outgoing_state();
}

/* By now only the main thread may touch guest memory (a display) */
static void on_map(void *opaque, bool begins)
{
    if (begins) {
        bql_lock();
    } else {
        bql_unlock();
    }
}

/* Whoever loads or runs may wait for a page, with the BQL, for ever */
static void G_NORETURN memory_is_lost(const struct ff_error *err)
{
    error_report("farfork: clone %u: %s; its memory is lost, so it ends",
                 fc.number, ff_error_message(err));
    _exit(EXIT_FAILURE);
}

static void *child_thread(void *opaque)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    struct ff_error *err = ff_error_new();
    QemuSemaphore runs;
    Error *qerr = NULL;
    bool run;
    int ret;

    rcu_register_thread();
    hurry(true);
    qemu_sem_init(&runs, 0);
    if (ff_child_attach(fc.child, rp_machine_config(), err)) {
        error_setg(&qerr, "farfork: clone %u: %s; nothing ran here",
                   fc.number, ff_error_message(err));
        if (!in_main_thread(failed_bh, qerr)) {
            error_free(qerr);
        }
        goto out;
    }
    migrate_set_state(&mis->state, MIGRATION_STATUS_SETUP,
                      MIGRATION_STATUS_ACTIVE);
    if (!in_main_thread(load_bh, NULL)) {
        goto out;
    }
    /*
     * Both waits end, too, when the agent has ended after all memory was here.
     * Bottom halves do not run in the order in which they were scheduled.
     */
    ret = ff_child_wait_start(fc.child, err);
    if (!ret) {
        qemu_sem_wait(&fc.loaded);
        in_main_thread(start_bh, NULL);
        ret = ff_child_wait_run(fc.child, err);
    }
    if (ret && ret != -ECANCELED) {
        memory_is_lost(err);
    }
    if (ret) {
        goto out;
    }
    qemu_sem_wait(&fc.started);
    /* devices run: also when QEMU quits, whoever waits for a page is told */
    run = in_main_thread(run_bh, &runs);
    if (ff_child_wait_done(fc.child, err)) {
        memory_is_lost(err);
    }
    if (run) {
        qemu_sem_wait(&runs);
        in_main_thread(complete_bh, NULL);
    }
out:
    ff_error_free(err);
    rcu_unregister_thread();
    return NULL;
}

/* --- the beginning --- */

static bool parse_address(const char *address, char **socket, Error **errp)
{
    g_auto(GStrv) part = g_strsplit(address, ",", -1);

    fc.number = 0;
    fc.isolated = false;
    for (unsigned i = 1; part[0] && part[i]; i++) {
        const char *value;

        if (strstart(part[i], "number=", &value) &&
            !qemu_strtoui(value, NULL, 10, &fc.number)) {
            continue;
        } else if (!strcmp(part[i], "net=isolated")) {
            fc.isolated = true;
        } else if (strcmp(part[i], "net=keep")) {
            error_setg(errp, "farfork-clone: option '%s': want number=N, "
                       "net=keep or net=isolated", part[i]);
            return false;
        }
    }
    if (!part[0] || !part[0][0]) {
        error_setg(errp, "farfork-clone: want the socket of an agent");
        return false;
    }
    *socket = g_strdup(part[0]);
    return true;
}

void farfork_child_start(const char *address, Error **errp)
{
    g_autofree char *socket = NULL;
    struct ff_error *err;
    QemuThread thread;
    int rc;

    if (should_mlock(mlock_state)) {
        error_setg(
            errp,
            "farfork-clone: a clone cannot lock its memory: start it without -overcommit mem-lock");
        return;
    }
    if (fc_is_pinned()) {
        error_setg(
            errp,
            "farfork-clone: a device has pinned guest memory or shared it with another process, "
            "but a clone maps its memory anew: start it without that device");
        return;
    }
    if (!parse_address(address, &socket, errp) || !rp_collect_blocks(errp) ||
        !fc_hold_discards(errp)) {
        return;
    }
    ff_set_log(rp_log_line, FF_INFO);
    err = ff_error_new();
    rc = ff_child_new(socket, fc.number, &fc.child, err);
    for (unsigned i = 0; i < rp_n_blocks && !rc; i++) {
        struct ff_region r = rp_region(i);

        rc = ff_child_add_region(fc.child, &r, err);
    }
    if (!rc) {
        ff_child_on_map(fc.child, on_map, NULL);
    }
    if (rc) {
        error_setg(errp, "farfork-clone: %s", ff_error_message(err));
        ff_child_free(fc.child);
        fc.child = NULL;
    } else {
        qemu_mutex_init(&fc.lock);
        qemu_sem_init(&fc.loaded, 0);
        qemu_sem_init(&fc.started, 0);
        qemu_thread_create(&thread, "mig/dst/farfork", child_thread, NULL,
                           QEMU_THREAD_DETACHED);
    }
    ff_error_free(err);
}
