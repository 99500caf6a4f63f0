/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xml_scan.h - the tags of an XML text as libvirt prints one, each with its path
 */
#ifndef FF_VM_XML_SCAN_H
#define FF_VM_XML_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"

#define XML_PATH_MAX 512u /* libvirt's deepest is a fifth of that */

struct xml_scan { /* {.at = text} */
    const char *at;
    /* the tag found last */
    const char *begin, *end;  /* from '<' to behind '>' */
    bool opens, closes;       /* both: <name/> */
    char path[XML_PATH_MAX];  /* of its element: /domain/devices/disk */
    bool drops; /* the scan's own: its element has ended */
};

/* The next tag. 1; 0: there is none; -EPROTO: this is no XML, or it is too deep */
int xml_scan_next(struct xml_scan *s, struct ff_error *err);

/* The value of an attribute of that tag, as it is written there, between its quotes. False: it has none of this name */
bool xml_scan_attribute(const struct xml_scan *s, const char *name, const char **value, size_t *len);

/* The first element with this path, a whole, to be freed; *@out NULL: none. 0; -EPROTO */
int xml_element(const char *xml, const char *path, char **out, struct ff_error *err);

#endif
