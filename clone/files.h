/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * files.h - files without a name that other processes may map, and cannot change
 *
 * A descriptor for reading alone is no protection: /proc/self/fd opens its file for writing. Seals
 * are (tests/platform/sealed_file.c).
 */
#ifndef FF_CLONE_FILES_H
#define FF_CLONE_FILES_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

struct ff_error;

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Of a file that nobody writes any more, and of one that is written through mappings made before */
#define FF_SEALS_WHOLE (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define FF_SEALS_MAPPED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

/* @flags: MFD_HUGETLB and the like. A descriptor, or -errno */
int ff_file_new(const char *name, uint64_t len_bytes, unsigned flags);
int ff_file_write(int fd, const void *data, size_t len, uint64_t at);

/* No seal can be added, or taken away, after it. -EINVAL: before Linux 5.1 there is no
 * FUTURE_WRITE */
int ff_file_seal(int fd, int seals);

/* May @fd, with what @who has got by its socket, be read where it is? 0, or -EPROTO: others may change
 * it, or it is shorter than @len_bytes */
int ff_file_check_sealed(int fd, uint64_t len_bytes, const char *who, struct ff_error *err);

/* A file with @data that nobody can change: a descriptor, or -errno */
int ff_file_sealed(const char *name, const void *data, size_t len);

#endif
