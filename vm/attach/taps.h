/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * taps.h - the taps behind the NICs of one QEMU, for another that takes its place
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      two processes read a tap each other's packets away, and one that opens it sets its header's length. So a QEMU that
 *              takes another's place starts with taps that lead nowhere (dead_tap.h), and gets the other's, descriptor by
 *              descriptor, once that one stands still.
 * Picture      info network      " \ net0: index=0,type=tap,ifname=tap0,script=..." or "..,fd=31"
 *              /proc/PID/fdinfo  "iff:	tap0"
 *              pidfd_getfd(2) from the one; dup3(2), injected, over the dead tap's descriptor in the other. QEMU knows the tap by
 *              that number alone, and has told the dead one the header's length, which the real one is told (taps_settle())
 * Limits       one queue a NIC: a dead tap has one. The offloads of a tap cannot be read: they stay as the other's guest set them.
 * Sources      tun.c of Linux 6.1; net/tap.c of QEMU 7.2, 10.0
 */
#ifndef FF_VM_ATTACH_TAPS_H
#define FF_VM_ATTACH_TAPS_H

#include <sys/types.h>

#include "error.h"
#include "qmp.h"

struct tap_pair {
    char id[64];   /* of the NIC's backend, in both QEMUs */
    int there;     /* the dead tap's number in the new QEMU */
    int fd;        /* here: the tap of the old one */
    int dead;      /* here: the dead tap */
    int header;    /* its header's length before taps_settle(); 0: that changed nothing */
};

/**
 * taps_find() - each dead tap of a QEMU, and the tap of that id of another
 * @old_q, @old: whose taps they are; @q, @pid: the new one
 * @out: to be freed by taps_free()
 *
 * Return: 0; -ENOENT: the old one has no such tap; -EINVAL: it has no header before each packet (vnet_hdr), which the dead one
 *         has; -EPROTO; else as qmp_command(), outside_take_fd()
 */
int taps_find(struct qmp *old_q, pid_t old, struct qmp *q, pid_t pid, struct tap_pair **out, unsigned *n, struct ff_error *err);

/* The old one stands still, and the new one has not run: put the taps there. Return: 0; as pass_files() */
int taps_pass(pid_t pid, const struct tap_pair *t, unsigned n, struct ff_error *err);

/* Before the guest that comes runs: the header's length is what that has agreed upon. -errno of ioctl(2). unsettle: it is what the
 * old one's guest had, which goes on */
int taps_settle(struct tap_pair *t, unsigned n, struct ff_error *err);
void taps_unsettle(struct tap_pair *t, unsigned n);

void taps_free(struct tap_pair *t, unsigned n); /* @t may be NULL */

#endif
