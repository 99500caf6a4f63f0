/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unannounced.h - a guest whose NICs do not announce it, once its state is loaded
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child has its parent's MAC until it changes that: it must not announce itself. QEMU's own parameter for
 *              that, `announce-rounds` 0, leaves a virtio-net card without its timer, which the next reset of the card (a
 *              reboot) uses: SIGSEGV in 7.2; 10.0 has the same code. So the state says that the guest does not know how to announce
 *              itself (VIRTIO_NET_F_GUEST_ANNOUNCE): then QEMU leaves the timer alone. After a reset card and driver agree
 *              on features anew.
 * Picture      section "PCI-ADDRESS/virtio-net": what the bus saves | status, isr, queue | features, 32 bits | length of the
 *              configuration ... subsection "virtio/64bit_features": features, 64 bits (hw/virtio/virtio.c, virtio_save())
 */
#ifndef FF_VM_ATTACH_UNANNOUNCED_H
#define FF_VM_ATTACH_UNANNOUNCED_H

#include <stddef.h>
#include <stdint.h>

/**
 * unannounced_from_load() - change @state, as device_state_save() returned it, so that no virtio-net card has its guest announce it
 * Return: the number of virtio-net cards of @state whose guest could
 */
unsigned unannounced_from_load(uint8_t *state, size_t len);

#endif
