/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_attach.c - a process beside the parent's QEMU forks its guest
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      `farfork attach --parent` answers x-farfork-export and what goes with it, and carries all other commands to the
 *              QEMU. So its connection takes the place of the parent's, and nothing else here knows of it.
 * Failure      where that process ends while the guest stands still, nobody but this one says `cont`. Where this one ends, that
 *              process goes on by itself, and so does the guest. Where it ends later, what was not served yet is lost: hosts
 *              that hear nothing of others fail (fork_ask_export()).
 * Limits       no events of the parent's come through.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "process.h"
#include "rundir.h"

#define BACK_LIMIT_MS 10000
#define COMMAND_LIMIT_MS 10000

static int start_parents_side(struct fork *f, int *sock, struct ff_error *why)
{
    FF_AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const char *name = f->s.o.books ? f->o->domain : f->s.o.parent_path;
    char *const argv[] = {(char *)f->s.o.agent, "attach", "--parent", f->s.o.books ? "--domain" : "--qmp", (char *)name, NULL};
    int ends[2];
    pid_t pid;

    if (null < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return ff_error_set(why, errno, "attach to the parent: %s", strerror(errno));
    const struct ff_process program = {.argv = argv, .fds = (int[]){ends[1], null, null}};
    int rc = ff_process_exec(&program, &pid, NULL, why);
    close(ends[1]);
    if (rc)
        close(ends[0]);
    else
        *sock = ends[0];
    return rc;
}

int fork_attach(struct fork *f, struct ff_error *why)
{
    struct qmp *beside;
    int sock = -1, rc = start_parents_side(f, &sock, why);

    if (!rc)
        rc = qmp_on(sock, f->s.qmp, &beside, why);
    if (rc)
        return ff_error_context(why, "%s attach --parent", f->s.o.agent);
    qmp_cancel_by(beside, f->s.signals);
    qmp_replace(f->s.qmp, beside);
    f->s.beside = true;
    FF_AUTO_JSON json_t *look = NULL;
    qmp_limit(f->s.qmp, (int)f->s.o.timeout_s * 1000); /* it waits for its turn at the monitor, as this one has */
    rc = qmp_command(f->s.qmp, "x-farfork-look", NULL, &look, why);
    qmp_limit(f->s.qmp, COMMAND_LIMIT_MS);
    return rc || !f->s.o.books ? rc : fork_domain_begin(f, look, why);
}

/* The QEMU's own monitor */
static int switch_back(struct fork *f, struct ff_error *why)
{
    struct qmp *again = f->s.o.books ? qmp_by(domain_books_monitor, f->s.o.books, f->s.parent_pid) : NULL;
    int rc = again ? 0 : qmp_connect_in_turn(f->s.o.parent_path, -1, BACK_LIMIT_MS, NULL, NULL, &again, why);

    f->s.beside = false;
    if (rc)
        return rc;
    qmp_replace(f->s.qmp, again);
    f->s.parent_silent = false;
    return 0;
}

void fork_attach_lost(struct fork *f)
{
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error why;
    int rc = switch_back(f, &why);

    if (!rc)
        rc = qmp_command(f->s.qmp, "query-status", NULL, &status, &why);
    if (!rc && !f->s.parent_stood && !strcmp(text_of(status, "status"), "paused"))
        rc = qmp_command(f->s.qmp, "cont", NULL, NULL, &why);
    if (rc)
        session_note(&f->s, "the parent stands still, perhaps: let it go on (QMP cont): %s", why.text);
}

void fork_attach_watch(struct fork *f)
{
    struct ff_error ignored; /* a parent that does not answer is silent, as any other */

    if (!f->s.beside || !f->s.parent_silent || !f->exported)
        return;
    f->source_lost = true;
    f->exported = false;
    switch_back(f, &ignored);
}

void fork_attach_ended(struct fork *f)
{
    if (f->s.beside && f->s.parent_start && process_look(f->s.parent_pid, f->s.parent_start) == PROCESS_GONE)
        f->s.parent_gone = f->s.parent_silent = true;
}
