/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pass_files.c - descriptors for a process that has no monitor to take them; see pass_files.h
 */
#include "pass_files.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "inject.h"
#include "outside.h"

struct passing {
    pid_t pid;
    const int *fd;
    unsigned n;
    int *there;
    int pair[2], end; /* numbers there; @end: the first one's, here */
};

/* What recvmsg(2) is given there, at one address */
struct message {
    struct msghdr head;
    struct iovec part;
    char byte;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
};

static int call_with(struct inject *in, long nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d, const char *what, int64_t *got,
                     struct ff_error *err)
{
    const uint64_t args[INJECT_ARGS] = {a, b, c, d};
    int rc = inject_call(in, nr, args, got, err);

    if (rc || *got >= 0)
        return rc;
    return ff_error_set(err, (int)-*got, "QEMU: %s: %s", what, strerror((int)-*got));
}

static int read_there(pid_t pid, uint64_t at, void *to, size_t len, struct ff_error *err)
{
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)at, len};

    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)len
               ? 0
               : ff_error_set(err, errno, "process %d: read its stack: %s", (int)pid, strerror(errno));
}

static int make_pair(struct inject *in, struct passing *p, struct ff_error *err)
{
    int64_t got;
    uint64_t at;
    int rc = inject_room(in, p->pair, sizeof(p->pair), &at, err);

    if (!rc)
        rc = call_with(in, SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, at, "make a socket pair", &got, err);
    if (!rc)
        rc = read_there(p->pid, at, p->pair, sizeof(p->pair), err);
    if (rc) {
        p->pair[0] = p->pair[1] = -1;
        return rc;
    }
    p->end = outside_take_fd(p->pid, p->pair[0]);
    return p->end >= 0 ? 0 : ff_error_set(err, -p->end, "process %d: take a socket of it: %s", (int)p->pid, strerror(-p->end));
}

static int send_one(const struct passing *p, int fd, struct ff_error *err)
{
    struct message m = {.part = {&m.byte, 1}};

    m.head = (struct msghdr){.msg_iov = &m.part, .msg_iovlen = 1, .msg_control = &m.control, .msg_controllen = sizeof(m.control.bytes)};
    *CMSG_FIRSTHDR(&m.head) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m.head)), &fd, sizeof(fd));
    return sendmsg(p->end, &m.head, MSG_NOSIGNAL) == 1 ? 0
                                                       : ff_error_set(err, errno, "pass a file to QEMU: %s", strerror(errno));
}

/* Its pointers are of that process, where it begins at @at */
static struct message message_at(uint64_t at)
{
    struct message m = {.byte = 0};

    m.part = (struct iovec){(void *)(uintptr_t)(at + offsetof(struct message, byte)), 1};
    m.head = (struct msghdr){.msg_iov = (void *)(uintptr_t)(at + offsetof(struct message, part)),
                             .msg_iovlen = 1,
                             .msg_control = (void *)(uintptr_t)(at + offsetof(struct message, control)),
                             .msg_controllen = sizeof(m.control.bytes)};
    return m;
}

static int take_one(struct inject *in, const struct passing *p, int *number, struct ff_error *err)
{
    struct message m = {.byte = 0};
    int64_t got;
    uint64_t at;
    int rc = inject_room(in, &m, sizeof(m), &at, err);

    _Static_assert(sizeof(m) <= WAY_ROOM, "it has room there");
    m = message_at(at);
    if (!rc)
        rc = inject_room(in, &m, sizeof(m), &at, err);
    if (!rc)
        rc = call_with(in, SYS_recvmsg, (uint64_t)p->pair[1], at, MSG_CMSG_CLOEXEC | MSG_DONTWAIT, 0, "take a file", &got, err);
    if (!rc)
        rc = read_there(p->pid, at, &m, sizeof(m), err);
    if (rc)
        return rc;
    if (m.head.msg_controllen < CMSG_LEN(sizeof(int)) || m.control.align.cmsg_type != SCM_RIGHTS)
        return ff_error_set(err, EMFILE, "QEMU: take a file: it may have no more open");
    memcpy(number, CMSG_DATA(&m.control.align), sizeof(*number));
    return 0;
}

static void close_passed(struct inject *in, int number)
{
    const uint64_t args[INJECT_ARGS] = {(uint64_t)number};
    int64_t got;

    if (number >= 0)
        inject_call(in, SYS_close, args, &got, NULL);
}

static int pass_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct passing *p = opaque;
    int rc = make_pair(in, p, err);

    for (unsigned i = 0; i < p->n && !rc; i++) {
        rc = send_one(p, p->fd[i], err);
        if (!rc)
            rc = take_one(in, p, &p->there[i], err);
    }
    close_passed(in, p->pair[0]);
    close_passed(in, p->pair[1]);
    for (unsigned i = 0; i < p->n && rc; i++) {
        close_passed(in, p->there[i]);
        p->there[i] = -1;
    }
    return rc;
}

int pass_files(pid_t pid, const int *fd, unsigned n, int *there, struct ff_error *err)
{
    struct passing p = {.pid = pid, .fd = fd, .n = n, .there = there, .pair = {-1, -1}, .end = -1};

    for (unsigned i = 0; i < n; i++)
        there[i] = -1;
    int rc = inject_run(pid, 0, pass_there, &p, err);
    ff_close_fd(&p.end);
    return rc;
}

static int close_all_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct passing *p = opaque;

    (void)err;
    for (unsigned i = 0; i < p->n; i++)
        close_passed(in, p->there[i]);
    return 0;
}

void pass_files_close(pid_t pid, const int *there, unsigned n)
{
    struct passing p = {.pid = pid, .there = (int *)there, .n = n};

    inject_run(pid, 0, close_all_there, &p, NULL);
}
