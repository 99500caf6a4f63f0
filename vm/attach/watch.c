/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch.c - a userfaultfd over the memory of another process
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a userfaultfd, made there; a duplicate here; through that the API, and each block
 *              registered for missing pages; madvise(2) there: the pages go
 *
 *              It is made by an ioctl(2) of /dev/userfaultfd, which this process has opened and passed by add-fd: it
 *              belongs to the memory of the process that makes the call, not of the one that opened the device. So
 *              that process need not have the right to open it, nor the device in its mount namespace. Without
 *              the device, by userfaultfd(2).
 * Invariants   1. Memory is watched before it is emptied: nobody puts a page there in between.
 *              2. That process has a descriptor of its own until watch_end(): the watch outlives this process.
 * Limits       It has to report faults inside the kernel, as KVM's are. Without the device that process needs the right to
 *              make such a one: CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd.
 * Sources      userfaultfd(2), ioctl_userfaultfd(2), madvise(2)
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "cleanup.h"
#include "inject.h"
#include "watch.h"
#include "watch_private.h"
#include "xalloc.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#ifndef USERFAULTFD_IOC_NEW /* Linux 6.1 */
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

#define DEVICE "/dev/userfaultfd"
#define PART_BYTES (1ull << 30) /* one call frees so much: a call has a limit of time */

struct begin {
    struct watch *w;
    int device; /* its number there; -1: none */
};

struct discard {
    const struct watch *w;
    const struct iovec *part;
    unsigned n;
};

/* --- the device --- */

int watch_pass_device(struct qmp *q, struct watch_device *d, struct ff_error *err)
{
    FF_AUTO_CLOSE int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    FF_AUTO_JSON json_t *added = NULL;

    *d = (struct watch_device){.there = -1};
    if (fd < 0) /* perhaps userfaultfd(2) is permitted there */
        return 0;
    int rc = qmp_command_with_fd(q, "add-fd", NULL, fd, &added, err);
    if (rc)
        return ff_error_context(err, "QEMU: pass " DEVICE);
    const json_t *set = json_object_get(added, "fdset-id"), *there = json_object_get(added, "fd");
    if (!json_is_integer(set) || !json_is_integer(there))
        return ff_error_set(err, EPROTO, "QEMU: pass " DEVICE ": add-fd: the answer has no fdset-id, or no fd");
    *d = (struct watch_device){.set = json_integer_value(set), .there = (int)json_integer_value(there)};
    return 0;
}

void watch_drop_device(struct qmp *q, struct watch_device *d)
{
    if (d->there >= 0) /* where this fails, it goes with the monitor's last client */
        qmp_command(q, "remove-fd", json_pack("{sI}", "fdset-id", (json_int_t)d->set), NULL, NULL);
    d->there = -1;
}

int watch_check_device(pid_t pid, int there, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd/%d", (int)pid, there);
    struct stat is, want;

    if (stat(DEVICE, &want))
        return ff_error_set(err, errno, DEVICE ": %s", strerror(errno));
    if (stat(path, &is))
        return ff_error_set(err, errno, "%s: %s", path, strerror(errno));
    return S_ISCHR(is.st_mode) && is.st_rdev == want.st_rdev ? 0
               : ff_error_set(err, EINVAL, "process %d: its descriptor %d is not " DEVICE, (int)pid, there);
}

/* --- begin --- */

static int check_can_watch(pid_t pid, const struct outside_block *b, bool *is_shared, struct ff_error *err)
{
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(pid, b, false, &m, err);

    ff_close_fd(&m.fd);
    if (rc)
        return rc;
    *is_shared = m.is_shared;
    if (!m.is_shared && m.has_file)
        return ff_error_set(err, ENOTSUP, "QEMU: block %s: a private view of a file (want share=on for its memory "
                            "backend)", b->name);
    /* that a page of it is there cannot be told from an empty pool */
    if (!m.is_shared && b->psize > (uint32_t)sysconf(_SC_PAGESIZE))
        return ff_error_set(err, ENOTSUP, "QEMU: block %s: private huge pages (want share=on for its memory backend)",
                            b->name);
    return 0;
}

int watch_make(struct inject *in, struct watch *w, int device, struct ff_error *err)
{
    const uint64_t flags = O_CLOEXEC | O_NONBLOCK; /* without UFFD_USER_MODE_ONLY: KVM's faults are the kernel's */
    const uint64_t by_device[INJECT_ARGS] = {(uint64_t)device, USERFAULTFD_IOC_NEW, flags};
    const uint64_t by_call[INJECT_ARGS] = {flags};
    int64_t fd;
    int rc = device >= 0 ? inject_call(in, SYS_ioctl, by_device, &fd, err)
                         : inject_call(in, SYS_userfaultfd, by_call, &fd, err);

    if (rc)
        return rc;
    if (fd == -EPERM)
        return ff_error_set(err, EPERM, "process %d may make no userfaultfd: give the user that runs farfork access to "
                            DEVICE " (see farfork doctor), or run that QEMU as root, or set "
                            "vm.unprivileged_userfaultfd=1 (sysctl)", (int)w->pid);
    if (fd < 0)
        return ff_error_set(err, (int)-fd, "process %d: make a userfaultfd: %s", (int)w->pid, strerror((int)-fd));
    w->there = (int)fd;
    return 0;
}

static int make_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct begin *b = opaque;

    return watch_make(in, b->w, b->device, err);
}

int watch_take(struct watch *w, struct ff_error *err)
{
    struct uffdio_api api = {.api = UFFD_API, .features = w->logs ? WATCH_LOG_FEATURES : 0};

    w->fd = outside_take_fd(w->pid, w->there);
    if (w->fd < 0)
        return ff_error_set(err, -w->fd, "process %d: take its userfaultfd: %s", (int)w->pid, strerror(-w->fd));
    if (ioctl(w->fd, UFFDIO_API, &api))
        return w->logs && errno == EINVAL
                   ? ff_error_set(err, ENOTSUP, "process %d: this kernel does not tell which pages another process writes "
                                  "(Linux 6.7 does)", (int)w->pid)
                   : ff_error_set(err, errno, "process %d: userfaultfd: %s", (int)w->pid, strerror(errno));
    return 0;
}

int watch_register(const struct watch *w, const struct outside_block *b, struct ff_error *err)
{
    struct uffdio_register r = {.range = {b->hva, b->len_bytes},
                                .mode = UFFDIO_REGISTER_MODE_MISSING | (w->logs ? UFFDIO_REGISTER_MODE_WP : 0)};

    if (!ioctl(w->fd, UFFDIO_REGISTER, &r))
        return 0;
    return ff_error_set(err, errno, "process %d: watch block %s: %s%s", (int)w->pid, b->name, strerror(errno),
                        errno == EBUSY ? ": another userfaultfd watches it" : "");
}

static int register_blocks(struct watch *w, struct ff_error *err)
{
    int rc = watch_take(w, err);

    for (unsigned i = 0; i < w->n && !rc; i++)
        rc = watch_register(w, &w->blocks[i], err);
    return rc;
}

static int empty_part(struct inject *in, const struct outside_block *b, uint64_t at, uint64_t len, bool is_shared,
                      struct ff_error *err)
{
    uint64_t args[INJECT_ARGS] = {b->hva + at, len, is_shared ? MADV_REMOVE : MADV_DONTNEED};
    int64_t got;
    int rc = inject_call(in, SYS_madvise, args, &got, err);

    if (!rc && got == -EINVAL && !is_shared) { /* mlock(2)ed */
        args[2] = MADV_DONTNEED_LOCKED;
        rc = inject_call(in, SYS_madvise, args, &got, err);
    }
    return rc || got >= 0 ? rc : ff_error_set(err, (int)-got, "QEMU: empty block %s: %s", b->name, strerror((int)-got));
}

static int empty_range(struct inject *in, const struct watch *w, unsigned i, uint64_t at, uint64_t end,
                       struct ff_error *err)
{
    int rc = 0;

    for (; at < end && !rc; at += PART_BYTES)
        rc = empty_part(in, &w->blocks[i], at, FF_MIN(PART_BYTES, end - at), w->is_shared[i], err);
    return rc;
}

static int empty_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct watch *w = opaque;
    int rc = 0;

    for (unsigned i = 0; i < w->n && !rc; i++)
        rc = empty_range(in, w, i, 0, w->blocks[i].len_bytes, err);
    return rc;
}

int watch_begin(struct watch *w, pid_t pid, unsigned filters, int device, const struct outside_block *b, unsigned n,
                bool logs, struct ff_error *err)
{
    struct begin e = {w, device};
    int rc = 0;

    *w = (struct watch){.pid = pid, .fd = -1, .there = -1, .by = -1, .filters = filters, .blocks = b, .n = n, .logs = logs};
    w->is_shared = calloc(n + 1, sizeof(*w->is_shared));
    if (!w->is_shared)
        return ff_error_set(err, ENOMEM, "watch: out of memory");
    for (unsigned i = 0; i < n && !rc; i++)
        rc = check_can_watch(pid, &b[i], &w->is_shared[i], err);
    if (!rc && device >= 0)
        rc = watch_check_device(pid, device, err);
    if (!rc)
        rc = inject_run(pid, filters, make_there, &e, err);
    if (!rc)
        rc = register_blocks(w, err);
    return rc ? rc : inject_run(pid, filters, empty_there, w, err);
}

/* --- discards --- */

/* The block that has all of it; @w->n: none */
static unsigned block_of(const struct watch *w, const struct iovec *part)
{
    uint64_t at = (uintptr_t)part->iov_base;
    unsigned i = 0;

    while (i < w->n && (at < w->blocks[i].hva || at - w->blocks[i].hva > w->blocks[i].len_bytes ||
                        part->iov_len > w->blocks[i].len_bytes - (at - w->blocks[i].hva)))
        i++;
    return i;
}

static int discard_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct discard *d = opaque;
    int rc = 0;

    for (unsigned k = 0; k < d->n && !rc; k++) {
        unsigned i = block_of(d->w, &d->part[k]);
        uint64_t at = (uintptr_t)d->part[k].iov_base - d->w->blocks[i].hva;

        rc = empty_range(in, d->w, i, at, at + d->part[k].iov_len, err);
    }
    return rc;
}

static int discard_by(const struct watch *w, const struct iovec *part, unsigned n, struct ff_error *err)
{
    struct watch_parts q = {.n = n};
    size_t len = offsetof(struct watch_parts, part) + n * sizeof(*part);
    struct watch_answer a;

    memcpy(q.part, part, n * sizeof(*part));
    if (send(w->by, &q, len, MSG_NOSIGNAL) != (ssize_t)len || recv(w->by, &a, sizeof(a), 0) != sizeof(a))
        return ff_error_set(err, EPIPE, "watcher: it discards nothing in process %d", (int)w->pid);
    a.text[sizeof(a.text) - 1] = '\0';
    return a.rc ? ff_error_set(err, a.rc < 0 ? -a.rc : EIO, "%s", a.text) : 0;
}

int watch_discard(struct watch *w, const struct iovec *part, unsigned n, struct ff_error *err)
{
    struct discard d = {w, part, n};

    for (unsigned i = 0; i < n; i++)
        if (n > WATCH_PARTS || block_of(w, &part[i]) == w->n)
            return ff_error_set(err, EINVAL, "process %d: discard 0x%zx bytes at %p: no block's, or too many parts (%u, "
                                "permitted: %u)", (int)w->pid, part[i].iov_len, part[i].iov_base, n, WATCH_PARTS);
    return w->by >= 0 ? discard_by(w, part, n, err) : inject_run(w->pid, w->filters, discard_there, &d, err);
}

int watch_stop(const struct watch *w, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < w->n; i++) { /* of the others, too, where a device was unplugged with its block */
        struct uffdio_range r = {w->blocks[i].hva, w->blocks[i].len_bytes};

        if (ioctl(w->fd, UFFDIO_UNREGISTER, &r) || ioctl(w->fd, UFFDIO_WAKE, &r)) /* uffd/install.c: who came in between */
            rc = ff_error_set(err, errno, "process %d: watch block %s no longer: %s", (int)w->pid, w->blocks[i].name,
                              strerror(errno));
    }
    return rc;
}

static int close_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct watch *w = opaque;
    const uint64_t args[INJECT_ARGS] = {(uint64_t)w->there};
    int64_t got;

    return inject_call(in, SYS_close, args, &got, err);
}

/* Whether it has done so is of no weight: what is left there watches nothing */
static int end_by(struct watch *w, struct ff_error *err)
{
    struct watch_answer a;

    if (send(w->by, "e", 1, MSG_NOSIGNAL) == 1 && recv(w->by, &a, sizeof(a), 0) > 0)
        return 0;
    return ff_error_set(err, EPIPE, "watcher: it does not close the userfaultfd in process %d", (int)w->pid);
}

int watch_end(struct watch *w, struct ff_error *err)
{
    int rc = w->by >= 0 ? end_by(w, err) : w->there >= 0 ? inject_run(w->pid, w->filters, close_there, w, err) : 0;

    watch_leave(w);
    w->there = -1;
    return rc;
}

void watch_leave(struct watch *w)
{
    ff_close_fd(&w->fd);
    ff_close_fd(&w->by);
    free(w->is_shared);
    w->is_shared = NULL;
}
