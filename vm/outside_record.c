/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_record.c - find the records that a QEMU keeps of its RAM blocks
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      A QEMU before 8.0 prints no host addresses, `gpa2hva` knows only what the guest has
 *              mapped, and a QEMU of libvirt's answers nobody else. Lengths tell no two NICs'
 *              ROMs apart. QEMU's own struct RAMBlock has all of it, by name.
 *
 * Picture      [heap] of the QEMU, read by /proc/PID/mem: of QEMU 2.12 to 10.2
 *                record -> rcu 16 | mr | host | colo_cache | offset | used_length | max_length |
 *                          resized | flags 4 | idstr 256 | next.le_next | next.le_prev
 *                                                           (a list)     |
 *                record <-- *le_prev, elsewhere in the QEMU <------------+
 *
 * Invariants   1. A record counts with all of it: name, used length, a page-aligned address, and a
 *                 list that leads back to it. A record that QEMU has freed fails the last.
 *              2. Two records of one name at different addresses are an error: bytes that a guest
 *                 brought into the heap can make farfork refuse, not mislead it.
 *              3. Guest memory is never searched: [heap] is the allocator's alone.
 * Limits       64-bit QEMUs. Another layout, or another allocator than brk(2), has no record here:
 *              not found, which is no error.
 * Sources      include/exec/ramblock.h, include/qemu/queue.h QLIST_INSERT_HEAD_RCU() of QEMU
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "outside_private.h"
#include "xalloc.h"

#define STEP 16u              /* malloc(3) aligns to it */
#define CHUNK_BYTES (1u << 20) /* read at once */

static_assert(sizeof(struct outside_record) == 352 && CHUNK_BYTES % STEP == 0,
              "QEMU's layout");

struct record_search {
    pid_t pid;
    int mem; /* /proc/PID/mem */
    const struct outside_block *b;
    unsigned n;
    uint64_t *hva; /* of each block; 0: not found */
};

/* Of the list that this record at @at says that it is in */
static bool is_in_list(const struct record_search *s, const struct outside_record *r, uint64_t at)
{
    uint64_t back;

    return r->le_prev && r->le_prev <= INT64_MAX &&
           pread(s->mem, &back, sizeof(back), (off_t)r->le_prev) == sizeof(back) && back == at;
}

static bool has_idstr(const struct outside_record *r, const char *name)
{
    return !strncmp(r->idstr, name, sizeof(r->idstr)) && memchr(r->idstr, 0, sizeof(r->idstr));
}

/* A resizable block may have been resized since @b was read */
static bool is_record_of(const struct outside_record *r, const struct outside_block *b)
{
    return (b->max_bytes ? r->max_length == b->max_bytes : r->used_length == b->len_bytes) &&
           has_idstr(r, b->name);
}

static int take_record(struct record_search *s, const struct outside_record *r, uint64_t at,
                       struct ff_error *err)
{
    if (!r->host || r->host % 4096 || r->max_length < r->used_length)
        return 0;
    for (unsigned i = 0; i < s->n; i++) {
        if (!is_record_of(r, &s->b[i]) || s->hva[i] == r->host || !is_in_list(s, r, at))
            continue;
        if (s->hva[i])
            return ff_error_set(err, ENOTUNIQ,
                                "memory of %s: find it: QEMU (process %d) has two records of it, "
                                "at 0x%" PRIx64 " and 0x%" PRIx64 ": start the move again; use a "
                                "QEMU of 8.0 or newer if this persists", s->b[i].name,
                                (int)s->pid, s->hva[i], r->host);
        s->hva[i] = r->host;
    }
    return 0;
}

/* One stretch of the heap, which may shrink meanwhile */
static int search_heap(struct record_search *s, const struct outside_vma *v, struct ff_error *err)
{
    const size_t more = sizeof(struct outside_record) - STEP; /* one that begins at a chunk's end */
    FF_AUTO_FREE char *buf = xcalloc(1, CHUNK_BYTES + more);

    for (uint64_t at = v->start; at < v->end; at += CHUNK_BYTES) {
        const size_t want = FF_MIN(v->end - at, (uint64_t)CHUNK_BYTES + more);
        const ssize_t got = pread(s->mem, buf, want, (off_t)at);

        if (got < 0 && errno != EIO)
            return ff_error_set(err, errno, "process %d: read its heap: %s", (int)s->pid,
                                strerror(errno));
        for (size_t o = 0; got > 0 && o + sizeof(struct outside_record) <= (size_t)got &&
                           o < CHUNK_BYTES; o += STEP) {
            const struct outside_record *r = (const void *)(buf + o);
            int rc;

            if (!r->max_length || r->max_length % 4096 || r->used_length % 4096)
                continue; /* nearly everything */
            if ((rc = take_record(s, r, at + o, err)))
                return rc;
        }
    }
    return 0;
}

int outside_find_records(pid_t pid, const struct outside_vma *v, unsigned n_vmas,
                         const struct outside_block *b, unsigned n, uint64_t *hva,
                         struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/mem", (int)pid);
    FF_AUTO_CLOSE int mem = open(path, O_RDONLY | O_CLOEXEC);
    struct record_search s = {.pid = pid, .mem = mem, .b = b, .n = n, .hva = hva};
    int rc;

    if (mem < 0) {
        const int why = errno;

        if ((rc = outside_may(pid, true, err)))
            return rc;
        return ff_error_set(err, why, "%s: open: %s", path, strerror(why));
    }
    memset(hva, 0, n * sizeof(*hva));
    for (unsigned i = 0; i < n_vmas; i++)
        if (!strcmp(v[i].name, "[heap]") && v[i].is_readable &&
            (rc = search_heap(&s, &v[i], err)))
            return rc;
    return 0;
}
