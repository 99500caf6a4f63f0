/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent.h - the source of a fork of any QEMU's guest: a process beside that QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      freeze a guest for a moment, and serve its memory as it was. vmclone starts it, and speaks QMP to it; commands
 *              other than the four below go on to the QEMU.
 *
 * Picture      vmclone  == QMP, a socket pair ==  this  == QMP ==  QEMU, any
 *              x-farfork-export:
 *              (1) guest runs     look at it: what cannot be frozen is refused; get ready (freeze.h)
 *              (2) `stop`         devices come to rest; the caller's actions, as overlays; devices' state, which leaves disks
 *                                 where they are
 *              (3)                all threads of QEMU stand, since its main thread closed that state; freeze; they go on
 *              (4) `cont`         a template stays paused
 *              (5)                a thread for each agent: an ordinary source; or the image is handed over
 *
 * Threads      the monitor's runs the commands, and so the pause. One an agent. The main thread ends it all: when every agent
 *              has what it needs and vmclone has left.
 * Invariants   1. The guest goes on, whatever fails: `cont` follows each `stop`. vmclone's end changes nothing: this process
 *                 has the QEMU's monitor. Where this one is killed vmclone says `cont`; no thread of QEMU is bound to it.
 *              2. The image is of one instant: from the save on nothing lets the guest run, and in (3) no thread of QEMU runs.
 *              3. Between (2) and (4) nothing waits for a network.
 * Limits       one export. Memory in no file is read by process_vm_readv(2), over tcp alone.
 */
#ifndef FF_CONTROL_ATTACH_PARENT_H
#define FF_CONTROL_ATTACH_PARENT_H

/* @qmp: the QEMU's socket; @domain: instead, libvirt's name of it; the other is NULL. Standard input: the socket at which the
 * client is. The program's exit code */
int parent_run(const char *qmp, const char *domain);

#endif
