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
#include "failpoint.h"

#define RESUME_LIMIT_MS 60000 /* a libvirtd that is started anew is there after a few seconds */
#define RESUME_TURN_MS 200
#define DESTROY_LIMIT_MS 60000
#define OWNERS_TURN_MS 1
#define DROP_MS 2000          /* libvirtd there ends a domain within some tenths of a second */
#define TERM_LIMIT_MS 10000   /* then libvirt itself sends SIGKILL */
#define PENDING "ShdPnd:\t"

static int ask_domain(const struct attach *a, enum libvirt_op op, char **answer, struct ff_error *err)
{
    return libvirt_ask(op, a->o->domain, NULL, answer, err);
}

/* --- the source, before GO --- */

int attach_domain_stop(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE char *disks = NULL;
    int rc = rested_find(a->q, &a->domain->rested, err);

    if (!rc)
        rc = ask_domain(a, LIBVIRT_DISKS, &disks, err);
    if (!rc)
        attach_owners_note(a->domain, disks);
    a->pause_ns = ff_now_ns();
    return rc ? rc : ask_domain(a, LIBVIRT_SUSPEND, NULL, err);
}

static int check_same_domain(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE char *now = NULL;
    int rc = ask_domain(a, LIBVIRT_XML_MOVES, &now, err);

    return rc || !strcmp(now, a->domain->xml)
               ? rc
               : ff_error_set(err, EAGAIN, "domain %s: its definition has changed since the move began: move it again",
                              a->o->domain);
}

int attach_domain_hold(struct attach *a, struct ff_error *err)
{
    int rc = rested_await(a->q, a->pid, &a->domain->rested, err);

    if (!rc && ff_failpoint("attach.rest"))
        rc = ff_error_set(err, EIO, "attach: injected");
    if (!rc)
        rc = hold_begin(a->pid, &a->hold, err);
    if (!rc)
        rc = rested_check(a->pid, &a->domain->rested, err);
    return rc ? rc : check_same_domain(a, err);
}

int attach_domain_take_back(struct attach *a, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + RESUME_LIMIT_MS;
    bool running = false;
    char status[32];
    int rc;

    while ((rc = attach_qemu_status(a, status, &running, err)) || (a->was_running && !running)) {
        attach_owners_keep(a->domain); /* QEMU opens its images again */
        if (!rc)
            rc = ask_domain(a, LIBVIRT_RESUME, NULL, err);
        if (rc && (ff_now_ms() > end || attach_domain_has_ended(a)))
            return rc;
        if (rc)
            poll(NULL, 0, RESUME_TURN_MS);
    }
    /* the domain there ends about now */
    for (end = ff_now_ms() + DROP_MS; a->domain->n_owners && ff_now_ms() < end; poll(NULL, 0, ATTACH_TURN_MS))
        attach_owners_keep(a->domain);
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

static bool is_answered(const struct libvirt_call *c, int limit_ms)
{
    struct pollfd p = {.fd = libvirt_call_fd(c), .events = POLLIN};

    return poll(&p, 1, limit_ms) > 0;
}

static int await_destroyed(const struct attach *a, struct libvirt_call *c, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + DESTROY_LIMIT_MS;

    while (!is_answered(c, OWNERS_TURN_MS) && ff_now_ms() < end)
        attach_owners_keep(a->domain);
    int rc = libvirt_end(c, 0, NULL, err);
    attach_owners_keep(a->domain);
    return rc;
}

/* Until libvirt has sent SIGTERM to a QEMU that stands still, or has answered */
static void await_term(const struct attach *a, const struct libvirt_call *c)
{
    uint64_t end = ff_now_ms() + TERM_LIMIT_MS;

    while (!has_term(a->pid) && !attach_domain_has_ended(a) && !is_answered(c, ATTACH_TURN_MS) && ff_now_ms() < end)
        continue;
}

void attach_domain_end(struct attach *a)
{
    struct ff_error why = {0}, ignored;
    struct libvirt_call *c;
    int rc = libvirt_begin(LIBVIRT_DESTROY, a->o->domain, NULL, -1, &c, &why);

    if (!rc)
        await_term(a, c);
    hold_end(a->hold, SIGKILL);
    a->hold = NULL;
    if (!rc)
        rc = await_destroyed(a, c, &why);
    /* also one that libvirtd, started again meanwhile, found gone before it heard our word */
    if (rc && ask_domain(a, LIBVIRT_IS_ACTIVE, NULL, &ignored) == -ESRCH)
        rc = 0;
    if (!rc && a->domain->undefine)
        rc = ask_domain(a, LIBVIRT_UNDEFINE, NULL, &why);
    if (rc)
        attach_say_why(a, "unconfirmed", &why);
}
