/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_domain.c - the source of a domain's move: suspend, hold, resume, destroy; see attach_domain.h
 */
#include "attach_domain.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "settle.h"
#include "virsh.h"

#define RESUME_LIMIT_MS 60000 /* a libvirtd that is started anew is there after a few seconds */
#define RESUME_TURN_MS 200
#define TERM_LIMIT_MS 10000   /* then libvirt itself sends SIGKILL */
#define PENDING "ShdPnd:\t"

static int virsh_domain(struct attach *a, const char *command, const char *option, char **out, struct ff_error *err)
{
    struct strv w = {0};

    strv_add(&w, "%s", command);
    strv_add(&w, "--domain");
    strv_add(&w, "%s", a->o->domain);
    if (option)
        strv_add(&w, "%s", option);
    int rc = virsh_run(&w, out, err);
    strv_free(&w);
    return rc;
}

/* --- the source, before GO --- */

static int find_vcpus(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    FF_AUTO_JSON json_t *list = NULL;
    int rc = qmp_command(a->q, "query-cpus-fast", NULL, &list, err);

    if (rc)
        return rc;
    free(d->vcpus);
    d->n_vcpus = (unsigned)json_array_size(list);
    d->vcpus = xcalloc(d->n_vcpus + 1, sizeof(*d->vcpus));
    for (unsigned i = 0; i < d->n_vcpus; i++)
        d->vcpus[i].tid = (pid_t)json_integer_value(json_object_get(json_array_get(list, i), "thread-id"));
    return d->n_vcpus ? 0 : ff_error_set(err, EPROTO, "QEMU: query-cpus-fast: no CPU");
}

int attach_domain_stop(struct attach *a, struct ff_error *err)
{
    int rc = find_vcpus(a, err);

    return rc ? rc : virsh_domain(a, "suspend", NULL, NULL, err);
}

/* @name of a thread's files in /proc, whole */
static int read_thread(pid_t pid, pid_t tid, const char *name, char *to, size_t room, struct ff_error *err)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, name);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(to, 1, room - 1, f) : 0;
    int code = n ? 0 : f && !ferror(f) ? ESRCH : errno;

    if (f)
        fclose(f);
    to[n] = '\0';
    return code ? ff_error_set(err, code, "%s: read: %s", path, strerror(code)) : 0;
}

static int look_at_vcpu(pid_t pid, struct attach_vcpu *v, struct ff_error *err)
{
    static const char *const counts[] = {"\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:"};
    char status[4096];
    int rc = read_thread(pid, v->tid, "syscall", v->call, sizeof(v->call), err);

    if (!rc)
        rc = read_thread(pid, v->tid, "status", status, sizeof(status), err);
    v->switches = 0;
    for (size_t i = 0; !rc && i < FF_ARRAY_LEN(counts); i++) {
        const char *at = strstr(status, counts[i]);
        long long n;

        if (!at || sscanf(at + strlen(counts[i]), "%lld", &n) != 1)
            return ff_error_set(err, EPROTO, "thread %d: its status has no %s", (int)v->tid, counts[i] + 1);
        v->switches += n;
    }
    return rc;
}

static bool waits_on_futex(const struct attach_vcpu *v)
{
    long nr;

    return sscanf(v->call, "%ld", &nr) == 1 && nr == SYS_futex; /* "running": no number */
}

/* The thread of a CPU that stands still waits for a condition, and has done nothing else since: to be held it left its
 * CPU once. One that had run would not wait there, or have left it once more when it came to wait there again */
static int check_still_parked(struct attach *a, struct ff_error *err)
{
    const struct attach_domain *d = a->domain;
    int rc = 0;

    for (unsigned i = 0; i < d->n_vcpus && !rc; i++) {
        const struct attach_vcpu *was = &d->vcpus[i];
        struct attach_vcpu now = {.tid = was->tid};

        rc = look_at_vcpu(a->pid, &now, err);
        if (!rc && (!waits_on_futex(was) || strcmp(was->call, now.call) || now.switches > was->switches + 1))
            rc = ff_error_set(err, EBUSY, "domain %s: somebody resumed it while its state was saved: move it again",
                              a->o->domain);
    }
    return rc;
}

static int check_same_domain(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE char *now = NULL;
    int rc = virsh_domain(a, "dumpxml", "--migratable", &now, err);

    return rc || !strcmp(now, a->domain->xml)
               ? rc
               : ff_error_set(err, EAGAIN, "domain %s: its definition has changed since the move began: move it again",
                              a->o->domain);
}

int attach_domain_hold(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    int rc = 0;

    for (unsigned i = 0; i < d->n_vcpus && !rc; i++)
        rc = look_at_vcpu(a->pid, &d->vcpus[i], err);
    if (!rc)
        rc = settle_check_stopped(a->q, err);
    if (!rc)
        rc = hold_begin(a->pid, &a->hold, err);
    if (!rc)
        rc = check_still_parked(a, err);
    return rc ? rc : check_same_domain(a, err);
}

int attach_domain_take_back(struct attach *a, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + RESUME_LIMIT_MS;
    bool running = false;
    char status[32];
    int rc;

    while ((rc = attach_qemu_status(a, status, &running, err)) || (a->was_running && !running)) {
        if (!rc)
            rc = virsh_domain(a, "resume", NULL, NULL, err);
        if (rc && (ff_now_ms() > end || attach_domain_has_ended(a)))
            return rc;
        if (rc)
            poll(NULL, 0, RESUME_TURN_MS);
    }
    return 0;
}

/* --- the source, when all is there --- */

/* libvirt has begun to end it, and takes what comes now for its own doing; else its end would be a crash */
static bool has_term(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/status", (int)pid);
    unsigned long long pending = 0;
    char line[128];
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, PENDING, strlen(PENDING)))
            pending = strtoull(line + strlen(PENDING), NULL, 16);
    if (f)
        fclose(f);
    return pending >> (SIGTERM - 1) & 1;
}

/* Until libvirt has sent SIGTERM to a QEMU that stands still, or its virsh has ended */
static void await_term(const struct attach *a, struct spawn *virsh)
{
    uint64_t end = ff_now_ms() + TERM_LIMIT_MS;

    while (!has_term(a->pid) && !attach_domain_has_ended(a) && ff_now_ms() < end) {
        struct pollfd f[] = {{.fd = virsh->out, .events = POLLIN}, {.fd = virsh->err, .events = POLLIN}};

        poll(f, 2, ATTACH_TURN_MS);
        if (spawn_on_output(virsh))
            return;
    }
}

/* Also one that libvirtd, started again meanwhile, found gone before it heard our word. False: or nobody says */
static bool is_over_for_libvirt(const struct attach *a)
{
    FF_AUTO_FREE char *names = NULL;
    struct ff_error ignored;
    struct strv w = {0};
    char *rest;

    strv_add(&w, "list");
    strv_add(&w, "--name");
    int rc = virsh_run(&w, &names, &ignored);
    strv_free(&w);
    for (char *n = rc ? NULL : strtok_r(names, "\n", &rest); n && !rc; n = strtok_r(NULL, "\n", &rest))
        rc = !strcmp(n, a->o->domain);
    return !rc;
}

void attach_domain_end(struct attach *a)
{
    struct ff_error why = {0};
    struct spawn virsh = SPAWN_NONE;
    struct strv w = {0};

    virsh_begin(&w);
    strv_add(&w, "destroy");
    strv_add(&w, "--domain");
    strv_add(&w, "%s", a->o->domain);
    int rc = spawn_start(&virsh, w.v, NULL, &why);
    strv_free(&w);
    if (!rc)
        await_term(a, &virsh);
    hold_end(a->hold, SIGKILL);
    a->hold = NULL;
    if (!rc)
        rc = virsh_end(&virsh, "destroy", NULL, &why);
    if (rc && is_over_for_libvirt(a))
        rc = 0;
    spawn_free(&virsh);
    if (!rc && a->domain->undefine)
        rc = virsh_domain(a, "undefine", "--keep-nvram", NULL, &why);
    if (rc)
        attach_say_why(a, "unconfirmed", &why);
}
