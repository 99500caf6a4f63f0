/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_restore.c - the destination of a domain's move: libvirt restores it from a FIFO; see attach_domain.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      libvirtd opens the FIFO, and reads the head. From 11.2 on it closes it then, opens it again, and reads the
 *              head once more. So each open gets one (inotify(7)). The last descriptor is QEMU's: the pid file is
 *              there. What comes then is QEMU's: when it has read the stream's first bytes its machine is made, and
 *              nothing of it writes to memory any more.
 * Failure      the QEMU is killed, and libvirt drops the domain. One that nobody has heard of yet reads the end of the
 *              FIFO, and ends.
 */
#include "attach_domain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "save_image.h"
#include "thread.h"

#define FOLDER "/var/lib/libvirt/qemu" /* libvirtd may read there, wherever its policy confines it to */
#define SYSCTL "/proc/sys/vm/unprivileged_userfaultfd"
#define PIPE_BYTES (1 << 20)
#define MAGIC "QEVM\0\0\0\3" /* how each stream begins */
#define MAGIC_LEN 8u
#define END_LIMIT_MS 30000 /* libvirt's own clean-up; it waits so long for a lock */
#define RESUME_LIMIT_MS 60000             /* a libvirtd that is started anew is there after a few seconds */
#define RESUME_WAITS_MS (24 * 3600 * 1000) /* as of `cont`: it may wait for pages */
#define RESUME_TURN_MS 200

/* --- libvirt restores --- */

/* libvirt's QEMU is no root */
static int check_uffd_sysctl(struct ff_error *err)
{
    FILE *f = fopen(SYSCTL, "re");
    int value = 1;

    if (f && fscanf(f, "%d", &value) != 1)
        value = 1;
    if (f)
        fclose(f);
    return value ? 0
                 : ff_error_set(err, EPERM, "memory of libvirt's QEMU may not be watched on the destination: "
                                            "vm.unprivileged_userfaultfd is 0 (sysctl vm.unprivileged_userfaultfd=1)");
}

static int make_fifo(struct attach_domain *d, struct ff_error *err)
{
    struct stat is;
    unsigned number;

    if (getrandom(&number, sizeof(number), 0) != sizeof(number))
        return ff_error_set(err, errno, "getrandom: %s", strerror(errno));
    char *path = xprintf(FOLDER "/farfork-%08x.save", number);
    if (mkfifo(path, 0600)) {
        ff_error_set(err, errno, "%s: make a FIFO: %s (is libvirt installed here?)", path, strerror(errno));
        free(path);
        return -err->code;
    }
    d->fifo = path;
    d->both = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    d->notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (d->both < 0 || d->notify < 0)
        return ff_error_set(err, errno, "%s: open: %s", path, strerror(errno));
    if (fstat(d->both, &is) || !S_ISFIFO(is.st_mode) || is.st_uid != geteuid()) /* the folder may be another user's */
        return ff_error_set(err, EPERM, "%s: somebody has put something else there", path);
    FF_AUTO_FREE char *same = xprintf("/proc/self/fd/%d", d->both);
    d->fifo_fd = open(same, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (d->fifo_fd < 0 || inotify_add_watch(d->notify, same, IN_OPEN) < 0)
        return ff_error_set(err, errno, "%s: open: %s", path, strerror(errno));
    fcntl(d->fifo_fd, F_SETPIPE_SZ, PIPE_BYTES); /* or as large as it is */
    return 0;
}

static void count_opens(struct attach_domain *d)
{
    char buffer[4096] __attribute__((aligned(8)));
    ssize_t n;

    while ((n = read(d->notify, buffer, sizeof(buffer))) > 0)
        for (char *at = buffer; at < buffer + n;) {
            const struct inotify_event *e = (void *)at;

            d->opened += (e->mask & IN_OPEN) != 0;
            at += sizeof(*e) + e->len;
        }
}

/* Wait for anything to happen, a moment at most. @writes: also for room in the FIFO */
static int restore_turn(struct attach *a, bool writes, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    struct pollfd f[] = {{.fd = a->stop_fd, .events = POLLIN},
                         {.fd = d->restore ? libvirt_call_fd(d->restore) : -1, .events = POLLIN},
                         {.fd = d->notify, .events = POLLIN},
                         {.fd = writes ? d->fifo_fd : -1, .events = POLLOUT}};

    poll(f, FF_ARRAY_LEN(f), ATTACH_TURN_MS);
    if (d->notify >= 0)
        count_opens(d);
    int rc = attach_check(a, err);
    return rc || !atomic_load(&d->broke) ? rc : ff_error_set(err, EPIPE, "attach: the link broke while the domain was loaded");
}

static bool is_restored(const struct attach_domain *d)
{
    struct pollfd p = {.fd = d->restore ? libvirt_call_fd(d->restore) : -1, .events = POLLIN};

    return !d->restore || poll(&p, 1, 0) > 0;
}

/* 0: it has ended well */
static int restore_result(struct attach_domain *d, struct ff_error *err)
{
    struct libvirt_call *c = d->restore;

    d->restore = NULL;
    return c ? libvirt_end(c, 0, NULL, err) : 0;
}

static int check_under_way(struct attach_domain *d, struct ff_error *err)
{
    if (!is_restored(d))
        return 0;
    int rc = restore_result(d, err);
    return rc ? rc : ff_error_set(err, EREMOTEIO, "libvirt: restore: it ended before it had all");
}

static int write_fifo(struct attach *a, const uint8_t *from, size_t len, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    int rc = 0;

    while (!rc && len) {
        ssize_t n = write(d->fifo_fd, from, len);

        if (n > 0) {
            from += n;
            len -= (size_t)n;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR && errno != EPIPE)
            return ff_error_set(err, errno, "libvirt: restore: write to its FIFO: %s", strerror(errno));
        rc = restore_turn(a, errno != EPIPE, err); /* who reads no more says why */
        if (!rc)
            rc = check_under_way(d, err);
    }
    return rc;
}

static bool is_drained(const struct attach_domain *d)
{
    int left = 0;

    return !ioctl(d->fifo_fd, FIONREAD, &left) && !left;
}

static int give_heads(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    unsigned given = 0;
    int rc = 0;

    while (!rc && (!given || given < d->opened || !is_drained(d) || domain_pid(a->o->domain, &a->pid, NULL))) {
        if (given < d->opened) {
            rc = write_fifo(a, d->head, d->head_len, err);
            given++;
            continue;
        }
        rc = restore_turn(a, false, err);
        if (!rc)
            rc = check_under_way(d, err);
    }
    return rc;
}

int attach_restore_begin(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    pid_t pid;
    int rc = domain_pid(a->o->domain, &pid, err);

    if (!rc)
        return ff_error_set(err, EEXIST, "domain %s: it runs at the destination already, as process %d", a->o->domain,
                            (int)pid);
    rc = rc == -ESRCH ? check_uffd_sysctl(err) : rc;
    if (!rc)
        rc = save_image_head(d->xml, d->cpu, false, &d->head, &d->head_len, err);
    if (!rc)
        rc = make_fifo(d, err);
    if (!rc)
        rc = libvirt_begin(LIBVIRT_RESTORE, NULL, d->fifo, -1, &d->restore, err);
    if (!rc)
        rc = give_heads(a, err);
    if (!rc)
        rc = attach_domain_connect(a, err);
    if (!rc)
        rc = outside_may(a->pid, true, err);
    if (!rc)
        rc = alone_begin(a->pid, &a->alone, err);
    if (!rc)
        rc = write_fifo(a, (const uint8_t *)MAGIC, MAGIC_LEN, err);
    while (!rc && !is_drained(d)) {
        rc = restore_turn(a, false, err);
        if (!rc)
            rc = check_under_way(d, err);
    }
    ff_close_fd(&d->both);
    attach_domain_unlink(d);
    if (!rc)
        attach_event(a, "restoring", json_pack("{s:I}", "pid", (json_int_t)a->pid));
    return rc;
}

int attach_restore_find(void *opaque, const struct ff_region *r, unsigned n, struct ff_error *err)
{
    struct attach *a = opaque;
    int rc = 0;

    a->main = calloc(n + 1, sizeof(*a->main));
    if (!a->main)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (unsigned i = 0; !rc && i < n; i++) {
        struct outside_block *b = &a->main[i];

        snprintf(b->name, sizeof(b->name), "%s", r[i].name);
        b->len_bytes = r[i].len_bytes;
        b->psize = r[i].psize;
        rc = outside_locate(a->pid, b, err);
        if (!rc)
            rc = attach_add_dest_region(a, b, err);
    }
    a->n_main = rc ? 0 : n;
    return rc;
}

/* --- until READY --- */

/* QEMU may wait for a page, and the page for a link, which does not come again before GO */
static void on_restore_break(void *opaque, const char *reason)
{
    struct attach *a = opaque;
    uint64_t one = 1;

    (void)reason;
    atomic_store(&a->domain->broke, true);
    if (write(a->stop_fd, &one, sizeof(one)) < 0)
        return; /* it is readable already */
}

int attach_restore_load(struct attach *a, struct ff_error *err)
{
    const struct incoming_stream *s = &a->stream;
    struct attach_domain *d = a->domain;

    if (s->len < MAGIC_LEN || memcmp(s->data, MAGIC, MAGIC_LEN))
        return ff_error_set(err, EPROTO, "attach: the source sent no stream of QEMU's");
    int rc = write_fifo(a, s->data + MAGIC_LEN, s->len - MAGIC_LEN, err);
    ff_close_fd(&d->fifo_fd);
    while (!rc && !is_restored(d))
        rc = restore_turn(a, false, err);
    return rc ? rc : restore_result(d, err);
}

/* No monitor of ours says so */
static void *hear_end(void *opaque)
{
    struct attach *a = opaque;
    struct pollfd f[] = {{.fd = a->domain->qemu_fd, .events = POLLIN}, {.fd = a->stop_fd, .events = POLLIN}};
    struct ff_error why;

    while (poll(f, 2, -1) < 0 && errno == EINTR)
        continue;
    ff_error_set(&why, ESRCH, "domain %s: its QEMU has ended", a->o->domain);
    if (f[0].revents)
        attach_fail(a, &why);
    return NULL;
}

static int start_hearing(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    int rc = ff_thread_start(&d->end_thread, hear_end, a, "attach-end", err);

    d->has_end_thread = !rc;
    return rc;
}

int attach_restore_give(struct attach *a, struct ff_error *err)
{
    ff_dest_on_break(a->dest, on_restore_break, a);
    int rc = attach_restore_load(a, err);
    ff_dest_on_break(a->dest, NULL, NULL);
    if (!rc)
        rc = hold_begin(a->pid, &a->hold, err);
    if (!rc)
        rc = hold_bind(a->hold, err);
    return rc ? rc : start_hearing(a, err);
}

void attach_restore_drop(struct attach *a)
{
    struct attach_domain *d = a->domain;

    if (!d)
        return;
    if (a->hold)
        hold_end(a->hold, SIGKILL);
    else if (d->qemu_fd >= 0)
        syscall(SYS_pidfd_send_signal, d->qemu_fd, SIGKILL, NULL, 0);
    a->hold = NULL;
    attach_domain_unlink(d); /* libvirtd would wait for ever where it opened it without a writer */
    ff_close_fd(&d->both);
    ff_close_fd(&d->fifo_fd);
    if (d->restore)
        libvirt_end(d->restore, END_LIMIT_MS, NULL, NULL);
    d->restore = NULL;
}

/* --- from GO on --- */

void attach_restore_let_go(struct attach *a)
{
    hold_end(a->hold, 0);
    a->hold = NULL;
}

int attach_restore_run(struct attach *a, struct ff_error *err)
{
    const uint64_t begin = ff_now_ms();
    struct ff_error ignored;
    bool runs = false, said = false;
    char status[32];
    int rc;

    while ((rc = libvirt_ask(LIBVIRT_RESUME, a->o->domain, NULL, NULL, err)) && !attach_domain_has_ended(a) &&
           ff_now_ms() - begin < (rc == -ETIMEDOUT ? RESUME_WAITS_MS : RESUME_LIMIT_MS)) {
        if (!attach_qemu_status(a, status, &runs, &ignored) && runs) {
            rc = 0; /* somebody else did so, or we before libvirtd had ended */
            break;
        }
        if (!said)
            attach_say_why(a, "waiting", err);
        said = true;
        poll(NULL, 0, RESUME_TURN_MS);
    }
    return rc;
}

void attach_restore_define(struct attach *a)
{
    const char *xml = a->domain->define;
    struct ff_error why = {0};

    if (xml && libvirt_ask(LIBVIRT_DEFINE, NULL, xml, NULL, &why))
        attach_say_why(a, "unconfirmed", &why);
}
