/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dead_tap.h - a tap that leads nowhere
 */
#ifndef FF_VM_ATTACH_DEAD_TAP_H
#define FF_VM_ATTACH_DEAD_TAP_H

#include "error.h"

/**
 * dead_tap_open() - a tap in a network namespace of its own, where nothing else is
 *
 * The backend of a child's NIC where the parent has a tap: two processes cannot share one. The guest's virtio-net driver has
 * negotiated a tap's headers and offloads, which no other backend of QEMU's has. The tap is down: it drops what the guest
 * sends and receives nothing. The namespace is freed with the last descriptor. It forks a process that makes system calls alone.
 *
 * Return: a descriptor; -EPERM: not root, and users may not make namespaces here; -ENOENT: no /dev/net/tun
 */
int dead_tap_open(struct ff_error *err);

#endif
