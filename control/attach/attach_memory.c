/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_memory.c - the memory of a QEMU that is attached to: regions of the engine
 */
#include <errno.h>
#include <sys/mman.h>

#include "attach_domain.h"
#include "farfork-return.h"
int attach_look(struct attach *a, struct ff_error *err)
{
    int rc = a->domain ? attach_domain_connect(a, err) : attach_qemu_connect(a, err);

    if (rc)
        return rc;
    a->pid = a->o->pid ? a->o->pid : qmp_pid(a->q);
    if (a->pid <= 0)
        return ff_error_set(err, ESRCH, "QEMU: its process is not of this PID namespace: name it by --pid");
    rc = outside_may(a->pid, true, err);
    if (a->is_source && a->o->returns) /* of that process, which is beside it */
        return rc;
    return rc ? rc : alone_begin(a->pid, &a->alone, err);
}

int attach_find_blocks(struct attach *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->qmp_lock);
    int rc = outside_list(a->q, &a->all, &a->n_all, err);

    if (!rc)
        rc = outside_place(a->q, a->pid, a->all, a->n_all, err);
    pthread_mutex_unlock(&a->qmp_lock);
    if (rc)
        return rc;
    a->incoming = calloc(a->n_all + 1, sizeof(*a->incoming));
    a->small = calloc(a->n_all + 1, sizeof(*a->small));
    a->main = calloc(a->n_all + 1, sizeof(*a->main));
    if (!a->incoming || !a->small || !a->main)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (unsigned i = 0; i < a->n_all; i++) {
        a->incoming[i] = (struct incoming_block){.name = a->all[i].name, .len_bytes = a->all[i].len_bytes};
        if (attach_is_main(&a->all[i]))
            a->main[a->n_main++] = a->all[i];
    }
    return a->n_main ? 0 : ff_error_set(err, ENOTSUP, "QEMU: no block of memory of 1 MiB or more");
}
static int add_block(struct attach *a, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &a->main[i];
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(a->pid, b, false, &m, err);

    if (rc)
        return rc;
    if (!m.is_shared && m.kind == OUTSIDE_MEMFD) /* it was forked, or is a child: to read what it has not written fills the file */
        outside_open_view(a->pid, outside_number(a->pid, "PPid:"), b, &m, NULL);
    a->maps[i].fd = m.fd;
    struct ff_region r = {.name = b->name,
                          .len_bytes = b->len_bytes,
                          .psize = b->psize,
                          .fd = m.fd,
                          .fd_offset = m.fd_offset,
                          .zero_fill = true};
    if (m.fd < 0 || !m.is_shared) { /* in no file: read where it is */
        r.fd = -1;
        r.is_private = m.fd >= 0;
        r.private_fd = m.fd;
        r.zero_fill = !m.has_file || r.is_private;
        r.host = (void *)(uintptr_t)b->hva;
        return ff_source_add_region_of(a->source, &r, a->pid, err);
    }
    r.host = mmap(NULL, b->len_bytes, PROT_READ, MAP_SHARED, m.fd, (off_t)m.fd_offset);
    if (r.host == MAP_FAILED)
        return ff_error_set(err, errno, "QEMU: map block %s: %s", b->name, strerror(errno));
    a->maps[i].at = r.host;
    return ff_source_add_region(a->source, &r, err);
}

int attach_new_source(struct attach *a, struct ff_error *err)
{
    struct ff_source *s;
    int rc;

    a->maps = calloc(FF_MAX(a->n_main, 1u), sizeof(*a->maps));
    if (!a->maps)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (unsigned i = 0; i < a->n_main; i++)
        a->maps[i].fd = -1;
    if ((rc = ff_source_new(a->address, &s, err)))
        return rc;
    pthread_mutex_lock(&a->lock);
    a->source = s;
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; !rc && i < a->n_main; i++)
        rc = add_block(a, i, err);
    return rc;
}
/* That a page of private huge memory is there cannot be told from an empty pool. A guest that is to return gets a second
 * QEMU where it came from */
static int check_memory(const struct attach *a, const struct outside_block *b, struct ff_error *err)
{
    struct outside_memory m = {.fd = -1};
    bool visits = ff_address_visit(a->address);
    int rc = b->psize > 4096 || visits ? outside_open(a->pid, b, false, &m, err) : 0;

    ff_close_fd(&m.fd);
    if (!rc && visits && (b->psize > 4096 || m.kind == OUTSIDE_FILE))
        return ff_error_set(err, ENOTSUP, "QEMU: block %s: %s: a guest that has that does not visit by attaching", b->name,
                            b->psize > 4096 ? "huge pages of hugetlbfs" : "memory of a named file");
    if (rc || b->psize == 4096 || m.is_shared)
        return rc;
    return ff_error_set(err, ENOTSUP,
                        "QEMU: block %s: private huge pages (want share=on for its memory backend)",
                        b->name);
}
int attach_add_dest_region(struct attach *a, const struct outside_block *b, struct ff_error *err)
{
    struct ff_region r = {.name = b->name,
                          .host = (void *)(uintptr_t)b->hva,
                          .len_bytes = b->len_bytes,
                          .psize = b->psize,
                          .fd = -1,
                          .zero_fill = true};
    int rc = check_memory(a, b, err);

    return rc ? rc : ff_dest_add_region(a->dest, &r, err);
}
