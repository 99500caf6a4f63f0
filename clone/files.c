/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * files.c - files without a name that other processes may map; see files.h
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "files.h"

int ff_file_new(const char *name, uint64_t len_bytes, unsigned flags)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

    if (fd >= 0 && !ftruncate(fd, (off_t)len_bytes))
        return fd;
    int e = errno;
    ff_close_fd(&fd);
    return -e;
}

int ff_file_write(int fd, const void *data, size_t len, uint64_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const char *)data + done, len - done, (off_t)(at + done));
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

int ff_file_seal(int fd, int seals)
{
    return fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) < 0 ? -errno : 0;
}

int ff_file_check_sealed(int fd, uint64_t len_bytes, const char *who, struct ff_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0 || (seals & FF_SEALS_WHOLE) != FF_SEALS_WHOLE)
        return ff_error_set(err, EPROTO, "%s: the state that came by the socket is not sealed", who);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < len_bytes)
        return ff_error_set(err, EPROTO,
                            "%s: the state that came by the socket is no file of %llu bytes", who,
                            (unsigned long long)len_bytes);
    return 0;
}

int ff_file_sealed(const char *name, const void *data, size_t len)
{
    int fd = ff_file_new(name, len, 0);
    int rc = fd < 0 ? fd : ff_file_write(fd, data, len, 0);

    if (!rc)
        rc = ff_file_seal(fd, FF_SEALS_WHOLE);
    if (rc)
        ff_close_fd(&fd);
    return rc ? rc : fd;
}
