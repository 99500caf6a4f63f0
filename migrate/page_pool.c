/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_pool.c - pages made ready while a destination waits for its source; see page_pool.h
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
    uint64_t room = 0, done = 0;

    setpriority(PRIO_PROCESS, 0, 19); /* of this thread alone, on Linux */
    while (done < s->map_bytes && !atomic_load(&s->stop)) {
        uint64_t n = FF_MIN(STEP, s->map_bytes - done);
        if (!(done % LOOK_EVERY))
            room = ff_page_pool_room("");
        if (room < n || madvise(s->map + done, n, MADV_POPULATE_WRITE))
            break;
        room -= n;
        done += n;
        atomic_store(&s->ready_bytes, done);
    }
    return NULL;
}

void ff_page_pool_start(struct ff_page_pool *s, const struct ff_regions *regions)
{
    if (s->map)
        return;
    s->n = regions->n;
    for (unsigned i = 0; i < regions->n; i++) {
        const struct ff_region *r = &regions->r[i];
        bool fits = r->fd < 0 && r->psize == (uint32_t)sysconf(_SC_PAGESIZE) &&
                    ff_region_is_empty(r) && !ff_policy_is_set(r);
        s->start[i] = s->map_bytes;
        s->len_bytes[i] = fits ? r->len_bytes : 0;
        s->map_bytes += s->len_bytes[i];
    }
    void *m = s->map_bytes ? mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                           : MAP_FAILED;
    if (m == MAP_FAILED)
        return;
    s->map = m;
    madvise(m, s->map_bytes, MADV_DONTFORK); /* not a child's, which would make them unmovable */
    /* to take single pages out of a huge one costs more than it saves */
    madvise(m, s->map_bytes, MADV_NOHUGEPAGE);
    madvise(m, s->map_bytes, MADV_DONTDUMP);
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
           (unsigned long long)(s->map_bytes >> 20));
}

uint8_t *ff_page_pool_of(const struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes)
{
    uint64_t ready = atomic_load(&s->ready_bytes);

    if (!s->map || i >= s->n || !s->len_bytes[i] || ready <= s->start[i])
        return NULL;
    *ready_bytes = FF_MIN(ready - s->start[i], s->len_bytes[i]);
    return s->map + s->start[i];
}

void ff_page_pool_empty(struct ff_page_pool *s)
{
    if (s->map)
        madvise(s->map, s->map_bytes, MADV_DONTNEED);
}

void ff_page_pool_free(struct ff_page_pool *s)
{
    ff_page_pool_stop(s);
    if (s->map)
        munmap(s->map, s->map_bytes);
    s->map = NULL;
    s->map_bytes = 0;
    atomic_store(&s->ready_bytes, 0);
}
