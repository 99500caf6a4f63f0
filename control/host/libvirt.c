/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * libvirt.c - ask this host's libvirt, over one connection that is kept, and find the QEMU of a domain
 */
#include "libvirt.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "libvirt_calls.h"
#include "thread.h"
#include "xalloc.h"

#define RUN_FOLDER "/run/libvirt/qemu"
#define COMMIT_LIMIT_MS 50000
#define COMMIT_TURN_MS 20
#define LIMIT_MS 60000 /* libvirt's own, for the lock of a domain, is 30 s */

struct libvirt_call {
    const struct libvirt_calls *v;
    enum libvirt_op op;
    char *domain, *text;
    int fd, over; /* @over: an eventfd */
    atomic_int users; /* who asks, and the thread */
    /* the thread's, until it has set @is_over and written @over */
    atomic_bool is_over;
    struct virt_connect *c;
    struct virt_domain *d;
    char *answer;
    int rc;
    struct ff_error why;
};

static struct {
    pthread_mutex_t lock;
    struct virt_connect *c; /* NULL: none yet */
    pid_t of; /* the process that made it */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void release_call(struct libvirt_call *c)
{
    if (atomic_fetch_sub(&c->users, 1) > 1)
        return;
    ff_close_fd(&c->fd);
    ff_close_fd(&c->over);
    free(c->domain);
    free(c->text);
    free(c->answer);
    free(c);
}

/* --- in the thread --- */

static const char *op_name(enum libvirt_op op)
{
    static const char *const names[] = {"suspend", "resume", "destroy", "undefine", "look at", "describe", "describe",
                                        "describe the definition of", "define", "restore", "list disks of",
                                        "snapshot", "commit an overlay of",
                                        "qemu-monitor-command to"};
    return names[op];
}

/* Its error is there until the next call, of whatever function */
static int failed(struct libvirt_call *c)
{
    const struct virt_error *e = c->v->get_last_error();
    const int number = e ? e->code : 0;

    ff_error_set(&c->why, EREMOTEIO, "libvirt: %s %s: %s", op_name(c->op), c->domain ? c->domain : "a domain",
                 e && e->message ? e->message : "it failed without a message");
    c->why.code = number == VIRT_ERR_NO_DOMAIN                  ? ESRCH
                  : number == VIRT_ERR_OPERATION_INVALID        ? EALREADY
                  : c->c && c->v->connect_is_alive(c->c) == 1 ? EREMOTEIO
                                                                : EPIPE;
    return -c->why.code;
}

/* @c->c, the kept one or a new one */
static int take_connection(struct libvirt_call *c)
{
    const struct libvirt_calls *v = c->v;
    int rc = 0;

    pthread_mutex_lock(&kept.lock);
    if (kept.c && kept.of == getpid() && v->connect_is_alive(kept.c) != 1) {
        v->connect_close(kept.c);
        kept.c = NULL;
    }
    if (kept.of != getpid()) /* of before fork(2): its threads are not here */
        kept.c = NULL;
    if (!kept.c) {
        kept.c = v->connect_open(LIBVIRT_HERE);
        kept.of = getpid();
    }
    if (kept.c && !v->connect_ref(kept.c))
        c->c = kept.c;
    else if (failed(c))
        rc = -(c->why.code = ECONNREFUSED);
    pthread_mutex_unlock(&kept.lock);
    return rc;
}

/* So far nothing has been asked: a connection that turns out to be broken is made anew */
static int reach_domain(struct libvirt_call *c)
{
    unsigned long version;

    for (int i = 0;; i++) {
        int rc = take_connection(c);
        if (rc)
            return rc;
        if (c->domain ? (c->d = c->v->domain_lookup(c->c, c->domain)) != NULL : !c->v->connect_get_lib_version(c->c, &version))
            return 0;
        rc = failed(c);
        if (i || rc != -EPIPE)
            return rc;
        c->v->connect_close(c->c);
        c->c = NULL;
    }
}

static bool is_disk(const struct virt_param *p, const char *what, int *n)
{
    int at = 0;
    char rest[sizeof(p->field)];

    return p->type == VIRT_PARAM_STRING && sscanf(p->field, "block.%d.%79s%n", n, rest, &at) == 2 && at && !strcmp(rest, what);
}

static json_t *disks_of(const struct virt_stats *s)
{
    json_t *list = json_array();
    int n, m;

    for (int i = 0; i < s->nparams; i++)
        for (int k = 0; k < s->nparams && is_disk(&s->params[i], "name", &n); k++)
            if (is_disk(&s->params[k], "path", &m) && m == n)
                json_array_append_new(list, json_pack("{ss ss}", "target", s->params[i].value.s, "source",
                                                      s->params[k].value.s));
    return list;
}

static int list_disks(struct libvirt_call *c)
{
    struct virt_domain *list[] = {c->d, NULL};
    struct virt_stats **s = NULL;

    if (c->v->stats(list, VIRT_STATS_BLOCK, &s, 0) < 1)
        return failed(c);
    json_t *disks = disks_of(s[0]);
    c->answer = json_dumps(disks, JSON_COMPACT);
    json_decref(disks);
    c->v->stats_free(s);
    return c->answer ? 0 : ff_error_set(&c->why, EPROTO, "libvirt: list disks of %s: no UTF-8", c->domain);
}

static int make_overlays(struct libvirt_call *c)
{
    struct virt_snapshot *s =
        c->v->snapshot(c->d, c->text, VIRT_SNAPSHOT_DISK_ONLY | VIRT_SNAPSHOT_NO_METADATA | VIRT_SNAPSHOT_ATOMIC);

    return s ? (c->v->snapshot_free(s), 0) : failed(c);
}

/* One that takes too long would mirror for ever, and is ended */
static int commit_overlay(struct libvirt_call *c)
{
    const uint64_t end = ff_now_ms() + COMMIT_LIMIT_MS;
    struct virt_block_job job = {0};

    if (c->v->commit(c->d, c->text, NULL, NULL, 0, VIRT_COMMIT_SHALLOW | VIRT_COMMIT_ACTIVE))
        return failed(c);
    for (; ff_now_ms() < end; poll(NULL, 0, COMMIT_TURN_MS)) {
        int is = c->v->job_info(c->d, c->text, &job, 0);
        if (is < 0)
            return failed(c);
        if (!is)
            return ff_error_set(&c->why, EREMOTEIO, "libvirt: commit an overlay of %s: its job has ended", c->domain);
        if (job.end && job.at == job.end && !c->v->job_abort(c->d, c->text, VIRT_ABORT_PIVOT))
            return 0; /* it may not be ready for that at once */
    }
    c->v->job_abort(c->d, c->text, 0);
    return ff_error_set(&c->why, ETIMEDOUT, "libvirt: commit an overlay of %s: not done within %d ms", c->domain,
                        COMMIT_LIMIT_MS);
}

static int carry_line(struct libvirt_call *c)
{
    unsigned n_out = 0;
    int *out = NULL;

    if (c->fd >= 0 && !c->v->monitor_with_files)
        return ff_error_set(&c->why, EOPNOTSUPP, "libvirt: pass a descriptor to %s: libvirt 8.2 or newer does so", c->domain);
    int rc = c->fd < 0 ? c->v->monitor(c->d, c->text, &c->answer, 0)
                       : c->v->monitor_with_files(c->d, c->text, 1, &c->fd, &n_out, &out, &c->answer, 0);
    for (unsigned i = 0; i < n_out; i++)
        close(out[i]);
    free(out);
    return rc ? failed(c) : 0;
}

static int take_answer_text(struct libvirt_call *c, char *text)
{
    c->answer = text;
    return text ? 0 : failed(c);
}

static int answer_call(struct libvirt_call *c)
{
    struct virt_domain *made;
    int rc = reach_domain(c);

    if (rc)
        return rc;
    switch (c->op) {
    case LIBVIRT_SUSPEND:
        return c->v->domain_suspend(c->d) ? failed(c) : 0;
    case LIBVIRT_RESUME:
        return c->v->domain_resume(c->d) ? failed(c) : 0;
    case LIBVIRT_DESTROY:
        return c->v->domain_destroy(c->d) ? failed(c) : 0;
    case LIBVIRT_UNDEFINE:
        return c->v->domain_undefine(c->d, VIRT_UNDEFINE_KEEP_NVRAM) ? failed(c) : 0;
    case LIBVIRT_IS_ACTIVE:
        rc = c->v->domain_is_active(c->d);
        return rc < 0 ? failed(c) : rc ? 0 : ff_error_set(&c->why, ESRCH, "libvirt: domain %s does not run", c->domain);
    case LIBVIRT_XML:
        return take_answer_text(c, c->v->domain_xml(c->d, 0));
    case LIBVIRT_XML_MOVES:
        return take_answer_text(c, c->v->domain_xml(c->d, VIRT_XML_MIGRATABLE));
    case LIBVIRT_XML_DEFINED:
        return take_answer_text(c, c->v->domain_xml(c->d, VIRT_XML_INACTIVE | VIRT_XML_MIGRATABLE | VIRT_XML_SECURE));
    case LIBVIRT_DEFINE:
        made = c->v->domain_define(c->c, c->text);
        return !made ? failed(c) : (c->v->domain_free(made), 0);
    case LIBVIRT_RESTORE:
        return c->v->domain_restore(c->c, c->text, NULL, VIRT_SAVE_PAUSED) ? failed(c) : 0;
    case LIBVIRT_DISKS:
        return list_disks(c);
    case LIBVIRT_SNAPSHOT:
        return make_overlays(c);
    case LIBVIRT_COMMIT:
        return commit_overlay(c);
    case LIBVIRT_MONITOR:
        return carry_line(c);
    }
    return ff_error_set(&c->why, EINVAL, "libvirt: no such question");
}

static void *call_main(void *opaque)
{
    struct libvirt_call *c = opaque;

    c->rc = answer_call(c);
    if (c->d)
        c->v->domain_free(c->d);
    if (c->c)
        c->v->connect_close(c->c);
    atomic_store(&c->is_over, true);
    eventfd_write(c->over, 1);
    release_call(c);
    return NULL;
}

/* --- who asks --- */

int libvirt_begin(enum libvirt_op op, const char *domain, const char *text, int fd, struct libvirt_call **out,
                  struct ff_error *err)
{
    const struct libvirt_calls *v = libvirt_calls(err);
    pthread_t thread;

    if (!v)
        return -ENOENT;
    struct libvirt_call *c = xcalloc(1, sizeof(*c));
    *c = (struct libvirt_call){.v = v, .op = op, .domain = domain ? xstrdup(domain) : NULL,
                               .text = text ? xstrdup(text) : NULL, .users = 2, .over = eventfd(0, EFD_CLOEXEC),
                               .fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3)};
    int rc = c->over < 0 || (fd >= 0 && c->fd < 0) ? ff_error_set(err, errno, "libvirt: eventfd, dup: %s", strerror(errno)) : 0;
    if (!rc)
        rc = ff_thread_start(&thread, call_main, c, "libvirt", err);
    if (rc) {
        c->users = 1;
        release_call(c);
        return rc;
    }
    pthread_detach(thread);
    *out = c;
    return 0;
}

int libvirt_call_fd(const struct libvirt_call *c)
{
    return c->over;
}

int libvirt_end(struct libvirt_call *c, int limit_ms, char **answer, struct ff_error *err)
{
    struct pollfd p = {.fd = c->over, .events = POLLIN};
    const uint64_t end = ff_now_ms() + (uint64_t)limit_ms;
    int n, rc;

    do {
        uint64_t now = ff_now_ms();
        n = poll(&p, 1, now < end ? (int)(end - now) : 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0 || !atomic_load(&c->is_over))
        rc = ff_error_set(err, ETIMEDOUT, "libvirt: %s %s: no answer within %d ms", op_name(c->op),
                          c->domain ? c->domain : "a domain", limit_ms);
    else
        rc = c->rc ? ff_error_set(err, -c->rc, "%s", c->why.text) : 0;
    if (!rc && answer) {
        *answer = c->answer ? c->answer : xstrdup("");
        c->answer = NULL;
    }
    release_call(c);
    return rc;
}

static int ask_with(enum libvirt_op op, const char *domain, const char *text, int fd, char **answer, struct ff_error *err)
{
    struct libvirt_call *c;
    int rc = libvirt_begin(op, domain, text, fd, &c, err);

    return rc ? rc : libvirt_end(c, LIMIT_MS, answer, err);
}

int libvirt_ask(enum libvirt_op op, const char *domain, const char *text, char **answer, struct ff_error *err)
{
    return ask_with(op, domain, text, -1, answer, err);
}

int libvirt_monitor(const char *domain, const char *line, int fd, char **answer, struct ff_error *err)
{
    int rc = ask_with(LIBVIRT_MONITOR, domain, line, fd, answer, err);

    if (rc != -EREMOTEIO) /* QEMU's own refusal is an answer */
        return rc;
    if (err)
        err->code = ENODATA;
    return -ENODATA;
}

/* --- its QEMU --- */

char *domain_pid_file(const char *name)
{
    return xprintf(RUN_FOLDER "/%s.pid", name);
}

int domain_pid(const char *name, pid_t *pid, struct ff_error *err)
{
    if (!*name || strchr(name, '/'))
        return ff_error_set(err, EINVAL, "domain %s: want its name", name);
    FF_AUTO_FREE char *path = domain_pid_file(name);
    FILE *f = fopen(path, "re");
    int number = 0;

    if (f && fscanf(f, "%d", &number) != 1)
        number = 0;
    if (f)
        fclose(f);
    if (number <= 0 || kill(number, 0))
        return ff_error_set(err, ESRCH,
                            "domain %s: it does not run here (%s): see virsh list --all, and run "
                            "farfork as root",
                            name, number > 0 ? strerror(errno) : path);
    *pid = number;
    return 0;
}
