/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * until_go.c - a file that says that no guest ran here, and one that it has shut itself down
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a destination that was killed can tell nobody whether it had read GO. A file is what
 *              it leaves: its source may have the guest back if that is there.
 * Picture      listen    the file is made, empty
 *              accept    it says which move its source makes (ff_mark_text()): one that a rollback of the
 *                        file system brings back, or that is another move's, says nothing of this one
 *              GO read   it is removed
 *                        disks are activated, vCPUs run
 *              its guest ends itself    another is made beside it, its name and ".shut-down": who
 *                        takes it back would run a guest that has ended (fallback=go)
 * Invariants   The file is there: nothing ran, at whichever instruction the destination ended. It is
 *              not there: something may have run. So whatever loses files, such as a /run that is
 *              emptied when the host boots, never makes a second runner.
 * Failure      It cannot be made, or nobody knows whether it is on disk: no source is heard. It
 *              cannot be removed, or nobody knows that: no guest runs, and it is put back, for a
 *              destination that is killed before its source has heard so.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failpoint.h"
#include "log.h"
#include "until_go.h"

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

static int write_mark_text(const struct ff_until_go *u, int fd)
{
    ssize_t len = (ssize_t)strlen(u->text), n = pwrite(fd, u->text, (size_t)len, 0);

    if (n != len)
        return n < 0 ? -errno : -EIO;
    return fsync(fd) ? -errno : 0;
}

/* Where the file system can promise it: no room is found now, and not when a source has come */
static int reserve_mark_text(const struct ff_until_go *u, int fd)
{
    bool none = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, sizeof(u->text)) < 0 && (errno == ENOSPC || errno == EDQUOT);

    return none ? -errno : 0;
}

/* What is there already is another's, also a link to somewhere else. The failpoint's second time
 * stands for fsync(). @back: put back, while nothing has run: it is true, on disk or not, and stays */
static int make_file(struct ff_until_go *u, bool back)
{
    int rc = ff_failpoint("dest.mark");
    int fd = rc ? -1 : openat(u->dir, u->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return rc ? rc : -errno;
    rc = ff_failpoint("dest.mark");
    if (!rc)
        rc = reserve_mark_text(u, fd);
    if (!rc)
        rc = write_mark_text(u, fd);
    if (!rc && fsync(u->dir))
        rc = -errno;
    close(fd);
    if (rc && back)
        return 0;
    if (rc)
        unlinkat(u->dir, u->name, 0);
    return rc;
}

#define SHUT_DOWN ".shut-down"

/* To be freed; NULL: no memory */
static char *name_of_shut_down(const struct ff_until_go *u)
{
    size_t len = strlen(u->name);
    char *name = malloc(len + sizeof(SHUT_DOWN));

    if (name) {
        memcpy(name, u->name, len);
        memcpy(name + len, SHUT_DOWN, sizeof(SHUT_DOWN));
    }
    return name;
}

/* 0: it is not. A link to nowhere is there */
static int is_shut_down(const struct ff_until_go *u)
{
    char *name = name_of_shut_down(u);
    struct stat st;
    int rc = !name                                              ? -ENOMEM
             : !fstatat(u->dir, name, &st, AT_SYMLINK_NOFOLLOW) ? -EEXIST
             : errno != ENOENT                                  ? -errno
                                                                : 0;

    free(name);
    return rc;
}

int ff_until_go_make(struct ff_until_go *u, const char *path, struct ff_error *err)
{
    *u = (struct ff_until_go)FF_UNTIL_GO_NONE;
    if (!*path)
        return 0;
    int rc = open_folder(u, path);
    int down = rc ? 0 : is_shut_down(u);
    if (!rc && !down)
        rc = make_file(u, false);
    if (!rc && !down)
        return 0;
    ff_until_go_free(u);
    if (down)
        return ff_error_set(err, -down, "destination: until-go=%s: %s" SHUT_DOWN ": %s%s", path,
                            path, strerror(-down),
                            down == -EEXIST ? ": the guest of another destination has shut itself "
                                              "down: remove it once its disks are committed" : "");
    return ff_error_set(err, -rc, "destination: until-go=%s: %s%s", path, strerror(-rc),
                        rc == -EEXIST ? ": remove what another destination left, once its source "
                                        "has its guest back" : "");
}

/* Nobody else has put a link there since it was made: the folder is this user's own */
int ff_until_go_sign(struct ff_until_go *u, const char *mark, struct ff_error *err)
{
    if (u->dir < 0)
        return 0;
    snprintf(u->text, sizeof(u->text), "%s\n", mark);
    int rc = ff_failpoint("dest.sign");
    int fd = rc ? -1 : openat(u->dir, u->name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (!rc)
        rc = fd < 0 ? -errno : write_mark_text(u, fd);
    if (fd >= 0)
        close(fd);
    return rc ? ff_error_set(err, -rc, "destination: write until-go=%s: %s", u->name, strerror(-rc)) : 0;
}

/* That it was removed outlives the host as well. The failpoint's second time stands for fsync() */
static int remove_file(struct ff_until_go *u)
{
    int rc = ff_failpoint("dest.unmark");

    /* that somebody else removed it says the same */
    if (!rc && unlinkat(u->dir, u->name, 0) && errno != ENOENT)
        rc = -errno;
    if (rc)
        return rc;
    rc = ff_failpoint("dest.unmark");
    if (!rc && fsync(u->dir))
        rc = -errno;
    if (rc && make_file(u, true))
        ff_log(FF_LOG_WARN, "destination: until-go: %s cannot be made again: should this "
               "destination be killed now, nobody can tell that nothing ran", u->name);
    return rc;
}

int ff_until_go_remove(struct ff_until_go *u, struct ff_error *err)
{
    int rc = ff_failpoint("dest.go");

    if (!rc && u->dir >= 0)
        rc = remove_file(u);
    if (rc)
        return ff_error_set(err, -rc, "destination: remove until-go=%s: %s", u->name ? u->name : "",
                            strerror(-rc));
    ff_failpoint("dest.run");
    return 0;
}

/* The failpoint's second time stands for fsync() */
int ff_until_go_shut_down(struct ff_until_go *u, bool down, struct ff_error *err)
{
    static const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    int fd = -1;

    if (u->dir < 0)
        return 0;
    char *name = name_of_shut_down(u);
    int rc = name ? ff_failpoint("dest.shut-down") : -ENOMEM;
    if (!rc && down && (fd = openat(u->dir, name, flags, 0600)) < 0)
        rc = -errno;
    else if (!rc && !down && unlinkat(u->dir, name, 0) && errno != ENOENT)
        rc = -errno;
    if (!rc)
        rc = ff_failpoint("dest.shut-down");
    if (!rc && ((fd >= 0 && fsync(fd)) || fsync(u->dir)))
        rc = -errno;
    if (fd >= 0)
        close(fd);
    free(name);
    return rc ? ff_error_set(err, -rc, "destination: until-go=%s" SHUT_DOWN ": %s", u->name,
                             strerror(-rc))
              : 0;
}

void ff_until_go_free(struct ff_until_go *u)
{
    if (u->dir >= 0)
        close(u->dir);
    free(u->name);
    *u = (struct ff_until_go)FF_UNTIL_GO_NONE;
}
