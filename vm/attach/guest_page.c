/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guest_page.c - how large a page of a QEMU's guest is
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      QEMU's stream is in pages of the guest's processor, and a loader refuses those of another size. No
 *              command names that size (query-migrate does once a migration has begun), and nothing here is to know
 *              processors. But a QEMU refuses a cache for xbzrle that is smaller than one page: the
 *              smallest power of two that it takes is the page.
 * Failure      The parameter is put back. It has a meaning only with the capability xbzrle, in a migration of
 *              QEMU's own.
 * Sources      migrate_params_check() of QEMU 7.2 to 11.1
 */
#include <errno.h>

#include "autojson.h"
#include "guest_page.h"
#include "incoming_stream.h"

#define CACHE "xbzrle-cache-size"

static int set_cache(struct qmp *q, json_int_t bytes, struct ff_error *err)
{
    return qmp_command(q, "migrate-set-parameters", json_pack("{sI}", CACHE, bytes), NULL, err);
}

int guest_page_bits(struct qmp *q, unsigned *bits, struct ff_error *err)
{
    FF_AUTO_JSON json_t *had = NULL;
    int rc = qmp_command(q, "query-migrate-parameters", NULL, &had, err);
    const json_t *cache = json_object_get(had, CACHE);

    if (!rc && !json_is_integer(cache))
        rc = ff_error_set(err, ENOTSUP, "QEMU: the size of its guest's pages: it has no parameter " CACHE);
    if (rc)
        return rc;
    *bits = INCOMING_PAGE_BITS_MIN;
    while ((rc = set_cache(q, (json_int_t)1 << *bits, err)) == -EREMOTEIO && *bits < INCOMING_PAGE_BITS_MAX)
        ++*bits;
    if (rc)
        return rc;
    return set_cache(q, json_integer_value(cache), err);
}
