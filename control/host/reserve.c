/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * reserve.c - memory of this host that is promised to forks which are about to come
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      two forks that look for a place at the same time do not both get the memory that one of them
 *              takes. The kernel promises no memory; this is a promise of farfork's to itself.
 * Picture      BASE/.reserved-HOST/ID,NODE   {"bytes", "until_s": of CLOCK_BOOTTIME}
 *              what a fork uses by now  Pss of its agent and children, by its state file
 * Invariants   1. Looked at and written under the lock of BASE.
 *              2. One that nobody holds any more is removed by whoever looks.
 * Limits       Forks of other users are seen as memory that is gone, not as what is promised.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "cleanup.h"
#include "process_argv.h"
#include "reserve.h"
#include "rundir.h"

#define FOLDER ".reserved-%s" /* the host's name: others may have that folder, too */

static char *promises_of(const char *base)
{
    return xprintf("%s/" FOLDER, base, rundir_host());
}

static int64_t now_s(void)
{
    return (int64_t)(ff_boot_ns() / 1000000000u);
}

/* What its processes use, which are here, or may be */
static enum process_state used_by(const char *base, const char *id_node, uint64_t *bytes)
{
    const char *comma = strchr(id_node, ',');
    FF_AUTO_FREE char *dir = comma ? xprintf("%s/%.*s/%s", base, (int)(comma - id_node), id_node, comma + 1) : NULL;
    FF_AUTO_JSON json_t *s = dir ? rundir_read_state(dir) : NULL;
    json_t *k;
    size_t i;

    if (!s || !rundir_is_of_here(s))
        return PROCESS_GONE;
    pid_t agent = (pid_t)json_integer_value(json_object_get(s, "agent"));
    enum process_state is = rundir_look(s, "agent");
    if (is != PROCESS_ALIVE)
        return is; /* unknown: nothing is known of what it uses: all that it was promised counts */
    *bytes = process_pss_bytes(agent);
    json_array_foreach(json_object_get(s, "children"), i, k)
        *bytes += process_pss_bytes((pid_t)json_integer_value(json_object_get(k, "pid")));
    return is;
}

static bool is_promise(const char *id_node)
{
    const char *comma = strchr(id_node, ',');
    FF_AUTO_FREE char *id = comma ? xprintf("%.*s", (int)(comma - id_node), id_node) : NULL;

    return comma && rundir_name_valid(id) && rundir_name_valid(comma + 1);
}

/* But for @but, which is to be replaced. A folder that is a symbolic link, as a child that has broken
 * out of its QEMU may leave, has none */
static uint64_t sum(const char *base, const char *but)
{
    FF_AUTO_FREE char *folder = promises_of(base);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    uint64_t left = 0;

    if (fd >= 0 && !d)
        close(fd);
    while (d && (e = readdir(d))) {
        if (!is_promise(e->d_name) || (but && !strcmp(e->d_name, but)))
            continue;
        FF_AUTO_FREE char *path = xprintf("%s/%s", folder, e->d_name);
        FF_AUTO_JSON json_t *o = json_load_file(path, 0, NULL);
        json_int_t said = json_integer_value(json_object_get(o, "bytes"));
        uint64_t bytes = said > 0 ? (uint64_t)said : 0, used = 0;
        int64_t until_s = json_integer_value(json_object_get(o, "until_s")), now = now_s();
        enum process_state is = used_by(base, e->d_name, &used);
        int64_t more_s = is == PROCESS_UNKNOWN ? RESERVE_UNSEEN_S : 0;
        if (is != PROCESS_ALIVE && (until_s > now + RESERVE_S || now >= until_s + more_s)) /* or of an earlier boot */
            unlinkat(dirfd(d), e->d_name, 0);
        else if (bytes > used)
            left = left > UINT64_MAX - (bytes - used) ? UINT64_MAX : left + (bytes - used);
    }
    if (d)
        closedir(d);
    return left;
}

uint64_t reserve_left(const char *base)
{
    struct ff_error why;
    int lock;

    if (rundir_lock(base, LOCK_LIMIT_MS, &lock, &why))
        return 0;
    uint64_t left = lock < 0 ? 0 : sum(base, NULL);
    rundir_unlock(lock);
    return left;
}

static int write_promise(const char *base, const char *name, uint64_t bytes, struct ff_error *why)
{
    FF_AUTO_FREE char *folder = promises_of(base), *path = xprintf("%s/%s", folder, name);
    FF_AUTO_JSON json_t *o = json_pack("{sI sI}", "bytes", (json_int_t)bytes, "until_s", (json_int_t)(now_s() + RESERVE_S));

    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return ff_error_set(why, errno, "%s: %s", folder, strerror(errno));
    unlink(path); /* also a symbolic link: nothing is written to what it leads to */
    FF_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || json_dumpfd(o, fd, JSON_COMPACT) < 0)
        return ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    return 0;
}

void reserve_drop(const char *base, const char *id, const char *node)
{
    FF_AUTO_FREE char *folder = promises_of(base), *path = xprintf("%s/%s,%s", folder, id, node);

    unlink(path);
}

int reserve_take(const char *base, const char *id, const char *node, uint64_t bytes, uint64_t available,
                 uint64_t *others, struct ff_error *why)
{
    FF_AUTO_FREE char *name = xprintf("%s,%s", id, node);
    int lock, rc = rundir_make_base(base, why);

    if (!rc)
        rc = rundir_lock(base, LOCK_LIMIT_MS, &lock, why);
    if (rc)
        return rc;
    *others = sum(base, name);
    if (!bytes)
        reserve_drop(base, id, node);
    else if (bytes > available || *others > available - bytes)
        rc = ff_error_set(why, ENOMEM, "%llu MiB of memory are wanted here, and %llu are left",
                          (unsigned long long)bytes >> 20,
                          (unsigned long long)(available > *others ? available - *others : 0) >> 20);
    else
        rc = write_promise(base, name, bytes, why);
    rundir_unlock(lock);
    return rc;
}
