/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_event.c - what happens to the verbs link's connections, in words; how a link breaks
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "log.h"
#include "tcp_socket.h"
#include "verbs.h"

#define REJECTED_NO_LISTENER 8 /* InfiniBand, 12.6.7.2: invalid service ID */

void verbs_set_nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* "fault queue pair 17", of a connection of @v */
static void name_of_id(const struct verbs_link *v, const struct rdma_cm_id *id, char *out,
                       size_t room)
{
    static const char *const names[] = {"control", "fault", "prefill"};

    snprintf(out, room, "connection");
    for (int r = 0; r < VERBS_ROLES; r++)
        for (unsigned i = 0; i < VERBS_QPS_MAX; i++)
            if (v->q[r].conn[i].id == id && id && id->qp)
                snprintf(out, room, "%s queue pair %u", names[r], id->qp->qp_num);
            else if (v->q[r].conn[i].id == id && id)
                snprintf(out, room, "%s connection", names[r]);
}

/* The reason that the peer gave for rejecting, as far as it is text */
static void rejection(const struct rdma_cm_event *ev, char *out, size_t room)
{
    const char *text = ev->param.conn.private_data;
    size_t n = 0;

    while (text && n < ev->param.conn.private_data_len && n + 1 < room && text[n] >= ' ' &&
           text[n] <= '~') {
        out[n] = text[n];
        n++;
    }
    out[n] = '\0';
    if (!n && (ev->status == REJECTED_NO_LISTENER || ev->status == -ECONNREFUSED))
        snprintf(out, room, "nobody listens for RDMA there; is the destination's link=tcp?");
    else if (!n)
        snprintf(out, room, "without a reason");
}

static int event_error(const struct verbs_link *v, const struct rdma_cm_event *ev,
                       struct ff_error *err)
{
    char name[48], text[VERBS_REJECT_LEN + 1];
    int status = ev->status < 0 ? -ev->status : 0;

    name_of_id(v, ev->id, name, sizeof(name));
    switch (ev->event) {
    case RDMA_CM_EVENT_DISCONNECTED:
        return ff_error_set(err, ECONNRESET, "verbs: %s: the peer closed the connection", name);
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return ff_error_set(err, ECONNRESET, "verbs: %s: the connection has ended", name);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return ff_error_set(err, ENODEV, "verbs: %s: device %s was removed", name,
                            ev->id && ev->id->verbs ? ibv_get_device_name(ev->id->verbs->device)
                                                    : "?");
    case RDMA_CM_EVENT_REJECTED:
        rejection(ev, text, sizeof(text));
        return ff_error_set(err, ECONNREFUSED, "verbs: %s: rejected: %s (status %d)", name, text,
                            ev->status);
    case RDMA_CM_EVENT_UNREACHABLE:
        return ff_error_set(err, EHOSTUNREACH, "verbs: %s: the host does not answer (status %d)",
                            name, ev->status);
    case RDMA_CM_EVENT_ADDR_ERROR:
        return ff_error_set(err, status ? status : EADDRNOTAVAIL,
                            "verbs: %s: resolve address: %s", name,
                            status == ENODEV ? "no RDMA device has the way there"
                                             : strerror(status ? status : EADDRNOTAVAIL));
    default:
        return ff_error_set(err, status ? status : ECONNRESET, "verbs: %s: %s (status %d)", name,
                            rdma_event_str(ev->event), ev->status);
    }
}

/* An event that ends nothing */
static bool is_benign(struct verbs_link *v, const struct rdma_cm_event *ev)
{
    if (ev->event == RDMA_CM_EVENT_ESTABLISHED)
        atomic_store(&v->heard_by_ns, 0);
    if (ev->event == RDMA_CM_EVENT_ADDR_CHANGE)
        ff_log(FF_LOG_WARN, "verbs: the address moved to another interface (bonding?): the "
                            "connection stays where it is");
    return ev->event == RDMA_CM_EVENT_ESTABLISHED || ev->event == RDMA_CM_EVENT_ADDR_CHANGE;
}

int verbs_broken(struct verbs_link *v, struct ff_error *err)
{
    pthread_mutex_lock(&v->lock);
    int rc = v->broken ? -v->why.code : 0;
    if (rc && err)
        *err = v->why;
    pthread_mutex_unlock(&v->lock);
    return rc;
}

void verbs_break(struct verbs_link *v, const struct ff_error *why)
{
    struct rdma_cm_id *end[VERBS_ROLES * VERBS_QPS_MAX];
    unsigned n = 0;

    pthread_mutex_lock(&v->lock);
    if (!v->broken) {
        v->broken = true;
        v->why = *why;
        eventfd_write(v->wake_fd, 1);
        for (int r = 0; r < VERBS_ROLES; r++)
            for (unsigned i = 0; i < VERBS_QPS_MAX; i++)
                if (v->q[r].conn[i].made)
                    end[n++] = v->q[r].conn[i].id;
    }
    pthread_mutex_unlock(&v->lock);
    /* without the lock, which the fault thread takes for each request: the kernel may be long here. The
     * ids are there until free() */
    for (unsigned i = 0; i < n; i++)
        rdma_disconnect(end[i]);
}

int verbs_end_if_broken(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err)
{
    int rc = verbs_broken(v, err);
    if (rc)
        rdma_disconnect(id);
    return rc;
}

int verbs_get_event(struct rdma_event_channel *ch, struct rdma_cm_event **ev, struct ff_error *err)
{
    if (!rdma_get_cm_event(ch, ev))
        return 0;
    if (errno == EAGAIN || errno == EINTR)
        return -EAGAIN;
    /* EACCES: uverbs and ucma take commands of who opened them alone */
    return ff_error_set(err, EBADFD, "verbs: read connection events: %s%s", strerror(errno),
                        errno == EACCES ? "; did this process change its user or capabilities "
                                          "after it had opened the device?" : "");
}

int verbs_events(struct verbs_link *v, struct ff_error *err)
{
    struct rdma_cm_event *ev;
    struct ff_error why;

    int rc;
    while (!(rc = verbs_get_event(v->events, &ev, &why))) {
        bool end = !is_benign(v, ev);
        if (end)
            event_error(v, ev, &why);
        rdma_ack_cm_event(ev);
        if (end)
            verbs_break(v, &why);
    }
    if (rc != -EAGAIN)
        verbs_break(v, &why);
    return verbs_broken(v, err);
}

int verbs_wait_any(struct verbs_link *v, int fd, int fd2, uint64_t end, struct ff_error *err)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN},
                         {.fd = fd2, .events = POLLIN},
                         {.fd = v->wake_fd, .events = POLLIN},
                         {.fd = v->cancel_fd, .events = POLLIN}};

    int n = poll(p, FF_ARRAY_LEN(p), tcp_ms_left(end));
    if (n < 0)
        return errno == EINTR ? 0 : ff_error_set(err, errno, "poll: %s", strerror(errno));
    if (p[2].revents && verbs_broken(v, err))
        return verbs_broken(v, err);
    if (p[3].revents)
        return ff_error_set(err, ECANCELED, "canceled");
    return n || tcp_ms_left(end) ? 0 : ff_error_set(err, ETIMEDOUT, "%s", strerror(ETIMEDOUT));
}

/* Is @ev that a hello was rejected with an answer? Then *@out has it */
static bool copy_answer(const struct rdma_cm_event *ev, uint8_t *out)
{
    const struct rdma_conn_param *p = &ev->param.conn;

    if (!p->private_data || p->private_data_len < FF_HS_ANSWER_LEN ||
        !ff_hs_is_answer(p->private_data))
        return false;
    memcpy(out, p->private_data, FF_HS_ANSWER_LEN);
    return true;
}

/* Until @want for @id, with an answer if @answer is not NULL */
static int wait_event(struct verbs_link *v, struct rdma_cm_id *id, enum rdma_cm_event_type want,
                      uint8_t *answer, uint64_t end, struct ff_error *err)
{
    struct rdma_cm_event *ev;

    for (;;) {
        int rc = verbs_get_event(v->events, &ev, err);
        if (rc) {
            if (rc != -EAGAIN)
                return rc;
            rc = verbs_wait_any(v, v->events->fd, -1, end, err);
            if (rc)
                return ff_error_pass(err, rc, "verbs: wait for %s", rdma_event_str(want));
            continue;
        }
        bool got = ev->event == want && ev->id == id && (!answer || copy_answer(ev, answer));
        if (!got && !is_benign(v, ev))
            rc = event_error(v, ev, err);
        rdma_ack_cm_event(ev);
        if (got || rc)
            return rc;
    }
}

int verbs_wait_event(struct verbs_link *v, struct rdma_cm_id *id, enum rdma_cm_event_type want,
                     uint64_t end, struct ff_error *err)
{
    return wait_event(v, id, want, NULL, end, err);
}

int verbs_wait_answer(struct verbs_link *v, struct rdma_cm_id *id, uint8_t out[FF_HS_ANSWER_LEN],
                      uint64_t end, struct ff_error *err)
{
    return wait_event(v, id, RDMA_CM_EVENT_REJECTED, out, end, err);
}
