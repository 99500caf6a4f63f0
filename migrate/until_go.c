/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * until_go.c - a file that says that no guest ran here
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a destination that was killed can tell nobody whether it had read GO. A file is what
 *              it leaves: its source may have the guest back if that is there.
 * Picture      listen    the file is made
 *              GO read   it is removed
 *                        disks are activated, vCPUs run
 * Invariants   The file is there: nothing ran, at whichever instruction the destination ended. It is
 *              not there: something may have run. So whatever loses files, such as a /run that is
 *              emptied when the host boots, never makes a second runner.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failpoint.h"
#include "until_go.h"

/* That it was removed outlives the host as well; where that cannot be, it is not made */
static int sync_folder(int dir)
{
    return fsync(dir) ? -errno : 0;
}

static int open_folder(struct ff_until_go *u, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash          ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));

    u->name = strdup(slash ? slash + 1 : path);
    u->dir = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int rc = u->dir < 0 ? -errno : u->name ? 0 : -ENOMEM;
    free(folder);
    return rc;
}

int ff_until_go_make(struct ff_until_go *u, const char *path, struct ff_error *err)
{
    *u = (struct ff_until_go)FF_UNTIL_GO_NONE;
    if (!*path)
        return 0;
    int rc = open_folder(u, path);
    int fd = rc ? -1 : openat(u->dir, u->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (!rc && fd < 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    if (!rc)
        rc = sync_folder(u->dir);
    if (!rc)
        return 0;
    if (fd >= 0) /* not another's */
        unlinkat(u->dir, u->name, 0);
    ff_until_go_free(u);
    return ff_error_set(err, -rc, "destination: until-go=%s: %s%s", path, strerror(-rc),
                        rc == -EEXIST ? ": remove what another destination left, once its source "
                                        "has its guest back" : "");
}

int ff_until_go_remove(struct ff_until_go *u, struct ff_error *err)
{
    int rc = ff_failpoint("dest.go");

    /* that somebody else removed it says the same */
    if (!rc && u->dir >= 0 && unlinkat(u->dir, u->name, 0) && errno != ENOENT)
        rc = -errno;
    if (!rc && u->dir >= 0)
        rc = sync_folder(u->dir);
    if (rc)
        return ff_error_set(err, -rc, "destination: remove until-go=%s: %s", u->name ? u->name : "",
                            strerror(-rc));
    ff_until_go_free(u);
    ff_failpoint("dest.run");
    return 0;
}

void ff_until_go_free(struct ff_until_go *u)
{
    if (u->dir >= 0)
        close(u->dir);
    free(u->name);
    *u = (struct ff_until_go)FF_UNTIL_GO_NONE;
}
