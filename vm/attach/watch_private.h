/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch_private.h - a userfaultfd of another process, between watch*.c and written.c
 */
#ifndef FF_VM_ATTACH_WATCH_PRIVATE_H
#define FF_VM_ATTACH_WATCH_PRIVATE_H

#include <linux/userfaultfd.h>

#include "inject.h"
#include "watch.h"

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC /* Linux 6.7 */
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif

/* What a userfaultfd has that logs writes, and makes nobody wait for them */
#define WATCH_LOG_FEATURES (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED | \
                            UFFD_FEATURE_WP_ASYNC)

/* What an ioctl(2) does depends on what it is called with: -EINVAL: @there is not /dev/userfaultfd */
int watch_check_device(pid_t pid, int there, struct ff_error *err);

/* A userfaultfd, made there: @w->there. @device: its number there; -1: by userfaultfd(2) */
int watch_make(struct inject *in, struct watch *w, int device, struct ff_error *err);

/* Then a duplicate here, @w->fd, which knows the API; then each block */
int watch_take(struct watch *w, struct ff_error *err);
int watch_register(const struct watch *w, const struct outside_block *b, struct ff_error *err);

#endif
