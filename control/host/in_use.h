/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * in_use.h - who has a file open
 */
#ifndef FF_CONTROL_HOST_IN_USE_H
#define FF_CONTROL_HOST_IN_USE_H

#include <sys/types.h>

#include "error.h"
#include "strv.h"

#define USER_NONE 0
#define USER_UNSEEN                                                                                \
    (-1) /* it has the locks that QEMU takes, and cannot be seen from here; or it may
                          * be there: not all of them could be looked at */

/* Of each of @files one process that has it open, into @users; a file that is not there has none.
 * Cost: a look at every descriptor of every process of this host, once for all of them */
void file_users(const struct strv *files, pid_t *users);

/* A process of this host other than @but that has the file open. Its locks say nothing: they are
 * @but's */
pid_t file_user_beside(const char *file, pid_t but);

#endif
