/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_maps.c - find a block in what the kernel shows of a process's mappings
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      7f1333fff000-7f1343fff000 rw-s 00000000 00:01 1064 /memfd:memory-backend-memfd
 *              VmFlags: rd wr sh mr mw me ms um dc nh   smaps alone: um: watched, ht: hugetlb,
 *                                                      nh: no huge pages
 *
 *              A block may be several VMAs: madvise(2), mprotect(2) and mbind(2) split them. They
 *              are one memory where each begins at the end of the one before, at the next byte of
 *              the same file, or all of them in no file. A VMA may begin before the block and end
 *              after it: the kernel joins anonymous neighbours.
 *
 * Invariants   A hole, or another file, inside a block is an error: its bytes would be others'.
 *              A block without address or record is located only where one place alone fits.
 * Sources      proc_pid_maps(5), proc_pid_smaps(5)
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "outside_private.h"
#include "xalloc.h"

/* --- read --- */

/* Whether it is the first line of a VMA */
static bool parse_vma(const char *line, struct outside_vma *v)
{
    char perms[5];
    int name = 0;

    *v = (struct outside_vma){0};
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4[-rwxsp] %" SCNx64 " %x:%x %" SCNu64 " %n",
               &v->start, &v->end, perms, &v->offset, &v->major, &v->minor, &v->inode,
               &name) < 7 || strlen(perms) != 4 || v->end <= v->start)
        return false;
    v->is_readable = perms[0] == 'r';
    v->is_writable = perms[1] == 'w';
    v->is_shared = perms[3] == 's';
    if (name)
        snprintf(v->name, sizeof(v->name), "%.*s", (int)strcspn(line + name, "\n"), line + name);
    return true;
}

static void take_flags(struct outside_vma *v, char *words)
{
    char *rest;

    for (char *w = strtok_r(words, " \n", &rest); w; w = strtok_r(NULL, " \n", &rest))
        v->is_hugetlb |= !strcmp(w, "ht"), v->is_watched |= !strcmp(w, "um") || !strcmp(w, "ui");
}

int outside_parse_maps(FILE *text, struct outside_vma **out, unsigned *n, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    FF_AUTO_FREE char *line = NULL;
    size_t room = 0, have = 0, at = 0;

    while (errno = 0, getline(&line, &room, text) > 0) {
        struct outside_vma one;

        if (parse_vma(line, &one)) {
            if (at == have)
                v = xrealloc(v, (have = have ? 2 * have : 64) * sizeof(*v));
            v[at++] = one;
        } else if (at && !strncmp(line, "VmFlags:", 8)) {
            take_flags(&v[at - 1], line + 8);
        } else if (!at || !strchr(line, ':')) {
            return ff_error_set(err, EPROTO, "maps: read line: no mapping: %.*s",
                                (int)strcspn(line, "\n"), line);
        }
    }
    if (ferror(text))
        return ff_error_set(err, EIO, "maps: read: %s", strerror(errno ? errno : EIO));
    *out = v;
    *n = (unsigned)at;
    v = NULL;
    return 0;
}

int outside_read_maps(pid_t pid, bool flags, struct outside_vma **out, unsigned *n,
                      struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/%s", (int)pid, flags ? "smaps" : "maps");
    FILE *f = fopen(path, "re");
    int rc;

    if (!f) {
        int why = errno;

        if ((rc = outside_may(pid, false, err)))
            return rc;
        return ff_error_set(err, why, "%s: open: %s", path, strerror(why));
    }
    rc = outside_parse_maps(f, out, n, err);
    fclose(f);
    if (rc)
        return ff_error_context(err, "%s", path);
    if (*n)
        return 0;
    /* as of a process that has ended, or a thread of the kernel */
    return ff_error_set(err, ESRCH, "%s: read: empty: the process has no memory any more", path);
}

/* --- find --- */

static bool vmas_share_file(const struct outside_vma *a, const struct outside_vma *b)
{
    return a->inode == b->inode && a->major == b->major && a->minor == b->minor &&
           a->is_shared == b->is_shared;
}

/* Whether @b goes on where @a ends, in memory and in the file */
static bool vma_goes_on(const struct outside_vma *a, const struct outside_vma *b)
{
    return a->end == b->start && vmas_share_file(a, b) &&
           (!a->inode || a->offset + (a->end - a->start) == b->offset);
}

/* Why the block does not go on behind @last */
static int no_span(const struct outside_vma *last, const struct outside_vma *next,
                   const struct outside_block *b, struct ff_error *err)
{
    const char *const again = "start the move again when the guest's memory is not being changed";

    if (!next || next->start > last->end)
        return ff_error_set(err, ENOENT,
                            "memory of %s: find it: a hole at 0x%" PRIx64 " (block 0x%" PRIx64
                            ", %" PRIu64 " bytes): %s", b->name, last->end, b->hva, b->len_bytes,
                            again);
    return ff_error_set(err, ENOENT,
                        "memory of %s: find it: other memory begins at 0x%" PRIx64
                        ": '%s' offset 0x%" PRIx64 " after '%s' offset 0x%" PRIx64 ": %s", b->name,
                        next->start, next->name, next->offset, last->name, last->offset, again);
}

int outside_find_span(const struct outside_vma *v, unsigned n, const struct outside_block *b,
                      struct outside_span *out, struct ff_error *err)
{
    unsigned i = 0;

    while (i < n && v[i].end <= b->hva)
        i++;
    if (i == n || v[i].start > b->hva || !b->len_bytes || b->hva > UINT64_MAX - b->len_bytes)
        return ff_error_set(err, ENOENT,
                            "memory of %s: find it: nothing is mapped at 0x%" PRIx64 " (%" PRIu64
                            " bytes): is this the process that answers QMP?", b->name, b->hva,
                            b->len_bytes);
    *out = (struct outside_span){.of = v[i], .at = b->hva};
    if (v[i].inode)
        out->of.offset += b->hva - v[i].start;
    for (; v[i].end < b->hva + b->len_bytes; i++) {
        if (i + 1 == n || !vma_goes_on(&v[i], &v[i + 1]))
            return no_span(&v[i], i + 1 < n ? &v[i + 1] : NULL, b, err);
    }
    return 0;
}

/* @at of a block that ends at @end: the next byte of it that is not mapped, or @end */
static uint64_t first_hole(const struct outside_vma *v, unsigned n, uint64_t at, uint64_t end)
{
    for (unsigned i = 0; i < n && at < end; i++)
        if (v[i].start <= at && v[i].end > at)
            at = v[i].end;
    return at < end ? at : end;
}

int outside_check_mapped(const struct outside_vma *v, unsigned n, const struct outside_block *b, bool is_told,
                         struct ff_error *err)
{
    const uint64_t end = b->hva + FF_MAX(b->len_bytes, b->max_bytes);
    struct outside_span span;
    int rc;

    /* a child's, and a parent's that was forked, has another memory behind what it uses */
    if ((rc = outside_find_span(v, n, b, &span, err)))
        return rc;
    const uint64_t hole = first_hole(v, n, b->hva, end);
    if (hole < end)
        return ff_error_set(err, ENOENT, "memory of %s: find it: a hole at 0x%" PRIx64 " (block 0x%" PRIx64
                            ", up to 0x%" PRIx64 ")", b->name, hole, b->hva, end);
    for (unsigned i = 0; i < n; i++) {
        if (v[i].end <= b->hva || v[i].start >= end)
            continue;
        if (v[i].name[0] == '[' && strncmp(v[i].name, "[anon", 5) && !(is_told && !strcmp(v[i].name, "[heap]")))
            return ff_error_set(err, ENOENT, "memory of %s: find it: 0x%" PRIx64 " is in %s",
                                b->name, b->hva, v[i].name);
        if (!v[i].is_readable)
            return ff_error_set(err, EACCES,
                                "memory of %s: read it: 0x%" PRIx64 "-0x%" PRIx64 " is not "
                                "readable in the QEMU: unplug the device that protects it",
                                b->name, v[i].start, v[i].end);
    }
    return 0;
}

int outside_check_apart(const struct outside_block *b, unsigned n, struct ff_error *err)
{
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < i; k++)
            if (b[i].hva < b[k].hva + FF_MAX(b[k].len_bytes, b[k].max_bytes) &&
                b[k].hva < b[i].hva + FF_MAX(b[i].len_bytes, b[i].max_bytes))
                return ff_error_set(err, ENOTUNIQ,
                                    "memory of %s: find it: it is at 0x%" PRIx64 ", where %s is "
                                    "(0x%" PRIx64 "): start the move again when the guest's "
                                    "memory is not being changed", b[i].name, b[i].hva, b[k].name,
                                    b[k].hva);
    return 0;
}

static int check_written(const struct outside_vma *v, unsigned n, const struct outside_block *b, struct ff_error *err)
{
    for (unsigned i = 0; i < n; i++)
        if (v[i].end > b->hva && v[i].start < b->hva + b->len_bytes && !v[i].is_writable)
            return ff_error_set(err, EACCES, "memory of %s: 0x%" PRIx64 " is none that its process writes to", b->name,
                                b->hva);
    return 0;
}

int outside_check_places(pid_t pid, const struct outside_block *b, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n_vmas = 0;
    int rc = outside_read_maps(pid, false, &v, &n_vmas, err);

    for (unsigned i = 0; i < n && !rc; i++) {
        rc = outside_check_mapped(v, n_vmas, &b[i], true, err);
        if (!rc)
            rc = check_written(v, n_vmas, &b[i], err);
    }
    return rc ? rc : outside_check_apart(b, n, err);
}

static bool is_of_block(const struct outside_vma *v, const struct outside_block *b)
{
    return v->start < b->hva + FF_MAX(b->len_bytes, b->max_bytes) && v->end > b->hva;
}

static bool is_of_any(const struct outside_vma *v, const struct outside_block *b, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (is_of_block(v, &b[i]))
            return true;
    return false;
}

/* Whether a block is of the file of @of, a memfd */
static bool is_of_their_file(const struct outside_vma *v, unsigned n_vmas, const struct outside_vma *of,
                             const struct outside_block *b, unsigned n)
{
    for (unsigned i = 0; i < n_vmas; i++)
        if (of->inode && !strncmp(of->name, "/memfd:", 7) && v[i].inode == of->inode && v[i].major == of->major &&
            v[i].minor == of->minor && is_of_any(&v[i], b, n))
            return true;
    return false;
}

int outside_list_others(pid_t pid, const struct outside_block *b, unsigned n, struct outside_mapping **out, unsigned *n_out,
                        struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n_vmas = 0;
    int rc = outside_read_maps(pid, false, &v, &n_vmas, err);

    if (rc)
        return rc;
    *out = xcalloc(n_vmas + 1, sizeof(**out));
    *n_out = 0;
    for (unsigned i = 0; i < n_vmas; i++)
        if (!is_of_any(&v[i], b, n) && is_of_their_file(v, n_vmas, &v[i], b, n))
            (*out)[(*n_out)++] = (struct outside_mapping){v[i].start, v[i].end - v[i].start};
    return 0;
}

/* Memory that a guest can have: no code, no stack, no reserve */
static bool is_candidate(const struct outside_vma *v)
{
    return v->is_readable && v->is_writable && (v->inode || v->name[0] != '[' ||
                                                !strncmp(v->name, "[anon", 5));
}

int outside_find_by_length(const struct outside_vma *v, unsigned n, struct outside_block *b,
                           struct ff_error *err)
{
    const uint64_t page = b->psize ? b->psize : 4096;
    const uint64_t most = (b->len_bytes + page - 1) / page * page;
    const struct outside_vma *found = NULL;
    const char *const remedy = "a QEMU that shows addresses in `info ramblock`, as 10.0 does, "
                               "needs no such search";

    if (!b->len_bytes || most < b->len_bytes)
        return ff_error_set(err, EINVAL, "memory of %s: find it: %" PRIu64 " bytes", b->name,
                            b->len_bytes);
    for (unsigned i = 0; i < n; i++) {
        unsigned last = i;

        /* a file's memory begins where it begins; anonymous neighbours may be two memories */
        if (!is_candidate(&v[i]) || (i && v[i].inode && vma_goes_on(&v[i - 1], &v[i])))
            continue;
        while (v[last].end - v[i].start < b->len_bytes && last + 1 < n &&
               is_candidate(&v[last + 1]) && vma_goes_on(&v[last], &v[last + 1]))
            last++;
        if (v[last].end - v[i].start < b->len_bytes || v[last].end - v[i].start > most)
            continue;
        if (found)
            return ff_error_set(err, ENOTUNIQ,
                                "memory of %s: find it: mappings at 0x%" PRIx64 " and 0x%" PRIx64
                                " have its length (%" PRIu64 " bytes): give each memory backend "
                                "another size, or use another QEMU: %s", b->name, found->start,
                                v[i].start, b->len_bytes, remedy);
        found = &v[i];
    }
    if (!found)
        return ff_error_set(err, ENOENT,
                            "memory of %s: find it: no mapping has its length (%" PRIu64
                            " bytes): use memory-backend-memfd with share=on, or another QEMU: %s",
                            b->name, b->len_bytes, remedy);
    b->hva = found->start;
    return 0;
}

int outside_locate(pid_t pid, struct outside_block *b, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    uint64_t hva;
    unsigned n;
    int rc;

    if (b->hva)
        return 0;
    if ((rc = outside_read_maps(pid, false, &v, &n, err)) ||
        (rc = outside_find_records(pid, v, n, b, 1, &hva, err)))
        return rc;
    if (!hva)
        return outside_find_by_length(v, n, b, err);
    struct outside_block found = *b;
    found.hva = hva;
    if (!(rc = outside_check_mapped(v, n, &found, false, err)))
        b->hva = hva;
    return rc;
}
