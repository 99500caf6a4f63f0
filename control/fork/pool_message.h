/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool_message.h - JSON and descriptors between vmclone, a pool and what it keeps
 */
#ifndef FF_CONTROL_FORK_POOL_MESSAGE_H
#define FF_CONTROL_FORK_POOL_MESSAGE_H

#include <jansson.h>

#include "error.h"

#define POOL_FDS 2
/* Of a request: who asks. From who asks, when it has read `taken`: its stdout and stderr, which nobody
 * is to have open who does not answer */
enum { POOL_CLIENT = 0, POOL_OUT = 0, POOL_ERR = 1 };

/* Sockets are of type SOCK_SEQPACKET: one message is one packet. @m is taken over. 0, -errno */
int pool_send(int sock, json_t *m, const int *fds, unsigned n);

/* Within @limit_ms: 0; *@fds: -1 where there is none; NULL: none is taken. -EPIPE: it has ended;
 * -ETIMEDOUT; -EPROTO: no JSON object */
int pool_recv(int sock, int limit_ms, json_t **m, int fds[POOL_FDS]);
void pool_close(int fds[POOL_FDS]);

#endif
