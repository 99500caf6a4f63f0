/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_hostile.c - children, sources and agents that mean harm: to the image, to other children
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "image.h"
#include "cleanup.h"
#include "files.h"
#include "stranger.h"

static void setup(void)
{
    image_new(3000);
}

/* --- a child that writes where it must not --- */

/* By what the file behind @fd, which others read, can be changed; NULL: by nothing */
static const char *breach(int fd, uint64_t len)
{
    const char *by = NULL;
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    FF_AUTO_CLOSE int again = open(path, O_RDWR | O_CLOEXEC);
    int use = again >= 0 ? again : fd;
    void *p = mmap(NULL, CELL, PROT_READ | PROT_WRITE, MAP_SHARED, use, 0);
    if (p != MAP_FAILED) {
        munmap(p, CELL);
        by = "a shared mapping";
    } else if (pwrite(use, "x", 1, 0) == 1) {
        by = "a write";
    } else if (!ftruncate(use, (off_t)len + CELL) || !ftruncate(use, (off_t)len - CELL)) {
        by = "another length";
    } else if (!fallocate(use, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, CELL)) {
        by = "a hole";
    }
    return by;
}

static void must_be_sealed(const struct ff_clone_msg *m, const uint64_t *len)
{
    for (unsigned i = 0; i < m->n_fds; i++) {
        const char *by = breach(m->fd[i], len[i]);
        if (by)
            loop_fail(__FILE__, __LINE__, "a child changes file %u of %s by %s", i,
                      ff_clone_name(m->type), by);
    }
}

static void child_writes(void)
{
    struct family *f = family_new();
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r), files;
    uint64_t len[2] = {r[0].len_bytes, r[1].len_bytes};
    struct ff_error err;

    f->n_children = 2;
    f->options = "prefill=off";
    f->last_later = true;
    family_start(f);
    family_source(f, S_RUNNING);
    int sock = stranger(f);
    must_ok(ff_clone_send(sock, &m, &err), err);
    must_ok(ff_clone_expect(sock, -1, &files, 10000, &err), err);
    must(files.type == FF_CLONE_IMAGE && files.n_fds == 1);
    must_be_sealed(&files, &files.state_bytes);
    ff_clone_close(&files);
    must_ok(ff_clone_expect(sock, -1, &files, 10000, &err), err);
    must(files.type == FF_CLONE_MEMORY && files.n_fds == 2);
    must_be_sealed(&files, len);
    ff_clone_close(&files);
    close(sock);
    family_last(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

/* --- an image that is not the fork's --- */

static void too_large(bool hand_over)
{
    struct family *f = family_new();

    f->n_children = 2;
    f->passed = !hand_over;
    f->hand_over = f->lend_all = hand_over;
    f->limit = 2001 * CELL - 1; /* the image has 2001 */
    family_start(f);
    wait_count(f->children_so_far, 2ul);
    family_source(f, S_DONE);
    must(f->source_rc && f->source_stage == S_CONNECT);
    must(strstr(f->source_err.text, "region1") && strstr(f->source_err.text, "in all"));
    if (hand_over) /* it waits for a better one */
        must(!atomic_load(&f->ended));
    else
        must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -EFBIG);
    for (unsigned i = 0; i < 2; i++)
        must(!atomic_load(&f->child[i].attached));
    atomic_store(&f->children_may_end, true);
    must(!kill(f->agent_pid, SIGKILL));
    family_reap(f->agent_pid, SIGKILL);
    f->agent_pid = 0;
    for (unsigned i = 0; i < 2; i++)
        family_reap(f->child[i].pid, 3 << 8);
    family_free(f);
}

static void too_large_by_link(void)
{
    too_large(false);
}

static void too_large_handed_over(void)
{
    too_large(true);
}

static void just_large_enough(void)
{
    struct family *f = family_new();

    f->n_children = 1;
    f->passed = true;
    f->limit = 2001 * CELL;
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

/* Of this process: TCP sockets that listen */
static unsigned listeners(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        int domain = 0, listens = 0;
        socklen_t len = sizeof(int);
        if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) &&
            !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len))
            n += listens && domain != AF_UNIX;
    }
    return n;
}

struct receiver {
    struct ff_agent *a;
    pthread_t thread;
};

static void *receive(void *arg)
{
    struct receiver *r = arg;
    struct ff_error err;

    must_ok(ff_agent_receive(r->a, &err), err);
    return NULL;
}

/* Lend nothing, pass a link: 0, or why not */
static int pass(const char *path, int own[FF_TCP_SOCKETS], int *sock, struct ff_error *err)
{
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r), answer,
                        link = {.type = FF_CLONE_LINK, .n_fds = FF_TCP_SOCKETS};
    int rc;

    m.lends = true;
    *sock = ff_clone_connect(path, err);
    must(*sock >= 0);
    must_ok(ff_tcp_socket_pairs(own, link.fd, err), *err);
    must_ok(ff_clone_send(*sock, &m, err), *err);
    rc = ff_clone_expect(*sock, -1, &answer, 10000, err);
    if (!rc)
        rc = ff_clone_send(*sock, &link, err);
    if (!rc)
        rc = ff_clone_expect(*sock, -1, &answer, 10000, err);
    ff_clone_close(&link);
    return rc;
}

static void close_all(int fd[FF_TCP_SOCKETS])
{
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        ff_close_fd(&fd[i]);
}

static void wait_no_lender(struct ff_agent *a)
{
    bool lent = true;

    for (unsigned ms = 0; ms < 10000 && lent; ms++, usleep(1000)) {
        pthread_mutex_lock(&a->lock);
        lent = a->lender;
        pthread_mutex_unlock(&a->lock);
    }
    must(!lent);
}

/* No port to connect to; the first link is the only one; and what has which image can be
 * compared */
static void one_source(void)
{
    char dir[] = "/tmp/farfork-loop-XXXXXX", path[64], agents[FF_SESSION_TEXT],
         own[FF_SESSION_TEXT];
    int first[FF_TCP_SOCKETS], second[FF_TCP_SOCKETS], sock[2];
    struct receiver r;
    struct ff_address *to;
    struct ff_source *s;
    struct ff_error err;
    struct area a;

    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/agent", dir);
    must_ok(ff_address_parse("unix", &to, &err), err);
    must_ok(ff_agent_new(to, path, &r.a, &err), err);
    must(!ff_agent_port(r.a) && !listeners());
    ff_agent_session(r.a, agents);
    must(!*agents);
    must_ok(ff_source_new(to, &s, &err), err);
    area_new(&a, MEM_MEMFD, 16 * CELL);
    struct ff_region region = {.name = "x", .host = a.host, .len_bytes = a.len_bytes, .psize = CELL,
                               .fd = a.fd, .zero_fill = true};
    must_ok(ff_source_add_region(s, &region, &err), err);
    must(ff_source_connect(s, "test", &err) == -EINVAL); /* to whom? */
    must_ok(ff_source_hand_over(s, path, "test", "state", 5, &err), err);
    must(!pthread_create(&r.thread, NULL, receive, &r));
    pthread_join(r.thread, NULL);
    ff_agent_session(r.a, agents);
    ff_source_session(s, own);
    must(strlen(own) == 32 && !strcmp(own, agents));
    must(pass(path, first, &sock[0], &err) == -EBUSY);
    close_all(first);
    close(sock[0]);
    ff_source_free(s);
    ff_agent_cancel(r.a);
    ff_agent_free(r.a);

    must_ok(ff_agent_new(to, path, &r.a, &err), err);
    must_ok(pass(path, first, &sock[0], &err), err);
    close(sock[0]);
    wait_no_lender(r.a); /* another may lend */
    must(pass(path, second, &sock[1], &err) == -EBUSY && strstr(err.text, "it has a source"));
    close_all(second);
    close(sock[1]);
    close_all(first);
    ff_agent_free(r.a);
    ff_address_free(to);
    close(a.fd);
    must(!rmdir(dir));
}

static void passed_nonsense(void)
{
    struct family *f = family_new();
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r), answer,
                        link = {.type = FF_CLONE_LINK, .n_fds = FF_TCP_SOCKETS};
    struct ff_error err;

    f->n_children = 1;
    f->passed = m.lends = true;
    family_start(f);
    int sock = stranger(f); /* a file in place of a socket */
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        link.fd[i] = i ? sock : STDERR_FILENO;
    must_ok(ff_clone_send(sock, &m, &err), err);
    must_ok(ff_clone_expect(sock, -1, &answer, 10000, &err), err);
    must_ok(ff_clone_send(sock, &link, &err), err);
    must_be_dropped(sock, "no sockets");
    sock = stranger(f); /* who is no source has no link */
    must_ok(ff_clone_send(sock, &link, &err), err);
    must_be_dropped(sock, "a link of nobody");
    family_source(f, S_DONE);
    family_must_succeed(f);
}

/* --- an agent that is none --- */

struct impostor {
    int listener;
    const struct ff_clone_msg *says;
    atomic_bool heard;
};

static void *answer_first(void *arg)
{
    struct impostor *im = arg;
    FF_AUTO_CLOSE int sock = accept(im->listener, NULL, NULL);
    struct ff_error err;

    must(sock >= 0);
    must_ok(ff_clone_send(sock, im->says, &err), err);
    must(wait_flag(&im->heard, 10000));
    return NULL;
}

static unsigned open_files(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* How a source's hand-over, or a child's attach, ends when @m is what it hears first */
static int hear(const struct ff_clone_msg *m, bool is_child, struct ff_error *err)
{
    char dir[] = "/tmp/farfork-loop-XXXXXX", path[64];
    struct ff_address *to;
    struct ff_source *s;
    struct ff_child *c;
    pthread_t thread;
    struct area a;

    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/agent", dir);
    struct impostor im = {.listener = ff_clone_listen(path, err), .says = m};
    must(im.listener >= 0 && !pthread_create(&thread, NULL, answer_first, &im));
    area_new(&a, MEM_MEMFD, 16 * CELL);
    struct ff_region region = {.name = "x", .host = a.host, .len_bytes = a.len_bytes, .psize = CELL,
                               .fd = is_child ? -1 : a.fd, .zero_fill = true};
    must_ok(ff_address_parse("unix", &to, err), *err);
    must_ok(ff_source_new(to, &s, err), *err);
    must_ok(ff_source_add_region(s, &region, err), *err);
    must_ok(ff_child_new(path, 0, &c, err), *err);
    must_ok(ff_child_add_region(c, &region, err), *err);
    int rc = is_child ? ff_child_attach(c, "test", err)
                      : ff_source_hand_over(s, path, "test", "state", 5, err);
    atomic_store(&im.heard, true);
    pthread_join(thread, NULL);
    ff_child_free(c);
    ff_source_free(s);
    ff_address_free(to);
    close(a.fd);
    close(im.listener);
    must(!unlink(path) && !rmdir(dir));
    return rc;
}

/* What came with the wrong message is closed */
static void unexpected_files(void)
{
    struct ff_clone_msg m = {.type = FF_CLONE_LINK, .n_fds = FF_TCP_SOCKETS};
    unsigned had = open_files();
    struct ff_error err;

    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        m.fd[i] = STDERR_FILENO;
    must(hear(&m, false, &err) == -EPROTO && strstr(err.text, "LINK came instead of an answer"));
    if (open_files() != had)
        loop_fail(__FILE__, __LINE__, "%u descriptors, had %u", open_files(), had);
}

/* A child reads its devices' state where it is: nobody may change or cut it meanwhile */
static void unsealed_state(void)
{
    struct ff_clone_msg m = {.type = FF_CLONE_IMAGE, .state_bytes = 8192, .n_fds = 1};
    struct ff_error err;

    m.fd[0] = ff_file_new("state", m.state_bytes, 0);
    must(m.fd[0] >= 0);
    must(hear(&m, true, &err) == -EPROTO && strstr(err.text, "is not sealed"));
    must(!ff_file_seal(m.fd[0], FF_SEALS_WHOLE));
    m.state_bytes++;
    must(hear(&m, true, &err) == -EPROTO && strstr(err.text, "no file of 8193 bytes"));
    close(m.fd[0]);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a child writes into the image", child_writes, 40},
        {"too large", too_large_by_link, 40},
        {"too large, handed over", too_large_handed_over, 40},
        {"just large enough", just_large_enough, 0},
        {"one source, no port", one_source, 0},
        {"no link", passed_nonsense, 0},
        {"descriptors with the wrong message", unexpected_files, 0},
        {"a state that is not sealed", unsealed_state, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
