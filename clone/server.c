/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * server.c - the agent's connections: children, and a source that lends; see image.h
 */
/**
 * DOC: Theory of Operation
 *
 * States       of a connection:
 *              NEW       nothing was said yet
 *              LENDING   a source: HELLO was heard, files are coming
 *              LENT      they are here; the image takes them if this is still open then. The link
 *                        may come, too
 *              GIVEN     the state followed: they are the image, and children load. None runs
 *                        before the source has said so; when it ends before that, the image is lost
 *              WAITING   a child: HELLO was heard, the image is not there yet
 *              SENDING   it gets the state and the files
 *              MAPPING   it has them, and maps them
 *              ATTACHED  its faults are served; it loads its devices, starts what is not vCPUs
 *                        once the image is for good, is READY, and runs when as many as run
 *                        together are
 *              Nobody waits for one connection: one that says nothing costs a descriptor.
 * Together     children of one host run together. What comes between START and READY waits for
 *              kernel threads (KVM_SET_PIT2 for its VM's), which guests that run leave no CPU; so
 *              nobody's vCPUs run before all are READY, or none has become so for HOLD_MS. Of 50
 *              busy children the last ran 4.0 s after the start without this, 1.4 s with it. From
 *              START on QEMU says `running`, and the guest's clock runs: a guest that waits for
 *              others sees a gap.
 * Invariants   a child is told one of COMPLETE and LOST, once, after ATTACHED; before it, REFUSE.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "image.h"
#include "children.h"
#include "cleanup.h"
#include "dest.h"
#include "failpoint.h"
#include "log.h"
#include "regions.h"

#define LATER_MS 10 /* a queue is full: its reader is on its way */
#define REST_MS 100 /* out of descriptors: whoever connects waits so long for one */
#define HOLD_MS 2000 /* after the last was ready: one that does not come holds nobody for long */

enum state { NEW, LENDING, LENT, GIVEN, WAITING, SENDING, MAPPING, ATTACHED };

struct ff_conn {
    int sock;
    enum state state;
    bool child, loaded, may_start, ready, due, may_run, running;
    bool told; /* how it ended: COMPLETE or LOST */
    bool ended; /* and it was reported; COMPLETE not before it runs */
    bool over; /* to be closed */
    bool again; /* what it is to be told did not go out */
    unsigned number;
    struct ff_hello table;
    struct ff_regions regions;           /* the child's */
    uint32_t map[FF_WIRE_REGIONS_MAX];   /* region of the image -> of the child; a lender: unused */
    uint64_t host[FF_WIRE_REGIONS_MAX];  /* of the image's regions, in the child */
    bool image_sent;
    unsigned n_sent;   /* files; from a lender: still to come */
    struct ff_pager_child *view;
    struct ff_conn *next;
};

static void report_child(struct ff_agent *a, const struct ff_conn *c, enum ff_child_event what)
{
    pthread_mutex_lock(&a->lock);
    void (*fn)(void *, unsigned, enum ff_child_event) = a->on_child;
    void *opaque = a->on_child_opaque;
    pthread_mutex_unlock(&a->lock);
    if (fn)
        fn(opaque, c->number, what);
}

static void count_child(struct ff_agent *a, unsigned *which, int by)
{
    pthread_mutex_lock(&a->lock);
    *which += (unsigned)by;
    pthread_mutex_unlock(&a->lock);
}

/* Nothing more to say to it, but perhaps why; NULL: it has gone */
static void conn_end(struct ff_conn *c, const struct ff_error *why)
{
    if (c->over)
        return;
    if (why) {
        ff_log(FF_LOG_WARN, "agent: drop %s %u: %s", c->child ? "child" : "peer", c->number,
               why->text);
        ff_clone_send_why(c->sock, FF_CLONE_REFUSE, why);
    }
    c->over = true;
}

static void conn_free(struct ff_agent *a, struct ff_conn *c)
{
    pthread_mutex_lock(&a->lock);
    if (a->lender == c)
        ff_agent_drop_lent(a);
    pthread_mutex_unlock(&a->lock);
    if (c->state == GIVEN) {
        struct ff_error why;
        ff_error_set(&why, ECONNRESET, "the source ended before it let children run");
        ff_agent_handed_over(a, &why, NULL);
    }
    if (c->view)
        ff_children_remove(ff_dest_pager(a->dest), c->view);
    if (c->child) {
        count_child(a, &a->children, -1);
        count_child(a, &a->running, -(int)c->running);
        count_child(a, &a->ended, 1);
        if (!c->ended)
            report_child(a, c, FF_CHILD_LOST);
    }
    ff_close_fd(&c->sock);
    ff_regions_free(&c->regions);
    ff_hello_free(&c->table);
    free(c);
}

/* --- a source that lends --- */

static int begin_lending(struct ff_agent *a, struct ff_conn *c, struct ff_clone_msg *m,
                         struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    if (a->adopted || a->lender)
        rc = ff_error_set(err, EBUSY, "agent: it has an image, or another source lends to it");
    else if (m->number < !a->passed || m->number > m->table.n_regions)
        rc = ff_error_set(err, EPROTO, "agent: %u regions lent (permitted %d..%u)", m->number,
                          !a->passed, m->table.n_regions);
    else
        a->lender = c;
    pthread_mutex_unlock(&a->lock);
    c->n_sent = m->number;
    c->number = 0;
    c->state = c->n_sent ? LENDING : LENT;
    return rc || c->n_sent ? rc : ff_clone_send_type(c->sock, FF_CLONE_ATTACHED, err);
}

static int take_lent(struct ff_agent *a, struct ff_conn *c, struct ff_clone_msg *m,
                     struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    if (a->lender != c)
        rc = ff_error_set(err, EBUSY, "agent: the image came before the lent memory");
    for (unsigned i = 0; i < m->n && !rc; i++) {
        const struct ff_clone_memory *e = &m->memory[i];
        if (!c->n_sent || e->region >= c->table.n_regions) {
            rc = ff_error_set(err, EPROTO, "agent: region %u lent (permitted 0..%u, %u more)",
                              e->region, c->table.n_regions - 1, c->n_sent);
            break;
        }
        a->lent[a->n_lent++] = (struct ff_lent){
            .region = c->table.regions[e->region], .offset = e->offset, .fd = m->fd[i]};
        m->fd[i] = -1; /* taken */
        c->n_sent--;
    }
    pthread_mutex_unlock(&a->lock);
    if (rc || c->n_sent)
        return rc;
    c->state = LENT;
    return ff_clone_send_type(c->sock, FF_CLONE_ATTACHED, err);
}

static int take_handed_image(struct ff_agent *a, struct ff_conn *c, const struct ff_clone_msg *m,
                             struct ff_error *err)
{
    struct ff_clone_msg answer = {.type = FF_CLONE_ATTACHED};
    int rc = ff_agent_hand_over(a, &c->table, m->fd[0], m->state_bytes, err);

    if (rc)
        return rc;
    c->state = GIVEN;
    memcpy(answer.session, a->session, sizeof(answer.session));
    return ff_clone_send(c->sock, &answer, err);
}

static int take_link(struct ff_agent *a, struct ff_conn *c, struct ff_clone_msg *m,
                     struct ff_error *err)
{
    m->n_fds = 0; /* taken */
    int rc = ff_agent_take_link(a, m->fd, err);

    return rc ? rc : ff_clone_send_type(c->sock, FF_CLONE_ATTACHED, err);
}

static int let_run(struct ff_agent *a, struct ff_conn *c, struct ff_error *err)
{
    int rc = ff_agent_handed_over(a, NULL, err);

    c->state = LENT; /* once */
    return rc ? rc : ff_clone_send_type(c->sock, FF_CLONE_COMPLETE, err);
}

/* --- children --- */

static int begin_child(struct ff_agent *a, struct ff_conn *c, const struct ff_clone_msg *m,
                       struct ff_error *err)
{
    c->child = true;
    c->number = m->number;
    c->state = WAITING;
    count_child(a, &a->children, 1);
    for (unsigned i = 0; i < c->table.n_regions; i++) {
        const struct ff_wire_region *w = &c->table.regions[i];
        struct ff_region r = {.name = w->name,
                              .host = (void *)(uintptr_t)m->host[i],
                              .len_bytes = w->len_bytes,
                              .psize = w->psize,
                              .fd = -1};
        int rc = ff_regions_add(&c->regions, &r, err);
        if (rc)
            return rc;
    }
    report_child(a, c, FF_CHILD_CONNECTED);
    return 0;
}

/* The image is there: is it the child's? */
static int compare_tables(struct ff_agent *a, struct ff_conn *c, struct ff_error *err)
{
    const struct ff_hello *image = ff_agent_table(a);

    int rc = ff_regions_match(&c->regions, c->table.config, image, c->map, err);
    if (rc)
        return rc;
    for (unsigned i = 0; i < image->n_regions; i++)
        c->host[i] = (uintptr_t)c->regions.r[c->map[i]].host;
    c->state = SENDING;
    return 0;
}

/* State and files, as many as go now */
static int send_image(struct ff_agent *a, struct ff_conn *c, bool is_complete, struct ff_error *err)
{
    int rc = 0;

    if (!c->image_sent && is_complete && !atomic_load(&a->handed_over) &&
        ff_pager_poisoned(ff_dest_pager(a->dest))) /* it would watch nothing: children.h */
        return ff_error_set(err, EHWPOISON, "agent: the source could not read all of the image "
                            "(poisoned memory), and a child that comes now would not learn it: "
                            "fork again");
    if (!c->image_sent) {
        struct ff_clone_msg m = {.type = FF_CLONE_IMAGE,
                                 .state_bytes = a->state_bytes,
                                 .complete = is_complete,
                                 .fd = {a->state_fd},
                                 .n_fds = 1};
        rc = ff_clone_send(c->sock, &m, err);
        c->image_sent = !rc;
    }
    while (!rc && c->n_sent < a->n_memory) {
        struct ff_clone_msg m = {.type = FF_CLONE_MEMORY,
                                 .n = FF_MIN(a->n_memory - c->n_sent, FF_CLONE_FILES)};
        for (m.n_fds = 0; m.n_fds < m.n; m.n_fds++) {
            const struct ff_agent_memory *e = &a->memory[c->n_sent + m.n_fds];
            m.memory[m.n_fds] = (struct ff_clone_memory){.region = c->map[c->n_sent + m.n_fds],
                                                         .present = e->lent,
                                                         .offset = e->offset};
            m.fd[m.n_fds] = e->view;
        }
        rc = ff_clone_send(c->sock, &m, err);
        if (!rc)
            c->n_sent += m.n;
    }
    if (!rc)
        c->state = MAPPING;
    return rc == -EAGAIN ? 0 : rc;
}

static int attach_child(struct ff_agent *a, struct ff_conn *c, struct ff_clone_msg *m,
                        struct ff_error *err)
{
    struct ff_pager *p = ff_dest_pager(a->dest);
    bool missing = false;
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    bool is_complete = a->status == FF_IMAGE_COMPLETE;
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; i < a->n_memory; i++)
        missing |= !a->memory[i].lent && !is_complete;
    if (!m->n_fds && missing)
        return ff_error_set(err, EINVAL,
                            "agent: it does not watch its memory, but some is missing");
    if (m->n_fds && atomic_load(&a->handed_over))
        return ff_error_set(err, EPROTO, "agent: it watches memory, but none is missing");
    if (m->n_fds) {
        m->n_fds = 0; /* taken */
        rc = ff_children_add(p, m->fd[0], c->host, c->sock, &c->view, err);
    }
    if (!rc)
        rc = ff_clone_send_type(c->sock, FF_CLONE_ATTACHED, err);
    if (rc)
        return rc;
    c->state = ATTACHED;
    report_child(a, c, FF_CHILD_ATTACHED);
    return 0;
}

/* May those that are ready run? Guests that run would take the CPUs from those that start */
static bool may_run(struct ff_agent *a)
{
    unsigned ready = 0;

    pthread_mutex_lock(&a->lock);
    unsigned together = a->together;
    pthread_mutex_unlock(&a->lock);
    for (struct ff_conn *c = a->conns; c; c = c->next)
        ready += c->ready && !c->may_run && !c->over;
    return ready >= together || ff_now_ns() - a->ready_ns >= HOLD_MS * 1000000ull;
}

/* All memory is here, and it runs: it needs nothing more */
static void complete(struct ff_agent *a, struct ff_conn *c)
{
    if (!c->told || !c->running || c->ended)
        return;
    c->ended = true;
    report_child(a, c, FF_CHILD_COMPLETE);
}

/* --- messages --- */

static int conn_handle(struct ff_agent *a, struct ff_conn *c, struct ff_clone_msg *m,
                       struct ff_error *err)
{
    if (c->state == NEW && m->type == FF_CLONE_HELLO) {
        c->table = m->table;
        m->table.regions = NULL; /* taken */
        return m->lends ? begin_lending(a, c, m, err) : begin_child(a, c, m, err);
    }
    if (c->state == NEW && m->type == FF_CLONE_FEED) {
        int rc = ff_agent_feed_later(a, m, err);
        return rc ? rc : ff_clone_send_type(c->sock, FF_CLONE_ATTACHED, err);
    }
    if (c->state == LENDING && m->type == FF_CLONE_MEMORY)
        return take_lent(a, c, m, err);
    if (c->state == LENT && m->type == FF_CLONE_IMAGE)
        return take_handed_image(a, c, m, err);
    if (c->state == LENT && m->type == FF_CLONE_LINK)
        return take_link(a, c, m, err);
    if (c->state == GIVEN && m->type == FF_CLONE_RUN)
        return let_run(a, c, err);
    if (c->state == MAPPING && m->type == FF_CLONE_WATCH)
        return attach_child(a, c, m, err);
    if (c->state == ATTACHED && m->type == FF_CLONE_LOADED && !c->loaded) {
        c->loaded = true;
        return 0;
    }
    if (c->may_start && m->type == FF_CLONE_READY && !c->ready) {
        c->ready = true;
        a->ready_ns = ff_now_ns();
        return 0;
    }
    if (c->may_run && m->type == FF_CLONE_RUNNING && !c->running) {
        c->running = true;
        count_child(a, &a->running, 1);
        report_child(a, c, FF_CHILD_RUNNING);
        complete(a, c);
        return 0;
    }
    return ff_error_set(err, EPROTO, "agent: %s out of order", ff_clone_name(m->type));
}

static void conn_read(struct ff_agent *a, struct ff_conn *c)
{
    struct ff_clone_msg m;
    struct ff_error why;
    int rc = 0;

    while (!rc && !c->over) {
        rc = ff_clone_recv(c->sock, &m, &why);
        if (rc == -EAGAIN)
            return;
        if (!rc) {
            rc = conn_handle(a, c, &m, &why);
            ff_clone_close(&m);
        }
        if (rc)
            conn_end(c, rc == -ECONNRESET ? NULL : &why);
    }
}

/* *@said: it went out, or there is nobody; else it is for the next turn */
static int conn_send(struct ff_conn *c, enum ff_clone_type type, bool *said, struct ff_error *err)
{
    int rc = ff_failpoint("agent.say");

    rc = rc ? ff_error_set(err, -rc, "injected") : ff_clone_send_type(c->sock, type, err);
    bool later = rc == -EAGAIN || rc == -ENOBUFS || rc == -ENOMEM;

    *said = !later;
    c->again |= later;
    return later ? 0 : rc;
}

/* What the image's status, and that of the others, means for @c by now */
static void conn_advance(struct ff_agent *a, struct ff_conn *c, enum ff_image_status status,
                         bool run, const struct ff_error *image_why)
{
    struct ff_error why;
    int rc = 0;

    c->again = false;
    if (!c->child || c->over)
        return;
    if (status == FF_IMAGE_LOST && (c->state == WAITING || c->state == SENDING)) {
        conn_end(c, image_why);
        return;
    }
    if (c->state == WAITING && status != FF_IMAGE_AWAITED)
        rc = compare_tables(a, c, &why);
    if (!rc && c->state == SENDING)
        rc = send_image(a, c, status == FF_IMAGE_COMPLETE, &why);
    bool settled = status == FF_IMAGE_COMPLETE ||
                   (status == FF_IMAGE_HERE && !atomic_load(&a->handed_over));
    if (!rc && c->loaded && !c->may_start && settled)
        rc = conn_send(c, FF_CLONE_START, &c->may_start, &why);
    c->due |= run && c->ready;
    if (!rc && c->due && !c->may_run && status != FF_IMAGE_LOST)
        rc = conn_send(c, FF_CLONE_RUN, &c->may_run, &why);
    if (rc) {
        conn_end(c, &why);
        return;
    }
    if (c->state != ATTACHED || c->told || status < FF_IMAGE_COMPLETE)
        return;
    if (status == FF_IMAGE_COMPLETE) {
        if (c->view)
            ff_children_poison(ff_dest_pager(a->dest), c->view);
        if (conn_send(c, FF_CLONE_COMPLETE, &c->told, &why))
            ff_log(FF_LOG_WARN, "agent: child %u: %s", c->number, why.text);
        complete(a, c);
    } else {
        c->told = c->ended = true;
        if (ff_clone_send_why(c->sock, FF_CLONE_LOST, image_why))
            conn_end(c, NULL); /* that is heard, too */
        report_child(a, c, FF_CHILD_LOST);
    }
}

static void accept_connections(struct ff_agent *a)
{
    struct ff_error why;
    int fd;

    if (ff_now_ns() < a->rest_ns)
        return;
    while ((fd = ff_clone_accept(a->listen_fd, &why)) != -EAGAIN) {
        struct ff_conn *c = fd >= 0 ? calloc(1, sizeof(*c)) : NULL;
        if (!c) {
            ff_log(FF_LOG_WARN, "agent: drop a connection: %s", fd < 0 ? why.text : "no memory");
            ff_close_fd(&fd);
            a->rest_ns = ff_now_ns() + REST_MS * 1000000ull; /* out of descriptors, perhaps */
            return;
        }
        c->sock = fd;
        c->next = a->conns;
        a->conns = c;
    }
}

/* Wait until something happens; @serves: or children ask */
static void wait_for_any(struct ff_agent *a, bool serves)
{
    struct pollfd *p;
    unsigned n = 3;
    bool later = false;

    for (struct ff_conn *c = a->conns; c; c = c->next)
        n++;
    p = calloc(n, sizeof(*p));
    if (!p) {
        poll(NULL, 0, LATER_MS);
        return;
    }
    p[0] = (struct pollfd){.fd = a->poke_fd, .events = POLLIN};
    bool rests = ff_now_ns() < a->rest_ns;
    p[1] = (struct pollfd){.fd = rests ? -1 : a->listen_fd, .events = POLLIN};
    p[2] = (struct pollfd){.fd = serves ? ff_children_fd(ff_dest_pager(a->dest)) : -1,
                           .events = POLLIN};
    n = 3;
    for (struct ff_conn *c = a->conns; c; c = c->next) {
        p[n++] = (struct pollfd){.fd = c->sock, .events = POLLIN};
        later |= c->again || c->state == SENDING || (c->ready && !c->may_run);
    }
    poll(p, n, later ? LATER_MS : rests ? REST_MS : 5000);
    free(p);
}

static void server_turn(struct ff_agent *a)
{
    eventfd_t ignored;
    struct ff_error why;

    eventfd_read(a->poke_fd, &ignored);
    accept_connections(a);
    pthread_mutex_lock(&a->lock);
    enum ff_image_status status = a->status;
    why = a->why;
    pthread_mutex_unlock(&a->lock);
    for (struct ff_conn *c = a->conns; c; c = c->next)
        conn_read(a, c);
    bool run = may_run(a); /* all of them or none */
    for (struct ff_conn **at = &a->conns; *at;) {
        struct ff_conn *c = *at;
        conn_advance(a, c, status, run, &why);
        if (!c->over) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        conn_free(a, c);
    }
    /* the pager has stopped, and every page is there: whoever still asks is woken */
    bool serves = status == FF_IMAGE_COMPLETE && !atomic_load(&a->handed_over);
    if (serves)
        ff_children_serve(ff_dest_pager(a->dest));
    if (!atomic_load(&a->stop))
        wait_for_any(a, serves);
}

void *ff_image_server_main(void *opaque)
{
    struct ff_agent *a = opaque;

    while (!atomic_load(&a->stop))
        server_turn(a);
    server_turn(a); /* whoever was not told yet is told now */
    while (a->conns) {
        struct ff_conn *c = a->conns;
        a->conns = c->next;
        conn_free(a, c);
    }
    return NULL;
}
