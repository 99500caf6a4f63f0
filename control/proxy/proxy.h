/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy.h - a move between two QEMUs that know nothing of it, by a program beside each
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      move a guest of any QEMU that has post-copy. QEMU writes its ordinary migration
 *              stream to a unix socket; its main memory does not come that way.
 * Picture      QEMU --unix--> source's proxy ==== link ==== destination's proxy --unix--> QEMU
 *
 *                  source                                  destination
 *              (1) look at the QEMU; refuse                (1) likewise; listen
 *              (2) connect, publish its memory   <-->      (2) accept, watch
 *              (3) `migrate`, post-copy at once: setup
 *                  and small blocks by the tunnel  -->     (3) to its QEMU
 *              (4) the package begins: the guest
 *                  stands still. Its bytes: STATE  -->     (4) to its QEMU, which watches its memory
 *                                                          (5) take its userfaultfd: serve faults
 *                                                          (6) it says `paused`: loaded. READY
 *              (7) GO                              -->     (7) `cont`; RUNNING
 *              (8) serve; drop pages of main memory        (8) install; every page is here: end
 *                                                              the RAM section
 *                                                <--       (9) QEMU says completed. DONE
 *              (10) the rest of QEMU's pages; it
 *                   says completed, too
 *
 *              Main memory is every block of 32 MiB or more. The rest is QEMU's own affair: its
 *              pages and the requests for them pass by the tunnel.
 * Threads      the caller's goes through these steps. One forwards the stream, one the return path:
 *              each from a socket to the tunnel or from there to the socket. One waits for signals.
 * Invariants   1. One runner: the destination's QEMU is told `stop` before anything comes, and
 *                 `cont` only after GO. The source's guest runs again only where GO was not sent,
 *                 or the destination has said that it never ran.
 *              2. From the package on no page of main memory comes by QEMU's stream: the pager alone
 *                 installs. Before, with precopy=1, QEMU does, and the pager learns which. With
 *                 --from-stream nothing is main memory: QEMU alone installs.
 *              3. QEMU hears the end of its RAM section only when every page is here and GO was read: after
 *                 it QEMU watches no more, and what was missing would be zeros. With --from-stream the move is
 *                 complete when that QEMU has said that it has all.
 *              4. Until GO the source's stream socket stays open: a QEMU that has lost it in
 *                 post-copy never runs its guest again.
 * Failure      before GO: the guest goes on at the source. A link that breaks after it: both sides
 *              wait for another one, for reconnect=SECONDS; neither QEMU notices.
 */
#ifndef FF_CONTROL_PROXY_PROXY_H
#define FF_CONTROL_PROXY_PROXY_H

#include <stdbool.h>
#include <sys/types.h>

enum {
    PROXY_EXIT_HERE = 1,    /* the source has the guest; the destination's QEMU never ran it */
    PROXY_EXIT_TROUBLE = 3, /* lost, incomplete or unknown */
};

/**
 * struct proxy_options - one side
 * @qmp:     the QEMU's socket
 * @pid:     of the QEMU; 0: as the kernel says of @qmp
 * @path:    where QEMU's stream goes: the source listens there, the destination connects
 * @address: of the link: HOST:PORT[,option...]
 * @domain:  instead of @qmp: the QEMU is libvirt's, see domain.h
 * @to:      source of a domain: libvirt's URI of the destination
 * @keyed:   standard input is of who started it: first the key of @address, in a line as
 *           qmp_secret.h has it; its end before GO ends the move
 * @rundir:  a run directory, to be removed at the end; NULL: none
 * @untested: also a QEMU whose version was not tested
 * @from_stream: main memory comes by QEMU's own stream as well: the engine has none, and nobody looks
 *           into a QEMU. Both sides; no domain
 * @metrics_dir: count there; NULL: nowhere
 * @json:    events on standard output, an object a line
 * @argv:    destination: start this QEMU; NULL: it is there. Source of a domain: more words for
 *           virsh migrate
 */
struct proxy_options {
    const char *qmp, *path, *address, *rundir, *domain, *to, *metrics_dir;
    pid_t pid;
    bool json, untested, keyed, from_stream;
    char *const *argv;
};

/* The whole of one side; the program's exit code */
int proxy_source_run(const struct proxy_options *o);
int proxy_dest_run(const struct proxy_options *o);

#endif
