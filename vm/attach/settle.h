/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * settle.h - wait until the devices of a stopped guest have done what they had begun
 */
#ifndef FF_VM_ATTACH_SETTLE_H
#define FF_VM_ATTACH_SETTLE_H

#include <sys/types.h>

#include "error.h"
#include "qmp.h"

/**
 * settle_devices() - let the devices of a guest that `stop` has stopped come to rest
 *
 * Cost:   5 commands, and more while requests to disks end
 * Return: 0; -EINVAL: the guest is in another state than "paused" or "prelaunch"; -ETIMEDOUT:
 *         devices are busy after @limit_ms; -EPERM as outside_may(); else as qmp_command()
 */
int settle_devices(struct qmp *q, int limit_ms, struct ff_error *err);

/* The guest is stopped: 0; -EINVAL as above; else as qmp_command() */
int settle_check_stopped(struct qmp *q, struct ff_error *err);

/* Wait until the main thread of a QEMU sleeps in poll(2): 0; -ETIMEDOUT; -EPERM; -ESRCH */
int settle_wait_idle(pid_t pid, int limit_ms, struct ff_error *err);

#endif
