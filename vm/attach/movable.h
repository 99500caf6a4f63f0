/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * movable.h - what of a QEMU that is not patched cannot be moved from outside
 */
#ifndef FF_VM_ATTACH_MOVABLE_H
#define FF_VM_ATTACH_MOVABLE_H

#include "error.h"
#include "qmp.h"

/**
 * movable_check() - refuse by name what cannot go, before the guest is stopped
 *
 * Cost:   7 commands, and 2 for each virtio-gpu
 * Return: 0; -ENOTSUP: a device; -EBUSY: a job or an export uses a disk; -EPROTO: an answer that
 *         this code does not know; else as device_state_may()
 */
int movable_check(struct qmp *q, struct ff_error *err);

#endif
