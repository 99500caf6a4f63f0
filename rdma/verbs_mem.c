/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_mem.c - the verbs link's registered memory
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      registering pins, and so populates, every page: a guest's memory takes
 *              seconds, and is registered in segments from several threads at once.
 * Threads      lock is held for the table alone, never while the kernel pins or unpins.
 * Ownership    what dereg() was not called for goes with the link.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cleanup.h"
#include "mr.h"
#include "verbs.h"

#define CAP_IPC_LOCK_BIT 14 /* linux/capability.h: it is what it always was */
#define PAGE 4096u
#define MIB(bytes) ((unsigned long long)((bytes) + (1u << 20) - 1) >> 20)

/* What the kernel counts against the limit, and whether this process is bound by it */
static void read_status(uint64_t *pinned, bool *bound)
{
    unsigned long long kib, caps;
    char line[128];
    FILE *f = fopen("/proc/self/status", "re");

    *pinned = 0;
    *bound = true;
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "VmPin: %llu", &kib) == 1)
            *pinned = kib << 10;
        else if (sscanf(line, "CapEff: %llx", &caps) == 1)
            *bound = !(caps >> CAP_IPC_LOCK_BIT & 1);
    }
    if (f)
        fclose(f);
}

int verbs_may_pin(struct ff_link *l, uint64_t bytes, struct ff_error *err)
{
    struct rlimit lim;
    uint64_t pinned;
    bool bound;

    (void)l; /* other links of this process count too: the kernel's own figure has them all */
    read_status(&pinned, &bound);
    if (!bound || getrlimit(RLIMIT_MEMLOCK, &lim) < 0 || lim.rlim_cur == RLIM_INFINITY ||
        (bytes <= lim.rlim_cur && pinned <= lim.rlim_cur - bytes))
        return 0;
    return ff_error_set(err, ENOMEM,
                        "verbs: pin %llu MiB: the memlock limit is %llu MiB, %llu MiB pinned: "
                        "raise it (ulimit -l, LimitMEMLOCK=, /etc/security/limits.conf) to at "
                        "least %llu MiB, or odp=on where the device has it, or link=tcp",
                        MIB(bytes), (unsigned long long)lim.rlim_cur >> 20, MIB(pinned),
                        MIB(bytes + pinned));
}

bool verbs_is_shared_read_only(const void *addr)
{
    unsigned long long from, to;
    bool found = false;
    char line[512], perms[8];
    FILE *f = fopen("/proc/self/maps", "re");

    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "%llx-%llx %7s", &from, &to, perms) == 3 && (uintptr_t)addr >= from &&
                (uintptr_t)addr < to;
    if (f)
        fclose(f);
    return found && perms[1] != 'w' && perms[3] == 's';
}

/* EFAULT, also for the first page alone, which can be read: no page that has failed is the reason */
static bool refuses_page(struct verbs_link *v, const void *addr)
{
    if (ff_readable(addr, PAGE) < PAGE)
        return false;
    struct ibv_mr *m = ibv_reg_mr(v->pd, (void *)addr, PAGE, IBV_ACCESS_REMOTE_READ);
    if (m)
        ibv_dereg_mr(m);
    return !m && errno == EFAULT;
}

static int reg_failed(struct verbs_link *v, const void *addr, uint64_t len, unsigned access, int code,
                      struct ff_error *err)
{
    struct ff_error why;

    if (code == EFAULT && verbs_is_shared_read_only(addr) && refuses_page(v, addr))
        return ff_error_set(err, EOPNOTSUPP, "verbs: register %llu MiB on %s: the memory is shared and "
                            "mapped for reading alone, which no Linux before 6.2 registers: use "
                            "link=tcp, a newer kernel, or memory without readonly=on", MIB(len),
                            ibv_get_device_name(v->pd->context->device));

    /* nobody asked before, or others pinned in between */
    if (code == ENOMEM && !(access & FF_ACCESS_ON_DEMAND) && verbs_may_pin(&v->base, len, &why))
        return ff_error_set(err, ENOMEM, "%s", why.text);
    return ff_error_set(err, code, "verbs: register %llu MiB%s on %s: %s", MIB(len),
                        access & FF_ACCESS_ON_DEMAND ? " on demand" : "",
                        ibv_get_device_name(v->pd->context->device), strerror(code));
}

/* A free place of the table, which grows; under lock. NULL: out of memory */
static struct verbs_mr *free_place(struct verbs_link *v)
{
    for (unsigned i = 0; v->mrs_live < v->n_mr && i < v->n_mr; i++)
        if (!v->mr[i].mr)
            return &v->mr[i];
    if (v->n_mr == v->mr_room) {
        unsigned room = v->mr_room ? 2 * v->mr_room : 64;
        struct verbs_mr *mr = realloc(v->mr, room * sizeof(*mr));
        if (!mr)
            return NULL;
        v->mr = mr;
        v->mr_room = room;
    }
    v->mr[v->n_mr] = (struct verbs_mr){.mr = NULL};
    return &v->mr[v->n_mr++];
}

static int keep_mr(struct verbs_link *v, struct ibv_mr *m)
{
    pthread_mutex_lock(&v->lock);
    struct verbs_mr *place = free_place(v);
    if (place) {
        *place = (struct verbs_mr){.mr = m, .lkey = m->lkey};
        v->mrs_live++;
    }
    pthread_mutex_unlock(&v->lock);
    return place ? 0 : -ENOMEM;
}

int verbs_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
              struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);

    pthread_mutex_lock(&v->lock);
    unsigned live = v->mrs_live;
    pthread_mutex_unlock(&v->lock);
    int flags = verbs_check_reg(&v->limits, len, access, live, err);
    if (flags < 0)
        return flags;
    struct ibv_mr *m = ibv_reg_mr(v->pd, addr, len, (unsigned)flags);
    if (!m)
        return reg_failed(v, addr, len, access, errno, err);
    if (keep_mr(v, m)) {
        ibv_dereg_mr(m);
        return ff_error_set(err, ENOMEM, "verbs: register memory: out of memory");
    }
    *mr = (struct ff_mr){
        .addr = addr, .len_bytes = len, .access = access, .rkey = m->rkey, .lkey = m->lkey};
    return 0;
}

void verbs_dereg(struct ff_link *l, struct ff_mr *mr)
{
    struct verbs_link *v = verbs_of(l);
    struct ibv_mr *m = NULL;

    pthread_mutex_lock(&v->lock);
    for (unsigned i = 0; i < v->n_mr && !m; i++) {
        if (!v->mr[i].mr || v->mr[i].lkey != mr->lkey)
            continue;
        m = v->mr[i].mr;
        v->mr[i].mr = NULL;
        v->mrs_live--;
    }
    pthread_mutex_unlock(&v->lock);
    if (m)
        ibv_dereg_mr(m);
}

void verbs_free_mrs(struct verbs_link *v)
{
    for (unsigned i = 0; i < v->n_mr; i++)
        if (v->mr[i].mr)
            ibv_dereg_mr(v->mr[i].mr);
    free(v->mr);
    v->mr = NULL;
    v->n_mr = v->mr_room = v->mrs_live = 0;
}
