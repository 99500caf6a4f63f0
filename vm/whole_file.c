/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * whole_file.c - see whole_file.h
 */
#include "whole_file.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

int whole_file_read(int fd, void *to, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = pread(fd, (uint8_t *)to + at, len - at, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        at += (size_t)n;
    }
    return 0;
}

int whole_file_write(int fd, const void *from, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(fd, (const uint8_t *)from + at, len - at, (off_t)at);
        if (n < 0 && errno != EINTR)
            return -errno;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}
