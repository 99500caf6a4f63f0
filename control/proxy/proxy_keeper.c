/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_keeper.c - see proxy_keeper.h
 */
#include "proxy_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "rundir.h"
#include "thread.h"

#define CONNECT_LIMIT_MS 10000
#define CONNECT_TIMES 30
#define SILENT_MS 1000 /* a QEMU whose guest stands still sends without a rest */

/* Both processes have it. Each field is written before the socket is given, but the two flags */
struct proxy_keeper {
    _Atomic bool gone, over;
    bool was_running, cancel_races, has_bandwidth;
    _Atomic bool switching;
    json_int_t bandwidth, postcopy_bandwidth, downtime_ms;
    pid_t qemu, launcher; /* launcher: who started the proxy */
    uint64_t begin_ns;
    int sock; /* the proxy's end */
    pid_t pid;
};

/* -1: the proxy has ended without giving one */
static int receive_socket(int from)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec v = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof(control)};
    int fd = -1;

    while (recvmsg(from, &m, MSG_CMSG_CLOEXEC) < 0 && errno == EINTR)
        continue;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

static int take_back_for(struct proxy *p, struct ff_error *err)
{
    int rc = qmp_connect(p->o->qmp, -1, CONNECT_LIMIT_MS, &p->q, err);

    if (!rc)
        rc = ff_thread_start(&p->forward_thread, proxy_drain, p, "proxy-drain", err);
    if (rc)
        return rc;
    qmp_limit(p->q, PROXY_QMP_LIMIT_MS);
    rc = proxy_qemu_take_back(p, err);
    proxy_qemu_restore(p);
    return rc;
}

static void wait_silent(struct proxy *p)
{
    bool late = false;

    pthread_mutex_lock(&p->lock);
    while (!p->forward_ended && !late) {
        uint64_t read_ns = atomic_load(&p->read_ns);

        late = ff_cond_wait_until(&p->changed, &p->lock, read_ns + SILENT_MS * 1000000ull) &&
               read_ns == atomic_load(&p->read_ns);
    }
    pthread_mutex_unlock(&p->lock);
}

/* The guest is elsewhere, or its stream has not begun. A QEMU that hears SHUT while it still sends
 * closes its stream, before 10.0, and stays in postcopy-paused */
static void end_migration_of(struct proxy *p)
{
    atomic_store(&p->read_ns, ff_now_ns());
    bool reads = p->sock >= 0 &&
                 !ff_thread_start(&p->forward_thread, proxy_drain, p, "proxy-drain", NULL);
    bool later = reads && p->cancel_races;

    if (!later)
        proxy_never_here(p);
    for (int i = 0; i < CONNECT_TIMES && p->has_bandwidth && !p->q; i++) /* others may have its monitor */
        qmp_connect(p->o->qmp, -1, CONNECT_LIMIT_MS, &p->q, NULL);
    proxy_qemu_restore(p); /* at full speed, mostly */
    if (p->q)
        qmp_free(p->q); /* it has one client at a time */
    if (later) {
        wait_silent(p);
        proxy_never_here(p);
    }
    if (reads) /* to the end: what is written to nobody breaks it */
        pthread_join(p->forward_thread, NULL);
}

static void follow(const struct proxy_options *o, struct proxy_keeper *k, int from)
{
    static struct proxy p; /* its thread may use it until the process has ended */
    int sock = receive_socket(from);
    struct ff_error why = {0};
    char byte;

    while (recv(from, &byte, 1, 0) < 0 && errno == EINTR) /* the proxy's end */
        continue;
    if (k->over)
        return;
    p = (struct proxy){.o = o, .is_source = true, .side = "source", .begin_ns = k->begin_ns,
                       .sock = sock, .pid = k->qemu, .was_running = k->was_running,
                       .switching = k->switching, .cancel_races = k->cancel_races,
                       .has_bandwidth = k->has_bandwidth, .old_bandwidth = k->bandwidth,
                       .old_postcopy_bandwidth = k->postcopy_bandwidth,
                       .old_downtime_ms = k->downtime_ms, .stop_fd = -1,
                       .has_let_go = k->gone};
    pthread_mutex_init(&p.lock, NULL);
    pthread_mutex_init(&p.qmp_lock, NULL);
    ff_cond_init(&p.changed);
    if (!k->gone && o->domain) /* libvirt's QEMU: nothing can be said to it from here */
        return;
    if (sock < 0 || k->gone) {
        unlink(o->path);
        end_migration_of(&p);
        return;
    }
    ff_error_set(&why, EINTR, "proxy: it was killed before the guest was let go of");
    proxy_say_why(&p, "failed", &why);
    proxy_last_word(&p, proxy_say_back(&p, take_back_for(&p, &why), &why));
    unlink(o->path);
    if (o->rundir && kill(k->launcher, 0)) /* who started the proxy reads what it has said */
        rundir_remove(o->rundir);
}

struct proxy_keeper *proxy_keeper_start(const struct proxy_options *o)
{
    struct proxy_keeper *k =
        mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int end[2];

    if (k == MAP_FAILED)
        return NULL;
    *k = (struct proxy_keeper){.launcher = getppid(), .begin_ns = ff_now_ns()};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end))
        return NULL;
    pid_t pid = fork();
    if (!pid) {
        sigset_t all;

        sigfillset(&all); /* it is the proxy that decides */
        sigprocmask(SIG_SETMASK, &all, NULL);
        prctl(PR_SET_NAME, "farfork-keeper");
        close(end[0]);
        follow(o, k, end[1]);
        _exit(0);
    }
    close(end[1]);
    k->sock = end[0];
    k->pid = pid;
    if (pid > 0)
        return k;
    close(end[0]);
    return NULL;
}

void proxy_keeper_tell(struct proxy_keeper *k, const struct proxy *p)
{
    if (!k)
        return;
    k->was_running = p->was_running;
    k->cancel_races = p->cancel_races;
    k->has_bandwidth = p->has_bandwidth;
    k->bandwidth = p->old_bandwidth;
    k->postcopy_bandwidth = p->old_postcopy_bandwidth;
    k->downtime_ms = p->old_downtime_ms;
    k->qemu = p->pid;
    k->switching = p->switching;
}

void proxy_keeper_give(struct proxy_keeper *k, int sock)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof(control)};

    if (!k)
        return;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                          .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(c), &sock, sizeof(sock));
    while (sendmsg(k->sock, &m, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

void proxy_keeper_let_go(struct proxy_keeper *k, bool gone)
{
    if (k)
        atomic_store(&k->gone, gone);
}

void proxy_keeper_end(struct proxy_keeper *k)
{
    if (!k)
        return;
    atomic_store(&k->over, true);
    close(k->sock);
    while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    munmap(k, sizeof(*k));
}
