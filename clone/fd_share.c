/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fd_share.c - a source on the agent's host gives it files instead of bytes; see farfork.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      lend: the regions that have a file; the rest is read over a link, which with the
 *              address "unix" is made of sockets that the agent gets here. Hand over: all of
 *              it, with the state. What has no file (video memory, firmware, tables: 32 MiB at
 *              most) is copied into one. There is no link and no pager: children watch nothing,
 *              and need nothing of the source once they may run. That saves connections, keys,
 *              threads at both ends, and their turns on busy CPUs.
 * Picture      lend before connecting: files wait for the HELLO of the link, while this socket is
 *              open. A lent region is neither watched nor fetched: its pages are PRESENT from the
 *              start, and children map the source's very file. It has the region's length and page
 *              size, and its content never changes: QEMU seals the file in the pause.
 *              hand over: three messages, two answers; children load, and wait until
 *              ff_source_let_run(). A source that ends before that takes the image with it, and no
 *              child has run.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "files.h"
#include "message.h"
#include "pagemap.h"
#include "segments.h"
#include "regions.h"
#include "source.h"

#define ANSWER_MS 30000
#define HAND_OVER_MAX (32ull << 20) /* so much has no file: more is for the link */
#define SOME_BYTES (64u << 10)
#define LATER_US 10000

/* Files of @t from region *@from on, as many as a message takes: 0, or 1 when it is empty */
static int next_files(const struct ff_regions *t, unsigned *from, struct ff_clone_msg *m)
{
    *m = (struct ff_clone_msg){.type = FF_CLONE_MEMORY};
    for (; *from < t->n && m->n < FF_CLONE_FILES; ++*from) {
        const struct ff_region *r = &t->r[*from];
        if (r->fd < 0)
            continue;
        m->fd[m->n] = r->fd;
        m->memory[m->n++] = (struct ff_clone_memory){
            .region = *from, .present = true, .offset = r->fd_offset};
    }
    m->n_fds = m->n;
    return !m->n;
}

/* What is full is emptied soon: its reader, or those of other descriptors, are on their way */
static int send_soon(int sock, const struct ff_clone_msg *m, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + ANSWER_MS * 1000000ull;
    int rc;

    while ((rc = ff_clone_send(sock, m, err)) == -EAGAIN && ff_now_ns() < end)
        usleep(LATER_US);
    return rc;
}

static int send_files(const struct ff_regions *t, const char *config, int sock,
                      struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_HELLO, .lends = true};
    unsigned from = 0;

    for (unsigned i = 0; i < t->n; i++)
        m.number += t->r[i].fd >= 0;
    int rc = ff_failpoint("source.lend");
    if (rc)
        return ff_error_set(err, -rc, "injected");
    rc = ff_regions_hello(t, config, &m.table, err);
    if (!rc)
        rc = send_soon(sock, &m, err);
    ff_hello_free(&m.table);
    while (!rc && !next_files(t, &from, &m))
        rc = send_soon(sock, &m, err);
    return rc;
}

/* @rc: of sending. What the agent has refused it has refused with a reason. @session: of its
 * answer, or NULL */
static int recv_answer(int rc, int sock, enum ff_clone_type want, int timeout_ms, int cancel_fd,
                       uint8_t *session, struct ff_error *err)
{
    struct ff_clone_msg m;

    if (rc && rc != -EPIPE && rc != -ECONNRESET)
        return rc;
    rc = ff_clone_expect(sock, cancel_fd, &m, timeout_ms, err);
    if (rc)
        return rc;
    if (m.type != want)
        rc = ff_error_set(err, EPROTO, "%s came instead of an answer", ff_clone_name(m.type));
    else if (session)
        memcpy(session, m.session, sizeof(m.session));
    ff_clone_close(&m);
    return rc;
}

/* The agent gets its ends of the link, and we keep ours */
static int pass_link(struct ff_source *s, int sock, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_LINK, .n_fds = FF_TCP_SOCKETS};
    int own[FF_TCP_SOCKETS];
    struct ff_link *link;

    int rc = ff_tcp_socket_pairs(own, m.fd, err);
    if (rc)
        return rc;
    rc = send_soon(sock, &m, err);
    rc = recv_answer(rc, sock, FF_CLONE_ATTACHED, ANSWER_MS, ff_source_cancel_fd(s), NULL, err);
    ff_clone_close(&m);
    if (rc) {
        for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
            ff_close_fd(&own[i]);
        return rc;
    }
    rc = ff_tcp_on_sockets(own, ff_source_timeout_ms(s), &link, err);
    if (!rc)
        ff_source_use_link(s, link);
    return rc;
}

int ff_source_lend(struct ff_source *s, const char *socket_path, struct ff_error *err)
{
    const struct ff_regions *t = ff_source_regions(s);
    bool passed = ff_source_is_passed(s), any = passed;

    for (unsigned i = 0; i < t->n; i++)
        any |= t->r[i].fd >= 0;
    if (!any)
        return 0;
    int sock = ff_clone_connect(socket_path, err);
    int rc = sock < 0 ? sock : send_files(t, "", sock, err);
    if (sock >= 0)
        rc = recv_answer(rc, sock, FF_CLONE_ATTACHED, ANSWER_MS, ff_source_cancel_fd(s), NULL, err);
    if (!rc && passed)
        rc = pass_link(s, sock, err);
    if (!rc) {
        ff_source_keep_fd(s, sock); /* while it is open, what was lent waits for our HELLO */
        return 0;
    }
    ff_close_fd(&sock);
    ff_error_pass(err, rc, "source: lend memory");
    return rc;
}

/* --- all of it --- */

/* What @r holds, in a file of its own; elsewhere it has a hole */
static int copy_region(const struct ff_region *r, int pagemap)
{
    int fd = ff_file_new("farfork-image", r->len_bytes, 0), rc = 0;

    for (uint64_t at = 0; fd >= 0 && !rc && at < r->len_bytes; at += SOME_BYTES) {
        uint64_t some = FF_MIN(r->len_bytes - at, (uint64_t)SOME_BYTES);
        if (ff_pagemap_populated(pagemap, r, at, some))
            rc = ff_file_write(fd, (const char *)r->host + at, some, at);
    }
    if (fd >= 0 && !rc)
        rc = ff_file_seal(fd, FF_SEALS_WHOLE);
    if (rc)
        ff_close_fd(&fd);
    return rc ? rc : fd;
}

/* A file for each region that has none: they are @own's */
static int copy_rest(struct ff_regions *t, int *own, struct ff_error *err)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();

    for (unsigned i = 0; i < t->n; i++) {
        if (t->r[i].fd >= 0)
            continue;
        own[i] = copy_region(&t->r[i], pagemap);
        if (own[i] < 0)
            return ff_error_set(err, -own[i], "region %s: copy what it holds: %s", t->r[i].name,
                                strerror(-own[i]));
        t->r[i].fd = own[i];
        t->r[i].fd_offset = 0;
    }
    return 0;
}

static int send_state(int sock, const void *state, size_t len, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_IMAGE, .state_bytes = len, .complete = true};
    FF_AUTO_CLOSE int fd = ff_file_sealed("farfork-state", state, len);

    if (fd < 0)
        return ff_error_set(err, -fd, "copy %zu bytes of state: %s", len, strerror(-fd));
    m.fd[m.n_fds++] = fd;
    return send_soon(sock, &m, err);
}

/* The connection, or -errno */
static int hand_over(const struct ff_regions *t, const char *socket_path, const char *config,
                     const void *state, size_t len, int cancel_fd, uint8_t *session,
                     struct ff_error *err)
{
    int sock = ff_clone_connect(socket_path, err);

    if (sock < 0)
        return sock;
    int rc = send_files(t, config, sock, err);
    if (!rc)
        rc = send_state(sock, state, len, err);
    rc = recv_answer(rc, sock, FF_CLONE_ATTACHED, ANSWER_MS, cancel_fd, NULL, err); /* the files */
    if (!rc)
        rc = recv_answer(0, sock, FF_CLONE_ATTACHED, ANSWER_MS, cancel_fd, session, err);
    if (!rc)
        return sock;
    close(sock);
    return rc;
}

int ff_source_hand_over(struct ff_source *s, const char *socket_path, const char *config,
                        const void *state, size_t len, struct ff_error *err)
{
    struct ff_regions t = *ff_source_regions(s); /* borrowed, but for the descriptors */
    uint8_t session[FF_SESSION_LEN];
    int own[FF_WIRE_REGIONS_MAX];
    uint64_t rest = 0;
    bool small = true;

    for (unsigned i = 0; i < t.n; i++) {
        own[i] = -1;
        rest += t.r[i].fd >= 0 ? 0 : t.r[i].len_bytes;
        small &= t.r[i].fd >= 0 || t.r[i].psize == (uint32_t)sysconf(_SC_PAGESIZE);
    }
    if (ff_regions_elsewhere(&t))
        return ff_error_set(err, ENOTSUP, "source: hand over: memory is another process's");
    if (rest > HAND_OVER_MAX || !small)
        return ff_error_set(err, EFBIG,
                            "source: hand over: %llu MiB have no file (at most %llu, and no "
                            "huge pages)",
                            (unsigned long long)rest >> 20, HAND_OVER_MAX >> 20);
    int rc = !len || len > FF_WIRE_STATE_MAX
                 ? ff_error_set(err, EFBIG, "state of %zu bytes (permitted 1..%llu)", len,
                                FF_WIRE_STATE_MAX)
                 : copy_rest(&t, own, err);
    if (!rc)
        rc = hand_over(&t, socket_path, config, state, len, ff_source_cancel_fd(s), session, err);
    for (unsigned i = 0; i < t.n; i++)
        ff_close_fd(&own[i]);
    if (rc < 0)
        return ff_error_pass(err, rc, "source: hand the image over");
    ff_source_set_session(s, session);
    ff_source_keep_fd(s, rc); /* when it is closed before ff_source_let_run(), children end */
    return 0;
}

int ff_source_let_run(struct ff_source *s, struct ff_error *err)
{
    int sock = ff_source_kept_fd(s);

    if (sock < 0)
        return ff_error_set(err, EINVAL, "source: let run: before the hand-over");
    int rc = ff_clone_send_type(sock, FF_CLONE_RUN, err);
    /* what was said cannot be taken back: no limit but the agent's end */
    rc = recv_answer(rc, sock, FF_CLONE_COMPLETE, -1, ff_source_cancel_fd(s), NULL, err);
    return rc ? ff_error_pass(err, rc, "source: let run") : 0;
}
