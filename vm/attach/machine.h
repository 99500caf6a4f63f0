/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * machine.h - what a QEMU's machine is called, and how both sides of a fork tell that theirs are alike
 */
#ifndef FF_VM_ATTACH_MACHINE_H
#define FF_VM_ATTACH_MACHINE_H

#include "error.h"
#include "qmp.h"

/* @out: as -machine names it, without an alias: "pc-i440fx-7.2"; to be freed. -EPROTO; else as qmp_command() */
int machine_name(struct qmp *q, char **out, struct ff_error *err);

/* @out: what a parent says of itself, and its children have to say, too (rp_machine_config() of
 * qemu-patches/src/rdma-postcopy-ram.c); to be freed. @page_bits: of guest_page_bits() */
int machine_config(struct qmp *q, const char *name, unsigned page_bits, char **out, struct ff_error *err);

#endif
