/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qcow2_header.h - look into a qcow2 file
 */
#ifndef FF_VM_DISK_QCOW2_HEADER_H
#define FF_VM_DISK_QCOW2_HEADER_H

#include <stdbool.h>

/* Whether it begins as a qcow2 image does. False when in doubt */
bool qcow2_is(const char *path);

/* Whether everything that is read from it comes from what is behind it. False when in doubt */
bool overlay_is_empty(const char *path);

/* The name of what is behind it, absolute, to be released. NULL: nothing, or it cannot be read */
char *overlay_backing(const char *path);

#endif
