/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fd_pass.h - bytes with a descriptor over a unix socket
 */
#ifndef FF_BASE_FD_PASS_H
#define FF_BASE_FD_PASS_H

#include <stddef.h>

/* All of @data, and @fd with its first byte; -1: none. 0, -errno */
int ff_fd_send(int sock, const void *data, size_t len, int fd);

/* All of it; *@fd is set if a descriptor comes, and is the caller's; NULL: none is expected. 0, -errno;
 * -EPIPE: the other side has ended. Waits */
int ff_fd_receive(int sock, void *data, size_t len, int *fd);

#endif
