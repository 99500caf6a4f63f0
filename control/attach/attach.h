/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach.h - move the guest of any QEMU: a process beside each, and no migration of QEMU's own
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a QEMU with the transport does inside, done from outside by vm/attach/: nothing of its
 *              own migration is used but -incoming.
 *
 *                  source                                       destination
 *              (1) find its RAM; connect, publish        <-->   (1) find its RAM; accept
 *                                                               (2) watch it, empty it: WATCHING
 *              (3) `stop`; disks given up; devices'
 *                  state, at its end held: STATE         -->    (4) serve faults; the stream that we write
 *                                                                   to QEMU, until it is `paused`: READY
 *              (5) bind them to this process; GO         -->    (6) `cont`: disks, RUNNING
 *              (7) serve                                 <-->   (7) install; all is here: watch no longer
 *              (8) end it                                <--        DONE
 *
 * Threads      the caller's goes through these steps. One waits for signals, one for the input of who
 *              started it. At the destination one gives `cont`, which may wait for pages, and one ends the watch.
 * Invariants   1. One runner: at the source from (5) on no thread of QEMU runs, so no monitor can make its guest run,
 *                 and the kernel kills it if this process ends. Until (5) `cont` gives the guest back, with its disks.
 *              2. Immutable image: from (3) on no thread of QEMU runs, so nobody's input, and no command of another
 *                 monitor, writes guest memory after the state was saved.
 * Failure      before GO: the guest goes on at the source. A link that breaks after it: both sides
 *              wait for another one, for reconnect=SECONDS; neither QEMU notices.
 * Limits       Of a guest that is paused disks are not given up before GO: another QEMU can write to them once the one
 *              here has ended.
 */
#ifndef FF_CONTROL_ATTACH_ATTACH_H
#define FF_CONTROL_ATTACH_ATTACH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    ATTACH_EXIT_HERE = 1,    /* the source has the guest; the destination's QEMU never ran it */
    ATTACH_EXIT_TROUBLE = 3, /* lost, incomplete or unknown */
};

/**
 * struct attach_options - one side
 * @qmp:     the QEMU's socket
 * @pid:     of the QEMU; 0: as the kernel says of @qmp
 * @path:    destination: where its QEMU waits for the stream that we write
 * @address: of the link: HOST:PORT[,option...]
 * @monitor: instead of @address: where it is told that by QMP; NULL: it is not
 * @domain:  instead of @qmp: the QEMU is libvirt's: attach_domain.h; both sides
 * @rundir:  a run directory, to be removed at the end; NULL: none
 * @watcher: destination: watcher.h's socket; NULL: this process may attach itself
 * @returns: the guest went by attaching and comes back: monitor of the process on this host that moved it; NULL: it does not
 * @image:   its guest is a child of a fork, whose memory is a private view of this image: only what it has written travels. Both
 *           sides have the same text here
 * @view:    destination, with @image: a process of this host with private views of the same image, whose files are read
 * @replaces: destination: QMP socket of a QEMU whose guest's place this one takes: attach_replace.c
 * @keep:    source: the QEMU is not ended when its guest is there
 * @metrics_dir: count there; NULL: nowhere
 * @json:    events on standard output, an object a line
 */
struct attach_options {
    const char *qmp, *path, *address, *monitor, *rundir, *metrics_dir, *watcher, *domain, *returns, *image, *replaces;
    pid_t pid, view, replaces_pid;
    uint64_t view_start, replaces_start; /* of process_start_time() */
    bool json, keep;
};

/* The whole of one side; the program's exit code */
int attach_source_run(const struct attach_options *o);
int attach_dest_run(const struct attach_options *o);

#endif
