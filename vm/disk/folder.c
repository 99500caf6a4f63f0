/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * folder.c - a folder for overlays
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "folder.h"

int folder_keeps_names(const char *folder, const char *what, const char *option, struct ff_error *why)
{
    struct stat st;

    if (stat(folder, &st) < 0)
        return ff_error_set(why, errno, "%s %s: %s: name another one (%s)", what, folder, strerror(errno),
                            option);
    if (!(st.st_mode & S_IWOTH) || st.st_mode & S_ISVTX)
        return 0;
    return ff_error_set(why, EPERM,
                        "%s %s: every user may rename files of others in it (mode %04o): chmod +t it, or "
                        "name another one, such as a folder in it of mode 0700 (%s)",
                        what, folder, st.st_mode & 07777, option);
}

int folder_has_room(const char *folder, uint64_t bytes, const char *what, const char *option,
                    struct ff_error *why)
{
    struct statvfs v;
    struct stat st;

    if (stat(folder, &st) < 0 || (!S_ISDIR(st.st_mode) && (errno = ENOTDIR)) ||
        access(folder, W_OK | X_OK) < 0 || statvfs(folder, &v) < 0)
        return ff_error_set(why, errno, "%s %s: %s: name one that can be written to (%s)", what,
                            folder, strerror(errno), option);
    int rc = folder_keeps_names(folder, what, option, why);
    if (rc)
        return rc;
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize;
    if (have < bytes)
        return ff_error_set(why, ENOSPC,
                            "%s %s: no space left for overlays (%llu KiB free, %llu KiB "
                            "needed at once): name another one (%s)",
                            what, folder, (unsigned long long)have >> 10,
                            (unsigned long long)bytes >> 10, option);
    return 0;
}
