/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * iouring_pollable.c - the descriptor of an io_uring becomes readable when a completion is there
 *
 * So one poll loop can wait for a userfaultfd, a pidfd and a ring. Tried for a plain ring, and for
 * SINGLE_ISSUER|DEFER_TASKRUN, where the completion is only produced by asking for it after poll.
 * Source: io_uring(7); io_uring_setup(2), IORING_SETUP_DEFER_TASKRUN
 */
#include "platform.h"
#include <liburing.h>
#include <sys/socket.h>

/* True, or false where the kernel does not offer such a ring; *err says why. */
static bool try_ring(const char *what, uint32_t flags, int *err)
{
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe;
    struct io_uring ring;
    char byte = 0;
    int sock[2];

    *err = -io_uring_queue_init(8, &ring, flags);
    if (*err)
        return false;
    PL_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
    PL_MUST((sqe = io_uring_get_sqe(&ring)));
    io_uring_prep_recv(sqe, sock[0], &byte, 1, 0);
    PL_MUST(io_uring_submit(&ring) == 1);
    if (pl_readable(ring.ring_fd, 0))
        pl_fails("%s: readable while its recv still waits", what);

    PL_MUST(write(sock[1], "x", 1) == 1);
    if (!pl_readable(ring.ring_fd, PL_WAIT_MS))
        pl_fails("%s: data came, and the ring did not become readable", what);
    if (flags & IORING_SETUP_DEFER_TASKRUN)
        PL_MUST(io_uring_get_events(&ring) >= 0);
    if (io_uring_peek_cqe(&ring, &cqe) != 0 || cqe->res != 1 || byte != 'x')
        pl_fails("%s: readable, but without the completion", what);
    io_uring_cqe_seen(&ring, cqe);
    if (pl_readable(ring.ring_fd, 0))
        pl_fails("%s: readable although its completion was taken", what);
    io_uring_queue_exit(&ring);
    return true;
}

int main(void)
{
    bool deferred;
    int err;

    pl_start();
    if (!try_ring("plain ring", 0, &err))
        pl_skip("io_uring_setup: %s; see io_uring for how to allow it", strerror(err));
    deferred = try_ring("deferred ring", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                        &err);
    pl_holds("readable exactly while a completion waits: plain ring%s",
             deferred ? " and DEFER_TASKRUN ring" : "; DEFER_TASKRUN is not offered");
}
