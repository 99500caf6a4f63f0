/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_regions.c - source: the memory that it publishes, perhaps another process's
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      memory of another process (farfork-elsewhere.h) is read when it is asked for
 *              (foreign.h), and only a link that answers by a thread of this process can do that.
 * Failure      a process that has ended takes its memory with it. Who asks for a page is refused,
 *              by which the link ends; every wait of this side then says why, and no later link is
 *              tried. Before GO the memory is looked at once more, also where nobody asks.
 */
#include <errno.h>

#include "error.h"
#include "farfork-elsewhere.h"
#include "source_private.h"

int ff_source_add_region(struct ff_source *s, const struct ff_region *r, struct ff_error *err)
{
    return ff_regions_add(&s->regions, r, err);
}

int ff_source_add_region_of(struct ff_source *s, const struct ff_region *r, pid_t pid,
                            struct ff_error *err)
{
    int rc = ff_regions_add_of(&s->regions, r, pid, err);

    if (!rc && s->addr.link == FF_LINK_AUTO)
        s->addr.link = FF_LINK_TCP;
    return rc;
}

const struct ff_regions *ff_source_regions(const struct ff_source *s)
{
    return &s->regions;
}

int ff_source_check_link(struct ff_source *s, struct ff_error *err)
{
    bool adapter = s->link ? !s->link->ops->backed : s->addr.link == FF_LINK_VERBS;

    if (!adapter || !ff_regions_elsewhere(&s->regions))
        return 0;
    return ff_error_set(err, ENOTSUP,
                        "source: connect: link=verbs: an adapter cannot read memory of another "
                        "process that is in no shared file: use link=tcp, or give that process "
                        "shared memory");
}

int ff_source_check_memory(struct ff_source *s, struct ff_error *err)
{
    struct ff_error why;

    return ff_regions_check(&s->regions, &why)
               ? ff_error_set(err, ETIME, "source: go: not sent: %s", why.text)
               : 0;
}

int ff_source_why(struct ff_source *s, int rc, struct ff_error *err)
{
    struct ff_error why;

    if (rc >= 0 || rc == -ECANCELED || rc == -EINTR || !ff_regions_check(&s->regions, &why))
        return rc;
    return ff_error_set(err, why.code, "source: %s", why.text);
}

const char *ff_source_last_words(struct ff_source *s, struct ff_error *room)
{
    if (atomic_load(&s->cancelled))
        return "the migration was canceled at the source";
    return ff_regions_check(&s->regions, room) ? room->text
                                               : "the source gave up; its own messages say why";
}
