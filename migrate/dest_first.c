/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_first.c - a destination is told which pages will be touched, and tells which were
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "dest_private.h"
#include "farfork-return.h"
#include "log.h"
#include "working_set.h"

int ff_dest_first(struct ff_dest *d, const char *text, struct ff_error *err)
{
    char *copy = strdup(text);

    if (!copy)
        return ff_error_set(err, ENOMEM, "destination: working set: out of memory");
    free(atomic_exchange(&d->first, copy));
    return 0;
}

void dest_take_first(struct ff_dest *d)
{
    if (d->pager.prefill_up) /* fed, it went on without the link, and looks at what it was told */
        return;
    char *text = atomic_exchange(&d->first, NULL);
    struct ff_working_set *s = text && !d->pager.first ? ff_working_set_new() : NULL;
    struct ff_error why;

    if (s) {
        if (ff_working_set_read(s, &d->regions, text, &why))
            ff_log(FF_LOG_WARN, "destination: %s: what comes after it is not fetched first", why.text);
        ff_log(FF_LOG_DEBUG, "destination: %u spans of a working set come first", s->n);
        d->pager.first = s; /* whole: another thread may ask for the text */
    }
    free(text);
}

void dest_say_first(struct ff_dest *d)
{
    FF_AUTO_FREE struct ff_page_ref *pages = calloc(FF_WIRE_FIRST_MAX, sizeof(*pages));
    const struct ff_working_set *s = d->pager.first;
    unsigned n = 0;

    for (unsigned i = 0; s && pages && i < s->n; i++) {
        const struct ff_span *span = &s->span[i];
        const struct ff_pager_region *r = &d->pager.region[span->region];
        uint64_t psize = r->range.psize, at = span->first * FF_WORKING_SET_UNIT / psize * psize;
        uint64_t end = r->lent ? at : (span->first + span->n) * FF_WORKING_SET_UNIT;
        for (; at < end && n < FF_WIRE_FIRST_MAX; at += psize) {
            struct ff_page_ref p = {.region = r->peer_number, .offset = at};
            if (!n || pages[n - 1].region != p.region || pages[n - 1].offset != p.offset)
                pages[n++] = p;
        }
    }
    if (n) /* a link that has broken is noticed by others */
        ff_control_send(&d->ctl, ff_wire_put_first(d->ctl.buf, pages, n), NULL);
}

char *ff_dest_working_set(struct ff_dest *d)
{
    return d->pager_used ? ff_working_set_text(d->pager.first, d->pager.touched, &d->regions) : NULL;
}
