/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain.h - a QEMU that is libvirt's: libvirt does an ordinary migration, main memory goes past it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      move a domain by proxies. libvirt starts the QEMU there, sends `migrate`, `cont` and
 *              `quit`, and keeps its own books. To it this is `virsh migrate --live --postcopy
 *              --migrateuri unix://PATH`, which the source's proxy runs.
 * Picture      source's proxy                 libvirt, on both hosts      destination's proxy
 *              (1) look, listen at PATH                                   (1) listen
 *              (2) virsh migrate        --->  starts the QEMU there
 *                                             connects to PATH
 *              (3) connect, HELLO                                   --->  (3) find the QEMU, its
 *                                                                             memory
 *              (4) virsh stands still;
 *                  virsh migrate-postcopy
 *              (5) let the stream come  <---  its QEMU: setup, package
 *              (6) STATE                                            --->  (6) its QEMU prepares just
 *                                             <---                            that memory: READY
 *              (7) GO                                               --->  (7) the package to QEMU
 *                                                                         (8) its userfaultfd;
 *              (9) virsh goes on        --->  hears of post-copy: `cont`      RUNNING; serve
 *              (10) virsh ends          <---  `completed` on both
 *
 *              (4) QEMU has said little until the stream is read, and cannot end its pre-copy before
 *              post-copy was asked for.
 *              The QEMU there has one client, libvirtd, which answers nobody while it migrates. So
 *              /proc says where its memory is. The QEMU here is asked by way of libvirtd
 *              (qemu-monitor-command, which libvirt notes as "custom-monitor").
 * Invariants   1. The package is what lets the guest run there. The QEMU there gets it after GO.
 *              2. virsh stands still (SIGSTOP) from (4) to (9), or until the guest goes on here. libvirt 9 marks a domain whose destination has failed as "post-copy failed",
 *                 and keeps its job for good; not so if that runs already. virsh alone takes such
 *                 news from one libvirtd to the other.
 *              3. Until GO the QEMU here must not say `completed`: libvirt would end it for that.
 * Failure      a device state that does not load is found after GO: the guest is lost, as with
 *              libvirt's own post-copy.
 * Limits       STILL_S: libvirtd takes a client that is silent for 25 s for dead. The way back goes
 *              through the end of QEMU's stream, all of main memory: a guest that takes longer runs
 *              here again, but libvirt keeps its job.
 */
#ifndef FF_CONTROL_PROXY_DOMAIN_H
#define FF_CONTROL_PROXY_DOMAIN_H

#include "proxy_state.h"
#include "virsh.h"

/* --- domain.c: the source --- */

/* By way of libvirt: what proxy_qmp() needs, and the pid. The domain has to run */
int domain_connect(struct proxy *p, struct ff_error *err);
/* libvirt's migration, until QEMU's stream begins and nothing of it speaks against a proxy */
int domain_migrate(struct proxy *p, struct ff_error *err);
/* It becomes post-copy, and the stream is read */
int domain_postcopy(struct proxy *p, struct ff_error *err);
/* Wait for virsh: 0; -EREMOTEIO: libvirt does not think that it moved the domain */
int domain_end(struct proxy *p, struct ff_error *err);

/* --- domain_there.c: the destination --- */

/* What can be refused before there is a QEMU; its memory is found when the source names its own */
int domain_await(struct proxy *p, struct ff_error *err);
/* STATE is here: until QEMU has prepared for post-copy just what was found */
int domain_wait_prepared(struct proxy *p, struct ff_error *err);

#endif
