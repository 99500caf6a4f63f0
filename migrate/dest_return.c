/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_return.c - a guest that went from here comes back, with what it has written since
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      memory that is as it was at the guest's GO need not travel again.
 *
 * Picture      here: the move's source, whose image stays published        there
 *                    GO -----------------------------------------------> visit=on: the guest runs, log on
 *                    pages that it touches <---------------------------  faults
 *              ff_dest_keep(): all is here                                ff_source_return()
 *                    HELLO, of that session <--------------------------
 *                    DIRTY, of every region <--------------------------  paused: what the log has
 *                    the old link ends, and none follows (source_hold.c)
 *                    these are missing, and discarded; STATE; devices are loaded: what they write is
 *                    copied before (undo.h); READY
 *                    GO: nobody needs the image any more. Or it fails: memory is put back, and
 *                    served again, by another link
 *              From then on a page that was written comes from there, by faults and prefill.
 *
 * Invariants   1. A page that is in no DIRTY is what it was at that GO: whoever serves an image
 *                 changes none of it, and every write since is in the log, which began before GO.
 *              2. Discards change nothing that the other side may still read from here: what is in a
 *                 DIRTY lies there, whatever a log names (fold_bits()), and ff_source_hold() has ended whatever
 *                 sends of its own.
 *              3. Whether a page is there at all is not looked at: one that nothing lies in reads as
 *                 zeros, as it did. So all are holes (claims.h), and an install where something lies
 *                 would be -EEXIST, never an overwritten page: hence landing=copy.
 *              4. Between the end of the old link and GO, or the end of a return that failed, nobody reads
 *                 the image. So it may be written to. When it is put back nobody writes any more: the
 *                 caller's word, by ff_dest_recover() or ff_dest_free(). ff_dest_give_up() is not that: it
 *                 wakes who loads, and he goes on writing until he learns of it.
 * Limits       not for an agent, memory of another process, private mappings of files, or huge pages, which
 *              a discard gives to others; over tcp alone: an adapter would pin the other side's memory, and so fetch
 *              from here all that it never needed.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "dest_private.h"
#include "error.h"
#include "farfork-return.h"
#include "source_private.h"
#include "undo.h"

/* Whether no part of @r is a private mapping of a file: what is discarded there reads as the file has it */
static bool is_own(const struct ff_region *r)
{
    uint64_t from = (uintptr_t)r->host, to = from + r->len_bytes, known = 0;
    char line[512];

    FILE *maps = r->fd < 0 ? fopen("/proc/self/maps", "re") : NULL;
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long long start, end, inode;
        if (sscanf(line, "%llx-%llx %*s %*s %*s %llu", &start, &end, &inode) == 3 && !inode &&
            start < to && end > from)
            known += FF_MIN(end, to) - FF_MAX(start, from);
    }
    if (maps)
        fclose(maps);
    return r->fd >= 0 || known == r->len_bytes;
}

/* Why @r cannot be given back what was discarded of it; NULL: it can */
static const char *find_fault(const struct ff_region *r)
{
    return r->psize != (uint32_t)sysconf(_SC_PAGESIZE) ? "it has huge pages"
           : !is_own(r)                                ? "it is a private mapping of a file"
                                                       : NULL;
}

static bool have_same_regions(const struct ff_regions *a, const struct ff_regions *b)
{
    bool alike = a->n == b->n;

    for (unsigned i = 0; i < a->n && alike; i++)
        alike = a->r[i].host == b->r[i].host && a->r[i].len_bytes == b->r[i].len_bytes &&
                !strcmp(a->r[i].name, b->r[i].name);
    return alike;
}

/* Nothing is known where userfaultfd is not to be had: ff_dest_start() says why */
static int check_reports(const struct ff_regions *regions, struct ff_error *err)
{
    struct ff_uffd_probe k;

    ff_uffd_probe(&k);
    for (unsigned i = 0; i < regions->n && k.features; i++)
        if (!ff_uffd_can_protect(k.features, regions->r[i].fd < 0 ? FF_UFFD_ANON : FF_UFFD_SHMEM))
            return ff_error_set(err, ENOTSUP, "destination: return: region %s: this kernel's userfaultfd does not "
                                "report writes to it (want Linux 5.7, of shared memory 5.19)",
                                regions->r[i].name);
    return 0;
}

int ff_dest_keep(struct ff_dest *d, struct ff_source *went, struct ff_error *err)
{
    const char *no = d->owner.adopt || d->regions.elsewhere ? "of memory of this process alone"
                     : d->accepted                          ? "its source has come already"
                     : went->stage != GONE                  ? "its guest is not elsewhere"
                     : !went->visits        ? "its guest moved to stay, without visit=on"
                     : !have_same_regions(&d->regions, &went->regions) ? "other memory than the guest went from"
                                                               : NULL;
    struct ff_error why_not;

    if (no)
        return ff_error_set(err, EINVAL, "destination: return: %s", no);
    if (ff_source_may_hold(went, &why_not))
        return ff_error_set(err, why_not.code, "destination: return: %s", why_not.text);
    for (unsigned i = 0; i < d->regions.n; i++) {
        const char *why = find_fault(&d->regions.r[i]);
        if (why)
            return ff_error_set(err, ENOTSUP, "destination: return: region %s: %s",
                                d->regions.r[i].name, why);
    }
    int rc = check_reports(&d->regions, err);
    if (!rc && d->addr.gives_up && ff_source_give_up(went, &why_not))
        rc = ff_error_set(err, why_not.code, "destination: %s", why_not.text);
    if (rc)
        return rc;
    d->keeps = went;
    memcpy(d->kept, went->session, sizeof(d->kept));
    d->addr.precopy = true; /* what is here already may have to go again */
    d->addr.landing = FF_LANDING_COPY;
    return 0;
}

int dest_check_return(const struct ff_dest *d, struct ff_error *err)
{
    bool returns = d->peer.features & FF_WIRE_RETURNS;

    if (!returns && !d->keeps)
        return 0;
    if (!returns)
        return ff_error_set(err, EPROTO, "hello: the memory here is a guest's that is to return: "
                            "another guest needs another destination");
    if (!d->keeps || memcmp(d->peer.returns_from, d->kept, sizeof(d->kept)))
        return ff_error_set(err, EPROTO, "hello: the guest did not go from here: what it has not got "
                            "is not here");
    return d->link->pins ? ff_error_set(err, ENOTSUP, "hello: a guest returns by link=tcp alone") : 0;
}

int dest_hold_kept(struct ff_dest *d, struct ff_error *err)
{
    if (!d->keeps || d->holds)
        return 0;
    int rc = ff_source_hold(d->keeps, err);
    d->holds = !rc;
    return rc;
}

static void let_go_of_kept(struct ff_dest *d, bool returned)
{
    if (d->holds)
        ff_source_let_go(d->keeps, returned);
    d->holds = false;
}

void dest_has_returned(struct ff_dest *d)
{
    if (!d->keeps)
        return;
    let_go_of_kept(d, true);
    ff_undo_forget(&d->pager);
}

void dest_put_back(struct ff_dest *d)
{
    if (!d->keeps || atomic_load(&d->pager.guest_runs))
        return;
    pthread_mutex_lock(&d->pager_lock);
    ff_undo_roll_back(&d->pager);
    let_go_of_kept(d, false);
    pthread_mutex_unlock(&d->pager_lock);
}

bool ff_dest_has_fallback(const struct ff_dest *d)
{
    return d->lease.lease_ns;
}

bool ff_dest_is_released(struct ff_dest *d)
{
    return ff_lease_is_given(&d->lease);
}

uint32_t ff_dest_is_awaited(struct ff_dest *d)
{
    ff_lease_release(&d->lease); /* whoever has said READY never takes it back */
    return atomic_load(&d->epoch);
}

bool ff_dest_has_link_after(const struct ff_dest *d, uint32_t link)
{
    return atomic_load(&d->attached) > link;
}

const struct ff_claims *ff_dest_claims(const struct ff_dest *d, const void *host)
{
    for (unsigned i = 0; i < d->regions.n; i++)
        if (d->regions.r[i].host == host)
            return &d->pager.region[i].claims;
    return NULL; /* ff_source_return() has looked */
}

int ff_source_return(struct ff_source *s, struct ff_dest *came, struct ff_error *err)
{
    const char *no = s->stage != NEW ? "it has a destination already"
                     : came->owner.adopt || !atomic_load(&came->pager.guest_runs) ? "its guest did not come by a move"
                     : !came->addr.visit ? "its guest came to stay, without visit=on"
                     : !have_same_regions(&s->regions, &came->regions) ? "other memory than the guest came to"
                                                               : NULL;

    if (no)
        return ff_error_set(err, EINVAL, "source: return: %s", no);
    s->returns = s->precopied = true;
    s->came = came;
    return 0;
}
