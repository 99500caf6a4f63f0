/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_dest_memory.c - the memory of the destination's QEMU: regions of the engine, its userfaultfd
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>

#define LOAD_LIMIT_MS 60000

/* That a page of private huge memory is there cannot be told from an empty pool */
static int old_check_huge(const struct proxy *p, const struct outside_block *b, struct ff_error *err)
{
    struct outside_memory m = {.fd = -1};
    int rc = b->psize > 4096 ? outside_open(p->pid, b, false, &m, err) : 0;

    ff_close_fd(&m.fd);
    if (rc || b->psize == 4096 || m.is_shared)
        return rc;
    return ff_error_set(err, ENOTSUP,
                        "QEMU: block %s: private huge pages (want share=on for its memory backend)",
                        b->name);
}

int proxy_add_dest_region(struct proxy *p, const struct outside_block *b, struct ff_error *err)
{
    struct ff_region r = {.name = b->name,
                          .host = (void *)(uintptr_t)b->hva,
                          .len_bytes = b->len_bytes,
                          .psize = b->psize,
                          .fd = -1,
                          .zero_fill = true};
    int rc = old_check_huge(p, b, err);

    return rc ? rc : ff_dest_add_region(p->dest, &r, err);
}

int proxy_adopt_userfaultfd(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + LOAD_LIMIT_MS;
    int fd, rc;

    for (;;) {
        fd = outside_userfaultfd(p->pid, p->blocks, p->n_blocks, err);
        if (fd != -EAGAIN)
            break;
        rc = proxy_check(p, err);
        if (rc)
            return rc;
        if (ff_now_ms() > end)
            return ff_error_set(err, ETIMEDOUT, "QEMU: it watches no memory after %d ms",
                                LOAD_LIMIT_MS);
        poll(NULL, 0, 1);
    }
    if (fd < 0)
        return fd;
    rc = ff_dest_adopt(p->dest, fd, err);
    pthread_mutex_lock(&p->lock);
    p->adopted = !rc;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return rc;
}
