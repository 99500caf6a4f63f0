/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: a fork server, qemu-system-x86_64 -farfork-fork-server FD
 *
 * Of what a child's QEMU needs until its guest runs, a quarter is the same for
 * all: relocations, types, their classes.  An agent that starts several has it
 * done once; its children are forked off here, before main() does anything
 * that depends on arguments, opens a file or starts a thread but RCU's, which
 * knows of fork().
 */
#include "qemu/osdep.h"
#include <farfork-clone.h>
#include "rdma-postcopy.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/module.h"
#include "qom/object.h"

static void nothing(ObjectClass *klass, void *opaque)
{
}

void farfork_serve_forks(int *argc, char ***argv)
{
    struct ff_error *err;
    int sock;

    if (*argc != 3 || strcmp((*argv)[1], "-farfork-fork-server") ||
        qemu_strtoi((*argv)[2], NULL, 10, &sock)) {
        return;
    }
    module_call_init(MODULE_INIT_QOM);
    object_class_foreach(nothing, NULL, true, NULL); /* initializes them */
    err = ff_error_new();
    if (ff_process_serve(sock, argc, argv, err)) {
        error_report("%s", ff_error_message(err));
        exit(EXIT_FAILURE);
    }
    ff_error_free(err);
}
