/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * links.h - the links of a QEMU's network cards
 */
#ifndef FF_VM_ATTACH_LINKS_H
#define FF_VM_ATTACH_LINKS_H

#include "error.h"
#include "qmp.h"

/* All of them down. -EPROTO: what QEMU prints of them is not understood; else as qmp_command() */
int links_all_down(struct qmp *q, struct ff_error *err);

#endif
