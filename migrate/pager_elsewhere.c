/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_elsewhere.c - destination: memory of another process; see pager_elsewhere.h
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "pager_elsewhere.h"

struct ff_elsewhere {
    _Atomic bool adopted;
    int (*on_discard)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err);
    void *on_discard_opaque;
    ff_pass_fn *on_pass;
    void *on_pass_opaque;
};

int ff_elsewhere_new(struct ff_pager *p, struct ff_error *err)
{
    p->elsewhere = calloc(1, sizeof(*p->elsewhere));
    return p->elsewhere ? 0 : ff_error_set(err, ENOMEM, "pager: out of memory");
}

void ff_elsewhere_free(struct ff_pager *p)
{
    free(p->elsewhere);
    p->elsewhere = NULL;
}

void ff_elsewhere_on_discard(struct ff_pager *p,
                             int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                             void *opaque)
{
    p->elsewhere->on_discard = fn;
    p->elsewhere->on_discard_opaque = opaque;
}

int ff_elsewhere_discard(struct ff_pager *p, const struct iovec *part, unsigned n, struct ff_error *err)
{
    const struct ff_elsewhere *e = p->elsewhere;

    return e->on_discard ? e->on_discard(e->on_discard_opaque, part, n, err)
                         : ff_error_set(err, ENOTSUP, "nobody discards memory of the other process");
}

void ff_elsewhere_on_pass(struct ff_pager *p, ff_pass_fn *fn, void *opaque)
{
    p->elsewhere->on_pass = fn;
    p->elsewhere->on_pass_opaque = opaque;
}

ff_pass_fn *ff_elsewhere_pass(const struct ff_pager *p, void **opaque)
{
    *opaque = p->elsewhere ? p->elsewhere->on_pass_opaque : NULL;
    return p->elsewhere ? p->elsewhere->on_pass : NULL;
}

int ff_elsewhere_adopt(struct ff_pager *p, int uffd, struct ff_error *err)
{
    const struct ff_uffd_range *first = &p->region[0].range;
    struct ff_uffd u = {.fd = -1, .keep_fd = -1};

    int rc = ff_uffd_adopt(&u, uffd, (uintptr_t)first->host, first->psize, err);
    u.protects = p->opts->visit;
    for (unsigned i = 0; i < p->n_regions && !rc; i++)
        rc = ff_uffd_check(&u, &p->region[i].range, p->region[i].name, err);
    if (rc) {
        close(uffd);
        return rc;
    }
    p->uffd = u; /* read by the pass, which starts later, and once image_frozen is seen */
    atomic_store(&p->elsewhere->adopted, true);
    return 0;
}

bool ff_elsewhere_is_adopted(const struct ff_pager *p)
{
    return atomic_load(&p->elsewhere->adopted);
}
