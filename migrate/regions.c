/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * regions.c - one side's table of regions, and how it is compared with the peer's
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "error.h"
#include "foreign.h"
#include "regions.h"

#define PSIZE_MAX (2u << 20)
#define SAMPLES 64u
#define EMPTY_SHARE 8u /* firmware and device memory may be there */

/* Two processes with one file as their RAM: emptying the destination's would empty the
 * running source's. The lock (open file description lock, first byte) is advisory and goes
 * with the descriptor. */
static int lock_file(const struct ff_region *r, short type)
{
    struct flock fl = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)r->fd_offset, .l_len = 1};
    return fcntl(r->fd, F_OFD_SETLK, &fl) < 0 ? -errno : 0;
}

static int put_region(struct ff_regions *t, const struct ff_region *r, struct ff_foreign *of,
                      struct ff_error *err)
{
    size_t name_len = strlen(r->name);

    if (!name_len || name_len > FF_WIRE_NAME_MAX)
        return ff_error_set(err, EINVAL, "regions: add: name of %zu bytes (permitted 1..%d)",
                            name_len, FF_WIRE_NAME_MAX);
    if (r->psize < 4096 || (r->psize & (r->psize - 1)))
        return ff_error_set(err, EINVAL, "regions: add %s: page size %u", r->name, r->psize);
    if (r->psize > PSIZE_MAX)
        return ff_error_set(
            err, ENOTSUP,
            "regions: add %s: pages of %u MiB (at most 2 MiB): use hugetlb pages of 2 MiB",
            r->name, r->psize >> 20);
    if (!r->len_bytes || r->len_bytes > FF_WIRE_REGION_LEN_MAX || r->len_bytes % r->psize ||
        (uintptr_t)r->host % r->psize)
        return ff_error_set(err, EINVAL,
                            "regions: add %s: %p, length 0x%llx: not whole pages of %u bytes",
                            r->name, r->host, (unsigned long long)r->len_bytes, r->psize);
    if (t->n == FF_WIRE_REGIONS_MAX)
        return ff_error_set(err, E2BIG, "regions: add %s: more than %d regions", r->name,
                            FF_WIRE_REGIONS_MAX);
    for (unsigned i = 0; i < t->n; i++) {
        if (!strcmp(t->r[i].name, r->name))
            return ff_error_set(err, EEXIST, "regions: add %s: a second one of that name", r->name);
        if (t->of[i] == of && (uintptr_t)r->host < (uintptr_t)t->r[i].host + t->r[i].len_bytes &&
            (uintptr_t)t->r[i].host < (uintptr_t)r->host + r->len_bytes)
            return ff_error_set(err, EEXIST, "regions: add %s: overlaps %s", r->name, t->r[i].name);
    }
    char *name = strdup(r->name);
    if (!name)
        return ff_error_set(err, ENOMEM, "regions: add %s: out of memory", r->name);
    int rc = r->fd >= 0 ? lock_file(r, F_WRLCK) : 0;
    if (rc == -EAGAIN || rc == -EACCES) {
        free(name);
        return ff_error_set(
            err, EBUSY,
            "regions: add %s: another process moves a guest whose memory is the same file; "
            "source and destination need a file each",
            r->name);
    }
    t->of[t->n] = of ? ff_foreign_ref(of) : NULL;
    t->r[t->n] = *r;
    t->r[t->n++].name = name;
    return 0;
}

int ff_regions_add(struct ff_regions *t, const struct ff_region *r, struct ff_error *err)
{
    return put_region(t, r, NULL, err);
}

/* One for all regions of a process */
static int foreign_of(const struct ff_regions *t, pid_t pid, struct ff_foreign **out,
                      struct ff_error *err)
{
    for (unsigned i = 0; i < t->n; i++)
        if (t->of[i] && t->of[i]->pid == pid) {
            *out = ff_foreign_ref(t->of[i]);
            return 0;
        }
    return ff_foreign_open(pid, out, err);
}

int ff_regions_add_of(struct ff_regions *t, const struct ff_region *r, pid_t pid,
                      struct ff_error *err)
{
    struct ff_foreign *of;

    if (r->fd >= 0)
        return ff_error_set(err, EINVAL, "regions: add %s: memory in a shared file: map it, and add "
                            "the mapping", r->name);
    int rc = foreign_of(t, pid, &of, err);
    if (rc)
        return ff_error_pass(err, rc, "regions: add %s", r->name);
    rc = ff_foreign_check(of, (uintptr_t)r->host, r->len_bytes, err);
    rc = rc ? ff_error_pass(err, rc, "regions: add %s", r->name) : put_region(t, r, of, err);
    ff_foreign_unref(of);
    return rc;
}

bool ff_regions_elsewhere(const struct ff_regions *t)
{
    for (unsigned i = 0; i < t->n; i++)
        if (t->of[i])
            return true;
    return false;
}

int ff_regions_check(const struct ff_regions *t, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < t->n && !rc; i++)
        if (t->of[i])
            rc = ff_foreign_check(t->of[i], (uintptr_t)t->r[i].host, t->r[i].len_bytes, err);
    return rc;
}

struct ff_backing ff_region_backing(const struct ff_regions *t, unsigned i, uint64_t at)
{
    const struct ff_region *r = &t->r[i];
    int fd = r->is_private ? r->private_fd : r->fd;

    return (struct ff_backing){.fd = r->zero_fill ? fd : -1,
                               .offset = r->fd_offset + at,
                               .is_private = r->is_private,
                               .of = t->of[i],
                               .zeros = r->zero_fill,
                               .psize = r->psize};
}

bool ff_region_is_empty(const struct ff_region *r)
{
    uint64_t pages = r->len_bytes / r->psize, step = FF_MAX(pages / SAMPLES, 1u), there = 0, n = 0;
    unsigned char vec;

    for (uint64_t i = 0; i < pages; i += step, n++)
        there += mincore((uint8_t *)r->host + i * r->psize, 1, &vec) || (vec & 1);
    return there * EMPTY_SHARE <= n;
}

void ff_regions_free(struct ff_regions *t)
{
    while (t->n) {
        struct ff_region *r = &t->r[--t->n];
        if (r->fd >= 0)
            lock_file(r, F_UNLCK);
        ff_foreign_unref(t->of[t->n]);
        free((char *)r->name);
    }
}

int ff_regions_hello(const struct ff_regions *t, const char *config, struct ff_hello *h,
                     struct ff_error *err)
{
    *h = (struct ff_hello){
        .version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .n_regions = (uint16_t)t->n};
    if (!t->n)
        return ff_error_set(err, EINVAL, "regions: there are none");
    if (strlen(config) > FF_WIRE_CONFIG_MAX)
        return ff_error_set(err, EINVAL, "regions: config of %zu bytes (permitted 0..%d)",
                            strlen(config), FF_WIRE_CONFIG_MAX);
    strcpy(h->config, config);
    h->regions = calloc(t->n, sizeof(*h->regions));
    if (!h->regions)
        return ff_error_set(err, ENOMEM, "regions: out of memory");
    for (unsigned i = 0; i < t->n; i++) {
        struct ff_wire_region *w = &h->regions[i];
        strcpy(w->name, t->r[i].name); /* bounded by ff_regions_add() */
        w->len_bytes = t->r[i].len_bytes;
        w->psize = t->r[i].psize;
    }
    return 0;
}

static int find_named(const struct ff_regions *t, const char *name)
{
    for (unsigned i = 0; i < t->n; i++)
        if (!strcmp(t->r[i].name, name))
            return (int)i;
    return -1;
}

int ff_regions_match(const struct ff_regions *mine, const char *config,
                     const struct ff_hello *peer, uint32_t *map, struct ff_error *err)
{
    bool seen[FF_WIRE_REGIONS_MAX] = {false};

    if (strcmp(config, peer->config))
        return ff_error_set(err, EINVAL,
                            "hello: machines differ: source \"%s\", destination \"%s\"; "
                            "start the destination with the source's options",
                            peer->config, config);
    for (unsigned i = 0; i < peer->n_regions; i++) {
        const struct ff_wire_region *p = &peer->regions[i];
        int k = find_named(mine, p->name);
        if (k < 0)
            return ff_error_set(err, EINVAL,
                                "hello: region %s (0x%llx bytes) is only at the source; "
                                "start the destination with the same devices and memory",
                                p->name, (unsigned long long)p->len_bytes);
        const struct ff_region *m = &mine->r[k];
        if (p->len_bytes != m->len_bytes)
            return ff_error_set(
                err, EINVAL, "hello: region %s: length differs: source 0x%llx, destination 0x%llx",
                p->name, (unsigned long long)p->len_bytes, (unsigned long long)m->len_bytes);
        if (p->psize != m->psize)
            return ff_error_set(err, EINVAL,
                                "hello: region %s: page size differs: source %u, destination %u; "
                                "use the same memory backend on both hosts",
                                p->name, p->psize, m->psize);
        seen[k] = true;
        map[i] = (uint32_t)k;
    }
    for (unsigned k = 0; k < mine->n; k++)
        if (!seen[k])
            return ff_error_set(err, EINVAL,
                                "hello: region %s (0x%llx bytes) is only at the destination; "
                                "start it with the source's devices and memory",
                                mine->r[k].name, (unsigned long long)mine->r[k].len_bytes);
    return 0;
}
