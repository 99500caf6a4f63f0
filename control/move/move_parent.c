/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_parent.c - the guest that is moved: whether it can be, what it was started with, its end
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      refuse before anything is started what QEMU would notice late or never: devices that
 *              are not on the command line, or are no more (session_plugged.c); disks whose image is
 *              another one by now (disks_move_argv()); a -blockdev whose medium was ejected (a -drive
 *              or -cdrom is written as an empty one); memory that is a file.
 * Failure      after a failure the guest is looked for here: only what its QEMU says counts.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "disks.h"
#include "identity.h"
#include "in_use.h"
#include "move.h"
#include "outside.h"
#include "promote.h"
#include "qemu_opts.h"
#include "rundir.h"
#include "session_told.h"

#define SEE_LIMIT_MS 10000
#define SEE_TURN_MS 50

/* Running or paused here, and nobody moves it: *@out is which of the two */
static int is_here(struct move *m, char **out, struct ff_error *why)
{
    static const char *const over[] = {"", "none", "completed", "failed", "cancelled"};
    FF_AUTO_JSON json_t *status = NULL, *migration = NULL;
    int rc = qmp_command(m->s.qmp, "query-status", NULL, &status, why);
    bool idle = false;

    if (!rc)
        rc = qmp_command(m->s.qmp, "query-migrate", NULL, &migration, why);
    if (rc)
        return rc;
    const char *is = text_of(status, "status"), *now = text_of(migration, "status");
    if (!strcmp(is, "postmigrate"))
        return ff_error_set(
            why, ENOTSUP,
            "this guest has moved away already, and its QEMU here no longer runs it; name the QMP "
            "socket of the QEMU that does");
    for (size_t i = 0; i < sizeof(over) / sizeof(over[0]); i++)
        idle |= !strcmp(now, over[i]);
    if (!idle)
        return ff_error_set(why, EBUSY,
                            "a migration is under way (status %s): wait for its end, or "
                            "cancel it",
                            now);
    if (strcmp(is, "running") && strcmp(is, "paused"))
        return ff_error_set(why, strcmp(is, "finish-migrate") ? ENOTSUP : EAGAIN,
                      "its status is %s (permitted: running, paused)", is);
    *out = xstrdup(is);
    return 0;
}

static int check_migration(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *is = NULL;
    int rc = is_here(m, &is, why);

    m->was_running = !rc && !strcmp(is, "running");
    return rc;
}

void move_find_here(struct move *m)
{
    FF_AUTO_FREE char *before = xstrdup(m->s.why.text), *is = NULL;
    uint64_t until = ff_now_ms() + SEE_LIMIT_MS;
    struct ff_error why;
    int rc = -ENOTCONN;

    if (m->s.qmp) {
        qmp_cancel_by(m->s.qmp, -1);
        qmp_limit(m->s.qmp, SEE_LIMIT_MS);
        /* after a migration that failed it is a moment until the guest goes on */
        while ((rc = is_here(m, &is, &why)) == -EAGAIN && ff_now_ms() < until)
            session_turn(&m->s, SEE_TURN_MS);
    }
    if (!rc) {
        snprintf(m->here, sizeof(m->here), "%s", is);
        return;
    }
    if (!m->started) {
        m->outcome = MOVE_UNTOUCHED;
        return;
    }
    m->outcome = MOVE_UNCLEAR;
    ff_error_set(
        &m->s.why, -rc,
        "%s%s%s; its QEMU has not confirmed that the guest is here: find out where it is before "
        "you start it anywhere",
        before, rc == -ENOTCONN || !strcmp(before, why.text) ? "" : "; ",
        rc == -ENOTCONN || !strcmp(before, why.text) ? "" : why.text);
}

/* --- devices: the QEMU there is made from the command line --- */

static bool is_device(char *const *argv, size_t at)
{
    return qemu_option_is(argv[at - 1], "device");
}

/* What was plugged later is on the command line by now (session_plugged.c) */
static int check_drivers(struct move *m, struct ff_error *why)
{
    const struct strv *argv = &m->s.parent_argv;
    bool tpm = false;

    for (size_t i = 1; i < argv->n; i++) {
        tpm |= qemu_option_is(argv->v[i - 1], "tpmdev");
        FF_AUTO_FREE char *driver =
            is_device(argv->v, i) ? qemu_opts_get_first(argv->v[i], "driver") : NULL;
        if (driver && !strcmp(driver, "nvdimm"))
            return ff_error_set(
                why, ENOTSUP, "-device %s: its memory is a file that would stay here", argv->v[i]);
        if (driver && !strncmp(driver, "vhost-user-", 11))
            return ff_error_set(
                why, ENOTSUP,
                "-device %s: the process behind it would touch guest memory that is not there yet: "
                "remove the device first (a mount by virtiofs can be one by 9p)",
                argv->v[i]);
    }
    if (m->tpm && (!tpm || *m->tpm != '/'))
        return ff_error_set(why, EINVAL, "--tpm %s: %s", m->tpm,
                            tpm ? "want an absolute path" : "this guest has no TPM");
    return 0;
}

/* --- disks: the same images, on shared storage --- */

static const char *cwd_of(const struct move *m)
{
    return m->s.parent_cwd ? m->s.parent_cwd : "/";
}

int move_check_disks(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL, *nodes = NULL;
    FF_AUTO_JSON json_t *words = strv_json(m->s.parent_argv.v);
    int rc = qmp_command(m->s.qmp, "query-block", NULL, &block, why);
    FF_AUTO_JSON json_t *images = move_images(m, block, NULL);

    if (!rc)
        rc = qmp_command(m->s.qmp, "query-named-block-nodes", NULL, &nodes, why);
    if (!rc)
        rc = disks_ask_busy(m->s.qmp, words, false, NULL, why);
    if (!rc)
        rc = disks_check_held(m->s.parent_pid, cwd_of(m), block, nodes, why);
    if (rc || json_equal(images, m->images))
        return rc;
    return ff_error_set(
        why, EAGAIN,
        "the images of its disks have changed since the QEMU there started, perhaps by a fork: "
        "move it again");
}

/* Others that write to one are elsewhere: where they are here, it is a file of this host's, perhaps, or its pages are in
 * this host's cache */
static int check_shared(struct move *m, const json_t *block, struct ff_error *why)
{
    FF_AUTO_JSON json_t *shared = NULL;
    int rc = m->back.go ? disks_refuse_shared(m->s.qmp, cwd_of(m), block, why)
                        : disks_ask_shared(m->s.qmp, cwd_of(m), block, &shared, why);
    size_t i;
    json_t *k;

    json_array_foreach(shared, i, k) {
        const char *file = text_of(k, "file");
        pid_t user = rc || *file != '/' ? USER_NONE : file_user_beside(file, m->s.parent_pid);
        if (user == USER_NONE)
            continue;
        FF_AUTO_FREE char *who = user > 0 ? xprintf("process %d of this host has it open, too: move or end that first",
                                                    (int)user)
                                          : xstrdup("whether others of this host have it open cannot be seen: ask as root");
        rc = ff_error_set(why, EBUSY, "disk %s: %s is shared (share-rw=on), and %s", text_of(k, "disk"), file, who);
    }
    return rc;
}

static int find_disks(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *words = strv_json(m->s.parent_argv.v), *block = NULL, *nodes = NULL;
    struct disks *plan = NULL;

    int rc = qmp_command(m->s.qmp, "query-block", NULL, &block, why);
    if (!rc)
        rc = qmp_command(m->s.qmp, "query-named-block-nodes", NULL, &nodes, why);
    if (!rc)
        rc = disks_ask_busy(m->s.qmp, words, false, &m->s.notes, why);
    if (!rc)
        rc = disks_check_held(m->s.parent_pid, cwd_of(m), block, nodes, why);
    if (!rc)
        rc = check_shared(m, block, why);
    struct disks_input in = {.fork_id = m->s.o.id, .argv = words, .block = block,
                             .cwd = cwd_of(m), .nodes = nodes, .move = !m->back.go, .foreign = m->promote};
    if (rc)
        return rc;
    if (m->back.go)
        rc = move_fallback_argv(m, &in, why);
    else
        rc = disks_plan(&in, &plan, why);
    if (rc)
        return rc;
    in.move = true;
    if (m->back.go && m->visit) /* it comes home into a QEMU without overlays */
        rc = disks_plan(&in, &plan, why);
    if (rc)
        return rc;
    if (plan) {
        FF_AUTO_JSON json_t *argv = disks_move_argv(plan);
        strv_add_json(m->back.go ? &m->argv_home : &m->argv, argv);
    }
    disks_free(plan);
    m->images = move_images(m, block, NULL);
    m->files = disks_files(cwd_of(m), block, nodes);
    return 0;
}

/* On its command line it is auto, or nowhere: a guest that is moved is the same guest there */
static int find_genid(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *words = strv_json(m->s.parent_argv.v), *info = NULL;

    if (!identity_has_genid(words))
        return 0;
    int rc = qmp_command(m->s.qmp, "query-vm-generation-id", NULL, &info, why);
    snprintf(m->genid, sizeof(m->genid), "%s", rc ? "" : text_of(info, "guid"));
    return rc;
}

int move_find_parent(struct move *m, struct ff_error *why)
{
    int rc = session_find_parent(&m->s, why);

    if (rc == -EACCES && m->via == VIA_ATTACH) /* who may not attach may not read what it was started from either */
        outside_may(m->s.parent_pid, true, why);
    if (!rc)
        rc = session_check_parent(&m->s, why);
    if (m->visit) { /* its agent's filter would forbid who sends it home to attach */
        m->no_programs = !m->s.o.unconfined;
        m->s.o.unconfined = true;
    }
    if (rc == -ENOTSUP && m->via == VIA_ATTACH)
        rc = 0;
    if (!rc && m->via == VIA_ATTACH)
        rc = outside_may(m->s.parent_pid, true, why);
    if (!rc)
        rc = check_migration(m, why);
    if (!rc)
        session_recall_plugged(&m->s);
    if (!rc)
        rc = move_devices_plan(m, why);
    if (!rc)
        rc = session_add_plugged(&m->s, why);
    if (!rc)
        rc = check_drivers(m, why);
    if (!rc)
        session_note_told(&m->s, false);
    if (!rc)
        overlay_records_owner(m->s.parent_argv.v, m->s.parent_pid, &m->owner);
    if (!rc && m->promote)
        rc = promote_take_place(m, why);
    if (!rc)
        rc = find_genid(m, why);
    if (!rc)
        rc = find_disks(m, why);
    return rc ? rc : move_note_machine(m, why);
}

/* Its number could be another process's a moment later: by a descriptor */
int move_quit_parent(struct move *m, struct ff_error *why)
{
    struct pollfd p = {.events = POLLIN};
    const bool is_killed = m->via == VIA_ATTACH; /* by the process beside it */

    if (!is_killed && !m->s.qmp)
        return ff_error_set(why, ENOTCONN, "its QMP socket does not answer");
    p.fd = (int)syscall(SYS_pidfd_open, m->s.parent_pid, 0);
    int rc = is_killed ? 0 : qmp_command(m->s.qmp, "quit", NULL, NULL, why);
    if (rc == -EPIPE)
        rc = 0;
    if (!rc && p.fd >= 0 && poll(&p, 1, (int)m->s.o.timeout_s * 1000) <= 0)
        rc = ff_error_set(why, ETIMEDOUT, "it has not ended within %u s of %s", m->s.o.timeout_s,
                          is_killed ? "SIGKILL" : "`quit`");
    m->s.parent_gone = !rc;
    if (p.fd >= 0)
        close(p.fd);
    return rc;
}
