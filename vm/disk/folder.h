/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * folder.h - a folder for overlays
 */
#ifndef FF_VM_DISK_FOLDER_H
#define FF_VM_DISK_FOLDER_H

#include "error.h"
#include "strv.h"

/* A new file can be made in @folder, and @bytes be written there. @what and @option are for the
 * reason: "scratch folder", "--scratch". -ENOENT, -ENOTDIR, -EACCES, -EROFS, -ENOSPC; as
 * folder_keeps_names() */
int folder_has_room(const char *folder, uint64_t bytes, const char *what, const char *option,
                    struct ff_error *why);

/* No user but the owners may put another file in the place of one. -EPERM: everybody may, since all can
 * write to @folder and it is not sticky */
int folder_keeps_names(const char *folder, const char *what, const char *option, struct ff_error *why);

#endif
