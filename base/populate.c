/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * populate.c - memory of a file is asked for before it is written
 */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "populate.h"

int ff_populate(void *p, size_t len, struct ff_error *err)
{
    if (!madvise(p, len, MADV_POPULATE_WRITE) || errno == EINVAL)
        return 0;
    if (errno == EFAULT || errno == ENOMEM)
        return ff_error_set(err, ENOMEM, "%zu bytes: no room in the file behind memory (see df, and "
                            "HugePages_Free in /proc/meminfo)", len);
    return ff_error_set(err, errno, "%zu bytes: %s", len, strerror(errno));
}
