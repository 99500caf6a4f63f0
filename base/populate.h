/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * populate.h - memory of a file is asked for before it is written
 */
#ifndef FF_BASE_POPULATE_H
#define FF_BASE_POPULATE_H

#include <stddef.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

struct ff_error;

/* Whole pages of a shared mapping are about to be written. A file system that is full would answer
 * that by SIGBUS: 0: there is room, or this kernel cannot say; -ENOMEM, with the remedy: there is
 * none */
int ff_populate(void *p, size_t len, struct ff_error *err);

#endif
