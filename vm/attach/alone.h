/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * alone.h - one process at a time attaches to a QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      two moves of one guest, by two monitors, would each stop it and save its state; and memory that arrives
 *              would be taken for zeros by a move that leaves already. A tracer (hold.h) keeps others out only later.
 * Picture      flock(2) of /proc/PID/maps: who may not look into that process cannot open it, so no other user takes the
 *              lock. It ends with its holder, and with that process.
 * Limits       two mounts of /proc, as in two containers, have a lock each. There hold.h is what is left.
 * Sources      flock(2); proc_maps_open() in fs/proc/task_mmu.c
 */
#ifndef FF_VM_ATTACH_ALONE_H
#define FF_VM_ATTACH_ALONE_H

#include <sys/types.h>

#include "error.h"

/* *@fd: close it to let others in. Return: 0; -EBUSY: another process has attached, which is named; else -errno, as of open(2) */
int alone_begin(pid_t pid, int *fd, struct ff_error *err);

#endif
