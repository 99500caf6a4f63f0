/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * nocloud.h - cloud-init's NoCloud data in an image: another instance's
 */
#ifndef FF_VM_DISK_NOCLOUD_H
#define FF_VM_DISK_NOCLOUD_H

#include <stdbool.h>

#include "error.h"
#include "strv.h"

#define NOCLOUD_MAX_BYTES (64u << 20) /* real ones have 0.4 MiB */

struct nocloud {
    const char *instance_id, *hostname; /* letters, digits, . _ -; NULL: as it is */
    struct strv macs;                   /* "OLD=NEW", each of 17 characters */
};

/* Whether the file is an ISO 9660 image that cloud-init takes for NoCloud data */
bool nocloud_is(const char *path);

/* -EINVAL: not as struct nocloud wants it */
int nocloud_check(const struct nocloud *n, struct ff_error *why);

/**
 * nocloud_change() - make the data in an image those of another instance
 * @path:      a raw file of at most NOCLOUD_MAX_BYTES
 * @try:       do not write, only see whether it can be done
 * @addresses: set to true if its network-config gives addresses, which stay; may be NULL
 *
 * In meta-data instance-id, which is added where there is none, and local-hostname; in user-data
 * that is #cloud-config hostname and fqdn, of which the domain stays; MACs in meta-data and
 * network-config. All else stays in its place: a guest may have the image mounted.
 *
 * Return: 0; -EINVAL: no such image; -ENOSPC: a file would need another sector, and nothing was
 *         written; -errno of the file
 */
int nocloud_change(const char *path, const struct nocloud *n, bool try, bool *addresses,
                   struct ff_error *why);

#endif
