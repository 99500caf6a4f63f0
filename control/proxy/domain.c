/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain.c - the source's proxy of a domain: it asks QEMU, and migrates it, by virsh; see domain.h
 */
#include "domain.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "autojson.h"
#include "strv.h"

#define END_LIMIT_MS 60000   /* a libvirtd that is not reached any more: 30 s by its keepalive */
#define POSTCOPY_LIMIT_MS 5000
#define STILL_S 15
#define TURN_MS 10
/* MiB/s, until post-copy begins: pages of zeros are few bytes, and pre-copy is not to end before */
#define PRECOPY_MIB_S "1"

/* A command of QMP: see qmp_by() */
static int run_monitor(void *opaque, const char *line, int fd, char **answer, struct ff_error *err)
{
    const struct proxy *p = opaque;

    return virsh_monitor(p->o->domain, line, fd, answer, err);
}

int domain_connect(struct proxy *p, struct ff_error *err)
{
    int rc = domain_pid(p->o->domain, &p->pid, err);

    if (!rc && !p->q)
        p->q = qmp_by(run_monitor, p, p->pid);
    return rc;
}

/* --- libvirt's migration --- */

static bool has_come(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool has = p->sock >= 0;
    pthread_mutex_unlock(&p->lock);
    return has;
}

static int start_virsh(struct proxy *p, struct ff_error *err)
{
    struct strv w = {0};

    virsh_begin(&w);
    strv_add(&w, "migrate");
    strv_add(&w, "--live");
    strv_add(&w, "--postcopy");
    strv_add(&w, "--bandwidth");
    strv_add(&w, PRECOPY_MIB_S);
    for (char *const *more = p->o->argv; more && *more; more++)
        strv_add(&w, "%s", *more);
    strv_add(&w, "--domain");
    strv_add(&w, "%s", p->o->domain);
    strv_add(&w, "--desturi");
    strv_add(&w, "%s", p->o->to);
    strv_add(&w, "--migrateuri");
    strv_add(&w, "unix://%s", p->o->path);
    int rc = spawn_start(&p->virsh, w.v, NULL, err);
    strv_free(&w);
    return rc;
}

/* 0: it goes on */
static int check_virsh(struct proxy *p, struct ff_error *err)
{
    int status = 0;

    if (!p->virsh.pid || !spawn_read_lines(&p->virsh, TURN_MS, NULL, NULL))
        return 0;
    if (!spawn_ended(&p->virsh, SPAWN_ENDS_MS, &status) || status)
        return virsh_failed(&p->virsh, "migrate", status, err);
    return ff_error_set(err, EREMOTEIO, "virsh migrate: it ended before QEMU sent anything");
}

int domain_migrate(struct proxy *p, struct ff_error *err)
{
    int rc = start_virsh(p, err);

    if (!rc)
        proxy_event(p, "migrating", NULL);
    while (!rc && !has_come(p)) {
        rc = check_virsh(p, err);
        if (!rc)
            rc = proxy_check(p, err);
    }
    return rc ? rc : proxy_qemu_refuse(p, err); /* libvirt has set them now */
}

/* libvirt may not have heard yet that its migration goes on */
static int ask_postcopy(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + POSTCOPY_LIMIT_MS;
    struct strv w = {0};
    int rc;

    strv_add(&w, "migrate-postcopy");
    strv_add(&w, "--domain");
    strv_add(&w, "%s", p->o->domain);
    while ((rc = virsh_run(&w, NULL, err)) == -EREMOTEIO && ff_now_ms() < end &&
           !proxy_check(p, NULL))
        poll(NULL, 0, TURN_MS);
    strv_free(&w);
    return rc;
}

int domain_postcopy(struct proxy *p, struct ff_error *err)
{
    int rc = check_virsh(p, err);

    if (rc)
        return rc;
    alarm(STILL_S); /* old_wait_signals() */
    kill(p->virsh.pid, SIGSTOP);
    rc = ask_postcopy(p, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->held = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

int domain_end(struct proxy *p, struct ff_error *err)
{
    int status = 0, rc = 0;

    if (!p->virsh.pid)
        return 0;
    if (!has_come(p))
        kill(p->virsh.pid, SIGINT); /* it takes back what libvirt has begun */
    proxy_go_on(p);
    if (!spawn_read_lines(&p->virsh, END_LIMIT_MS, NULL, NULL) ||
        !spawn_ended(&p->virsh, SPAWN_ENDS_MS, &status))
        rc = ff_error_set(err, ETIMEDOUT,
                          "virsh migrate: no end within %d s: see virsh domstate --reason %s, on "
                          "both hosts",
                          END_LIMIT_MS / 1000, p->o->domain);
    else if (status)
        rc = virsh_failed(&p->virsh, "migrate", status, err);
    spawn_end(&p->virsh, 0);
    return rc;
}
