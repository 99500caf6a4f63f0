/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: a guest that has shut itself down on the destination
 *
 *   power off, by the guest        ->  FILE.shut-down beside until-go=FILE
 *   it is run again (-no-shutdown, system_reset, cont)  ->  removed
 *
 * Whoever finds this process dead takes the guest back (fallback=go), and would
 * run again, from GO, one that has ended.  `quit`, a signal, a panic and a reset
 * that ends QEMU are no end of the guest's own.
 *
 * Under the BQL, and while there is a lease: nobody takes the guest back before
 * that has ended, and the file says by then what holds.  What meets the end of
 * the lease is written before the library hears that the guest stands still:
 * until then the kernel would end this process.
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "qemu/notify.h"
#include "system/runstate.h"
#include "system/system.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

/* What is written down */
static enum { RUNS, SHUT_DOWN, UNKNOWN } written;

static void write_shut_down(bool down)
{
    struct ff_error *err;

    if (written == (down ? SHUT_DOWN : RUNS) || !rp.dest || !rp_is(&rp.here)) {
        return;
    }
    err = ff_error_new();
    if (ff_dest_shut_down(rp.dest, down, err)) {
        error_report("rdma-postcopy: that the guest has %s cannot be written down: %s",
                     down ? "shut itself down" : "been started again", ff_error_message(err));
        written = UNKNOWN; /* the file may be there, or not: it is tried again */
    } else {
        written = down ? SHUT_DOWN : RUNS;
    }
    ff_error_free(err);
}

static void set_shut_down(bool down)
{
    if (!rp_is(&rp.no_lease)) {
        write_shut_down(down);
    }
}

void rp_write_late_shutdown(void)
{
    if (qemu_shutdown_requested_get() == SHUTDOWN_CAUSE_GUEST_SHUTDOWN) {
        write_shut_down(true);
    }
}

static void on_shutdown(Notifier *n, void *opaque)
{
    const ShutdownCause *cause = opaque;

    if (*cause == SHUTDOWN_CAUSE_GUEST_SHUTDOWN) {
        set_shut_down(true);
    }
}

static void on_run_state(void *opaque, bool running, RunState state)
{
    if (running) {
        set_shut_down(false);
    }
}

void rp_watch_shutdown(void)
{
    static Notifier notifier = { .notify = on_shutdown };
    static bool watches;

    written = RUNS;
    if (!watches) {
        qemu_register_shutdown_notifier(&notifier);
        qemu_add_vm_change_state_handler(on_run_state, NULL);
        watches = true;
    }
}
