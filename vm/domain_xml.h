/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain_xml.h - the XML of a libvirt domain becomes that of a child of its guest
 */
#ifndef FF_VM_DOMAIN_XML_H
#define FF_VM_DOMAIN_XML_H

#include <jansson.h>

#include "error.h"
#include "strv.h"

struct domain_child {
    const char *name, *uuid;
    const struct strv *macs; /* OLD=NEW */
    const json_t *disks;     /* [{"frozen", "empty", "overlay"}]: an image of the parent, the overlay of it that the parent has
                              * perhaps, and the child's own, qcow2. -ENOTSUP: the XML names neither of the first two */
};

/**
 * domain_xml_child() - write the definition of a child
 * @xml: of the parent, as libvirt prints it for another libvirt (LIBVIRT_XML_MOVES)
 * @out: to be freed
 *
 * Name, UUID, MACs and the images in @c->disks are the child's. A file or socket that a character device of the parent has gets
 * "-NAME" behind its own. A generation ID, and ports of a display, libvirt chooses anew.
 *
 * Return: 0; -EPROTO: no such XML; -ENOTSUP: the domain has what a child would share with it (its NVRAM file, the state of a
 *         TPM, a file system of the host's): the error names it
 */
int domain_xml_child(const char *xml, const struct domain_child *c, char **out, struct ff_error *err);

#endif
