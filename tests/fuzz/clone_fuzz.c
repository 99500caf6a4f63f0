/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clone_fuzz.c - libFuzzer: the messages of children and lenders, as an agent reads them
 */
/**
 * DOC: Theory of Operation
 *
 * Input        one byte: how many descriptors come with it; then the message.
 * Picture      [reader] <---- a socket as the agent's ---- the input, as it is
 * Invariants   what is taken is within the bounds that message.h states, has exactly the
 *              descriptors that belong to it, and says the same when it is sent on. Nothing is left
 *              allocated or open.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>

#include "datagram.c"
#include "error.c"
#include "printable.c"

#define names wire_names /* two files in one */
#include "wire.c"
#undef names
#undef MAGIC

#include "message.c"

static int pair[2], spare = -1;

static void open_pair(void)
{
    if (spare >= 0)
        return;
    spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (spare < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
}

static void send_input(const uint8_t *data, size_t len, unsigned n_fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = {.space = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        int fd[8] = {spare, spare, spare, spare, spare, spare, spare, spare};
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        memcpy(CMSG_DATA(&control.head), fd, n_fds * sizeof(int));
    }
    if (sendmsg(pair[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len)
        abort();
}

static void check(const struct ff_clone_msg *m, unsigned n_fds)
{
    assert(m->type >= FF_CLONE_HELLO && m->type <= FF_CLONE_LAST && ff_clone_name(m->type));
    assert(m->n_fds == n_fds && m->n <= FF_CLONE_FILES && m->n <= m->n_fds);
    assert(strlen(m->text) <= FF_WIRE_TEXT_MAX);
    assert(m->table.n_regions <= FF_WIRE_REGIONS_MAX);
    if (m->type == FF_CLONE_REFUSE || m->type == FF_CLONE_LOST)
        assert(m->code > 0 && m->code <= 4095);
    if (m->type == FF_CLONE_IMAGE)
        assert(m->state_bytes && m->state_bytes <= FF_WIRE_STATE_MAX && n_fds == 1);
    for (unsigned i = 0; i < m->n; i++)
        assert(m->memory[i].region < FF_WIRE_REGIONS_MAX && m->memory[i].offset <= INT64_MAX);
}

/* Sent on, it is the same message */
static void check_round(const struct ff_clone_msg *m)
{
    struct ff_clone_msg again;
    struct ff_error err;

    if (ff_clone_send(pair[0], m, &err) || ff_clone_recv(pair[1], &again, &err))
        abort();
    assert(again.type == m->type && again.lends == m->lends && again.number == m->number);
    assert(again.code == m->code && !strcmp(again.text, m->text));
    assert(again.state_bytes == m->state_bytes && again.complete == m->complete);
    assert(again.n == m->n && again.n_fds == m->n_fds);
    assert(again.table.n_regions == m->table.n_regions);
    for (unsigned i = 0; i < m->n; i++)
        assert(again.memory[i].region == m->memory[i].region &&
               again.memory[i].present == m->memory[i].present &&
               again.memory[i].offset == m->memory[i].offset);
    for (unsigned i = 0; i < m->table.n_regions; i++)
        assert(again.host[i] == m->host[i]);
    ff_clone_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct ff_clone_msg m;
    struct ff_error err = {.code = 0};

    open_pair();
    if (len < 2)
        return 0;
    unsigned n_fds = data[0] % 9;
    send_input(data + 1, len - 1, n_fds);
    int rc = ff_clone_recv(pair[1], &m, &err);
    if (rc) {
        assert(rc != -EAGAIN && err.code == -rc && err.text[0]);
        assert(!m.n_fds && !m.table.regions);
        return 0;
    }
    check(&m, n_fds);
    check_round(&m);
    ff_clone_close(&m);
    int next = dup(spare); /* nothing is left open: numbers do not grow */
    assert(next < 64);
    close(next);
    return 0;
}
