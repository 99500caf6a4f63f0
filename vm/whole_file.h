/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * whole_file.h - all bytes of a file, from its beginning, whatever interrupts
 */
#ifndef FF_VM_WHOLE_FILE_H
#define FF_VM_WHOLE_FILE_H

#include <stddef.h>

/* Return: 0; -EIO: it has fewer than @len bytes; -errno */
int whole_file_read(int fd, void *to, size_t len);
int whole_file_write(int fd, const void *from, size_t len);

#endif
