/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * secret.h - memory for keys: in no core dump, wiped when freed
 */
#ifndef FF_BASE_SECRET_H
#define FF_BASE_SECRET_H

#include <stddef.h>

/* Zeros; NULL: out of memory. It takes whole pages of its own: for a few keys, not for many */
void *ff_secret_new(size_t len);
void ff_secret_free(void *p, size_t len); /* @p may be NULL */

#endif
