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
 * What a child's NIC is on in the place of a tap of its parent's, which two processes cannot share: the guest's driver
 * knows of a tap's headers and offloads (virtio-net), and no other backend of QEMU's has those. It is down: what is
 * sent is dropped, and nothing ever comes. The namespace goes with the last descriptor. The caller has one thread.
 *
 * Return: a descriptor; -EPERM: neither is this root, nor may users have namespaces; -ENOENT: no /dev/net/tun
 */
int dead_tap_open(struct ff_error *err);

#endif
