/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain_books.h - a domain that is forked: what libvirt is asked, and what it has to know
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      libvirt's books stay true: libvirt itself makes the overlays that its domain goes on
 *              in, and lets it go on. A fork that made them alone would leave libvirt with the old
 *              image: the next start of the domain would write to what its children read.
 * Picture      vmclone                               the keeper
 *              (1) QMP line                  --->   libvirt carries it to the monitor
 *                  plan                      --->   its disks: overlays are named
 *              (2) x-farfork-export, as a template: the guest stands still
 *              (3) snapshot                  --->   disks alone, no metadata: only an overlay is left;
 *                                                   its disks: whether libvirt has made it
 *              (4)                                  query-status: the guest stood still until then;
 *                                                   resume
 *              a domain without disks to write to: (2) is no template, and (3) and (4) are not
 * Threads      two processes, a line of JSON each way at a time.
 * Invariants   1. The keeper does nothing but these things, to this one domain. It takes file names
 *              from libvirt and from the command line, never from the QEMU: a guest that broke out
 *              must not choose where root makes a file.
 *              2. One fork of a domain at a time: another would let the guest go on in between. Both
 *              processes have a lock on libvirt's pid file of the domain.
 *              3. When vmclone ends between (2) and (4), however, or is stopped there, the keeper
 *              does (4). It repeats that while libvirtd is not there, for some minutes.
 * Failure      when both are killed between (2) and (4) the domain is paused, and libvirt says so.
 */
#ifndef FF_CONTROL_HOST_DOMAIN_BOOKS_H
#define FF_CONTROL_HOST_DOMAIN_BOOKS_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct domain_books;

/**
 * domain_books_open() - wait for other forks of the domain, fork the keeper
 * @overlays:  folder for overlays that libvirt makes; NULL: beside each image
 * @timeout_s: for the other forks
 *
 * Return: 0; -EPERM: this is not root; -ESRCH: no such domain runs here; -ETIMEDOUT; -errno
 */
int domain_books_open(const char *domain, const char *overlays, unsigned timeout_s,
                      struct domain_books **out, struct ff_error *why);
void domain_books_close(struct domain_books *b);

/* Nothing more is asked: the next fork of the domain has its turn */
void domain_books_done(struct domain_books *b);

/* Of its QEMU */
pid_t domain_books_pid(const struct domain_books *b);

/* A line of QMP: for qmp_by(), with @opaque the books. It passes no descriptor */
int domain_books_monitor(void *opaque, const char *line, int fd, char **answer, struct ff_error *why);

/* Overlays on these images are to be made, for fork @id; once. @go_on: from here on the guest may
 * stand still, until domain_books_snapshot(). -ENOENT: libvirt knows no such image; -EEXIST */
int domain_books_plan(struct domain_books *b, const char *id, const json_t *images, bool go_on,
                      struct ff_error *why);

/* What was planned is made: all of it, or nothing; then the guest goes on. -EREMOTEIO: libvirt
 * refuses; -EBUSY: somebody let it go on before, or libvirt does not say, but the overlays may be there */
int domain_books_snapshot(struct domain_books *b, struct ff_error *why);

/* If it still stands still: it goes on */
int domain_books_resume(struct domain_books *b, struct ff_error *why);

/* What domain_books_snapshot() made is committed and removed; nobody else may read the images */
int domain_books_commit(struct domain_books *b, struct ff_error *why);

#endif
