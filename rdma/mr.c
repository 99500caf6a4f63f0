/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * mr.c - memory keys for links without an adapter that checks them
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "error.h"
#include "mr.h"

void ff_mr_init(struct ff_mr_table *t)
{
    memset(t, 0, sizeof(*t));
    pthread_mutex_init(&t->lock, NULL);
}

void ff_mr_destroy(struct ff_mr_table *t)
{
    pthread_mutex_destroy(&t->lock);
}

static struct ff_mr *find_mr(struct ff_mr_table *t, uint32_t rkey)
{
    for (unsigned i = 0; rkey && i < t->used; i++)
        if (t->mr[i].rkey == rkey)
            return &t->mr[i];
    return NULL;
}

int ff_mr_add(struct ff_mr_table *t, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
              struct ff_error *err)
{
    uint32_t key;
    unsigned i = 0;

    pthread_mutex_lock(&t->lock);
    while (i < t->used && t->mr[i].rkey)
        i++;
    if (i == FF_MR_MAX) {
        pthread_mutex_unlock(&t->lock);
        return ff_error_set(err, ENOSPC, "link: register memory: more than %d segments", FF_MR_MAX);
    }
    do {
        if (getrandom(&key, sizeof(key), 0) != sizeof(key)) {
            pthread_mutex_unlock(&t->lock);
            return ff_error_set(err, EIO, "link: register memory: no random numbers: %s",
                                strerror(errno));
        }
    } while (!key || find_mr(t, key));
    t->mr[i] = (struct ff_mr){.addr = addr, .len_bytes = len, .access = access, .rkey = key};
    t->file[i] = (struct ff_backing){.fd = -1};
    if (i == t->used)
        t->used++;
    *mr = t->mr[i];
    pthread_mutex_unlock(&t->lock);
    return 0;
}

void ff_mr_remove(struct ff_mr_table *t, uint32_t rkey)
{
    pthread_mutex_lock(&t->lock);
    struct ff_mr *mr = find_mr(t, rkey);
    if (mr)
        *mr = (struct ff_mr){.rkey = 0};
    pthread_mutex_unlock(&t->lock);
}

void ff_mr_backed(struct ff_mr_table *t, uint32_t rkey, const struct ff_backing *file)
{
    pthread_mutex_lock(&t->lock);
    const struct ff_mr *mr = find_mr(t, rkey);
    if (mr)
        t->file[mr - t->mr] = *file;
    pthread_mutex_unlock(&t->lock);
}

/* What is behind @addr of @rkey */
static struct ff_backing backing_at(struct ff_mr_table *t, uint32_t rkey, const void *addr)
{
    struct ff_backing file = {.fd = -1};

    pthread_mutex_lock(&t->lock);
    const struct ff_mr *mr = find_mr(t, rkey);
    if (mr) {
        file = t->file[mr - t->mr];
        file.offset += (uint64_t)((const uint8_t *)addr - (const uint8_t *)mr->addr);
    }
    pthread_mutex_unlock(&t->lock);
    return file;
}

uint32_t ff_mr_zero_scan(struct ff_mr_table *t, uint32_t rkey, const void *addr, uint32_t len,
                         uint32_t granule, uint8_t *zero, uint8_t *poison)
{
    struct ff_backing file = backing_at(t, rkey, addr);

    return ff_zero_scan_file(&file, addr, len, granule, zero, poison);
}

bool ff_mr_elsewhere(struct ff_mr_table *t, uint32_t rkey, const void *addr,
                     struct ff_backing *file)
{
    *file = backing_at(t, rkey, addr);
    return file->of;
}

int ff_mr_check(struct ff_mr_table *t, uint32_t rkey, uint64_t addr, uint64_t len, unsigned access)
{
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    const struct ff_mr *mr = find_mr(t, rkey);
    if (!mr)
        rc = -ENOENT;
    else if ((mr->access & access) != access)
        rc = -EACCES;
    else if (addr < (uintptr_t)mr->addr || len > mr->len_bytes ||
             addr - (uintptr_t)mr->addr > mr->len_bytes - len)
        rc = -ERANGE;
    pthread_mutex_unlock(&t->lock);
    return rc;
}
