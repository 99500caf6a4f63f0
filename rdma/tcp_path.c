/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_path.c - whether packets of full size arrive; see tcp_path.h
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>

#include "cleanup.h"
#include "error.h"
#include "tcp_path.h"
#include "tcp_socket.h"
#include "tcp_wire.h"

#define NAP_MS 1
#define NAP_MAX_MS 16

static uint8_t zeros[TCP_PAD_LEN]; /* never written */

static bool has_packets(int fd)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);

    return !getsockname(fd, (struct sockaddr *)&sa, &len) && sa.ss_family != AF_UNIX;
}

/* Bytes that the peer has not acknowledged; 0 if that is not known */
static int unacknowledged(int fd)
{
    int n = 0;

    /* what the peer sent is acknowledged now, not with what this side says next */
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &(int){1}, sizeof(int));
    return ioctl(fd, SIOCOUTQ, &n) ? 0 : n;
}

static int do_not_arrive(int fd, const char *name, uint64_t since_ns, struct ff_error *err)
{
    int mss = 0;
    socklen_t len = sizeof(mss);

    getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len);
    return ff_error_set(err, EMSGSIZE, "tcp: open queues: large packets do not arrive: check the MTU of "
                        "both hosts and of the network between (%s: of %u bytes, in packets of %d and "
                        "their headers, %d were not acknowledged within %llu ms; small packets were)",
                        name, TCP_PAD_LEN, mss, unacknowledged(fd),
                        (unsigned long long)(ff_now_ns() - since_ns) / 1000000u);
}

/* @rc of a connection that has ended in this */
static bool is_silence(int rc)
{
    return rc == -ETIMEDOUT || rc == -EHOSTUNREACH;
}

static int nap(int cancel_fd, int *ms, struct ff_error *err)
{
    int rc = tcp_wait_fd(-1, 0, cancel_fd, *ms);

    *ms = FF_MIN(2 * *ms, NAP_MAX_MS);
    return rc == -ETIMEDOUT ? 0 : ff_error_set(err, -rc, "tcp: open queues: %s", strerror(-rc));
}

int tcp_path_check_queues(struct tcp_queue *const q[FF_QUEUES], int cancel_fd, uint64_t end_ns,
                          struct ff_error *err)
{
    static const char *const names[] = {[FF_QUEUE_FAULT] = "fault", [FF_QUEUE_PREFILL] = "prefill"};
    uint64_t since = ff_now_ns();
    int ms = NAP_MS;

    if (!has_packets(tcp_queue_fd(q[FF_QUEUE_FAULT])))
        return 0;
    for (enum ff_queue k = 0; k < FF_QUEUES; k++)
        tcp_queue_pad(q[k], zeros);
    for (;;) {
        enum ff_queue waits = FF_QUEUES;
        for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
            bool sends;
            int rc = tcp_queue_turn(q[k], &sends, err);
            if (is_silence(rc))
                return do_not_arrive(tcp_queue_fd(q[k]), names[k], since, err);
            if (rc)
                return rc;
            if (unacknowledged(tcp_queue_fd(q[k])) || sends)
                waits = k;
        }
        if (waits == FF_QUEUES)
            return 0;
        if (!tcp_ms_left(end_ns))
            return do_not_arrive(tcp_queue_fd(q[waits]), names[waits], since, err);
        int rc = nap(cancel_fd, &ms, err);
        if (rc)
            return rc;
    }
}

int tcp_path_check_control(int fd, int cancel_fd, uint64_t end_ns, struct ff_error *err)
{
    uint8_t head[TCP_PAD_HEAD_LEN];
    struct iovec iov[] = {{.iov_base = head, .iov_len = sizeof(head)},
                          {.iov_base = zeros, .iov_len = TCP_PAD_LEN}};
    uint64_t since = ff_now_ns();
    int ms = NAP_MS;

    if (!has_packets(fd))
        return 0;
    tcp_pad_encode(head, TCP_PAD_LEN);
    int rc = tcp_send_all(fd, iov, FF_ARRAY_LEN(iov), cancel_fd, tcp_ms_left(end_ns));
    while (!rc && unacknowledged(fd)) {
        int so = 0;
        socklen_t len = sizeof(so);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &so, &len);
        rc = so ? -so : tcp_ms_left(end_ns) ? 0 : -ETIMEDOUT;
        if (!rc && (rc = nap(cancel_fd, &ms, err)))
            return rc;
    }
    if (is_silence(rc))
        return do_not_arrive(fd, "control", since, err);
    return rc ? ff_error_set(err, -rc, "tcp: open queues: %s", strerror(-rc)) : 0;
}
