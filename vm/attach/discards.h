/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * discards.h - devices by which a guest gives memory back, and relies on what it reads there afterwards
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the memory of a fork's child is a private view of a file. A page that QEMU discards there is the file's again:
 *              what the parent had there at the fork. A guest that reports free pages (virtio-balloon with
 *              free-page-reporting=on) may take such a page for zeros: so it is refused. What a balloon takes and gives
 *              back no guest relies on.
 *              Of a guest that visits by attaching what is discarded there counts as not written, and is at home as it was.
 * Limits       A device that somebody plugs into the child later is not looked at.
 */
#ifndef FF_VM_ATTACH_DISCARDS_H
#define FF_VM_ATTACH_DISCARDS_H

#include "error.h"
#include "qmp.h"

/* Cost: 2 commands, and one a balloon. -ENOTSUP: there is one, by name; else as qmp_command() */
int discards_check(struct qmp *q, struct ff_error *err);

#endif
