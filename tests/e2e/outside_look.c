/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_look.c - a QEMU's memory from outside, for tests: outside_look QMP [every]
 *
 * One JSON object. Without more: each block of main memory opened, located without a monitor, and read both ways.
 * every: all blocks, small ones too, each at the address that outside_place() finds without what `info ramblock` prints
 * of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "outside.h"
#include "xalloc.h"

#define LIMIT_MS 20000
#define PAGE 4096u
#define MAIN_BYTES (32u << 20)

static struct ff_error err;

static int die(const char *what)
{
    fprintf(stderr, "outside_look: %s: %s\n", what, err.text[0] ? err.text : strerror(errno));
    return 1;
}

/* FNV-1a of every 64th page: "anon" reads as the file does */
static uint64_t sum_of(pid_t pid, const struct outside_block *b, const char *at)
{
    uint64_t h = 14695981039346656037u;
    char page[PAGE];

    for (uint64_t o = 0; o + PAGE <= b->len_bytes; o += 64u * PAGE) {
        const struct iovec here = {page, PAGE}, there = {(void *)(uintptr_t)(b->hva + o), PAGE};

        if (at)
            memcpy(page, at + o, PAGE);
        else if (process_vm_readv(pid, &here, 1, &there, 1, 0) != PAGE)
            return 0;
        for (unsigned i = 0; i < PAGE; i++)
            h = (h ^ (unsigned char)page[i]) * 1099511628211u;
    }
    return h;
}

static json_t *look_at(pid_t pid, struct outside_block *b)
{
    struct outside_memory m = {.fd = -1};
    struct outside_block by_length = *b;
    char *at = NULL;
    int rc;

    by_length.hva = 0;
    rc = outside_locate(pid, &by_length, &err);
    json_t *o = json_pack("{ss sI sI si sb si}", "name", b->name, "len", (json_int_t)b->len_bytes,
                          "hva", (json_int_t)b->hva, "psize", (int)b->psize, "located",
                          !rc && by_length.hva == b->hva, "locate", rc);
    if ((rc = outside_open(pid, b, false, &m, &err))) {
        json_object_set_new(o, "open", json_string(err.text));
        return o;
    }
    if (m.fd >= 0)
        at = mmap(NULL, b->len_bytes, PROT_READ, MAP_SHARED, m.fd, (off_t)m.fd_offset);
    json_object_update_new(o, json_pack("{sb sb sb}", "file", m.fd >= 0, "shared", m.is_shared,
                                        "hugetlb", m.is_hugetlb));
    if (at && at != MAP_FAILED)
        json_object_set_new(o, "same", json_boolean(sum_of(pid, b, at) == sum_of(pid, b, NULL)));
    else
        json_object_set_new(o, "readable", json_boolean(sum_of(pid, b, NULL) != 0));
    return o;
}

static json_t *show_place(pid_t pid, const struct outside_block *b, uint64_t told)
{
    static const char *const kinds[] = {"anonymous", "memfd", "file"};
    struct outside_memory m = {.fd = -1};

    if (outside_open(pid, b, false, &m, &err))
        return NULL;
    json_t *o = json_pack("{ss sI sI sI sI ss sb sb}", "name", b->name, "len",
                          (json_int_t)b->len_bytes, "max", (json_int_t)b->max_bytes, "hva",
                          (json_int_t)b->hva, "told", (json_int_t)told, "kind", kinds[m.kind],
                          "shared", m.is_shared, "file", m.fd >= 0);
    ff_close_fd(&m.fd);
    return o;
}

static int every(struct qmp *q)
{
    FF_AUTO_FREE struct outside_block *b = NULL, *told = NULL;
    const pid_t pid = qmp_pid(q);
    json_t *all = json_array();
    unsigned n;

    if (outside_may(pid, true, &err) || outside_list(q, &b, &n, &err))
        return die("list");
    told = memcpy(xcalloc(n, sizeof(*told)), b, n * sizeof(*b));
    for (unsigned i = 0; i < n; i++)
        b[i].hva = 0;
    if (outside_place(q, pid, b, n, &err) || (told[0].hva && outside_place(q, pid, told, n, &err)))
        return die("place");
    for (unsigned i = 0; i < n; i++)
        if (json_array_append_new(all, show_place(pid, &b[i], told[i].hva)))
            return die("open");
    json_dumpf(all, stdout, 0);
    json_decref(all);
    qmp_free(q);
    return 0;
}

int main(int argc, char **argv)
{
    FF_AUTO_FREE struct outside_block *b = NULL;
    struct qmp *q;
    unsigned n;

    if (argc < 2 || qmp_connect(argv[1], -1, LIMIT_MS, &q, &err))
        return die("connect");
    if (argc > 2 && !strcmp(argv[2], "every"))
        return every(q);
    const pid_t pid = qmp_pid(q);
    if (outside_may(pid, true, &err) || outside_list(q, &b, &n, &err) || outside_place(q, pid, b, n, &err))
        return die("blocks");
    qmp_free(q);
    json_t *all = json_pack("{si}", "all", (int)n), *main_memory = json_array();
    for (unsigned i = 0; i < n; i++)
        if (b[i].len_bytes >= MAIN_BYTES)
            json_array_append_new(main_memory, look_at(pid, &b[i]));
    json_object_set_new(all, "blocks", main_memory);
    json_dumpf(all, stdout, 0);
    json_decref(all);
    return 0;
}
