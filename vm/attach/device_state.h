/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * device_state.h - the state of a stopped guest's devices, from any QEMU
 */
#ifndef FF_VM_ATTACH_DEVICE_STATE_H
#define FF_VM_ATTACH_DEVICE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "error.h"
#include "qmp.h"

/* A machine with megabytes of video memory has some hundred KiB; a virtio-gpu adds its resources */
#define DEVICE_STATE_MAX_BYTES (1u << 30)

/**
 * device_state_may() - find out, before the guest is stopped, whether this QEMU can save that state
 *
 * Cost:   two commands
 * Return: 0; -ENOTSUP: it has no such command, or a device that QEMU itself does not migrate, which
 *         the error names; -EBUSY: a migration is under way; else as qmp_command()
 */
int device_state_may(struct qmp *q, struct ff_error *err);

/**
 * device_state_save() - take the state of a guest that `stop` has stopped
 * @give_up_disks: also flush disks and release their locks, so that another QEMU can open them.
 *                 `cont` takes them back, whatever this returns
 * @out:           what QEMU wrote, to be freed: see incoming_stream.h
 *
 * Devices have done all that they had begun. What may still write guest memory afterwards is input
 * from outside, as of a chardev or a network: device_state_save_held().
 *
 * Cost:   some milliseconds; with @give_up_disks as long as flushing takes
 * Return: 0; -EFBIG: above DEVICE_STATE_MAX_BYTES; -EPROTO: QEMU wrote nothing; -EIO: a disk was
 *         not given up; -EOPNOTSUPP as qmp_by(); else as settle_devices()
 */
int device_state_save(struct qmp *q, bool give_up_disks, uint8_t **out, size_t *len_bytes,
                      struct ff_error *err);

/* Who stops the QEMU: freeze.h, hold.h. @begin: before it writes @file; @await: 0: it stands, since it has closed that; -EAGAIN:
 * not within some milliseconds; else it never will */
struct device_stop {
    int (*begin)(void *opaque, const struct stat *file, struct ff_error *err);
    int (*await)(void *opaque, struct ff_error *err);
    void *opaque;
};

struct device_save {
    struct qmp *q;      /* NULL: nothing is due */
    int memory, writer; /* -1: none */
    int64_t set;        /* in that QEMU; -1: none */
    bool asks;          /* its answer has not come */
};

/**
 * device_state_save_held() - the same, and the QEMU stands still from the moment on at which its state is whole
 *
 * So nothing that comes from outside changes its devices or the guest's memory afterwards. Disks stay where they are.
 *
 * @s: device_state_over() is due once the QEMU goes on, or does not stand; after a failure, too
 * Return: as device_state_save(); else as @stop->begin(), @stop->await()
 */
int device_state_save_held(struct qmp *q, const struct device_stop *stop, struct device_save *s, uint8_t **out,
                           size_t *len_bytes, struct ff_error *err);

/* It goes on: what did it say of it? Before anything else is asked */
int device_state_answered(struct device_save *s, struct ff_error *err);

/* Nothing of it stays in QEMU; @s may be all zeros */
void device_state_over(struct device_save *s);

/* Whether a CPU of that state ran a guest of the guest (KVM, nested): KVM holds pages of memory then, and may write to them */
bool device_state_is_nested(const uint8_t *state, size_t len_bytes);

/* Whether the guest of that state ran when it was stopped, as QEMU wrote it there */
bool device_state_runs(const uint8_t *state, size_t len_bytes);

#endif
