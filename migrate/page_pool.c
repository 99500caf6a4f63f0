/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_pool.c - pages made ready while a destination waits for its source; see page_pool.h
 */
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "policy.h"
#include "page_pool.h"
#include "populate.h"
#include "thread.h"

#define STEP (4ull << 20)        /* about 1 ms: so long a source may wait for the thread's end */
#define LOOK_EVERY (256ull << 20) /* at what is left of the host's memory */
#define SPARE_SHARE 8u           /* one part in so many of all memory is left alone */

/* --- how much may be taken --- */

/* A file that holds one number; @none if there is no such file or it says "max" */
static uint64_t read_number(const char *path, uint64_t none)
{
    FILE *f = fopen(path, "re");
    uint64_t v = none;

    if (!f)
        return none;
    if (fscanf(f, "%" SCNu64, &v) != 1)
        v = none;
    fclose(f);
    return v;
}

/* One version of control groups: where it is mounted, and its files */
struct cgroup_files {
    const char *mount, *max, *used;
};

static uint64_t group_room(const char *root, const struct cgroup_files *files, const char *group)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s%s%s/%s", root, files->mount, group, files->max);
    uint64_t max = read_number(path, UINT64_MAX);
    snprintf(path, sizeof(path), "%s%s%s/%s", root, files->mount, group, files->used);
    uint64_t used = read_number(path, 0), spare = max / SPARE_SHARE;
    if (max == UINT64_MAX)
        return max;
    return used < max && max - used > spare ? max - used - spare : 0;
}

/* Left for this process by its control groups, from its own up to the root: in a container the
 * root of what is mounted is its own */
static uint64_t cgroup_room(const char *root)
{
    static const struct cgroup_files v2 = {"/sys/fs/cgroup", "memory.max", "memory.current"},
                                     v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                           "memory.usage_in_bytes"};
    char line[512], path[1024];
    uint64_t room = UINT64_MAX;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        /* "0::/group" or "4:memory:/group" */
        const struct cgroup_files *files = strncmp(line, "0::/", 4) ? &v1 : &v2;
        char *group = files == &v2 ? line + 3 : strstr(line, ":memory:/");
        if (!group)
            continue;
        group += files == &v1 ? strlen(":memory:") : 0;
        group[strcspn(group, "\n")] = '\0';
        for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
            *end = '\0';
            room = FF_MIN(room, group_room(root, files, group));
        }
    }
    if (f)
        fclose(f);
    return room;
}

uint64_t ff_page_pool_room(const char *root)
{
    char line[128], path[1024];
    uint64_t total = 0, available = 0, kib;

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1)
            total = kib << 10;
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib << 10;
    }
    if (f)
        fclose(f);
    uint64_t spare = total / SPARE_SHARE;
    return available > spare ? FF_MIN(available - spare, cgroup_room(root)) : 0;
}

/* --- making pages ready --- */

static void *pool_main(void *opaque)
{
    struct ff_page_pool *s = opaque;
    uint64_t room = 0, done = 0, looked = 0;

    ff_thread_later();
    for (unsigned i = 0; done < s->all_bytes && !atomic_load(&s->stop);) {
        const struct ff_pool_part *part = &s->part[i];
        uint64_t at = done - part->start, n = FF_MIN(STEP, part->len_bytes - at);
        if (!n) {
            i++;
            continue;
        }
        if (looked + LOOK_EVERY <= done || !done) {
            room = ff_page_pool_room("");
            looked = done;
        }
        if (room < n)
            break;
        if (madvise(part->at + at, n, MADV_POPULATE_WRITE)) {
            /* some of it is there, perhaps, which nobody knows to be ready: it would read as zeros */
            if (part->is_file)
                madvise(part->at + at, n, MADV_REMOVE);
            break;
        }
        room -= n;
        done += n;
        atomic_store(&s->ready_bytes, done);
    }
    return NULL;
}

/* Does nobody else map @fd, but who was given it? What is ready would be zeros to him, and to give it
 * back would take his bytes; and a disk would be written to */
static bool is_own_memory(int fd)
{
    struct statfs fs;
    struct stat st;

    return !fstatfs(fd, &fs) && fs.f_type == TMPFS_MAGIC && !fstat(fd, &st) && !st.st_nlink;
}

/* A place for what is made ready for @r, of which nothing is there yet: 0; else there is none */
static int place_part(struct ff_pool_part *part, const struct ff_region *r, bool moves,
                      bool continues)
{
    if (r->psize != (uint32_t)sysconf(_SC_PAGESIZE) || !(r->fd < 0 ? moves : continues) ||
        !ff_region_is_empty(r) || ff_policy_is_set(r))
        return -1;
    if (r->fd >= 0 && !is_own_memory(r->fd))
        return -1;
    part->is_file = r->fd >= 0;
    if (!part->is_file)
        return 0;
    void *m = mmap(NULL, r->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                   (off_t)r->fd_offset);
    part->at = m == MAP_FAILED ? NULL : m;
    return part->at ? 0 : -1;
}

static void advise(void *m, uint64_t len)
{
    munlock(m, len); /* mlockall() of times to come: nothing could be given back */
    madvise(m, len, MADV_DONTFORK); /* not a child's, which would make them unmovable */
    /* to take single pages out of a huge one costs more than it saves */
    madvise(m, len, MADV_NOHUGEPAGE);
    madvise(m, len, MADV_DONTDUMP);
}

void ff_page_pool_start(struct ff_page_pool *s, const struct ff_regions *regions, bool moves,
                        bool continues)
{
    if (s->n)
        return;
    s->n = regions->n;
    for (unsigned i = 0; i < regions->n; i++) {
        struct ff_pool_part *part = &s->part[i];
        *part = (struct ff_pool_part){.start = s->all_bytes};
        if (place_part(part, &regions->r[i], moves, continues))
            continue;
        part->len_bytes = regions->r[i].len_bytes;
        s->all_bytes += part->len_bytes;
        s->map_bytes += part->is_file ? 0 : part->len_bytes;
        if (part->is_file)
            advise(part->at, part->len_bytes);
    }
    void *m = s->map_bytes ? mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                           : NULL;
    if (m == MAP_FAILED || !s->all_bytes)
        return;
    s->map = m;
    if (m)
        advise(m, s->map_bytes);
    for (unsigned i = 0; i < s->n; i++) {
        struct ff_pool_part *part = &s->part[i];
        if (part->is_file || !part->len_bytes)
            continue;
        part->at = m;
        m = (uint8_t *)m + part->len_bytes;
    }
    atomic_store(&s->stop, false);
    s->running = !ff_thread_start(&s->thread, pool_main, s, "farfork-pool", NULL);
}

void ff_page_pool_stop(struct ff_page_pool *s)
{
    if (!s->running)
        return;
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    s->running = false;
    ff_log(FF_LOG_DEBUG, "destination: %llu of %llu MiB were made ready",
           (unsigned long long)(atomic_load(&s->ready_bytes) >> 20),
           (unsigned long long)(s->all_bytes >> 20));
}

static uint64_t ready_of(const struct ff_page_pool *s, const struct ff_pool_part *part)
{
    uint64_t ready = atomic_load(&s->ready_bytes);

    return ready > part->start ? FF_MIN(ready - part->start, part->len_bytes) : 0;
}

uint8_t *ff_page_pool_of(const struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes)
{
    if (i >= s->n || s->part[i].is_file)
        return NULL;
    *ready_bytes = ready_of(s, &s->part[i]);
    return *ready_bytes ? s->part[i].at : NULL;
}

uint8_t *ff_page_pool_take(struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes)
{
    if (i >= s->n || !s->part[i].is_file)
        return NULL;
    *ready_bytes = ready_of(s, &s->part[i]);
    s->part[i].taken = *ready_bytes;
    return *ready_bytes ? s->part[i].at : NULL;
}

void ff_page_pool_return(struct ff_page_pool *s)
{
    for (unsigned i = 0; i < s->n; i++)
        s->part[i].taken = false;
}

void ff_page_pool_empty(struct ff_page_pool *s)
{
    if (s->map)
        madvise(s->map, s->map_bytes, MADV_DONTNEED);
}

void ff_page_pool_free(struct ff_page_pool *s)
{
    ff_page_pool_stop(s);
    for (unsigned i = 0; i < s->n; i++) {
        struct ff_pool_part *part = &s->part[i];
        if (!part->is_file || !part->at)
            continue;
        if (!part->taken)
            madvise(part->at, ready_of(s, part), MADV_REMOVE);
        munmap(part->at, part->len_bytes);
    }
    if (s->map)
        munmap(s->map, s->map_bytes);
    s->map = NULL;
    s->n = 0;
    s->map_bytes = s->all_bytes = 0;
    atomic_store(&s->ready_bytes, 0);
}
