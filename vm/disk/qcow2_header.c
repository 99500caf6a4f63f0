/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qcow2_header.c - look into a qcow2 file
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tell an overlay that nobody has written to: its L1 table has no entry. QEMU writes
 *              that table straight to the file, before the first cluster that hangs on it is
 *              written, discarded or zeroed; so it may be read while QEMU has the file open.
 * Sources      QEMU's docs/interop/qcow2.txt; l2_allocate() of block/qcow2-cluster.c
 */
#include <endian.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "qcow2_header.h"
#include "error.h"
#include "strv.h"

#define MAGIC 0x514649fb
#define NAME_MAX_BYTES 1023
#define L1_MAX (1u << 22) /* QEMU's own limit: 32 MiB */

struct __attribute__((packed)) header {
    uint32_t magic, version;
    uint64_t backing_offset;
    uint32_t backing_len, cluster_bits;
    uint64_t size;
    uint32_t crypt, l1_entries;
    uint64_t l1_offset, refcount_offset;
    uint32_t refcount_clusters, snapshots;
    uint64_t snapshots_offset;
};

static bool all_zero(int fd, uint64_t at, size_t len)
{
    FF_AUTO_FREE char *table = xcalloc(len, 1);

    if (pread(fd, table, len, (off_t)at) != (ssize_t)len)
        return false;
    return !len || (!table[0] && !memcmp(table, table + 1, len - 1));
}

bool qcow2_is(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint32_t magic;

    if (fd < 0)
        return false;
    bool is = pread(fd, &magic, sizeof(magic), 0) == sizeof(magic) && be32toh(magic) == MAGIC;
    close(fd);
    return is;
}

bool overlay_is_empty(const char *path)
{
    struct header h;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool empty = false;

    if (fd < 0)
        return false;
    if (pread(fd, &h, sizeof(h), 0) == sizeof(h) && be32toh(h.magic) == MAGIC &&
        be64toh(h.backing_offset) && !be32toh(h.snapshots) && be32toh(h.l1_entries) <= L1_MAX)
        empty = all_zero(fd, be64toh(h.l1_offset), be32toh(h.l1_entries) * sizeof(uint64_t));
    close(fd);
    return empty;
}

char *overlay_backing(const char *path)
{
    char name[NAME_MAX_BYTES + 1];
    const char *slash = strrchr(path, '/');
    struct header h;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t len = 0;

    if (fd < 0)
        return NULL;
    if (pread(fd, &h, sizeof(h), 0) == sizeof(h) && be32toh(h.magic) == MAGIC &&
        be64toh(h.backing_offset) && be32toh(h.backing_len) <= NAME_MAX_BYTES &&
        pread(fd, name, be32toh(h.backing_len), (off_t)be64toh(h.backing_offset)) ==
            (ssize_t)be32toh(h.backing_len))
        len = be32toh(h.backing_len);
    close(fd);
    name[len] = '\0';
    if (!len)
        return NULL;
    return *name == '/' || !slash ? xstrdup(name)
                                  : xprintf("%.*s/%s", (int)(slash - path), path, name);
}
