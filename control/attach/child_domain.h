/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * child_domain.h - a child of a fork that is a domain of libvirt's: the process that stands for it at its agent
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent starts children, and looks after processes. libvirt starts this child's QEMU; so the agent starts this
 *              program instead, which ends when the domain does, and ends the domain when it is told to.
 * Picture      restore of a FIFO (attach_restore.c): libvirt starts its QEMU, which waits for more of it
 *              find its RAM blocks; ff_child_attach(): CONNECTED; wait for the image
 *                the image's files go into that QEMU (pass_files.h), which maps them privately over RAM and watches
 *                them while pages are missing (watch_files.h): ATTACHED
 *              the stream, to its end: libvirt has the domain, paused
 *              LOADED; wait: START; READY; wait: RUN; resume: RUNNING; wait: COMPLETE
 *              from then on it waits for the domain's end, or for SIGTERM: libvirt destroys the domain
 * Threads      one waits for SIGTERM, and ends this process.
 * Invariants   As agent_beside.c: nothing that is missing is touched unwatched; the QEMU has the userfaultfd.
 * Failure      an error before COMPLETE destroys the domain, as SIGTERM does at any time. SIGKILL leaves it running: a vCPU
 *              that touches a missing page waits for ever, and `virsh destroy` ends the domain.
 * Limits       QEMU's monitor belongs to libvirt, and answers no query during a restore. So the machine type and the list of
 *              RAM blocks are the parent's, from @path.
 */
#ifndef FF_CONTROL_ATTACH_CHILD_DOMAIN_H
#define FF_CONTROL_ATTACH_CHILD_DOMAIN_H

/* @path: of a file with an object: "name", "xml", "cpu", "agent" (socket), "number", "isolated", and what `x-farfork-look` says
 * of the parent. The program's exit code: 0: the domain ran, had its memory, and has ended */
int child_domain_run(const char *path);

#endif
