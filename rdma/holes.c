/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * holes.c - find granules of zeros in a shared file without touching its holes; see mr.h
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "mr.h"

#define PAGE 4096u /* the unit of mincore() */
#define PAGES_MAX 4096u
#define PART (16u << 10)

static bool all_zeros(const uint8_t *p, uint32_t len)
{
    uint64_t first;

    memcpy(&first, p, sizeof(first));
    return !first && !memcmp(p, p + 8, len - 8);
}

/* By reading the file, which fills no hole; what cannot be read is no zeros */
static bool reads_as_zeros(int fd, uint64_t offset, uint32_t len)
{
    uint8_t part[PART];

    for (uint32_t at = 0; at < len; at += FF_MIN(len - at, PART)) {
        uint32_t want = FF_MIN(len - at, PART);
        if (pread(fd, part, want, (off_t)(offset + at)) != (ssize_t)want || !all_zeros(part, want))
            return false;
    }
    return true;
}

uint32_t ff_zero_scan_file(int fd, uint64_t offset, const void *addr, uint32_t len,
                           uint32_t granule, uint8_t *zero)
{
    const uint8_t *p = addr;
    unsigned char here[PAGES_MAX];
    uint64_t data = 0; /* the file has some here, and none from the last hole up to here */
    uint32_t found = 0;

    if (fd < 0 || len / PAGE > PAGES_MAX || granule % PAGE || mincore((void *)p, len, here))
        return ff_zero_scan(addr, len, granule, zero);
    for (uint32_t i = 0; i < len / granule; i++, p += granule, offset += granule) {
        bool zeros;
        if (here[i * (granule / PAGE)] & 1) {
            zeros = all_zeros(p, granule);
        } else {
            /* not resident: a hole, or swapped out; a hugetlb file does not tell */
            if (data < offset)
                data = (uint64_t)lseek(fd, (off_t)offset, SEEK_DATA);
            if (data == UINT64_MAX && errno != ENXIO)
                data = offset;
            zeros = (data > offset && data - offset >= granule) ||
                    reads_as_zeros(fd, offset, granule);
        }
        if (!zeros)
            continue;
        zero[i / 8] |= (uint8_t)(1u << (i % 8));
        found++;
    }
    return found;
}
