/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_fuzz.c - libFuzzer: children and sources of this host that say what they like to an agent
 */
/**
 * DOC: Theory of Operation
 *
 * Input        whether pages of a source's image fail; then steps. Each is of one of PEERS
 *              connections to the agent's socket: the next message of a good child, or of a good
 *              source that hands its image over; that, changed, or with other descriptors than
 *              belong to it; any message; the connection's end.
 * Picture      ff_agent_receive() and ff_agent_wait() have a thread; the library's own thread
 *              answers the socket. A good child's memory and userfaultfd are this process's.
 * Invariants   nobody is told to run before he may be, nor of an end twice; every failure has a
 *              reason; what was sent, descriptors too, is gone when the agent is.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "farfork-clone.h"
#include "files.h"
#include "message.h"
#include "peer.h"
#include "source.h"
#include "uffd.h"

#define PEERS 4u
#define FDS_MAX 8u

enum role { CHILD, LENDER };
enum child_step { C_HELLO, C_WATCH, C_LOADED, C_READY, C_RUNNING, CHILD_STEPS };
enum lender_step { L_HELLO, L_MEMORY, L_IMAGE, L_RUN, L_LINK, LENDER_STEPS };

struct person {
    int sock;
    enum role role;
    unsigned next, told;
    uint32_t said; /* enum child_step, as bits */
    struct ff_uffd uffd;
    bool watches;
};

struct world {
    struct ff_agent *a;
    pthread_t thread;
    struct event ended;
    struct person person[PEERS];
    struct area area[REGIONS]; /* of every child */
    int file[REGIONS], state, null;
    struct ff_source *source; /* NULL: nobody has passed sockets */
    pthread_t source_thread;
    struct area image[REGIONS];
    bool fails; /* some of its pages do */
    int passed[FF_TCP_SOCKETS];
    struct ff_wire_region table[REGIONS];
};

static char dir[64], path[80];
static int codec[2]; /* how a message is on the socket */

static void remove_dir(void)
{
    rmdir(dir);
}

static void *run_agent(void *arg)
{
    struct world *w = arg;
    struct ff_error err = {.code = 0};

    int rc = ff_agent_receive(w->a, &err);
    if (!rc)
        rc = ff_agent_wait(w->a, &err);
    check_outcome(rc, &err);
    event_set(&w->ended);
    return NULL;
}

static void on_child(void *opaque, unsigned child, enum ff_child_event what)
{
    (void)opaque, (void)child;
    must(what <= FF_CHILD_LOST);
}

/* --- what is said --- */

static void put_table(const struct world *w, struct ff_clone_msg *m)
{
    m->table = (struct ff_hello){.version = FF_WIRE_VERSION,
                                 .oldest = FF_WIRE_VERSION,
                                 .n_regions = REGIONS,
                                 .config = "fuzz",
                                 .regions = (struct ff_wire_region *)w->table};
    for (unsigned i = 0; i < REGIONS; i++)
        m->host[i] = (uintptr_t)w->area[i].host;
}

static void watch(struct world *w, struct person *k)
{
    struct ff_error err;

    if (k->watches)
        return;
    must(!ff_uffd_open(&k->uffd, &err));
    k->watches = true;
    for (unsigned i = 0; i < REGIONS; i++) {
        struct ff_uffd_range r = {.host = w->area[i].host,
                                  .len_bytes = w->area[i].len_bytes,
                                  .psize = PAGE,
                                  .memory = FF_UFFD_ANON};
        ff_uffd_register(&k->uffd, &r, "fuzz", &err); /* one of them at a time can */
    }
}

static struct ff_clone_msg child_says(struct world *w, struct person *k, enum child_step step,
                                      bool watches)
{
    static const enum ff_clone_type types[CHILD_STEPS] = {
        FF_CLONE_HELLO, FF_CLONE_WATCH, FF_CLONE_LOADED, FF_CLONE_READY, FF_CLONE_RUNNING};
    struct ff_clone_msg m = {.type = types[step], .number = (uint32_t)(k - w->person)};

    if (step == C_HELLO)
        put_table(w, &m);
    if (step == C_WATCH && watches) {
        watch(w, k);
        m.fd[m.n_fds++] = k->uffd.fd;
    }
    return m;
}

/* A good one, over sockets that a lender passes */
static void *run_source(void *arg)
{
    static const uint8_t state[1000] = {1};
    struct world *w = arg;
    struct ff_error err;

    int rc = ff_source_connect(w->source, "fuzz", &err);
    if (!rc)
        rc = ff_source_publish(w->source, &err);
    if (!rc)
        rc = ff_source_send_state(w->source, state, sizeof(state), NULL, 0, &err);
    if (!rc)
        rc = ff_source_wait_ready(w->source, &err);
    if (!rc)
        rc = ff_source_go(w->source, &err);
    if (!rc)
        rc = ff_source_wait_running(w->source, &err);
    if (!rc)
        rc = ff_source_wait_done(w->source, &err);
    check_outcome(rc, &err);
    return NULL;
}

static void start_source(struct world *w, int own[FF_TCP_SOCKETS])
{
    struct ff_link *l;
    struct ff_error err;

    must(!ff_tcp_on_sockets(own, 4000, &l, &err));
    struct ff_address *a = fuzz_address(SOCKETS, 0, "");
    must(!ff_source_new(a, &w->source, &err));
    ff_address_free(a);
    ff_source_use_link(w->source, l);
    for (unsigned i = 0; i < REGIONS; i++) {
        area_new(&w->image[i], i, false);
        area_fill(&w->image[i], i);
        if (w->fails)
            area_fail(&w->image[i], i);
        struct ff_region r = region_of(&w->image[i], i);
        must(!ff_source_add_region(w->source, &r, &err));
    }
    must(!pthread_create(&w->source_thread, NULL, run_source, w));
}

/* Sockets of a link, with a source behind them; the second time: whatever sockets */
static void put_sockets(struct world *w, struct ff_clone_msg *m)
{
    int own[FF_TCP_SOCKETS];

    m->n_fds = FF_TCP_SOCKETS;
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        m->fd[i] = codec[0];
    if (w->source)
        return;
    must(!ff_tcp_socket_pairs(own, w->passed, NULL));
    memcpy(m->fd, w->passed, sizeof(w->passed));
    start_source(w, own);
}

static struct ff_clone_msg lender_says(struct world *w, enum lender_step step, unsigned how)
{
    static const enum ff_clone_type types[LENDER_STEPS] = {
        FF_CLONE_HELLO, FF_CLONE_MEMORY, FF_CLONE_IMAGE, FF_CLONE_RUN, FF_CLONE_LINK};
    struct ff_clone_msg m = {.type = types[step], .number = REGIONS, .lends = true};

    if (step == L_HELLO)
        put_table(w, &m);
    for (unsigned i = 0; step == L_MEMORY && i < REGIONS; i++) {
        m.memory[i] = (struct ff_clone_memory){.region = i, .present = true};
        m.fd[m.n_fds++] = w->file[i];
    }
    m.n = step == L_MEMORY ? REGIONS : 0;
    if (step == L_IMAGE) {
        m.state_bytes = PAGE;
        m.complete = true;
        m.fd[m.n_fds++] = w->state;
    }
    if (step == L_HELLO && how & 1)
        m.number = 0; /* all comes over its link */
    if (step == L_LINK)
        put_sockets(w, &m);
    return m;
}

/* Bytes and descriptors, as they are: whether somebody could hear them */
static bool send_raw(int sock, const uint8_t *buf, size_t len, const int *fd, unsigned n)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {.space = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n) {
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(n * sizeof(int))};
        memcpy(CMSG_DATA(&control.head), fd, n * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

/* @m as it is on the socket; its length */
static size_t encode(struct ff_clone_msg *m, uint8_t buf[FF_CLONE_MSG_MAX])
{
    unsigned n = m->n_fds;

    struct ff_clone_msg plain = *m;
    must(!ff_clone_send(codec[0], &plain, NULL));
    ssize_t len = recv(codec[1], buf, FF_CLONE_MSG_MAX, 0); /* its descriptors are closed */
    must(len > 0 && n == m->n_fds);
    return (size_t)len;
}

/* --- one person's steps --- */

static void leave(struct person *k)
{
    ff_close_fd(&k->sock);
    if (k->watches)
        ff_uffd_close(&k->uffd);
    k->watches = false;
    k->next = k->said = k->told = 0;
}

/* What the agent has said by now, after a moment */
static void hear(struct world *w, struct person *k, int wait_ms)
{
    struct ff_clone_msg m;
    struct ff_error err;

    while (k->sock >= 0) {
        struct pollfd p = {.fd = k->sock, .events = POLLIN};
        if (poll(&p, 1, wait_ms) <= 0)
            return;
        int rc = ff_clone_recv(k->sock, &m, &err);
        if (rc == -EAGAIN)
            return;
        if (rc) {
            must(rc != -EPROTO); /* an agent says what a child understands */
            leave(k);
            return;
        }
        if (k->role == CHILD) {
            must(m.type != FF_CLONE_RUN || k->said & 1u << C_READY);
            must(m.type != FF_CLONE_START || k->said & 1u << C_LOADED);
            k->told += m.type == FF_CLONE_COMPLETE || m.type == FF_CLONE_LOST;
            must(k->told <= 1);
        }
        ff_clone_close(&m);
        wait_ms = 0;
    }
    (void)w;
}

static void come(struct person *k, enum role role)
{
    struct ff_error err;

    if (k->sock < 0)
        k->sock = ff_clone_connect(path, &err);
    must(k->sock >= 0);
    k->role = role;
}

static struct ff_clone_msg next_of(struct world *w, struct person *k, unsigned how)
{
    if (k->role == CHILD)
        return child_says(w, k, k->next % CHILD_STEPS, how & 1);
    return lender_says(w, k->next % LENDER_STEPS, how);
}

static void say(struct world *w, struct person *k, struct input *in, bool beside)
{
    static uint8_t buf[FF_CLONE_MSG_MAX];
    unsigned how = get(in);
    struct ff_clone_msg m = next_of(w, k, how);
    size_t len = encode(&m, buf);

    for (unsigned i = 0; beside && i < how % 4; i++)
        buf[get(in) % len] ^= get(in);
    if (beside && how & 16) { /* others than belong to it */
        int some[] = {w->null, w->state, w->file[0], codec[0], k->sock, w->file[1]};
        m.n_fds = get(in) % FDS_MAX;
        for (unsigned i = 0; i < m.n_fds; i++)
            m.fd[i] = some[(how + i) % 6];
    }
    if (beside && how & 32)
        len = 1 + get(in) % len;
    if (k->role == CHILD || beside)
        k->said |= beside ? UINT32_MAX : 1u << k->next % CHILD_STEPS;
    k->next++;
    if (!send_raw(k->sock, buf, len, m.fd, m.n_fds) && errno != EAGAIN)
        leave(k);
}

static void say_anything(struct world *w, struct person *k, struct input *in)
{
    uint8_t buf[300] = {(uint8_t)(get(in) % (FF_CLONE_LAST + 3))};
    unsigned n = get(in), fds = get(in) % 4;

    for (unsigned i = 0; i < n; i++)
        buf[4 + i] = get(in);
    k->said = UINT32_MAX;
    if (!send_raw(k->sock, buf, 4 + n, (int[4]){w->null, w->file[0], w->state, w->null}, fds) &&
        errno != EAGAIN)
        leave(k);
}

static void step(void *opaque, struct input *in)
{
    struct world *w = opaque;
    unsigned what = get(in);
    struct person *k = &w->person[what / 16 % PEERS];

    if (k->sock < 0)
        come(k, what & 128 ? LENDER : CHILD);
    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        say(w, k, in, false);
        break;
    case 3:
        say(w, k, in, true);
        break;
    case 4:
        say_anything(w, k, in);
        break;
    case 5:
        leave(k);
        break;
    case 6:
        ff_agent_together(w->a, get(in) % 4);
        break;
    default:
        k->next = get(in);
    }
    for (unsigned i = 0; i < PEERS; i++)
        hear(w, &w->person[i], i == what / 16 % PEERS ? 2 : 0);
}

/* --- one run --- */

static int new_file(uint64_t len)
{
    static const uint8_t bytes[64 * PAGE] = {1};
    int fd = ff_file_sealed("fuzz", bytes, len);

    must(fd >= 0 && len <= sizeof(bytes));
    return fd;
}

static void begin(struct world *w, struct input *in)
{
    struct ff_error err;
    struct ff_address *a;

    if (!dir[0]) {
        snprintf(dir, sizeof(dir), "%s/farfork-fuzz-XXXXXX",
                 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        must(mkdtemp(dir) != NULL);
        snprintf(path, sizeof(path), "%s/agent", dir);
        atexit(remove_dir);
        must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, codec));
    }
    must(!ff_address_parse("unix,timeout=4", &a, &err));
    must(!ff_agent_new(a, path, &w->a, &err));
    ff_address_free(a);
    ff_agent_on_child(w->a, on_child, w);
    unsigned how = get(in);
    if (how & 1)
        ff_agent_limit(w->a, 64 * PAGE); /* less than there is */
    w->fails = how & 2;
    for (unsigned i = 0; i < PEERS; i++)
        w->person[i].sock = -1;
    for (unsigned i = 0; i < REGIONS; i++) {
        area_new(&w->area[i], i, false);
        w->file[i] = new_file(region_pages[i] * PAGE);
        struct ff_region r = region_of(&w->area[i], i);
        strcpy(w->table[i].name, r.name);
        w->table[i].len_bytes = r.len_bytes;
        w->table[i].psize = PAGE;
    }
    w->state = new_file(PAGE);
    w->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    event_new(&w->ended);
    must(w->null >= 0 && !pthread_create(&w->thread, NULL, run_agent, w));
}

static void end(struct world *w)
{
    struct ff_agent_stats st;

    for (unsigned i = 0; i < PEERS; i++)
        leave(&w->person[i]);
    ff_agent_stats(w->a, &st);
    must(st.children <= PEERS && st.children_running <= st.children);
    ff_agent_cancel(w->a);
    pthread_join(w->thread, NULL);
    event_free(&w->ended);
    ff_agent_free(w->a);
    for (unsigned i = 0; w->source && i < FF_TCP_SOCKETS; i++)
        close(w->passed[i]);
    if (w->source) {
        ff_source_cancel(w->source);
        pthread_join(w->source_thread, NULL);
        ff_source_free(w->source);
    }
    for (unsigned i = 0; w->source && i < REGIONS; i++)
        area_free(&w->image[i]);
    must(access(path, F_OK) < 0);
    for (unsigned i = 0; i < REGIONS; i++) {
        area_free(&w->area[i]);
        close(w->file[i]);
    }
    close(w->state);
    close(w->null);
    int next = dup(codec[0]); /* nothing is left open: numbers do not grow */
    must(next >= 0 && next < 64);
    close(next);
}

void fuzz_one(struct input *in)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    begin(&w, in);
    fuzz_steps(in, 0, NULL, step, &w);
    end(&w);
}
