/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gl_disk.c - disk worker: every block must be what was last written to it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Find writes lost, doubled late or torn over a move: a source that
 *              still writes after the destination started, a cache not dropped.
 * Picture      record = 1..256 blocks of 4 KiB at a random place, one generation
 *                  block: | tag ^ nonce | sector | generation, index | checksum |
 *                         | 508 words: key(sector, generation) ^ ramp           |
 *              table[block] = generation last written in this boot (0: none yet)
 * Failure      an I/O error or a wrong block is counted; a wrong block is taken
 *              out of the table until it is written again.
 * Limits       the first disk_mib MiB of the disk; O_DIRECT, one operation
 *              in flight, every 16th write followed by a flush.
 */
#include "guestload.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAG 0x466172666f726b44ull      /* "FarforkD" */
#define RECORD_MAX 256u                /* blocks: 1 MiB */
#define SECTORS 8u                     /* a block */
#define HEAD 4u                        /* words */
#define FLUSH_EVERY 16u

struct disk {
    int fd;
    uint64_t blocks, nonce, rng, *buffer;
    uint32_t *table, gen;
};

static uint64_t checksum(const uint64_t *w)
{
    uint64_t h = 0x243f6a8885a308d3ull;

    for (unsigned i = 0; i < GL_WORDS; i++) {
        if (i == HEAD - 1)
            continue;
        h = (h ^ w[i]) * 0x9fb21c651e98df25ull;
        h ^= h >> 29;
    }
    return h;
}

static void fill_block(const struct disk *d, uint64_t *w, uint64_t block, uint32_t index)
{
    uint64_t key = gl_mix(d->nonce ^ (block << 32 | d->gen));

    w[0] = TAG ^ d->nonce;
    w[1] = block * SECTORS;
    w[2] = (uint64_t)d->gen << 32 | index;
    for (unsigned i = HEAD; i < GL_WORDS; i++)
        w[i] = key ^ gl_ramp[i];
    w[HEAD - 1] = checksum(w);
}

static void check_block(struct disk *d, const uint64_t *w, uint64_t block)
{
    uint32_t want = d->table[block], got = (uint32_t)(w[2] >> 32);
    const char *why;

    if (!want)
        return;
    if (w[0] != (TAG ^ d->nonce))
        why = w[0] ? "not ours" : "zero";
    else if (w[HEAD - 1] != checksum(w))
        why = "torn (checksum)";
    else if (w[1] != block * SECTORS)
        why = "of another place";
    else if (got != want)
        why = got < want ? "stale" : "from the future";
    else
        return;
    gl_fail(&gl_stats.disk_errors, "disk: sector %" PRIu64 " is %s: generation %" PRIu32
            " for %" PRIu32 ", says sector %" PRIu64 ", index %" PRIu32, block * SECTORS, why,
            got, want, w[1], (uint32_t)w[2]);
    d->table[block] = 0;
}

static void io_failed(const char *what, uint64_t block, uint64_t n, ssize_t got)
{
    gl_fail(&gl_stats.disk_errors, "disk: %s sector %" PRIu64 " count %" PRIu64 ": %s (%zd)",
            what, block * SECTORS, n * SECTORS, got < 0 ? strerror(errno) : "short", got);
    gl_sleep_ns(100000000);            /* do not spin on a dead disk */
}

static void write_record(struct disk *d, uint64_t block, uint64_t n)
{
    ssize_t got;

    d->gen++;
    for (uint64_t i = 0; i < n; i++)
        fill_block(d, d->buffer + i * GL_WORDS, block + i, (uint32_t)i);
    got = pwrite(d->fd, d->buffer, n * GL_PAGE, (off_t)(block * GL_PAGE));
    for (uint64_t i = 0; i < n; i++)
        d->table[block + i] = got == (ssize_t)(n * GL_PAGE) ? d->gen : 0;
    if (got != (ssize_t)(n * GL_PAGE))
        io_failed("write", block, n, got);
    if (atomic_fetch_add(&gl_stats.disk_writes, 1) % FLUSH_EVERY == 0 && fdatasync(d->fd) < 0)
        io_failed("flush", block, n, -1);
}

static void read_record(struct disk *d, uint64_t block, uint64_t n)
{
    ssize_t got;

    memset(d->buffer, 0xa5, n * GL_PAGE);
    got = pread(d->fd, d->buffer, n * GL_PAGE, (off_t)(block * GL_PAGE));
    if (got != (ssize_t)(n * GL_PAGE)) {
        io_failed("read", block, n, got);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        check_block(d, d->buffer + i * GL_WORDS, block + i);
    atomic_fetch_add(&gl_stats.disk_reads, 1);
}

static void *run_disk(void *arg)
{
    struct disk *d = arg;

    for (;;) {
        uint64_t r = gl_random(&d->rng);
        uint64_t n = 1 + (r >> 16) % (1u << (r % 9));   /* up to 1, 2, ... 256 blocks */
        uint64_t block = gl_random(&d->rng) % (d->blocks - n + 1);

        if (r & 0x100) {
            write_record(d, block, n);
            if (r & 0x200)
                read_record(d, block, n);
        } else {
            read_record(d, block, n);
        }
        gl_sleep_ns(gl_config.disk_pause_us * 1000);
    }
    return NULL;
}

void gl_disk_start(void)
{
    struct disk *d = calloc(1, sizeof(*d));
    uint64_t len = 0;
    struct stat st;

    if (!d)
        abort();
    d->fd = open(gl_config.disk, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (d->fd < 0 && errno == ENOENT) {
        free(d);
        return;                        /* a guest without a disk */
    }
    if (d->fd < 0 || fstat(d->fd, &st) < 0 ||
        (S_ISBLK(st.st_mode) && ioctl(d->fd, BLKGETSIZE64, &len) < 0)) {
        gl_fail(&gl_stats.disk_errors, "disk: open %s: %s", gl_config.disk, strerror(errno));
        goto give_up;
    }
    if (!S_ISBLK(st.st_mode))
        len = (uint64_t)st.st_size;
    if (len > gl_config.disk_mib << 20)
        len = gl_config.disk_mib << 20;
    d->blocks = len / GL_PAGE;
    if (d->blocks < RECORD_MAX) {
        gl_fail(&gl_stats.disk_errors, "disk: %s has %" PRIu64 " bytes (minimum %u)",
                gl_config.disk, len, RECORD_MAX * GL_PAGE);
        goto give_up;
    }
    d->table = calloc(d->blocks, sizeof(*d->table));
    d->buffer = aligned_alloc(GL_PAGE, RECORD_MAX * GL_PAGE);
    if (!d->table || !d->buffer)
        abort();
    if (getrandom(&d->nonce, sizeof(d->nonce), 0) != sizeof(d->nonce))
        d->nonce = gl_now_ns();
    d->rng = d->nonce;
    gl_start(run_disk, d, 0);
    return;

give_up:
    if (d->fd >= 0)
        close(d->fd);
    free(d);
}
