/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * same_user.h - is the peer of a socket a process of this user on this host?
 */
#ifndef FF_RDMA_SAME_USER_H
#define FF_RDMA_SAME_USER_H

#include "error.h"

/* 0: @fd is a unix socket, or the peer of this TCP connection is on this host and of this user, as
 * the kernel has it; -EACCES: it is not, or has left: who it was cannot be told any more; or why it
 * cannot be known */
int ff_same_user(int fd, struct ff_error *err);

#endif
