/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guest_page.h - how large a page of a QEMU's guest is
 */
#ifndef FF_VM_ATTACH_GUEST_PAGE_H
#define FF_VM_ATTACH_GUEST_PAGE_H

#include "error.h"
#include "qmp.h"

/**
 * guest_page_bits() - ask a QEMU in what pages it migrates its guest: 12 means 4 KiB
 *
 * Cost:   some commands
 * Return: 0; -ENOTSUP: it has no parameter that shows it; -EREMOTEIO: they are larger than incoming_stream.h knows; else as
 *         qmp_command()
 */
int guest_page_bits(struct qmp *q, unsigned *bits, struct ff_error *err);

#endif
