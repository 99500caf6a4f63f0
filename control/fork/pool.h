/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool.h - children that are kept ready for the next fork of a parent
 */
#ifndef FF_CONTROL_FORK_POOL_H
#define FF_CONTROL_FORK_POOL_H

#include "fork.h"

/* pool.c: keep @each children ready on each of @hosts (taken over), until a signal or the parent's
 * end; the exit code */
int pool_keep(const struct fork_options *o, struct hostlist *hosts, unsigned each);

/* pool_ask.c: *@code: of a fork by the pool of that parent, if there is one and it can: true. Else
 * an ordinary fork is to be made, and why is said unless there is no pool */
bool pool_fork(const struct fork_options *o, const struct hostlist *hosts, int *code);

/* @base NULL: the default; exit codes */
int pool_list(const char *base, bool json);
int pool_end(const char *base, const char *parent);

/* pool_place.c: a pool's socket, to be freed. It is named by what @parent, a QMP socket, is, not by
 * how it is written; NULL: there is no such socket */
char *pool_path(const char *base, const char *parent);
char *pool_base(const char *rundir); /* NULL: the default */

/* A socket there; -ENOENT: there is none; -ECONNREFUSED: nobody listens any more: with
 * rundir_lock() pool_listen() takes its place, and pool_clear() removes it. -EPERM: somebody
 * else's; -EBUSY: there is a pool */
int pool_connect(const char *path, struct ff_error *why);
int pool_listen(const char *base, const char *path, int *out, struct ff_error *why);
void pool_clear(const char *base, const char *path);
bool pool_peer_is_own(int sock);

/* What children were started with, or would be: by names of options */
json_t *pool_terms(const struct fork_options *o, const struct hostlist *hosts);
/* The first that differs; NULL: none */
const char *pool_other_term(const json_t *a, const json_t *b);

#endif
