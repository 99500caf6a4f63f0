/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_guest_port.c - a child's port: it is told who it is, and its links go up when it is that
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the host's end of the protocol in docs/guest.md, for one child, on its host. A
 *              request for a fork is refused: who forks is on the parent's host.
 *              Or for a guest that visits this host: its word that it wants to go home.
 * Picture      guest: link FORK NUMBER  -->  QEMU: no NIC has an address of the parent's (query-rx-filter)?
 *                                            set_link each
 *              A guest that says "link" and has not changed all of them is not to be heard.
 * Failure      a child without a port that answers stays as it is, its links down with
 *              --net isolated. One that says nonsense is told so.
 *              What another machine has said, of which this one is a copy, may still be in the port:
 *              it names that.
 * Limits       the guest reads what it is told when it likes: what does not fit in the socket's
 *              buffer (the message does) closes the port.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent_guest_port.h"
#include "autojson.h"
#include "guest_port.h"
#include "qmp_job.h"

#define READS_A_TURN 16   /* one that never stops talking is not all that there is to hear */

struct channel {
    char *path, *message;
    char *self; /* FORK NUMBER of the child, as it says it */
    struct strv links, old_macs; /* the parent's */
    int fd;
    bool raise;
    bool checked; /* raise: no NIC has one of old_macs */
    bool visits;  /* a guest that does: @message is NULL */
    char word[GUEST_WORD_MAX + 1]; /* of its last request to go home */
    struct guest_input in;
    struct qmp_job *job; /* looks at the NICs, or raises the links; NULL: not now */
};

struct channel *agent_port_new(const json_t *o)
{
    const char *path = json_string_value(json_object_get(o, "path"));
    const char *message = json_string_value(json_object_get(o, "message"));

    if (!path || !message)
        return NULL;
    struct channel *c = xcalloc(1, sizeof(*c));
    c->fd = -1;
    c->path = xstrdup(path);
    c->message = xstrdup(message);
    FF_AUTO_JSON json_t *about = json_loads(message, 0, NULL);
    c->self = xprintf("%s %lld", text_of(about, "fork"),
                      (long long)json_integer_value(json_object_get(about, "number")));
    strv_add_json(&c->links, json_object_get(o, "links"));
    json_t *nic;
    size_t i;
    json_array_foreach(json_object_get(about, "nics"), i, nic)
        if (strcasecmp(text_of(nic, "mac_old"), text_of(nic, "mac_new")))
            strv_add(&c->old_macs, "%s", text_of(nic, "mac_old"));
    return c;
}

struct channel *agent_port_visit(const char *path)
{
    struct channel *c = xcalloc(1, sizeof(*c));

    c->fd = -1;
    c->path = xstrdup(path);
    c->visits = true;
    return c;
}

void agent_port_say(struct channel *c, const char *message)
{
    if (!c || !message)
        return;
    free(c->message);
    c->message = xstrdup(message);
}

static void hang_up(struct channel *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

void agent_port_free(struct channel *c)
{
    if (!c)
        return;
    hang_up(c);
    qmp_job_free(c->job);
    strv_free(&c->links);
    strv_free(&c->old_macs);
    free(c->path);
    free(c->message);
    free(c->self);
    free(c);
}

static void send_line(struct channel *c, char *text)
{
    size_t len = strlen(text);

    if (c->fd >= 0 && send(c->fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len)
        hang_up(c);
    free(text);
}

int agent_port_open(struct channel *c, struct ff_error *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (!c || c->fd >= 0)
        return 0;
    if (strlen(c->path) >= sizeof(a.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "port %s: the name is too long", c->path);
    strcpy(a.sun_path, c->path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        int code = errno;
        hang_up(c);
        return ff_error_set(why, code, "port %s: %s", c->path, strerror(code));
    }
    if (c->message)
        send_line(c, guest_port_forked(c->message));
    return 0;
}

int agent_port_tell(struct channel *c, const char *lines, struct ff_error *why)
{
    int rc = agent_port_open(c, why);

    if (rc)
        return rc;
    send_line(c, xstrdup(lines));
    return c->fd >= 0 ? 0 : ff_error_set(why, EPIPE, "port %s: the guest reads nothing", c->path);
}

const char *agent_port_word(const struct channel *c)
{
    return c->word;
}

int agent_port_fd(const struct channel *c)
{
    return c ? c->fd : -1;
}

/* Who has moved it looks after all else */
static enum channel_event run_visitor_request(struct channel *c, const struct guest_request *r)
{
    switch (r->verb) {
    case GUEST_RETURN:
        snprintf(c->word, sizeof(c->word), "%s", r->word);
        return CHANNEL_RETURN;
    case GUEST_VISIT:
        send_line(c, guest_port_failed_word(r->word, "this machine visits a host already: return first"));
        break;
    case GUEST_JOIN:
        send_line(c, guest_port_failed_word(r->word, "this machine visits a host: return first"));
        break;
    case GUEST_FORK:
        send_line(c, guest_port_failed("this machine visits a host: return first"));
        break;
    default:
        break;
    }
    return CHANNEL_NOTHING;
}

static enum channel_event run_request(struct channel *c, const struct guest_request *r, int *code)
{
    bool of_other = *r->user && strcmp(r->user, c->self);

    switch (r->verb) {
    case GUEST_LINK:
        c->raise |= !of_other;
        return CHANNEL_NOTHING;
    case GUEST_READY:
        c->raise |= !of_other && !c->checked; /* when "link" was due another program had the port */
        return of_other ? CHANNEL_NOTHING : CHANNEL_READY;
    case GUEST_EXIT:
        *code = r->code;
        return of_other ? CHANNEL_NOTHING : CHANNEL_EXIT;
    case GUEST_JOINED:
        return CHANNEL_NOTHING;
    case GUEST_JOIN:
        send_line(c, guest_port_failed_word(r->word, "no vmclone --serve serves this machine"));
        return CHANNEL_NOTHING;
    case GUEST_VISIT:
    case GUEST_RETURN:
        send_line(c, guest_port_failed_word(r->word, "no farfork visit --serve serves this machine"));
        return CHANNEL_NOTHING;
    case GUEST_FORK:
        break;
    }
    send_line(c, guest_port_failed("no vmclone --serve serves this machine"));
    return CHANNEL_NOTHING;
}

enum channel_event agent_port_on_input(struct channel *c, int *code)
{
    struct guest_request r;
    struct ff_error why;
    size_t room;
    ssize_t got = 0;
    int reads = 0;

    while (c->fd >= 0) {
        int rc = guest_port_take(&c->in, (size_t)got, INT_MAX, &r, &why);
        got = 0;
        if (rc < 0) {
            send_line(c, guest_port_failed(why.text));
        } else if (rc) {
            enum channel_event e = c->visits ? run_visitor_request(c, &r) : run_request(c, &r, code);
            if (e != CHANNEL_NOTHING)
                return e;
        } else {
            char *at = guest_port_room(&c->in, &room);
            if (reads++ == READS_A_TURN)
                return CHANNEL_NOTHING;
            got = recv(c->fd, at, room, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR))
                return CHANNEL_NOTHING;
            if (got <= 0)
                hang_up(c);
        }
    }
    return CHANNEL_NOTHING;
}

int agent_port_qmp_fd(const struct channel *c)
{
    return c ? qmp_job_fd(c->job) : -1;
}

static bool is_old_mac(const struct channel *c, const char *mac)
{
    for (size_t i = 0; i < c->old_macs.n; i++)
        if (!strcasecmp(mac, c->old_macs.v[i]))
            return true;
    return false;
}

/* By what QEMU knows: virtio-net alone says so; other NICs are the guest's word. The table has what
 * VLANs and macvlans over a NIC listen to */
static bool has_old_mac(const struct channel *c)
{
    const json_t *answer = qmp_job_answer(c->job, 0), *nic, *mac;
    size_t k, i;

    json_array_foreach(json_object_get(answer, "return"), k, nic) {
        if (is_old_mac(c, text_of(nic, "main-mac")))
            return true;
        json_array_foreach(json_object_get(nic, "unicast-table"), i, mac)
            if (json_is_string(mac) && is_old_mac(c, json_string_value(mac)))
                return true;
    }
    return false;
}

static struct qmp_job *new_job(const struct channel *c, const char *path)
{
    struct qmp_job *job = qmp_job_new(path);

    if (!c->checked)
        qmp_job_add(job, "query-rx-filter", NULL);
    for (size_t i = 0; c->checked && i < c->links.n; i++)
        qmp_job_add(job, "set_link", json_pack("{ss sb}", "name", c->links.v[i], "up", 1));
    return job;
}

bool agent_port_raise_links(struct channel *c, const char *path)
{
    struct ff_error ignored;

    if (!c || !c->raise || !path)
        return false;
    if (!c->links.n)
        return c->raise = false;
    if (!c->job)
        c->job = new_job(c, path);
    /* who is refused is no link any more; somebody else may be at the child's only monitor */
    int rc = qmp_job_turn(c->job, &ignored);
    if (rc == -EAGAIN)
        return qmp_job_fd(c->job) < 0;
    bool next = !c->checked && !rc && !has_old_mac(c); /* one that has: may be about to change it */
    if (c->checked)
        c->raise = rc;
    c->checked |= next;
    qmp_job_free(c->job);
    c->job = NULL;
    return next ? agent_port_raise_links(c, path) : c->raise;
}
