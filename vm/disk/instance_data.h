/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * instance_data.h - images that tell a guest which instance it is, and that children share
 */
#ifndef FF_VM_DISK_INSTANCE_DATA_H
#define FF_VM_DISK_INSTANCE_DATA_H

/* What data the raw image at @path has, by the label of its file system: static text; NULL: none that
 * is known, or it cannot be read */
const char *instance_data_of(const char *path);

#endif
