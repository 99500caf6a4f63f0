/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * collapse.h - whether this host wants transparent huge pages of 2 MiB; see collapse.c
 */
#ifndef FF_UFFD_COLLAPSE_H
#define FF_UFFD_COLLAPSE_H

struct ff_error;

#define FF_THP_DIR "/sys/kernel/mm/transparent_hugepage"

/* By the settings in @dir: 0; -ENOTSUP with the reason */
int ff_collapse_permitted(const char *dir, struct ff_error *err);

#endif
