/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * device_state.c - the state of a stopped guest's devices, from any QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      get from a QEMU that has never heard of us what its devices are like, without its
 *              memory, by the command xen-save-devices-state: every QEMU has it, for every machine
 *              and accelerator. What iterates is not in it: RAM, and devices that migrate as RAM
 *              does.
 *
 * Picture      QEMU                               here
 *              stop (the caller)
 *              settle.h                           devices do what they had begun
 *              add-fd                        <--- a memfd, open for writing
 *              xen-save-devices-state /dev/fdset/N
 *              remove-fd N                        whatever happened
 *              query-status                       still "paused"
 *              query-named-block-nodes            disks given up: none is active (from 10.0 on)
 *                                                 read the memfd
 *
 *              held: device_state_save_held()     the QEMU is stopped at close(2) of what it was given, in the midst of that
 *                                                 command: its main loop, which takes input, has not turned since it saved the
 *                                                 first device. Its answer, and remove-fd, come when it goes on
 *
 * Invariants   1. A guest that runs is never saved: QEMU would stop it for that moment, and let it
 *                 go on. test_device_state.c: running.
 *              2. No descriptor stays in QEMU, unless QEMU does not answer. test_device_state.c:
 *                 fails.
 *              3. Disks that were not given up are an error. QEMU 10.0 and newer only logs that, so
 *                 this file looks at "active" of each node; older ones fail the command.
 *
 * Failure      The guest stays stopped, and `cont` gives it back with its disks, after any error.
 * Limits       QEMU opens /dev/fdset/N only with a descriptor of the same access mode: so the memfd
 *              is opened again, for writing alone.
 * Sources      qmp_xen_save_devices_state(), monitor_fdset_dup_fd_add() of QEMU 10.0
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "autojson.h"
#include "cleanup.h"
#include "device_state.h"
#include "settle.h"
#include "whole_file.h"

#define SAVE "xen-save-devices-state"
/* Longer than the requests that a guest has queued take on a disk that works, and shorter than
 * guests wait for one */
#define SETTLE_MS 5000
#define ANSWER_MS 60000

/* --- before the guest is stopped --- */

static int find_command(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = qmp_command(q, "query-commands", NULL, &list, err);

    if (rc || json_find(list, "name", SAVE))
        return rc;
    return ff_error_set(err, ENOTSUP,
                        "device state: this QEMU has no command " SAVE
                        ": use a QEMU that was built with migration");
}

static int check_no_migration(struct qmp *q, struct ff_error *err)
{
    static const char *const ended[] = {"", "none", "completed", "failed", "cancelled"};
    FF_AUTO_JSON json_t *m = NULL;
    int rc = qmp_command(q, "query-migrate", NULL, &m, err);

    if (rc)
        return rc;
    const json_t *reasons = json_object_get(m, "blocked-reasons");
    if (json_array_size(reasons)) {
        const char *first = json_string_value(json_array_get(reasons, 0));

        return ff_error_set(err, ENOTSUP,
                            "device state: QEMU does not migrate this guest: %s: unplug that "
                            "device, or end what is under way",
                            first ? first : "without a reason");
    }
    const char *status = text_of(m, "status");
    for (size_t i = 0; i < FF_ARRAY_LEN(ended); i++)
        if (!strcmp(status, ended[i]))
            return 0;
    return ff_error_set(err, EBUSY,
                        "device state: a migration of QEMU's own is '%s': wait for its end, or "
                        "cancel it (migrate_cancel)",
                        status);
}

int device_state_may(struct qmp *q, struct ff_error *err)
{
    int rc = find_command(q, err);

    return rc ? rc : check_no_migration(q, err);
}

/* --- of the stopped guest --- */

/* A memfd, and the same open for writing alone */
static int open_memory(int *memory, int *writer, struct ff_error *err)
{
    char path[32];

    *memory = memfd_create("farfork-device-state", MFD_CLOEXEC);
    if (*memory < 0)
        return ff_error_set(err, errno, "device state: memfd_create: %s", strerror(errno));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", *memory);
    *writer = open(path, O_WRONLY | O_CLOEXEC);
    if (*writer < 0)
        return ff_error_set(err, errno, "device state: open %s: %s", path, strerror(errno));
    return 0;
}

#define DEVICE_SAVE_NONE (struct device_save){.memory = -1, .writer = -1, .set = -1}

static int add_writer(struct qmp *q, struct device_save *s, struct ff_error *err)
{
    FF_AUTO_JSON json_t *added = NULL;
    int rc = open_memory(&s->memory, &s->writer, err);

    s->q = q;
    if (!rc)
        rc = qmp_command_with_fd(q, "add-fd", NULL, s->writer, &added, err);
    if (rc)
        return rc;
    const json_t *set = json_object_get(added, "fdset-id");
    if (!json_is_integer(set))
        return ff_error_set(err, EPROTO, "device state: add-fd: the answer has no fdset-id");
    s->set = json_integer_value(set);
    return 0;
}

static json_t *save_arguments(const struct device_save *s, bool give_up_disks)
{
    char path[48];

    snprintf(path, sizeof(path), "/dev/fdset/%lld", (long long)s->set);
    return json_pack("{ss sb}", "filename", path, "live", give_up_disks);
}

int device_state_answered(struct device_save *s, struct ff_error *err)
{
    if (!s->asks)
        return 0;
    int rc = qmp_command_end(s->q, SAVE, ANSWER_MS, NULL, err);
    s->asks = false;
    return rc == -EAGAIN ? ff_error_set(err, ETIMEDOUT, "device state: " SAVE ": no answer within %d s", ANSWER_MS / 1000) : rc;
}

void device_state_over(struct device_save *s)
{
    if (!s->q)
        return;
    device_state_answered(s, NULL);
    /* where this fails, the descriptor goes with the QEMU, or with the monitor's last client */
    if (s->set >= 0)
        qmp_command(s->q, "remove-fd", json_pack("{sI}", "fdset-id", (json_int_t)s->set), NULL, NULL);
    ff_close_fd(&s->memory);
    ff_close_fd(&s->writer);
    *s = DEVICE_SAVE_NONE;
}

static int check_given_up(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *nodes = NULL;
    int rc = qmp_command(q, "query-named-block-nodes", json_pack("{sb}", "flat", true), &nodes,
                         err);

    for (size_t i = 0; !rc && i < json_array_size(nodes); i++) {
        const json_t *n = json_array_get(nodes, i);

        if (json_is_true(json_object_get(n, "active")))
            rc = ff_error_set(err, EIO,
                              "device state: QEMU did not give up the disk %s (node '%s'): its log "
                              "says why; an export or a job may use it",
                              text_of(n, "file"), text_of(n, "node-name"));
    }
    return rc;
}

static int read_memory(int memory, uint8_t **out, size_t *len_bytes, struct ff_error *err)
{
    struct stat st;
    FF_AUTO_FREE uint8_t *data = NULL;

    if (fstat(memory, &st) < 0)
        return ff_error_set(err, errno, "device state: fstat: %s", strerror(errno));
    if (st.st_size < 1 || st.st_size > (off_t)DEVICE_STATE_MAX_BYTES)
        return ff_error_set(err, st.st_size < 1 ? EPROTO : EFBIG,
                            "device state: %lld bytes (permitted 1..%u)", (long long)st.st_size,
                            DEVICE_STATE_MAX_BYTES);
    data = malloc((size_t)st.st_size);
    int rc = data ? whole_file_read(memory, data, (size_t)st.st_size) : -ENOMEM;
    if (rc)
        return ff_error_set(err, -rc, "device state: read %lld bytes: %s", (long long)st.st_size,
                            strerror(-rc));
    *len_bytes = (size_t)st.st_size;
    *out = data;
    data = NULL;
    return 0;
}

int device_state_save(struct qmp *q, bool give_up_disks, uint8_t **out, size_t *len_bytes,
                      struct ff_error *err)
{
    struct device_save s = DEVICE_SAVE_NONE;
    int rc = settle_devices(q, SETTLE_MS, err);

    if (!rc)
        rc = add_writer(q, &s, err);
    if (!rc)
        rc = qmp_command(q, SAVE, save_arguments(&s, give_up_disks), NULL, err);
    FF_AUTO_CLOSE int memory = s.memory;
    s.memory = -1;
    device_state_over(&s);
    if (!rc)
        rc = settle_check_stopped(q, err);
    if (!rc && give_up_disks)
        rc = check_given_up(q, err);
    return rc ? rc : read_memory(memory, out, len_bytes, err);
}

/* Until it stands, or has answered: then it saved nothing */
static int await_stop(struct device_save *s, const struct device_stop *stop, struct ff_error *err)
{
    const uint64_t end = ff_now_ms() + ANSWER_MS;
    int rc;

    while ((rc = stop->await(stop->opaque, err)) == -EAGAIN) {
        struct pollfd p = {.fd = qmp_fd(s->q), .events = POLLIN};
        int said = poll(&p, 1, 0) > 0 ? qmp_command_end(s->q, SAVE, 1, NULL, err) : -EAGAIN;

        if (said != -EAGAIN) {
            s->asks = false;
            return said ? said : ff_error_set(err, EPROTO, "device state: QEMU has saved it, but its main thread did not close "
                                              "the file");
        }
        if (ff_now_ms() > end)
            return ff_error_set(err, ETIMEDOUT, "device state: " SAVE ": not within %d s", ANSWER_MS / 1000);
    }
    return rc;
}

int device_state_save_held(struct qmp *q, const struct device_stop *stop, struct device_save *s, uint8_t **out,
                           size_t *len_bytes, struct ff_error *err)
{
    struct stat file;

    *s = DEVICE_SAVE_NONE;
    int rc = settle_devices(q, SETTLE_MS, err);
    if (!rc)
        rc = add_writer(q, s, err);
    if (!rc && fstat(s->memory, &file))
        rc = ff_error_set(err, errno, "device state: fstat: %s", strerror(errno));
    if (!rc)
        rc = stop->begin(stop->opaque, &file, err);
    if (!rc)
        rc = qmp_command_begin(q, SAVE, save_arguments(s, false), err);
    s->asks = !rc;
    if (!rc)
        rc = await_stop(s, stop, err);
    return rc ? rc : read_memory(s->memory, out, len_bytes, err);
}

/* Section "globalstate": instance and version; length of a text, with its end; the text */
bool device_state_runs(const uint8_t *state, size_t len_bytes)
{
    static const char name[] = "\x0bglobalstate", running[] = "running", suspended[] = "suspended";
    const uint8_t *at = memmem(state, len_bytes, name, sizeof(name) - 1);
    const size_t before = sizeof(name) - 1 + 3 * sizeof(uint32_t);

    if (!at || (size_t)(state + len_bytes - at) < before + sizeof(suspended))
        return true; /* of a QEMU that writes none */
    at += before;
    return !memcmp(at, running, sizeof(running)) || !memcmp(at, suspended, sizeof(suspended));
}

/* A subsection of a CPU's (vmstate_nested_state of QEMU 7.2, 10.0): its mark, the length of its name, the name; version; flags of
 * struct kvm_nested_state */
bool device_state_is_nested(const uint8_t *state, size_t len_bytes)
{
    static const char name[] = "\x05\x10" "cpu/nested_state";
    const size_t before = sizeof(name) - 1 + sizeof(uint32_t);
    const uint8_t *end = state + len_bytes;

    for (const uint8_t *at = state; (at = memmem(at, (size_t)(end - at), name, sizeof(name) - 1)); at++)
        if ((size_t)(end - at) < before + sizeof(uint16_t) ||
            (at[before + 1] & (KVM_STATE_NESTED_GUEST_MODE | KVM_STATE_NESTED_RUN_PENDING | KVM_STATE_NESTED_EVMCS)))
            return true;
    return false;
}
