/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_serve.c - farfork visit --serve: a guest visits other hosts when it asks for that
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the host's end of the guest's port (docs/guest.md), while the guest is here. A request becomes an
 *              ordinary visit to a host that a person has named. Where it visits, the agent has its port
 *              (visit_port.c).
 * Picture      port -> visit ALIAS -> move_run() -> there: visiting; return; home again
 *                                                   or it never left: failed
 *                   <- home, failed
 * Invariants   while a visit lasts this port is neither read nor written: nobody would hear that.
 * Failure      the guest hears that a visit failed; why is on stderr, since it names paths and hosts. A visit that ends
 *              anywhere but here ends this program: where the guest is, and what to do, is that visit's last word.
 * Limits       one visit at a time; one begins EVERY_MS after the one before, whatever the guest asks.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "defaults.h"
#include "guest_port.h"
#include "signals.h"
#include "visit.h"

#define VISIT_FAILED "the host could not make the visit; its log says why"
#define EVERY_MS 1000 /* a guest that asks all the time starts agents no more often */
#define LAST_MS 2000  /* for its last answer, which it may not read */

struct visit_server {
    const struct visit_serve *s;
    const struct session_options *o;
    const struct visit_options *v;
    const char *id;
    int port;      /* -1: its QEMU has ended */
    int signals;
    struct guest_input in;
    char *out;     /* an answer, not yet written from @out_at on; NULL: none */
    size_t out_at;
    unsigned turn;
    uint64_t next_ms; /* when another visit may begin */
    bool over;
    int code;
};

/* --- whom it may visit --- */

int visit_permit_add(struct visit_serve *s, const char *spec, struct ff_error *why)
{
    const char *host = strchr(spec, '=');
    FF_AUTO_FREE char *alias = xprintf("%.*s", host ? (int)(host - spec) : 0, spec);

    if (!guest_port_is_word(alias) || !host[1])
        return ff_error_set(why, EINVAL, "--permit %s: want ALIAS=HOST[=ADDRESS], ALIAS of 1..%d letters, digits and "
                            ". _ -", spec, GUEST_WORD_MAX);
    for (size_t i = 0; i < s->n_permits; i++)
        if (!strcmp(s->permits[i].alias, alias))
            return ff_error_set(why, EEXIST, "--permit %s: %s is given twice", spec, alias);
    s->permits = xrealloc(s->permits, (s->n_permits + 1) * sizeof(*s->permits));
    s->permits[s->n_permits++] = (struct visit_permit){.alias = xstrdup(alias), .host = xstrdup(host + 1)};
    return 0;
}

void visit_permits_free(struct visit_serve *s)
{
    for (size_t i = 0; i < s->n_permits; i++) {
        free(s->permits[i].alias);
        free(s->permits[i].host);
    }
    free(s->permits);
}

static const char *permitted_host(const struct visit_serve *s, const char *alias)
{
    for (size_t i = 0; i < s->n_permits; i++)
        if (!strcmp(s->permits[i].alias, alias))
            return s->permits[i].host;
    return NULL;
}

/* --- the port --- */

static void hang_up_visitor(struct visit_server *v)
{
    close(v->port);
    v->port = -1;
    free(v->out);
    v->out = NULL;
}

/* @text is taken over. None is left when there is another */
static void answer_visitor(struct visit_server *v, char *text)
{
    free(v->out);
    v->out = text;
    v->out_at = 0;
}

static void write_visitor(struct visit_server *v)
{
    size_t left = strlen(v->out + v->out_at);
    ssize_t n = send(v->port, v->out + v->out_at, left, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        hang_up_visitor(v);
    } else if (n > 0 && (v->out_at += (size_t)n, (size_t)n == left)) {
        free(v->out);
        v->out = NULL;
    }
}

/* The guest is in another QEMU here, which has its port. What was written to the one of before is read first */
static void move_visitor(struct visit_server *v, const char *to)
{
    struct ff_error why;
    ssize_t n = 1;
    size_t room;

    for (char *at = guest_port_room(&v->in, &room); n > 0 && room; at = guest_port_room(&v->in, &room))
        if ((n = recv(v->port, at, room, MSG_DONTWAIT)) > 0)
            v->in.n += (size_t)n;
    guest_port_drop_unfinished(&v->in);
    hang_up_visitor(v);
    v->port = guest_port_connect(to, "--serve", &why);
    int rc = v->port < 0 ? 0 : visit_link_socket(v->s->port, to);
    if (v->port < 0)
        fprintf(stderr, "farfork visit: the guest is not heard any more: %s\n", why.text);
    else if (rc)
        fprintf(stderr, "farfork visit: the guest's port is %s now; %s could not be made to lead there: %s\n", to, v->s->port,
                strerror(-rc));
}

/* --- visits --- */

static void end_served_visit(struct visit_server *v, const struct visit *visit, int code)
{
    const char *word = visit->o.word;

    if (visit->port_here)
        move_visitor(v, visit->port_here);
    if (visit->outcome == MOVE_HOME && visit->asked)
        answer_visitor(v, guest_port_home(visit->asked));
    else if (visit->outcome == MOVE_HERE || (visit->outcome == MOVE_HOME && visit->failed))
        answer_visitor(v, guest_port_failed_word(word, VISIT_FAILED));
    v->over = visit->signalled || (visit->outcome != MOVE_HERE && visit->outcome != MOVE_HOME);
    v->code = v->over ? code : 0;
    if (v->port < 0 && !v->over) {
        v->over = true;
        v->code = MOVE_EXIT_TROUBLE;
    }
}

static void begin_served_visit(struct visit_server *v, const struct guest_request *q, const char *host)
{
    const struct move_fallback none = {0};
    FF_AUTO_FREE char *id = xprintf("%s-%u", v->id, ++v->turn);
    struct session_options o = *v->o;
    struct visit_options how = *v->v;
    struct visit visit;
    struct ff_error why;
    int code = EXIT_USAGE;

    o.id = id;
    how.word = q->word;
    v->next_ms = ff_now_ms() + EVERY_MS;
    fprintf(stderr, "farfork visit: the guest asks for %s: visit %s on %s\n", q->alias, id, host);
    if (visit_init(&visit, &how, &why)) {
        fprintf(stderr, "farfork visit: %s\n", why.text);
    } else {
        const struct move_way way = {.via = VIA_ATTACH, .visit = &visit};
        code = move_run(&o, &none, &way, host);
    }
    end_served_visit(v, &visit, code);
    visit_free(&visit);
}

static void run_visitor(struct visit_server *v, const struct guest_request *q)
{
    const char *host;

    switch (q->verb) {
    case GUEST_VISIT:
        host = permitted_host(v->s, q->alias);
        if (host) {
            begin_served_visit(v, q, host);
            break;
        }
        fprintf(stderr, "farfork visit: the guest asks for %s, which no --permit names\n", q->alias);
        answer_visitor(v, guest_port_failed_word(q->word, "this host permits no visit by that alias"));
        break;
    case GUEST_RETURN:
        answer_visitor(v, guest_port_home(q->word));
        break;
    case GUEST_FORK:
        answer_visitor(v, guest_port_failed("no vmclone --serve serves this machine"));
        break;
    case GUEST_JOIN:
        answer_visitor(v, guest_port_failed_word(q->word, "no vmclone --serve serves this machine"));
        break;
    default: /* of a machine that was a child once */
        break;
    }
}

/* Until there is something to be written; @got bytes are new */
static void take_visitor(struct visit_server *v, size_t got)
{
    struct guest_request q;
    struct ff_error why;
    int rc = 1;

    while (rc && !v->out && !v->over && (got || ff_now_ms() >= v->next_ms)) {
        rc = guest_port_take(&v->in, got, INT_MAX, &q, &why);
        got = 0;
        if (rc > 0)
            run_visitor(v, &q);
        else if (rc < 0)
            answer_visitor(v, guest_port_failed(why.text));
    }
}

static void read_visitor(struct visit_server *v)
{
    size_t room;
    char *at = guest_port_room(&v->in, &room);
    ssize_t n = recv(v->port, at, room, MSG_DONTWAIT);

    if (n > 0)
        take_visitor(v, (size_t)n);
    else if (!n || (errno != EAGAIN && errno != EINTR))
        hang_up_visitor(v);
}

/* SIGUSR1 brings a guest home, and this one is */
static bool is_told_to_end(const struct visit_server *v)
{
    struct signalfd_siginfo info;
    bool ends = false;

    while (read(v->signals, &info, sizeof(info)) == sizeof(info))
        ends |= info.ssi_signo != SIGUSR1;
    return ends;
}

static void visitor_turn(struct visit_server *v)
{
    uint64_t now = ff_now_ms();
    bool waits = !v->out && now < v->next_ms;
    struct pollfd p[2] = {{.fd = waits ? -1 : v->port, .events = v->out ? POLLOUT : POLLIN},
                          {.fd = v->signals, .events = POLLIN}};

    if (poll(p, 2, waits ? (int)(v->next_ms - now) : -1) > 0 && p[1].revents)
        v->over |= is_told_to_end(v);
    if (!v->over && p[0].revents && v->out)
        write_visitor(v);
    else if (!v->over && p[0].revents)
        read_visitor(v);
    if (!v->over && v->port >= 0)
        take_visitor(v, 0);
}

static void say_last(struct visit_server *v)
{
    uint64_t end = ff_now_ms() + LAST_MS;

    for (uint64_t now = ff_now_ms(); v->port >= 0 && v->out && now < end; now = ff_now_ms()) {
        struct pollfd p = {.fd = v->port, .events = POLLOUT};
        if (poll(&p, 1, (int)(end - now)) > 0)
            write_visitor(v);
    }
    if (v->port >= 0)
        hang_up_visitor(v);
}

int visit_serve(const struct visit_serve *s, const struct session_options *o, const struct visit_options *how)
{
    struct ff_error why;
    FF_AUTO_FREE char *id = o->id ? xstrdup(o->id) : defaults_id(o->parent_path);
    struct visit_server v = {.s = s, .o = o, .v = how, .id = id,
                             .port = guest_port_connect(s->port, "--serve", &why)};

    if (v.port < 0) {
        fprintf(stderr, "farfork visit: %s\n", why.text);
        return EXIT_USAGE;
    }
    v.signals = signals_take_more(SIGUSR1);
    printf("serving %s\n", s->port);
    fflush(stdout);
    while (v.port >= 0 && !v.over)
        visitor_turn(&v);
    say_last(&v);
    if (v.signals >= 0)
        close(v.signals);
    return v.code;
}
