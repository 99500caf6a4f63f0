/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_source_memory.c - the memory of the source's QEMU: regions of the engine
 */
#include "proxy_state.h"

#include <errno.h>
#include <sys/mman.h>

static int old_add_block(struct proxy *p, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &p->blocks[i];
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(p->pid, b, false, &m, err);

    if (rc)
        return rc;
    p->maps[i].fd = m.fd;
    struct ff_region r = {.name = b->name,
                          .len_bytes = b->len_bytes,
                          .psize = b->psize,
                          .fd = m.fd,
                          .fd_offset = m.fd_offset,
                          .zero_fill = true};
    if (m.fd < 0 || !m.is_shared) { /* in no file: read where it is */
        r.fd = -1;
        r.zero_fill = !m.has_file;
        r.host = (void *)(uintptr_t)b->hva;
        return ff_source_add_region_of(p->source, &r, p->pid, err);
    }
    r.host = mmap(NULL, b->len_bytes, PROT_READ, MAP_SHARED, m.fd, (off_t)m.fd_offset);
    if (r.host == MAP_FAILED)
        return ff_error_set(err, errno, "QEMU: map block %s: %s", b->name, strerror(errno));
    p->maps[i].at = r.host;
    return ff_source_add_region(p->source, &r, err);
}

int proxy_new_source(struct proxy *p, struct ff_error *err)
{
    struct ff_source *s;
    int rc;

    p->maps = calloc(FF_MAX(p->n_blocks, 1u), sizeof(*p->maps));
    if (!p->maps)
        return ff_error_set(err, ENOMEM, "proxy: no memory");
    for (unsigned i = 0; i < p->n_blocks; i++)
        p->maps[i].fd = -1;
    if ((rc = ff_source_new(p->address, &s, err)))
        return rc;
    pthread_mutex_lock(&p->lock);
    p->source = s;
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; !rc && i < p->n_blocks; i++)
        rc = old_add_block(p, i, err);
    return rc;
}
