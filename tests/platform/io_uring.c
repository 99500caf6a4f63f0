/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * io_uring.c - io_uring is allowed here, and carries recv and send on a socket
 *
 * The TCP link is built on it. Printed: the IORING_FEAT bits, and whether newer setups are offered.
 * Source: io_uring_setup(2); Documentation/admin-guide/sysctl/kernel.rst, io_uring_disabled
 */
#include "platform.h"
#include <liburing.h>
#include <sys/socket.h>

static const struct {
    uint32_t bit;
    const char *name;
} features[] = {
    {IORING_FEAT_SINGLE_MMAP, "SINGLE_MMAP"},
    {IORING_FEAT_NODROP, "NODROP"},
    {IORING_FEAT_SUBMIT_STABLE, "SUBMIT_STABLE"},
    {IORING_FEAT_RW_CUR_POS, "RW_CUR_POS"},
    {IORING_FEAT_CUR_PERSONALITY, "CUR_PERSONALITY"},
    {IORING_FEAT_FAST_POLL, "FAST_POLL"},
    {IORING_FEAT_POLL_32BITS, "POLL_32BITS"},
    {IORING_FEAT_SQPOLL_NONFIXED, "SQPOLL_NONFIXED"},
    {IORING_FEAT_EXT_ARG, "EXT_ARG"},
    {IORING_FEAT_NATIVE_WORKERS, "NATIVE_WORKERS"},
    {IORING_FEAT_RSRC_TAGS, "RSRC_TAGS"},
    {IORING_FEAT_CQE_SKIP, "CQE_SKIP"},
    {IORING_FEAT_LINKED_FILE, "LINKED_FILE"},
};

static bool offered(uint32_t flags)
{
    struct io_uring ring;

    if (io_uring_queue_init(8, &ring, flags) != 0)
        return false;
    io_uring_queue_exit(&ring);
    return true;
}

int main(void)
{
    enum { RECV = 1, SEND = 2, LEN = 4096 };
    struct __kernel_timespec limit = {.tv_sec = PL_WAIT_MS / 1000};
    struct io_uring_params params = {0};
    struct io_uring_sqe *sqe;
    struct io_uring ring;
    static unsigned char got[LEN];
    unsigned int seen = 0;
    int ret, sock[2];

    pl_start();
    ret = io_uring_queue_init_params(8, &ring, &params);
    if (ret == -ENOSYS)
        pl_skip("this kernel has no io_uring (CONFIG_IO_URING)");
    if (ret == -EPERM)
        pl_skip("io_uring is not allowed: sysctl kernel.io_uring_disabled is %ld (set it to 0); if "
                "it is 0 already, a seccomp filter of the container forbids it",
                pl_number("/proc/sys/kernel/io_uring_disabled"));
    if (ret == -ENOMEM)
        pl_skip("io_uring_setup: out of locked memory; raise ulimit -l");
    if (ret)
        pl_fails("io_uring_setup: %s", strerror(-ret));

    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        if (params.features & features[i].bit)
            printf("%s ", features[i].name);
    printf("(features %#x); SINGLE_ISSUER|DEFER_TASKRUN %s\n", params.features,
           offered(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) ? "offered" :
           "not offered");

    PL_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
    PL_MUST((sqe = io_uring_get_sqe(&ring)));
    io_uring_prep_recv(sqe, sock[0], got, LEN, MSG_WAITALL);
    io_uring_sqe_set_data64(sqe, RECV); /* after prep, which may clear it */
    PL_MUST(io_uring_submit(&ring) == 1);
    PL_MUST((sqe = io_uring_get_sqe(&ring)));
    io_uring_prep_send(sqe, sock[1], pl_pattern(LEN, 'S'), LEN, 0);
    io_uring_sqe_set_data64(sqe, SEND);
    PL_MUST(io_uring_submit(&ring) == 1);
    while (seen != (1u << RECV | 1u << SEND)) {
        struct io_uring_cqe *cqe;

        ret = io_uring_wait_cqe_timeout(&ring, &cqe, &limit);
        if (ret)
            pl_fails("waiting for recv and send (have %#x): %s", seen, strerror(-ret));
        if (cqe->res != LEN)
            pl_fails("completion %d ends with %d", (int)cqe->user_data, cqe->res);
        seen |= 1u << cqe->user_data;
        io_uring_cqe_seen(&ring, cqe);
    }
    if (!pl_all(got, LEN, 'S'))
        pl_fails("recv brought other bytes than send sent");
    pl_holds("recv queued before send; both complete with all %d bytes", LEN);
}
