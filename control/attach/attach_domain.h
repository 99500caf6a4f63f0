/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_domain.h - a QEMU that is libvirt's: it is suspended, restored, resumed and destroyed by libvirt
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      libvirt starts and ends both QEMUs, and knows what becomes of them: its cgroups, labels and hooks are as
 *              for any domain. Memory and state go as attach.h has it, past libvirt.
 * Picture      source                                  destination
 *                                                      (1) `virsh restore` of a FIFO, to which we write what
 *                                                          vm/attach/save_image.h has, and 8 bytes of the stream:
 *                                                          libvirt starts its QEMU, which reads them. It waits
 *                                                          for more
 *              (2) find its RAM, connect       <-->    (3) find the same blocks in that process; watch and
 *                                                          empty them
 *              (4) `virsh suspend`; state by
 *                  its monitor; hold            -->    (5) the rest of the stream; restore ends: the domain is
 *                                                          paused. Hold its QEMU, bound to this process: READY
 *              (6) bind; GO                     -->    (7) QEMU goes on, `virsh resume`: RUNNING
 *              (8) serve; all is there:
 *                  `virsh destroy`             <-->    (8) all is here; --persistent: `virsh define`
 *
 * Invariants   1. One runner: between READY and GO no thread of the QEMU there runs, so no `virsh resume` makes its
 *                 guest run, and the kernel ends it with this process.
 *              2. restore has ended before GO: a libvirtd that is started again while it restores ends that QEMU; of a
 *                 domain that is paused it takes up where it was. `virsh resume` can be said again.
 *              3. libvirt sends no event of the QEMU that it talks to: whether a CPU of the guest ran between its state
 *                 and the hold is read from the kernel, of each thread (parked.h).
 *              4. What libvirt knows of the domain is what the destination was given, also when it stands still: else a
 *                 disk or a device was changed meanwhile.
 * Failure      before GO: the domain there is ended, `virsh resume` here. After it as attach.h.
 * Limits       a QEMU before 10.0 opens its disks when it has loaded, before GO: nothing is written to them by a guest
 *              that is paused, and it is killed before the disks are opened here again.
 *              A domain with <genid> gets another one, as by any restore.
 */
#ifndef FF_CONTROL_ATTACH_ATTACH_DOMAIN_H
#define FF_CONTROL_ATTACH_ATTACH_DOMAIN_H

#include "attach_private.h"
#include "libvirt.h"
#include "rested.h"

#define ATTACH_TURN_MS 5

struct attach_owner { /* of an image */
    char *path;
    uid_t uid;
    gid_t gid;
};

struct attach_domain {
    char *xml, *cpu; /* as save_image_head() wants them; @cpu: or NULL */
    char *define;    /* destination: also this, so that the domain is persistent; NULL: not */
    bool undefine;   /* source */
    int qemu_fd;     /* a pidfd; -1: not known yet */
    /* source */
    struct rested rested;
    struct attach_owner *owners; /* before either QEMU was ended */
    unsigned n_owners;
    /* destination */
    char *fifo;             /* a path, until it has served; NULL: there is none */
    int notify, both, fifo_fd; /* -1: closed. @both keeps it open while nobody reads */
    unsigned opened;        /* how often, by libvirt */
    uint8_t *head;
    size_t head_len;
    struct libvirt_call *restore; /* NULL: not yet, or over */
    bool has_end_thread;
    pthread_t end_thread; /* hears the end of its QEMU */
    _Atomic bool broke; /* the link, before READY */
};

/* --- attach_input.c --- */

/* From standard input: the key of a->address, and the domain; its end before GO ends the move */
int attach_read_input(struct attach *a, struct ff_error *err);

/* --- attach_of_domain.c --- */

int attach_domain_new(struct attach *a, const char *line, struct ff_error *err); /* of the input's second line */
void attach_domain_free(struct attach *a);
/* a->pid, a->q: by way of libvirt */
int attach_domain_connect(struct attach *a, struct ff_error *err);
bool attach_domain_has_ended(const struct attach *a); /* its QEMU */
void attach_domain_unlink(struct attach_domain *d); /* its FIFO, if there is one */

/* --- attach_domain.c: the source --- */

/* Under a->qmp_lock: stop it; hold it, stopped since its state was saved */
int attach_domain_stop(struct attach *a, struct ff_error *err);
int attach_domain_hold(struct attach *a, struct ff_error *err);
/* As attach_qemu_take_back() */
int attach_domain_take_back(struct attach *a, struct ff_error *err);
/* It is held, and its guest is there: end it, for libvirt too */
void attach_domain_end(struct attach *a);

/* --- attach_owners.c --- */

void attach_owners_note(struct attach_domain *d, const char *disks); /* as LIBVIRT_DISKS answers */
void attach_owners_keep(const struct attach_domain *d); /* they are what they were */
void attach_owners_free(struct attach_domain *d);

/* --- attach_restore.c: the destination --- */

/* Until the QEMU that libvirt starts waits for a stream */
int attach_restore_begin(struct attach *a, struct ff_error *err);
/* For ff_dest_on_table(): find these blocks in it */
int attach_restore_find(void *opaque, const struct ff_region *r, unsigned n, struct ff_error *err);
/* a->stream, until all is loaded, and the domain is paused */
int attach_restore_load(struct attach *a, struct ff_error *err);
/* Likewise, and its QEMU is held; from then on its end is a failure */
int attach_restore_give(struct attach *a, struct ff_error *err);
void attach_restore_let_go(struct attach *a); /* GO has come */
/* The guest is to run: until it does */
int attach_restore_run(struct attach *a, struct ff_error *err);
void attach_restore_define(struct attach *a);
/* GO has not come, and never will: end it */
void attach_restore_drop(struct attach *a);

#endif
