/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: the process that holds its memory as it was
 *
 * For each target a thread that is an ordinary source of libfarfork; on this
 * host the image is handed over at once, if nearly all of it is in files.
 *
 * fork() left it one thread of QEMU's, and so locks that nobody will ever
 * release.  It runs no code of QEMU but what is here, and ends by _exit().  It
 * closes whatever it does not need: it must keep no disk locked, no monitor
 * connected and no VM of KVM alive.  Rings and vCPU states would keep these
 * open, so it unmaps them.  It ends when its targets have what they need, also
 * when the guest it came from has ended long since; x-farfork-unexport kills
 * it.  A target whose link has broken may come back for reconnect=SECONDS, and
 * finds the memory as it was.
 *
 * Over verbs the holder registers what it serves, and the kernel gives whoever
 * pins private memory a copy of his own.  So it does not register what is
 * lent, and serves a file that is the whole image from a shared mapping.
 * Anonymous memory, and what a later fork finds copied, is copied once when it
 * is pinned: until the export ends the host needs as much memory again, and
 * each target counts against the memlock limit.  odp=on in the target's
 * options, where the device has it, pins and copies nothing; a memlock limit
 * that is too low has the same effect.
 *
 * A parent that itself came or went over verbs has the device open, and
 * librdmacm keeps it open for the life of the process.  The holder inherits
 * that and cannot use it: link=verbs fails, with the parent running on, and
 * link=auto takes TCP.  The numbers of those descriptors stay taken in the
 * holder, so that what librdmacm still writes to them goes nowhere, and not
 * into a connection.
 */
#include "qemu/osdep.h"
#include <sys/utsname.h>
#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include "qapi/error.h"
#include "qemu/atomic.h"
#include "farfork-fork.h"

#define PROGRESS_MS 100

struct serving {
    const struct fc_frozen *f;
    unsigned i;
    pthread_t thread;
    pthread_mutex_t lock;       /* guards source, for progress */
    struct ff_source *source;
    struct ff_group *group;     /* many get the image at once; or NULL */
    bool done;                  /* qatomic */
};

/* --- in the parent --- */

bool fc_holder_prepare(struct fc_frozen *f, Error **errp)
{
    f->no_session = rp_sandbox_denies("elevateprivileges");
    if (rp_sandbox_denies("spawn")) {
        error_setg(errp, "this guest cannot be forked: -sandbox spawn=deny "
                   "forbids fork(2); start it with spawn=allow");
        return false;
    }
    return true;
}

/* --- in the holder --- */

static void conclude(struct fc_progress *p, const char *why)
{
    if (why) {
        snprintf(p->error, sizeof(p->error), "%s", why);
    }
    smp_wmb(); /* pairs with target_info() in the parent */
    qatomic_set(&p->status, why ? FARFORK_TARGET_STATUS_FAILED :
                                  FARFORK_TARGET_STATUS_COMPLETED);
}

/* What the parent has open and mapped would stay so, disks locked with it */
static void G_NORETURN cannot_leave(const struct fc_frozen *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        conclude(&f->progress[i], "the holder cannot read /proc");
    }
    _exit(EXIT_FAILURE);
}

static void log_nothing(enum ff_level level, const char *line)
{
}

static int add_regions(struct ff_source *s, const struct fc_frozen *f,
                       struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < f->n_regions && !rc; i++) {
        rc = ff_source_add_region(s, &f->region[i], err);
    }
    return rc;
}

/* A parent that could not freeze its memory, or has died, ends this */
static void wait_frozen(const struct fc_frozen *f)
{
    struct pollfd p = { .fd = f->go[0], .events = POLLIN };

    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
        ;
    }
    if (!(p.revents & POLLIN)) {
        _exit(EXIT_FAILURE);
    }
}

/* Says which image is ours: before the agent can have all of it */
static void publish_session(struct serving *w, struct ff_source *s)
{
    struct fc_progress *p = &w->f->progress[w->i];

    ff_source_session(s, p->session);
    smp_wmb(); /* pairs with target_info() in the parent */
    qatomic_set(&p->has_session, true);
}

static void tell_status(struct serving *w, FarforkTargetStatus status)
{
    qatomic_set(&w->f->progress[w->i].status, status);
}

/*
 * The agent has been let go: serve it until it has every page, over another
 * link when one breaks, or until it says that it ends.
 */
static int serve_on(struct serving *w, struct ff_source *s, int rc,
                    struct ff_error *err)
{
    const struct fc_target *t = &w->f->target[w->i];
    int reconnect_ms = ff_address_reconnect_ms(t->address);

    for (;;) {
        if (!rc) {
            rc = ff_source_wait_running(s, err);
        }
        if (!rc) {
            rc = ff_source_wait_done(s, err);
        }
        if (!rc || rc == -ECANCELED || rc == -EREMOTEIO || t->passed ||
            !reconnect_ms) {
            return rc;
        }
        tell_status(w, FARFORK_TARGET_STATUS_POSTCOPY_PAUSED);
        rc = ff_source_resume(s, NULL, reconnect_ms, err);
        if (rc) {
            return rc;
        }
        tell_status(w, FARFORK_TARGET_STATUS_ACTIVE);
    }
}

static int serve_source(struct serving *w, struct ff_source *s, struct ff_error *err)
{
    const struct fc_frozen *f = w->f;
    const struct fc_target *t = &f->target[w->i];
    int rc = add_regions(s, f, err);

    if (rc) {
        return rc;
    }
    if (t->socket) {
        rc = ff_source_hand_over(s, t->socket, f->config, f->state,
                                 f->state_len, err);
        if (!rc) {
            publish_session(w, s);
            wait_frozen(f);
            return ff_source_let_run(s, err);
        }
    }
    wait_frozen(f);
    /* whatever else was wrong: by a link it works, or the agent hears */
    rc = rc == -EFBIG || t->passed ? ff_source_lend(s, t->socket, err) : 0;
    if (!rc) {
        rc = ff_source_connect(s, f->config, err);
    }
    if (!rc) {
        publish_session(w, s);
        tell_status(w, FARFORK_TARGET_STATUS_ACTIVE);
        rc = ff_source_publish(s, err);
    }
    if (!rc) {
        rc = ff_source_wait_watched(s, err);
    }
    if (!rc) {
        rc = ff_source_send_state(s, f->state, f->state_len, f->first.page,
                                  f->first.n, err);
    }
    if (!rc) {
        rc = ff_source_wait_ready(s, err);
    }
    if (rc) {
        return rc;
    }
    rc = ff_source_go(s, err);
    return rc == -ETIME ? rc : serve_on(w, s, rc, err);
}

static void take_progress(struct serving *w)
{
    struct ff_stats st;

    pthread_mutex_lock(&w->lock);
    if (w->source) {
        ff_source_stats(w->source, &st);
        qatomic_set(&w->f->progress[w->i].transferred,
                    st.bytes_prefill + st.bytes_fault + st.bytes_duplicated);
    }
    pthread_mutex_unlock(&w->lock);
}

static void end_serving(struct serving *w, const char *why)
{
    conclude(&w->f->progress[w->i], why);
    qatomic_set(&w->done, true);
}

static void *serving_thread(void *opaque)
{
    struct serving *w = opaque;
    struct ff_error *err = ff_error_new();
    struct ff_source *s = NULL;
    int rc = ff_source_new(w->f->target[w->i].address, &s, err);

    if (!rc) {
        pthread_mutex_lock(&w->lock);
        w->source = s;
        pthread_mutex_unlock(&w->lock);
        if (w->group) {
            ff_source_use_group(s, w->group);
        }
        rc = serve_source(w, s, err);
        take_progress(w);
        pthread_mutex_lock(&w->lock);
        w->source = NULL;
        pthread_mutex_unlock(&w->lock);
    }
    /* the agent has the reason or all it needs when this is to be seen */
    ff_source_free(s);
    end_serving(w, rc ? ff_error_message(err) : NULL);
    ff_error_free(err);
    return NULL;
}

/* Rings and vCPU states keep their files open: disks locked, a VM in KVM */
static void unmap_files(const struct fc_frozen *f)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    if (!maps) {
        cannot_leave(f);
    }
    while (fgets(line, sizeof(line), maps)) {
        unsigned long from, to;

        if (strstr(line, " anon_inode:") &&
            sscanf(line, "%lx-%lx", &from, &to) == 2) {
            munmap((void *)from, to - from);
        }
    }
    fclose(maps);
}

/*
 * A parent that came over RDMA has devices open for good, and librdmacm here
 * goes on to write to their numbers: no connection of ours may get one.
 */
static unsigned device_numbers(const struct fc_frozen *f, int *number,
                               unsigned max)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    unsigned n = 0;
    char to[32];

    if (!d) {
        cannot_leave(f);
    }
    while ((e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, to, sizeof(to));

        if (len > 16 && !memcmp(to, "/dev/infiniband/", 16)) {
            if (n == max) {
                _exit(EXIT_FAILURE);
            }
            number[n++] = atoi(e->d_name);
        }
    }
    closedir(d);
    return n;
}

static void occupy(const int *number, unsigned n)
{
    int dead = open("/dev/null", O_RDONLY | O_CLOEXEC); /* writes fail */

    for (unsigned i = 0; i < n; i++) {
        if (dead < 0 || dup2(dead, number[i]) < 0) {
            _exit(EXIT_FAILURE);
        }
    }
}

static void leave_parent(const struct fc_frozen *f)
{
    int keep[RP_REGIONS_MAX + 4] = { 0, 1, 2 };
    int device[64];
    unsigned n = 3, n_devices = device_numbers(f, device, ARRAY_SIZE(device));
    sigset_t none;

    if (!f->no_session) {
        setsid();
    }
    prctl(PR_SET_NAME, "farfork-holder");
    for (int i = 1; i < NSIG; i++) {
        signal(i, i == SIGPIPE ? SIG_IGN : SIG_DFL);
    }
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < 3; i++) {
        dup2(f->null_fd, i);
    }
    for (unsigned i = 0; i <= f->n_regions; i++) {
        const struct ff_region *r = &f->region[i];
        int fd = i == f->n_regions ? f->go[0] :
                 r->is_private ? r->private_fd : r->fd;
        unsigned at = n;

        if (fd < 0) {
            continue;
        }
        while (keep[at - 1] > fd) { /* sorted */
            at--;
        }
        memmove(&keep[at + 1], &keep[at], (n - at) * sizeof(keep[0]));
        keep[at] = fd;
        n++;
    }
    qemu_close_all_open_fd(keep, n);
    occupy(device, n_devices);
    unmap_files(f);
    ff_set_log(log_nothing, FF_ERROR);
}

/*
 * Where the file is the image, serve the file: an RDMA device's pages of a
 * private mapping would be copied when they are pinned.  Linux before 6.2
 * registers a shared mapping only if it may be written, so this one may be
 * where its file permits that (one that was forked before is sealed): nobody
 * does, and the device's key is for reading.
 */
static bool registers_read_only(void)
{
    struct utsname u;
    unsigned major, minor;

    return !uname(&u) && sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 2));
}

static void *map_file(const struct ff_region *r, int prot)
{
    return mmap(NULL, r->len_bytes, prot, MAP_SHARED | MAP_NORESERVE, r->fd, r->fd_offset);
}

static void map_files(struct fc_frozen *f)
{
    for (unsigned i = 0; i < f->n_regions; i++) {
        struct ff_region *r = &f->region[i];
        void *p = r->fd < 0 ? MAP_FAILED : map_file(r, PROT_READ | PROT_WRITE);

        if (p == MAP_FAILED && r->fd >= 0 && registers_read_only()) {
            p = map_file(r, PROT_READ);
        }
        if (p != MAP_FAILED) { /* else the private mapping has the same bytes */
            r->host = p;
        }
    }
}

/* Of the targets on other hosts; NULL: multicast= is not in their addresses */
static struct ff_group *new_group(const struct fc_frozen *f)
{
    const struct fc_target *remote = NULL;
    struct ff_group *g;
    unsigned n = 0;

    for (unsigned i = 0; i < f->n; i++) {
        if (!f->target[i].socket) {
            remote = &f->target[i];
            n++;
        }
    }
    return remote && !ff_group_new(remote->address, n, &g, NULL) ? g : NULL;
}

void fc_holder_main(struct fc_frozen *f)
{
    struct serving *w;
    struct ff_group *group;
    bool more = true;

    leave_parent(f);
    map_files(f);
    group = new_group(f);
    w = calloc(f->n, sizeof(*w));
    for (unsigned i = 0; w && i < f->n; i++) {
        w[i].f = f;
        w[i].i = i;
        w[i].group = f->target[i].socket ? NULL : group;
        pthread_mutex_init(&w[i].lock, NULL);
        if (pthread_create(&w[i].thread, NULL, serving_thread, &w[i])) {
            end_serving(&w[i], "cannot start a thread");
        }
    }
    while (w && more) {
        poll(NULL, 0, PROGRESS_MS);
        more = false;
        for (unsigned i = 0; i < f->n; i++) {
            take_progress(&w[i]);
            more |= !qatomic_read(&w[i].done);
        }
    }
    _exit(w ? EXIT_SUCCESS : EXIT_FAILURE);
}
