/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session.c - options, signals, and the one loop that hears everybody
 */
/**
 * DOC: Theory of Operation
 *
 * Threads      one. session_turn() is the only wait: signals, the parent, all agents at once.
 * Failure      a QMP connection that ends says nothing of the parent, whose socket somebody else
 *              may have taken. It is connected to again: another process there, or nobody, means
 *              that the parent is gone.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "autojson.h"
#include "defaults.h"
#include "farfork.h"
#include "launcher.h"
#include "qmp_secret.h"
#include "rundir.h"
#include "scope.h"
#include "session.h"

#define AGAIN_LIMIT_MS 2000
#define END_TURN_MS 10
#define SPARE_LIMIT_MS 2000 /* they have been ending for long */

/* --- options --- */

static int parse_link_options(const char *options, struct ff_address **a, struct ff_error *why)
{
    FF_AUTO_FREE char *listed = xprintf(",%s", options ? options : "");
    if (strstr(listed, ",key-file="))
        return ff_error_set(why, EINVAL, "--options: key-file: each move and fork has a key of its "
                            "own, which nobody need name");
    struct ff_error *err = ff_error_new();
    FF_AUTO_FREE char *address = xprintf("127.0.0.1:1%s%s", options ? "," : "",
                                      options ? options : "");
    int rc = ff_address_parse(address, a, err);

    if (rc)
        ff_error_set(why, EINVAL, "--options: %s", ff_error_message(err));
    ff_error_free(err);
    return rc;
}

unsigned session_reconnect_ms(const struct session *s)
{
    struct ff_address *a = NULL;
    struct ff_error ignored; /* they were checked at the start */

    int ms = parse_link_options(s->o.link_options, &a, &ignored) ? 0 : ff_address_reconnect_ms(a);
    ff_address_free(a);
    return (unsigned)ms;
}

int session_check_options(const struct session_options *o, struct ff_error *why)
{
    struct ff_address *a = NULL;

    int rc = parse_link_options(o->link_options, &a, why);
    ff_address_free(a);

    enum scope_mode scope;

    if (!rc && o->scope && !scope_mode_parse(o->scope, &scope))
        rc = ff_error_set(why, EINVAL, "--scope %s: want one, each or none", o->scope);
    if (!rc && o->id && !rundir_name_valid(o->id))
        rc = ff_error_set(why, EINVAL,
                          "--id %s: want at most 40 letters, digits and . _ -, the first a "
                          "letter or digit",
                          o->id);
    return rc || !o->launcher ? rc : launcher_check(o->launcher, why);
}

static char *copy(const char *text)
{
    return text ? xstrdup(text) : NULL;
}

int session_init(struct session *s, const struct session_kind *kind,
                 const struct session_options *given, struct ff_error *why)
{
    s->kind = kind;
    s->o = *given;
    s->o.parent_path = given->books ? xstrdup(given->parent_path)
                                    : defaults_absolute_path(given->parent_path);
    s->o.id = given->id ? xstrdup(given->id) : defaults_id(s->o.parent_path);
    s->o.agent = given->agent ? xstrdup(given->agent) : defaults_agent();
    s->o.rundir = given->rundir ? defaults_absolute_path(given->rundir) : NULL;
    s->o.metrics_dir = given->metrics_dir ? defaults_absolute_path(given->metrics_dir) : NULL;
    s->o.launcher = xstrdup(given->launcher ? given->launcher : launcher_default());
    s->o.link_options = copy(given->link_options);
    s->o.qemu = copy(given->qemu);
    s->o.scope = copy(given->scope);
    int rc = session_check_options(&s->o, why);
    return rc ? rc : session_make_key(s, why);
}

/* --- the loop --- */

void session_read_signals(struct session *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof(info)) == sizeof(info))
        s->interrupted = true;
}

bool session_has_parent_ended(const struct session *s)
{
    return s->parent_gone && s->parent_start && process_look(s->parent_pid, s->parent_start) == PROCESS_GONE;
}

/* The connection is over. A name that is gone, or a socket at which nobody listens, is the parent's end only
 * where the kernel says so: it closes its sockets first */
static void find_parent_again(struct session *s)
{
    struct qmp *again = NULL;
    struct ff_error why;

    s->parent_silent = true;
    if (s->beside || qmp_pid(s->qmp) != s->parent_pid) /* of the process beside it: its own parent's socket is not ours to take */
        return;
    int rc = qmp_connect(s->o.parent_path, s->signals, AGAIN_LIMIT_MS, &again, &why);

    if (!rc && qmp_pid(again) == s->parent_pid) {
        s->parent_silent = false;
        qmp_replace(s->qmp, again);
        return;
    }
    uint64_t until = ff_now_ms() + AGAIN_LIMIT_MS;
    /* one that closes its socket, or has, may be ending; one that is busy answers late */
    s->parent_gone = !rc || rc == -ECONNREFUSED || rc == -ENOENT || rc == -EPIPE ||
                     rc == -ECONNRESET;
    qmp_free(again);
    while (s->parent_gone && !session_has_parent_ended(s) && ff_now_ms() < until)
        poll(NULL, 0, END_TURN_MS);
}

void session_on_guest_event(struct session *s, json_t *e)
{
    if (!strcmp(text_of(e, "event"), "BLOCK_IO_ERROR")) {
        json_decref(s->io_error);
        s->io_error = json_incref(e);
    } else if (!strcmp(text_of(e, "event"), "DEVICE_UNPLUG_GUEST_ERROR")) {
        json_decref(s->unplug_error);
        s->unplug_error = json_incref(e);
    }
    json_decref(e);
}

static void on_parent(struct session *s)
{
    int rc = qmp_drain(s->qmp);

    if (rc && rc != -EAGAIN)
        find_parent_again(s);
    json_t *e;
    while ((e = qmp_take_event(s->qmp)))
        session_on_guest_event(s, e);
}

void session_turn(struct session *s, int wait_ms)
{
    size_t n = 3 + 3 * s->n_hosts;
    struct pollfd *p = xcalloc(n, sizeof(*p));

    p[0] = (struct pollfd){.fd = s->interrupted ? -1 : s->signals, .events = POLLIN};
    p[1] = (struct pollfd){.fd = s->qmp && !s->parent_silent ? qmp_fd(s->qmp) : -1,
                           .events = POLLIN};
    p[2] = (struct pollfd){.fd = s->watch ? s->watch : -1, .events = POLLIN};
    for (size_t i = 0; i < s->n_hosts; i++) {
        p[3 + 3 * i] = (struct pollfd){.fd = s->hosts[i].run.out, .events = POLLIN};
        p[4 + 3 * i] = (struct pollfd){.fd = s->hosts[i].run.err, .events = POLLIN};
        p[5 + 3 * i] = (struct pollfd){.fd = s->hosts[i].unsent ? s->hosts[i].run.in : -1, .events = POLLOUT};
    }
    int got = poll(p, n, wait_ms);
    if (got > 0 && p[0].revents)
        session_read_signals(s);
    if (got > 0 && p[1].revents)
        on_parent(s);
    s->watched = got > 0 && p[2].revents;
    for (size_t i = 0; i < s->n_hosts; i++)
        host_flush(&s->hosts[i], 0);
    for (size_t i = 0; got > 0 && i < s->n_hosts; i++)
        if (p[3 + 3 * i].revents || p[4 + 3 * i].revents)
            host_on_output(s, &s->hosts[i]);
    free(p);
}

/* --- its end --- */

static void host_release(struct host *h)
{
    free(h->name);
    free(h->address);
    free(h->error);
    free(h->unfed);
    free(h->touched);
    free(h->no_multicast);
    free(h->rundir);
    free(h->lasting);
    free(h->socket);
    free(h->session);
    free(h->unsent);
    spawn_free(&h->run);
}

void vm_release(struct vm *vm)
{
    free(vm->qmp);
    free(vm->log);
    free(vm->error);
    free(vm->returns);
    json_decref(vm->asked);
}

void session_free(struct session *s)
{
    for (size_t i = s->n_hosts; i < s->n_hosts + s->n_spare; i++)
        host_close(&s->hosts[i], SPARE_LIMIT_MS);
    for (size_t i = 0; i < s->n_hosts + s->n_spare; i++)
        host_release(&s->hosts[i]);
    for (size_t i = 0; i < s->n_vms; i++)
        vm_release(&s->vms[i]);
    free(s->hosts);
    free(s->vms);
    hostlist_free(&s->hostlist);
    strv_free(&s->notes);
    strv_free(&s->parent_argv);
    free(s->parent_exe);
    free(s->parent_cwd);
    json_decref(s->answer);
    json_decref(s->unplug_error);
    strv_free(&s->unplugged);
    json_decref(s->io_error);
    key_text_free(s->key);
    qmp_free(s->qmp);
    if (s->signals > 0)
        close(s->signals);
    free((char *)s->o.parent_path);
    free((char *)s->o.id);
    free((char *)s->o.agent);
    free((char *)s->o.rundir);
    free((char *)s->o.metrics_dir);
    free((char *)s->o.launcher);
    free((char *)s->o.link_options);
    free((char *)s->o.qemu);
    free((char *)s->o.scope);
}
