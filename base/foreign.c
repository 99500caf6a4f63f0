/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * foreign.c - read memory of another process, and leave alone what it never touched; see foreign.h
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "foreign.h"
#include "pagemap.h"

#define PAGE 4096u
#define FETCH_PAGES_MAX (FF_FOREIGN_MAX / PAGE + 1) /* a read may begin inside a page */
#define RUNS_MOST (FF_FOREIGN_GRANULES / 2 + 1)

/* From Linux 6.11 on: one mapping, without the text of all */
#ifndef PROCMAP_QUERY
struct procmap_query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)
#define PROCMAP_QUERY_VMA_READABLE 1
#endif

/* --- failure --- */

/* For good: every read fails from here on, with the first reason */
static int fail_for_good(struct ff_foreign *f, int code, struct ff_error *err, const char *why)
{
    pthread_mutex_lock(&f->lock);
    if (!f->why.code)
        ff_error_set(&f->why, code, "memory: read process %d: %s", (int)f->pid, why);
    if (err)
        *err = f->why;
    code = f->why.code;
    pthread_mutex_unlock(&f->lock);
    return -code;
}

static int failed_before(struct ff_foreign *f, struct ff_error *err)
{
    pthread_mutex_lock(&f->lock);
    int code = f->why.code;
    if (code && err)
        *err = f->why;
    pthread_mutex_unlock(&f->lock);
    return -code;
}

static int not_mapped(struct ff_foreign *f, uint64_t addr, struct ff_error *err)
{
    char why[80];

    snprintf(why, sizeof(why), "0x%llx: it has no memory there that can be read",
             (unsigned long long)addr);
    return fail_for_good(f, EFAULT, err, why);
}

/* Until now it has been the process, with the memory, that was opened */
static bool is_alive(const struct ff_foreign *f)
{
    struct pollfd ended = {.fd = f->pidfd, .events = POLLIN};
    uint64_t entry;

    return ff_pagemap_read(f->pagemap, NULL, 1, &entry) && !poll(&ended, 1, 0);
}

/* The kernel may take the memory of a process that is killed for want of memory before that has
 * ended: what is missing from its page tables says nothing then */
static bool is_killed(const struct ff_foreign *f)
{
    unsigned long long pending;
    char path[32], line[128], state;
    bool is = false;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)f->pid);
    FILE *s = fopen(path, "re");
    if (!s)
        return true;
    while (!is && fgets(line, sizeof(line), s))
        is = (sscanf(line, "State: %c", &state) == 1 && (state == 'Z' || state == 'X')) ||
             ((sscanf(line, "SigPnd: %llx", &pending) == 1 ||
               sscanf(line, "ShdPnd: %llx", &pending) == 1) &&
              pending >> (SIGKILL - 1) & 1);
    fclose(s);
    return is;
}

static int check_alive(struct ff_foreign *f, struct ff_error *err)
{
    return is_alive(f) ? 0 : fail_for_good(f, ESRCH, err, "it has ended, or runs another program");
}

/* --- open --- */

static int explain_refusal(pid_t pid, int code, struct ff_error *err)
{
    if (code == EPERM || code == EACCES)
        return ff_error_set(err, EPERM,
                            "memory: read process %d: not permitted: run this program as the same "
                            "user, with kernel.yama.ptrace_scope=0 and that process dumpable "
                            "(prctl PR_SET_DUMPABLE), or with CAP_SYS_PTRACE", (int)pid);
    if (code == ENOENT || code == ESRCH)
        return ff_error_set(err, ESRCH, "memory: read process %d: there is none", (int)pid);
    return ff_error_set(err, code, "memory: read process %d: %s", (int)pid, strerror(code));
}

/* The kernel asks for permission before it looks at the address, where nothing can be */
static int may_read(pid_t pid)
{
    uint8_t byte;
    struct iovec local = {.iov_base = &byte, .iov_len = 1}, remote = {.iov_len = 1};

    return process_vm_readv(pid, &local, 1, &remote, 1, 0) < 0 && errno != EFAULT ? errno : 0;
}

static int open_of(pid_t pid, const char *file, int *fd)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd < 0 ? errno : 0;
}

static int open_all(struct ff_foreign *f)
{
    f->pidfd = (int)syscall(SYS_pidfd_open, f->pid, 0);
    int code = f->pidfd < 0 ? errno : may_read(f->pid);

    if (!code)
        code = open_of(f->pid, "pagemap", &f->pagemap);
    if (!code)
        code = open_of(f->pid, "maps", &f->maps);
    return !code && !is_alive(f) ? ESRCH : code;
}

int ff_foreign_open(pid_t pid, struct ff_foreign **out, struct ff_error *err)
{
    struct ff_foreign *f = calloc(1, sizeof(*f));

    if (!f)
        return ff_error_set(err, ENOMEM, "memory: read process %d: out of memory", (int)pid);
    pthread_mutex_init(&f->lock, NULL);
    f->pid = pid;
    f->pidfd = f->pagemap = f->maps = -1;
    f->uses = 1;
    int code = open_all(f);
    if (code) {
        ff_foreign_unref(f);
        return explain_refusal(pid, code, err);
    }
    *out = f;
    return 0;
}

struct ff_foreign *ff_foreign_ref(struct ff_foreign *f)
{
    f->uses++;
    return f;
}

void ff_foreign_unref(struct ff_foreign *f)
{
    if (!f || --f->uses)
        return;
    ff_close_fd(&f->pidfd);
    ff_close_fd(&f->pagemap);
    ff_close_fd(&f->maps);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* --- what is mapped --- */

/* The end of the part of [@from, ...) that the lines of maps show as readable */
static uint64_t readable_until(const struct ff_foreign *f, uint64_t from)
{
    char path[40], line[512];

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)f->pid);
    FILE *maps = fopen(path, "re");
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long long start, end;
        char r;
        if (sscanf(line, "%llx-%llx %c", &start, &end, &r) == 3 && start <= from && from < end &&
            r == 'r')
            from = end;
    }
    if (maps)
        fclose(maps);
    return from;
}

static bool is_mapped(const struct ff_foreign *f, uint64_t from, uint64_t end)
{
    while (from < end) {
        struct procmap_query q = {.size = sizeof(q),
                                  .query_flags = PROCMAP_QUERY_VMA_READABLE,
                                  .query_addr = from};
        if (!ioctl(f->maps, PROCMAP_QUERY, &q))
            from = q.vma_end;
        else if (errno == ENOTTY)
            return readable_until(f, from) >= end;
        else
            return false;
    }
    return true;
}

int ff_foreign_check(struct ff_foreign *f, uint64_t addr, uint64_t len, struct ff_error *err)
{
    bool mapped = is_mapped(f, addr, addr + len);
    int rc = failed_before(f, err);

    if (!rc)
        rc = check_alive(f, err);
    return rc ? rc : mapped ? 0 : not_mapped(f, addr, err);
}

bool ff_foreign_any(const struct ff_foreign *f, uint64_t addr, uint64_t len, uint32_t psize)
{
    return (psize > PAGE && !ff_pagemap_scans(f->pagemap)) ||
           ff_pagemap_any(f->pagemap, (const void *)(uintptr_t)addr, len);
}

/* --- read --- */

struct fetch {
    struct ff_foreign *f;
    const struct ff_foreign_rest *rest;
    uint64_t addr;
    uint32_t granule, n;
    uint8_t *zero, *poison, *into;
    uint8_t have[FF_FOREIGN_GRANULES / 8]; /* they are in @into, or are not to be */
};

static void mark_granule(uint8_t *map, uint32_t i)
{
    map[i / 8] |= (uint8_t)(1u << (i % 8));
}

static bool is_marked_in(const uint8_t *map, uint32_t i)
{
    return map[i / 8] & (1u << (i % 8));
}

/* Is any page of granule @i in the page tables? */
static bool tables_have(const struct fetch *g, const uint64_t *entry, uint32_t i)
{
    uint64_t from = g->addr + (uint64_t)i * g->granule, base = g->addr / PAGE;

    for (uint64_t p = from / PAGE; p <= (from + g->granule - 1) / PAGE; p++)
        if (entry[p - base] & (FF_PM_PRESENT | FF_PM_SWAPPED))
            return true;
    return g->rest->psize > PAGE && ff_foreign_any(g->f, from, g->granule, g->rest->psize);
}

/* What need not be read from the process; true: some is taken for zeros */
static bool look_at_tables(struct fetch *g, const uint64_t *entry)
{
    const struct ff_foreign_rest *r = g->rest;
    bool zeros = false;

    for (uint32_t i = 0; i < g->n && (r->zeros || r->file_fd >= 0); i++) {
        size_t at = (size_t)i * g->granule;
        if (tables_have(g, entry, i))
            continue;
        /* behind the file's end the process tells what is wrong */
        if (r->file_fd >= 0 && pread(r->file_fd, g->into + at, g->granule,
                                     (off_t)(r->file_offset + at)) != (ssize_t)g->granule)
            continue;
        mark_granule(g->have, i);
        if (r->file_fd < 0)
            mark_granule(g->zero, i);
        zeros = true;
    }
    return zeros;
}

/* As many of the granules from @i on as @most that are still to be brought: what the kernel says */
static ssize_t copy_granules(const struct fetch *g, uint32_t i, uint32_t most, size_t *want)
{
    struct iovec local[RUNS_MOST], remote[RUNS_MOST];
    unsigned n = 0;

    *want = 0;
    for (bool joins = false; i < g->n && most; i++) {
        size_t at = (size_t)i * g->granule;
        if (is_marked_in(g->have, i)) {
            joins = false;
            continue;
        }
        if (!joins) {
            local[n] = (struct iovec){.iov_base = g->into + at};
            remote[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(g->addr + at)};
        }
        local[n - 1].iov_len += g->granule;
        remote[n - 1].iov_len += g->granule;
        *want += g->granule;
        joins = true;
        most--;
    }
    return n ? process_vm_readv(g->f->pid, local, n, remote, n, 0) : 0;
}

static int read_failed(struct fetch *g, int code, struct ff_error *err)
{
    if (code == ENOMEM)
        return ff_error_set(err, ENOMEM, "memory: read process %d: out of memory",
                            (int)g->f->pid);
    int rc = check_alive(g->f, err);

    return rc ? rc : fail_for_good(g->f, code, err, strerror(code));
}

/* Granule @i, and no other: it is read, or poisoned */
static int take_granule(struct fetch *g, uint32_t i, struct ff_error *err)
{
    uint64_t from = g->addr + (uint64_t)i * g->granule;
    size_t want;
    ssize_t got = copy_granules(g, i, 1, &want);

    mark_granule(g->have, i);
    if (got == (ssize_t)want)
        return 0;
    if (got < 0 && errno != EFAULT)
        return read_failed(g, errno, err);
    if (!is_mapped(g->f, from, from + g->granule)) {
        int rc = check_alive(g->f, err);
        return rc ? rc : not_mapped(g->f, from, err);
    }
    mark_granule(g->zero, i);
    mark_granule(g->poison, i);
    return 0;
}

/* The kernel stops at the first page that it cannot read, and says how many bytes came before it */
static int bring_granules(struct fetch *g, struct ff_error *err)
{
    for (;;) {
        size_t want;
        ssize_t got = copy_granules(g, 0, g->n, &want);
        if (got == (ssize_t)want)
            return 0;
        if (got < 0 && errno != EFAULT)
            return read_failed(g, errno, err);
        uint32_t i = 0;
        for (uint32_t whole = (uint32_t)(FF_MAX(got, 0) / g->granule); i < g->n; i++) {
            if (is_marked_in(g->have, i))
                continue;
            if (!whole--)
                break;
            mark_granule(g->have, i);
        }
        int rc = take_granule(g, i, err);
        if (rc)
            return rc;
    }
}

int ff_foreign_read(struct ff_foreign *f, const struct ff_foreign_rest *rest, uint64_t addr,
                    uint32_t len, uint32_t granule, uint8_t *zero, uint8_t *poison, uint8_t *into,
                    struct ff_error *err)
{
    struct fetch g = {.f = f, .rest = rest, .addr = addr, .granule = granule,
                      .n = granule ? len / granule : 0, .zero = zero, .poison = poison,
                      .into = into};
    uint64_t entry[FETCH_PAGES_MAX], first = addr / PAGE;

    if (!len || len > FF_FOREIGN_MAX || !g.n || g.n > FF_FOREIGN_GRANULES || len % granule)
        return ff_error_set(err, EINVAL, "memory: read process %d: %u bytes in granules of %u",
                            (int)f->pid, len, granule);
    int rc = failed_before(f, err);
    if (rc)
        return rc;
    if (!ff_pagemap_read(f->pagemap, (const void *)(uintptr_t)(first * PAGE),
                         (addr + len + PAGE - 1) / PAGE - first, entry)) {
        rc = check_alive(f, err);
        return rc ? rc : not_mapped(f, addr, err);
    }
    bool zeros = look_at_tables(&g, entry);
    rc = bring_granules(&g, err);
    if (rc)
        return rc;
    if (zeros && is_killed(f))
        return fail_for_good(f, ESRCH, err, "it is being killed");
    return zeros ? ff_foreign_check(f, addr, len, err) : check_alive(f, err);
}
