/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * in_use.c - who has a file open
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tell whether a disk image may go. A QEMU has its whole backing chain open, so
 *              whoever stands on an image has that open too.
 * Picture      descriptors in /proc: exact, of the processes of this host that may be looked at,
 *                                    also of a QEMU that holds no lock (-incoming, locking=off)
 *              QEMU's locks:         of all others: another user's, another host's where the file
 *                                    system has locks for all hosts (NFS 4, OCFS2, GFS2)
 * Failure      what cannot be looked at, for want of descriptors or of /proc, is in use. So is a file
 *              that the command line of another user's process names, or may: it cannot be read.
 *              another user's QEMU without locks that has the file behind its overlay is not found.
 * Limits       a process of another host on a file system without such locks is not found.
 * Sources      block/file-posix.c of QEMU: RAW_LOCK_PERM_BASE, RAW_LOCK_SHARED_BASE
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "in_use.h"
#include "process_argv.h"

#define LOCK_BASE 100
#define LOCK_BYTES 200

struct seen {
    const struct strv *files;
    struct stat *st; /* st_ino 0: it is not there */
    pid_t *users;
    pid_t but; /* who does not count; 0: nobody */
};

static const char *last_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_locked(const char *path)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE,
                      .l_len = LOCK_BYTES};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

    if (fd < 0)
        return errno != ENOENT && errno != ELOOP;
    bool locked = !fcntl(fd, F_OFD_GETLK, &l) && l.l_type != F_UNLCK;
    close(fd);
    return locked;
}

/* The name alone is compared first: a look at the file itself may hang, where it is of a server
 * that does not answer */
static void look_at(struct seen *s, pid_t pid, int dir, const char *fd)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(dir, fd, target, sizeof(target) - 1);
    struct stat st;

    if (n <= 0)
        return;
    target[n] = '\0';
    for (size_t i = 0; i < s->files->n; i++)
        if (s->users[i] <= 0 && s->st[i].st_ino &&
            !strcmp(last_of(target), last_of(s->files->v[i])) && !fstatat(dir, fd, &st, 0) &&
            st.st_ino == s->st[i].st_ino && st.st_dev == s->st[i].st_dev)
            s->users[i] = pid;
}

/* Its descriptors are not to be seen from here: what its command line names it may have */
static void suspect(struct seen *s, pid_t pid)
{
    struct strv words = {0};
    struct ff_error why;
    int rc = process_argv(pid, &words, &why);
    bool unknown = rc && rc != -ESRCH && rc != -ENOENT; /* a thread of the kernel has no words */

    for (size_t i = 0; i < s->files->n; i++) {
        bool named = unknown;
        for (size_t k = 1; k < words.n; k++)
            named |= strstr(words.v[k], last_of(s->files->v[i])) != NULL;
        if (named && s->users[i] == USER_NONE && s->st[i].st_ino)
            s->users[i] = USER_UNSEEN;
    }
    strv_free(&words);
}

/* Whether all was seen that there is: no more of a process that has ended */
static bool look_at_process(struct seen *s, const char *pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%s/fd", pid);
    DIR *d = opendir(path);
    struct dirent *e;

    if (!d && (errno == EACCES || errno == EPERM)) {
        suspect(s, (pid_t)atoi(pid));
        return true;
    }
    if (!d)
        return errno == ENOENT || errno == ESRCH;
    while ((e = readdir(d)))
        look_at(s, (pid_t)atoi(pid), dirfd(d), e->d_name);
    closedir(d);
    return true;
}

static bool look_at_all(struct seen *s)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    bool all = d;

    while (d && (e = readdir(d)))
        if (isdigit((unsigned char)*e->d_name) && (pid_t)atoi(e->d_name) != s->but)
            all &= look_at_process(s, e->d_name);
    if (d)
        closedir(d);
    return all;
}

void file_users(const struct strv *files, pid_t *users)
{
    struct stat *st = xcalloc(files->n + 1, sizeof(*st));
    struct seen s = {.files = files, .st = st, .users = users};
    size_t there = 0;

    for (size_t i = 0; i < files->n; i++) {
        users[i] = USER_NONE;
        if (lstat(files->v[i], &st[i]) < 0)
            st[i].st_ino = 0;
        else if (is_locked(files->v[i]))
            users[i] = USER_UNSEEN;
        there += st[i].st_ino != 0;
    }
    if (there && !look_at_all(&s))
        for (size_t i = 0; i < files->n; i++)
            if (users[i] == USER_NONE && st[i].st_ino)
                users[i] = USER_UNSEEN;
    free(st);
}

pid_t file_user_beside(const char *file, pid_t but)
{
    FF_AUTO_FREE char *real =
        realpath(file, NULL); /* descriptors name the file, never a link to it */
    char *names[] = {real, NULL};
    const struct strv files = {.v = names, .n = 1};
    pid_t user = USER_NONE;
    struct stat st;
    struct seen s = {.files = &files, .st = &st, .users = &user, .but = but};

    if (!real || stat(real, &st) < 0)
        return errno == ENOENT ? USER_NONE : USER_UNSEEN;
    return look_at_all(&s) || user ? user : USER_UNSEEN;
}
