/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pass_local.c - destination: the pass of precopy=1, where this host has an earlier state of the guest's memory
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a guest that comes home, or takes the place of the one that it was forked from: most of its memory is here
 *              already, in a process that does not run. Only what was written since travels.
 *
 * Picture      as precopy.c has it; but (2) is brought by ff_dest_on_pass()'s function, and nothing by the link
 * Threads      the pass's, in the place of the prefill thread.
 * Invariants   precopy.c's: what is installed here and in no DIRTY is what the source has at its pause. That
 *              the two sides mean the same earlier state is their caller's to ensure.
 * Failure      as any other before GO.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "mr.h"
#include "pager_elsewhere.h"
#include "prefill_private.h"

/* A page that is not brought is zeros, which are left out or installed as such */
static int install_part(struct ff_pager *p, struct transfer *t)
{
    uint32_t psize = t->r->range.psize;
    uint64_t run;
    int rc = 0;

    ff_zero_scan(t->local, (uint32_t)(t->n * psize), psize, t->zero);
    for (uint64_t i = 0; i < t->n && !rc && !atomic_load(&p->stop); i += run ? run : 1) {
        bool zero = t->zero[i / 8] & 1u << i % 8;

        run = ff_prefill_claim_run(t, i, BATCH);
        if (run)
            rc = zero ? ff_prefill_put_zeros(p, t->r, t->first + i, run)
                      : ff_prefill_install(p, t->r, t->first + i, run, t->local + i * psize, BY_COPY);
        if (!rc && !zero)
            atomic_fetch_add(&p->count.bytes_same, run * psize);
        ff_pager_installed(p);
    }
    return rc;
}

static int pass_region(struct ff_pager *p, unsigned number, struct transfer *t, struct ff_error *why)
{
    struct ff_pager_region *r = t->r = &p->region[number];
    void *opaque;
    ff_pass_fn *bring = ff_elsewhere_pass(p, &opaque);
    int rc = r->range.psize > FF_PASS_MAX
                 ? ff_error_set(why, ENOTSUP, "pass: region %s: page size %u", r->name, r->range.psize) : 0;

    for (uint64_t at = 0, len; at < r->range.len_bytes && !rc && !atomic_load(&p->stop); at += len) {
        len = FF_MIN(r->range.len_bytes - at, FF_PASS_MAX);
        t->first = at / r->range.psize;
        t->n = len / r->range.psize;
        memset(t->zero, 0, sizeof(t->zero));
        rc = bring(opaque, number, at, (uint32_t)len, t->local, t->zero, why);
        if (!rc)
            rc = install_part(p, t);
    }
    return rc;
}

void *ff_pass_local_main(void *opaque)
{
    struct ff_pager *p = opaque;
    struct ff_error why = {.code = EIO};
    struct transfer *t = calloc(1, sizeof(*t));
    void *buffer = mmap(NULL, FF_PASS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rc = !t || buffer == MAP_FAILED ? ff_error_set(&why, ENOMEM, "pass: out of memory") : 0;

    for (unsigned i = 0; i < p->n_regions && !rc; i++) {
        t->local = buffer;
        rc = pass_region(p, i, t, &why);
    }
    if (rc)
        ff_pager_break(p, &why);
    if (buffer != MAP_FAILED)
        munmap(buffer, FF_PASS_MAX);
    free(t);
    pthread_mutex_lock(&p->lock);
    p->prefill_ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
