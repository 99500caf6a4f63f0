/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool_place.c - where a parent's pool is, and what its children were started with
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "autojson.h"
#include "pool.h"
#include "rundir.h"

char *pool_base(const char *rundir)
{
    return rundir ? defaults_absolute_path(rundir) : rundir_base();
}

/* Not seen where forks are listed */
char *pool_path(const char *base, const char *parent)
{
    struct stat st;

    if (stat(parent, &st) < 0 || !S_ISSOCK(st.st_mode))
        return NULL;
    return xprintf("%s/.pool-%llx-%llx", base, (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
}

/* --- its socket --- */

bool pool_peer_is_own(int sock)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) && peer.uid == geteuid();
}

static int pool_socket(const char *path, struct sockaddr_un *a, struct ff_error *why)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a->sun_path))
        return ff_error_set(why, ENAMETOOLONG, "%s: the name is too long: name a shorter --rundir",
                            path);
    strcpy(a->sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? ff_error_set(why, errno, "socket: %s", strerror(errno)) : fd;
}

int pool_connect(const char *path, struct ff_error *why)
{
    struct sockaddr_un a;
    int fd = pool_socket(path, &a, why), code;

    if (fd < 0)
        return fd;
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        code = errno;
    else if (pool_peer_is_own(fd))
        return fd;
    else
        code = EPERM;
    close(fd);
    return ff_error_set(why, code, "%s: %s", path, strerror(code));
}

static int bind_there(const char *path, int *out, struct ff_error *why)
{
    struct sockaddr_un a;
    int fd = pool_socket(path, &a, why);

    if (fd < 0)
        return fd;
    mode_t was = umask(0177);
    bool ok = !bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, SOMAXCONN);
    int code = ok ? 0 : errno;
    umask(was);
    if (code)
        close(fd);
    else
        *out = fd;
    return code ? ff_error_set(why, code, "%s: %s", path, strerror(code)) : 0;
}

int pool_listen(const char *base, const char *path, int *out, struct ff_error *why)
{
    int lock, rc = rundir_make_base(base, why);

    if (!rc)
        rc = rundir_lock(base, LOCK_LIMIT_MS, &lock, why);
    if (rc)
        return rc;
    int other = pool_connect(path, why);
    if (other >= 0) {
        close(other);
        rc = ff_error_set(why, EBUSY, "this parent has a pool already: farfork pool --end ends it");
    } else if (other == -ECONNREFUSED || other == -ENOENT) { /* of one that was killed */
        unlink(path);
        rc = bind_there(path, out, why);
    } else {
        rc = other;
    }
    rundir_unlock(lock);
    return rc;
}

void pool_clear(const char *base, const char *path)
{
    struct ff_error ignored;
    int lock;

    if (rundir_lock(base, LOCK_SHORT_MS, &lock, &ignored))
        return;
    int fd = pool_connect(path, &ignored);
    if (fd == -ECONNREFUSED)
        unlink(path);
    ff_close_fd(&fd);
    rundir_unlock(lock);
}

/* --- what children were started with --- */

/* The same from whichever folder it is asked for */
static char *place(const char *path)
{
    return path ? defaults_absolute_path(path) : NULL;
}

json_t *pool_terms(const struct fork_options *o, const struct hostlist *hosts)
{
    json_t *list = json_array();

    for (size_t i = 0; i < hosts->n; i++) {
        const struct node *n = &hosts->v[i];
        FF_AUTO_FREE char *text = xprintf("%s=%s:%u", n->host, n->address, n->slots);
        json_array_append_new(list, json_string(text));
    }
    const bool off = o->working_set && !strcmp(o->working_set, "none");
    FF_AUTO_FREE char *set = off ? xstrdup("none") : place(o->working_set);
    FF_AUTO_FREE char *rundir = place(o->s.rundir), *metrics = place(o->s.metrics_dir);
    FF_AUTO_FREE char *agent = o->s.agent ? xstrdup(o->s.agent) : defaults_agent();
    return json_pack("{so ss? ss? ss? ss? ss? ss? ss? ss? ss? si ss? ss? si si so ss? ss? ss? sb}", "hosts", list,
                     "launcher", o->s.launcher, "options", o->s.link_options, "qemu", o->s.qemu,
                     "agent", agent, "scope", o->s.scope, "metrics-dir", metrics,
                     "scratch", o->scratch, "overlays", o->overlays, "nbd", o->nbd, "net",
                     (int)o->net, "bridge", o->bridge, "hostname", o->hostname, "fanout", o->fanout,
                     "max-chain", (int)o->max_chain, "ip",
                     o->ip.n ? strv_json(o->ip.v) : json_array(), "rundir", rundir,
                     "multicast", o->multicast, "working-set", set, "unconfined", o->s.unconfined);
}

static const char *other_in(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)a, key, value)
        if (!json_equal(value, json_object_get(b, key)))
            return key;
    return NULL;
}

const char *pool_other_term(const json_t *a, const json_t *b)
{
    const char *key = other_in(a, b);

    return key ? key : other_in(b, a); /* that one of another version has alone */
}
