/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_precopy.c - precopy=1: memory goes once while the guest runs, then what it wrote meanwhile; see attach.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      log writes (written.h); what disks were asked for before has come; LOGGING: the destination reads all
 *              in rounds: what was written since is discarded there, until it is little
 *              `stop`, state saved, threads held: the log's last reading
 * Invariants   1. Direct I/O that was under way when the log began may write memory without a trace: QEMU lets all
 *                 of it end (`transaction`, without actions) before the destination reads anything. What begins
 *                 later is in the log, since the kernel looks for the page first.
 *              2. The log is emptied never: a page that was written once is missing at the destination.
 *              3. Its last reading is of a process whose threads are held, after its state was saved.
 */
#include <errno.h>

#include "attach_private.h"
#include "autojson.h"

/* As the patched QEMU: qemu-patches/src/rdma-postcopy-source.c */
#define ROUNDS 8
#define LITTLE_PAGES 512

/* What was written so far, to the destination */
static int send_written(struct attach *a, uint64_t *pages, struct ff_error *err)
{
    uint64_t n;
    int rc = 0;

    *pages = 0;
    for (unsigned i = 0; i < a->n_main && !rc; i++) {
        rc = written_read(&a->written, i, a->bits, &n, err);
        if (!rc)
            rc = ff_source_dirty(a->source, i, a->bits, a->main[i].psize, err);
        *pages += n;
    }
    return rc;
}

static int begin_log(struct attach *a, struct ff_error *err)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < a->n_main; i++)
        most = FF_MAX(most, a->main[i].len_bytes / a->main[i].psize);
    a->bits = calloc(most / 64 + 1, sizeof(*a->bits));
    if (!a->bits)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    if (a->o->image)
        return written_view(&a->written, a->pid, a->main, a->n_main, err);
    if (a->earlier) /* it has a log, since it came */
        return written_look(&a->written, a->pid, a->main, a->n_main, err);
    int rc = written_begin(&a->written, a->pid, 0, a->main, a->n_main, err);
    return rc ? rc : attach_qmp(a, "transaction", json_pack("{s:[]}", "actions"), NULL, err);
}

int attach_precopy(struct attach *a, struct ff_error *err)
{
    uint64_t pages = 0, before = 0;

    if (!ff_source_wants_precopy(a->source))
        return a->earlier || a->o->image ? ff_error_set(err, EINVAL, "attach: the other side wants all of memory: want precopy=1 there") : 0;
    int rc = begin_log(a, err);
    a->precopies = !rc;
    if (!rc)
        rc = ff_source_precopy(a->source, err);
    for (int i = 0; i < ROUNDS && !rc; i++) {
        rc = send_written(a, &pages, err);
        if (!rc)
            rc = ff_source_precopy(a->source, err);
        if (!rc)
            rc = attach_check(a, err);
        if (pages - before <= LITTLE_PAGES)
            break;
        before = pages;
    }
    if (!rc)
        attach_event(a, "passed", json_pack("{s:I}", "written_pages", (json_int_t)pages));
    return rc;
}

int attach_precopy_last(struct attach *a, struct ff_error *err)
{
    uint64_t pages;

    return a->precopies ? send_written(a, &pages, err) : 0;
}

void attach_precopy_end(struct attach *a)
{
    written_end(&a->written);
    free(a->bits);
    a->bits = NULL;
}
