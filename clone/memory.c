/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * memory.c - the files behind an agent's image: lent ones, its own, the state; see image.h
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "image.h"
#include "cleanup.h"
#include "dest.h"
#include "files.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#define HUGE_BYTES (2u << 20)

static int reopen(int fd, struct ff_error *err)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int view = open(path, O_RDONLY | O_CLOEXEC);
    return view < 0 ? ff_error_set(err, errno, "agent: open %s for reading: %s (is /proc mounted?)",
                                   path, strerror(errno))
                    : view;
}

void ff_agent_drop_lent(struct ff_agent *a)
{
    while (a->n_lent)
        ff_close_fd(&a->lent[--a->n_lent].fd);
    a->lender = NULL;
}

static struct ff_lent *find_lent(struct ff_agent *a, const char *name)
{
    for (unsigned i = 0; i < a->n_lent; i++)
        if (!strcmp(a->lent[i].region.name, name))
            return &a->lent[i];
    return NULL;
}

static int check_lent(const struct ff_lent *l, const struct ff_wire_region *r, struct ff_error *err)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
    struct stat st;
    struct statfs fs;

    if (l->region.len_bytes != r->len_bytes || l->region.psize != r->psize)
        return ff_error_set(err, EINVAL,
                            "agent: region %s: lent with 0x%llx bytes in pages of %u, but the "
                            "image's has 0x%llx in pages of %u",
                            r->name, (unsigned long long)l->region.len_bytes, l->region.psize,
                            (unsigned long long)r->len_bytes, r->psize);
    if (fstat(l->fd, &st) || fstatfs(l->fd, &fs))
        return ff_error_set(err, errno, "agent: region %s: look at the lent file: %s", r->name,
                            strerror(errno));
    if (!S_ISREG(st.st_mode) || l->offset % r->psize ||
        (uint64_t)st.st_size < l->offset || (uint64_t)st.st_size - l->offset < r->len_bytes)
        return ff_error_set(
            err, EINVAL, "agent: region %s: the lent file has 0x%llx bytes (need 0x%llx at 0x%llx)",
            r->name, (unsigned long long)st.st_size, (unsigned long long)r->len_bytes,
            (unsigned long long)l->offset);
    if (fs.f_type == HUGETLBFS_MAGIC)
        page = (uint32_t)fs.f_bsize;
    if (page != r->psize)
        return ff_error_set(err, EINVAL,
                            "agent: region %s: the lent file has pages of %u bytes (need %u)",
                            r->name, page, r->psize);
    return 0;
}

static int make_memfd(const struct ff_wire_region *r, struct ff_error *err)
{
    bool huge = r->psize == HUGE_BYTES;

    if (!huge && r->psize != (uint32_t)sysconf(_SC_PAGESIZE))
        return ff_error_set(err, ENOTSUP, "agent: region %s: pages of %u bytes (permitted %ld, %u)",
                            r->name, r->psize, sysconf(_SC_PAGESIZE), HUGE_BYTES);
    int fd = ff_file_new("farfork-image", r->len_bytes, huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    if (fd < 0)
        return ff_error_set(err, -fd, "agent: region %s: memfd of 0x%llx bytes: %s", r->name,
                            (unsigned long long)r->len_bytes, strerror(-fd));
    return fd;
}

/* A file for the next region: what was lent, or (@l NULL) a new one */
static int add_memory(struct ff_agent *a, const struct ff_wire_region *r, struct ff_lent *l,
                      struct ff_error *err)
{
    struct ff_agent_memory *m = &a->memory[a->n_memory];

    *m = (struct ff_agent_memory){.fd = -1, .view = -1, .len_bytes = r->len_bytes, .lent = l};
    int rc = l ? check_lent(l, r, err) : make_memfd(r, err);
    if (rc < 0)
        return rc;
    a->n_memory++;
    m->fd = l ? l->fd : rc;
    m->offset = l ? l->offset : 0;
    if (l)
        l->fd = -1;
    m->view = reopen(m->fd, err);
    return m->view < 0 ? m->view : 0;
}

/* Before anything is allocated. Under lock */
static int check_total(const struct ff_agent *a, const struct ff_hello *table, struct ff_error *err)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < table->n_regions; i++) {
        const struct ff_wire_region *r = &table->regions[i];
        if (a->max_bytes && r->len_bytes > a->max_bytes - total)
            return ff_error_set(
                err, EFBIG,
                "agent: region %s: 0x%llx bytes after 0x%llx, but the guest of "
                "this fork has 0x%llx in all; if memory was plugged meanwhile, fork "
                "again",
                r->name, (unsigned long long)r->len_bytes, (unsigned long long)total,
                (unsigned long long)a->max_bytes);
        total += r->len_bytes;
    }
    return 0;
}

static int adopt_region(struct ff_agent *a, const struct ff_wire_region *r, struct ff_error *err)
{
    struct ff_agent_memory *m = &a->memory[a->n_memory];
    struct ff_lent *l = find_lent(a, r->name);

    int rc = add_memory(a, r, l, err);
    if (rc)
        return rc;
    /* of what was lent nothing is touched here: it only needs an address of its own */
    void *map = mmap(NULL, r->len_bytes, l ? PROT_NONE : PROT_READ | PROT_WRITE,
                     MAP_SHARED | (l ? MAP_NORESERVE : 0), l ? m->view : m->fd, (off_t)m->offset);
    if (map == MAP_FAILED)
        return ff_error_set(
            err, errno, "agent: region %s: map 0x%llx bytes: %s%s", r->name,
            (unsigned long long)r->len_bytes, strerror(errno),
            r->psize == HUGE_BYTES
                ? "; too few huge pages are free (see HugePages_Free in /proc/meminfo)"
                : "");
    m->map = map;
    /* from here on this mapping alone can change the file */
    if (!l && (rc = ff_file_seal(m->fd, FF_SEALS_MAPPED)))
        return ff_error_set(err, -rc, "agent: region %s: seal its file: %s%s", r->name,
                            strerror(-rc), rc == -EINVAL ? " (needs Linux 5.1)" : "");
    /* before Linux 6.4 a huge page would be made of what is here, and of zeros */
    madvise(map, r->len_bytes, MADV_NOHUGEPAGE);
    madvise(map, r->len_bytes, MADV_DONTFORK);
    madvise(map, r->len_bytes, MADV_DONTDUMP);
    struct ff_region region = {.name = r->name,
                               .host = map,
                               .len_bytes = r->len_bytes,
                               .psize = r->psize,
                               .fd = l ? -1 : m->fd,
                               .zero_fill = true};
    rc = ff_dest_add_region(a->dest, &region, err);
    if (!rc && l)
        ff_dest_lent(a->dest, a->n_memory - 1);
    return rc;
}

int ff_agent_adopt(void *opaque, const struct ff_hello *peer, struct ff_error *err)
{
    struct ff_agent *a = opaque;
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    if (a->adopted)
        rc = ff_error_set(err, EBUSY, "agent: it has an image already");
    else
        rc = check_total(a, peer, err);
    a->adopted = true;
    for (unsigned i = 0; i < peer->n_regions && !rc; i++)
        rc = adopt_region(a, &peer->regions[i], err);
    ff_agent_drop_lent(a); /* what the image does not have */
    pthread_mutex_unlock(&a->lock);
    return rc;
}

int ff_agent_keep_state(struct ff_agent *a, const void *state, size_t len, struct ff_error *err)
{
    FF_AUTO_CLOSE int fd = ff_file_sealed("farfork-state", state, len);

    if (fd < 0)
        return ff_error_set(err, -fd, "agent: keep %zu bytes of state: %s", len, strerror(-fd));
    a->state_bytes = len;
    a->state_fd = reopen(fd, err);
    return a->state_fd < 0 ? a->state_fd : 0;
}

void ff_agent_drop_memory(struct ff_agent *a)
{
    while (a->n_memory) {
        struct ff_agent_memory *m = &a->memory[--a->n_memory];
        if (m->map)
            munmap(m->map, m->len_bytes);
        ff_close_fd(&m->view);
        ff_close_fd(&m->fd);
    }
    ff_close_fd(&a->state_fd);
}

int ff_agent_take_whole(struct ff_agent *a, const struct ff_hello *table, int state_fd,
                      uint64_t state_bytes, struct ff_error *err)
{
    int rc;

    if (a->adopted || a->status != FF_IMAGE_AWAITED || atomic_load(&a->cancelled))
        return ff_error_set(err, EBUSY, "agent: it has an image already, or takes none any more");
    rc = check_total(a, table, err);
    if (rc)
        return rc;
    rc = ff_file_check_sealed(state_fd, state_bytes, "agent", err);
    if (rc)
        return rc;
    for (unsigned i = 0; i < table->n_regions && !rc; i++) {
        const struct ff_wire_region *r = &table->regions[i];
        struct ff_lent *l = find_lent(a, r->name);
        rc = l && l->fd >= 0 ? add_memory(a, r, l, err)
                             : ff_error_set(err, EPROTO,
                                            "agent: region %s: handed over, but not lent", r->name);
    }
    if (!rc) {
        a->state_fd = reopen(state_fd, err);
        a->state_bytes = state_bytes;
        rc = a->state_fd < 0 ? a->state_fd : 0;
    }
    if (rc)
        ff_agent_drop_memory(a);
    a->adopted = !rc;
    return rc;
}
