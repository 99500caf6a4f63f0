/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_owners.c - images of a domain keep their owner when libvirt ends one of its QEMUs; see attach_domain.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      libvirt gives an image to the user of its QEMU, and back to root when it ends that QEMU. Of a migration
 *              of its own it knows that the other host's QEMU has the image now. Of ours it does not, and a server
 *              of files (NFS) refuses what the QEMU there writes from then on; a QEMU that is given its guest back opens
 *              its images again, and may not. Where the file system keeps
 *              trusted attributes libvirt counts who uses the image, and all is well without this.
 * Limits       Files alone: a device node is each host's own. Between libvirt's doing and ours pass some milliseconds.
 */
#include "attach_domain.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"

void attach_owners_note(struct attach_domain *d, const char *disks)
{
    FF_AUTO_JSON json_t *list = json_loads(disks, 0, NULL);
    const json_t *disk;
    size_t i;

    json_array_foreach(list, i, disk) {
        const char *path = text_of(disk, "source");
        struct stat st;

        if (*path != '/' || stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        d->owners = xrealloc(d->owners, (d->n_owners + 1) * sizeof(*d->owners));
        d->owners[d->n_owners++] = (struct attach_owner){xstrdup(path), st.st_uid, st.st_gid};
    }
}

void attach_owners_keep(const struct attach_domain *d)
{
    for (unsigned i = 0; i < d->n_owners; i++) {
        const struct attach_owner *o = &d->owners[i];
        struct stat st;

        if (!stat(o->path, &st) && (st.st_uid != o->uid || st.st_gid != o->gid) && chown(o->path, o->uid, o->gid))
            continue; /* as where root is nobody: libvirt could not change it either */
    }
}

void attach_owners_free(struct attach_domain *d)
{
    for (unsigned i = 0; i < d->n_owners; i++)
        free(d->owners[i].path);
    free(d->owners);
    d->owners = NULL;
    d->n_owners = 0;
}
