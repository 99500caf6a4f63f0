/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze.c - the memory of a process as it was at one instant, while that process goes on; see freeze.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the memory of a QEMU's guest as it is at one instant, taken from outside.
 *
 * Picture      that process                                 here: a thread, which is the tracer
 *              (1) runs     <- mmap(2): a private view of each shared file; room for page tables; its RAM may be forked
 *              (2) stands   <- hold; the caller looks: it is as it was when its devices were saved
 *              (3)          <- fork(2): the copy. It stands in a stop of ptrace(2), and never runs
 *                           <- mremap(2): the page tables of a shared file go away, the private view comes there; the
 *                              descriptors of that file are for reading from here on
 *              (4) runs     <- the copy closes all it has open, and unmaps KVM and rings
 *                           <- what (3) moved away is unmapped, bit by bit
 *
 * Invariants   1. The copy never runs: it is stopped at its first instruction, and killed by the kernel when this thread
 *                 ends in whatever way (PTRACE_O_EXITKILL). Where this process is killed before that is set, what it would
 *                 run is exit_group(2): way_home.h.
 *              2. The other process goes on, whenever this one is killed: no thread of it is bound to this one, and each call
 *                 that is made in it finds its way back by itself.
 *              3. A file that was frozen never changes: nobody there has it mapped shared, or open for writing. A balloon
 *                 that would punch a hole in it is refused that by the kernel. The file is sealed where it may be.
 *              4. What may be wanting, such as huge pages, is wanting in (1).
 * Failure      the copy is ended, and the process goes on. Memory that was remapped stays so, which changes nothing.
 * Limits       x86-64. Where this process was killed, what remains of the copy is the other's zombie until that ends. The policy of NUMA nodes of a shared file does not go over to its private view.
 * Sources      ptrace(2), mremap(2), memfd_create(2)
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "freeze_private.h"
#include "thread.h"
#include "xalloc.h"

#define LOOK_NS 20000000u
#define END_LIMIT_MS 2000
#define COPY_NAME "farfork-frozen" /* so that who looks finds it, and its remains */

/* --- the thread, which is the tracer --- */

/* Of threads that were traced, and were killed: who has to hear of it does once nobody traces them */
static void hear_ends(struct freeze *z)
{
    const int how = WEXITED | WNOHANG | __WALL | __WNOTHREAD;
    siginfo_t now = {0};

    while (!waitid(P_ALL, 0, &now, how | WNOWAIT) && now.si_pid) {
        const pid_t who = now.si_pid;

        if (who == z->copy)
            z->copy_ended = true;
        if (who == z->pid && outside_number(who, "PPid:") == getpid())
            return; /* that is this process, which hears of it all the same */
        if (waitid(P_PID, (id_t)who, &now, how))
            return;
        now = (siginfo_t){0};
    }
}

static void *freeze_main(void *opaque)
{
    struct freeze *z = opaque;

    pthread_mutex_lock(&z->lock);
    while (!z->over && !z->has_ended) {
        if (z->job) {
            freeze_job *job = z->job;

            pthread_mutex_unlock(&z->lock);
            const int rc = job(z);
            pthread_mutex_lock(&z->lock);
            z->rc = rc;
            z->job = NULL;
            pthread_cond_broadcast(&z->changed);
        }
        if (!z->s.n)
            hear_ends(z);
        if (!z->over && !z->has_ended && !z->job)
            ff_cond_wait_until(&z->changed, &z->lock, ff_now_ns() + LOOK_NS);
    }
    pthread_mutex_unlock(&z->lock);
    return NULL;
}

/* Under @lock: the job's end. -EAGAIN: not within @limit_ms; 0: no limit */
static int await_freeze_job(struct freeze *z, int limit_ms, struct ff_error *err)
{
    const uint64_t end = ff_now_ns() + 1000000ull * (uint64_t)limit_ms;

    while (z->job && (!limit_ms || ff_now_ns() < end))
        if (limit_ms)
            ff_cond_wait_until(&z->changed, &z->lock, end);
        else
            pthread_cond_wait(&z->changed, &z->lock);
    if (z->job)
        return -EAGAIN;
    if (z->rc && err)
        *err = z->why;
    return z->rc;
}

static int run_job(struct freeze *z, freeze_job *job, struct ff_error *err)
{
    pthread_mutex_lock(&z->lock);
    await_freeze_job(z, 0, NULL); /* of freeze_hold_at() */
    if (!z->has_ended) {
        z->job = job;
        pthread_cond_broadcast(&z->changed);
    }
    const int rc = await_freeze_job(z, 0, err);
    pthread_mutex_unlock(&z->lock);
    return rc;
}

/* --- (2), (3): the pause --- */

/* There is no copy yet, so that this thread is of no other use */
static int has_held(struct freeze *z, int rc)
{
    if (!rc)
        return 0;
    z->why = z->s.why;
    pthread_mutex_lock(&z->lock);
    z->has_ended = true;
    pthread_mutex_unlock(&z->lock);
    return rc;
}

static int hold_job(struct freeze *z)
{
    return has_held(z, stopped_begin(&z->s, z->pid));
}

static int hold_at_job(struct freeze *z)
{
    return has_held(z, stopped_begin_at(&z->s, z->pid, &z->at));
}

static void is_armed(void *opaque)
{
    struct freeze *z = opaque;

    pthread_mutex_lock(&z->lock);
    z->is_armed = true;
    pthread_cond_broadcast(&z->changed);
    pthread_mutex_unlock(&z->lock);
}

static int remap_private(struct inject *in, struct freeze_work *k, const struct outside_block *b, struct ff_error *err)
{
    const uint64_t away[INJECT_ARGS] = {b->hva, k->len, k->len, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, k->away};
    const uint64_t here[INJECT_ARGS] = {k->view, k->len, k->len, MREMAP_MAYMOVE | MREMAP_FIXED, b->hva};
    const uint64_t back[INJECT_ARGS] = {b->hva, k->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                        (uint64_t)k->number, k->fd_offset};
    int64_t got = 0, again;
    int rc = k->away ? inject_call(in, SYS_mremap, away, &got, err) : 0;

    k->is_away = k->away && got >= 0; /* it saves time alone */
    if (!rc)
        rc = inject_call(in, SYS_mremap, here, &got, err);
    if (rc || got == (int64_t)b->hva) {
        k->is_frozen = !rc;
        return rc;
    }
    rc = inject_call(in, SYS_mmap, back, &again, err); /* it may have unmapped what was there */
    return rc ? rc : ff_error_set(err, (int)-got, "memory of %s: map it privately: %s%s", b->name, strerror((int)-got),
                                  again == (int64_t)b->hva ? "" : "; and it is lost there");
}

/* Nobody there writes to the file, or punches a hole in it, from here on */
static int close_writers(struct inject *in, struct freeze_work *k, const struct outside_block *b, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < k->n_numbers && !rc; i++) {
        const uint64_t args[INJECT_ARGS] = {(uint64_t)k->reader, (uint64_t)k->numbers[i], O_CLOEXEC};
        int64_t got;

        rc = inject_call(in, SYS_dup3, args, &got, err);
        if (!rc && got < 0)
            rc = ff_error_set(err, (int)-got, "memory of %s: its descriptor %d: %s", b->name, k->numbers[i],
                              strerror((int)-got));
    }
    if (rc || !fcntl(k->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
        return rc;
    /* one that was made without seals, or sealed by QEMU, stays as it is */
    return errno == EPERM || errno == EINVAL ? 0 : ff_error_set(err, errno, "memory of %s: seal its file: %s", b->name,
                                                                strerror(errno));
}

static int freeze_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct freeze *z = opaque;
    int rc = inject_fork(in, &z->copy, err);

    z->copy_signal = 0;
    if (!rc && ff_failpoint("freeze.copy"))
        rc = ff_error_set(err, EIO, "freeze: injected");
    for (unsigned i = 0; i < z->n && !rc; i++)
        if (z->work[i].view)
            rc = remap_private(in, &z->work[i], &z->b[i], err);
    for (unsigned i = 0; i < z->n && !rc; i++)
        if (z->work[i].is_frozen)
            rc = close_writers(in, &z->work[i], &z->b[i], err);
    return rc;
}

/* The kernel's, until it has gone; then QEMU's, which never asks */
static int drop_job(struct freeze *z)
{
    const uint64_t end = ff_now_ms() + END_LIMIT_MS;

    if (!z->copy)
        return 0;
    if (!z->copy_ended)
        kill(z->copy, SIGKILL); /* traced, it has not been reaped: the number is its own */
    while (!z->copy_ended && ff_now_ms() < end) {
        siginfo_t now = {0};

        if (waitid(P_PID, (id_t)z->copy, &now, WEXITED | WNOHANG | __WALL | __WNOTHREAD) || now.si_pid)
            z->copy_ended = true;
        else
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return 0;
}

static int take_job(struct freeze *z)
{
    struct stopped_thread *main_thread = stopped_find(&z->s, z->pid);
    int rc = main_thread && main_thread->is_stopped ? freeze_look_again(z, &z->why)
                                                    : ff_error_set(&z->why, ESRCH, "process %d has ended", (int)z->pid);

    if (!rc)
        rc = inject_stopped(z->pid, &z->how, &main_thread->signal, freeze_there, z, &z->why);
    if (rc)
        drop_job(z);
    z->is_taken = !rc;
    return rc;
}

static int go_job(struct freeze *z)
{
    stopped_end(&z->s);
    return 0;
}

int freeze_hold(struct freeze *z, struct ff_error *err)
{
    return run_job(z, hold_job, err);
}

int freeze_hold_at(struct freeze *z, const struct stat *file, struct ff_error *err)
{
    z->at = (struct stopped_at){.dev = file->st_dev, .ino = file->st_ino, .armed = is_armed, .opaque = z};
    pthread_mutex_lock(&z->lock);
    z->is_armed = false;
    z->job = hold_at_job;
    pthread_cond_broadcast(&z->changed);
    while (z->job && !z->is_armed)
        pthread_cond_wait(&z->changed, &z->lock);
    const int rc = z->job ? 0 : await_freeze_job(z, 0, err);
    pthread_mutex_unlock(&z->lock);
    return rc;
}

int freeze_await(struct freeze *z, int limit_ms, struct ff_error *err)
{
    pthread_mutex_lock(&z->lock);
    const int rc = await_freeze_job(z, limit_ms, err);
    pthread_mutex_unlock(&z->lock);
    return rc;
}

int freeze_take(struct freeze *z, struct ff_error *err)
{
    return run_job(z, take_job, err);
}

void freeze_go(struct freeze *z)
{
    atomic_store(&z->at.over, true);
    run_job(z, go_job, NULL);
}

/* --- (4) --- */

static int call_there(struct inject *in, long nr, uint64_t a, uint64_t b, uint64_t c, const char *what, struct ff_error *err)
{
    const uint64_t args[INJECT_ARGS] = {a, b, c};
    int64_t got;
    int rc = inject_call(in, nr, args, &got, err);

    return rc || got >= 0 ? rc : ff_error_set(err, (int)-got, "the copy of process's memory: %s: %s", what,
                                              strerror((int)-got));
}

/* Disks locked, a monitor connected, a VM in KVM: all that would stay for as long as the copy does */
static int leave_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct freeze *z = opaque;
    FF_AUTO_FREE char *path = xprintf("/proc/%d/maps", (int)z->copy), *line = NULL;
    uint64_t start, end, name;
    size_t room = 0;
    int rc = inject_room(in, COPY_NAME, sizeof(COPY_NAME), &name, err);

    if (!rc)
        rc = call_there(in, SYS_prctl, PR_SET_NAME, name, 0, "name it", err);
    if (!rc) /* who ends the other's group, an agent for instance when its child has ended, does not mean the copy */
        rc = call_there(in, SYS_setsid, 0, 0, 0, "leave its session", err);
    if (!rc)
        rc = call_there(in, SYS_close_range, 0, UINT32_MAX, 0, "close files", err);
    FILE *f = rc ? NULL : fopen(path, "re");
    if (!rc && !f)
        rc = ff_error_set(err, errno, "%s: %s", path, strerror(errno));
    while (!rc && getline(&line, &room, f) > 0)
        if (strstr(line, " anon_inode:") && sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) == 2)
            rc = call_there(in, SYS_munmap, start, end - start, 0, "unmap a ring", err);
    if (f)
        fclose(f);
    return rc;
}

static int leave_job(struct freeze *z)
{
    struct inject_how how = z->how;

    if (z->copy_ended)
        return ff_error_set(&z->why, ESRCH, "the process that holds the memory, %d, has ended", (int)z->copy);
    how.options = PTRACE_O_EXITKILL;
    return inject_stopped(z->copy, &how, &z->copy_signal, leave_there, z, &z->why);
}

static void unmap_away(struct freeze *z, struct freeze_work *k)
{
    if (k->away)
        freeze_unmap(z, k->away, k->len, k->is_away ? FREEZE_PIECE : k->len);
    k->away = 0;
}

int freeze_tidy(struct freeze *z, struct ff_error *err)
{
    int rc = z->is_taken && !z->is_left ? run_job(z, leave_job, err) : 0;

    z->is_left = true;
    pthread_mutex_lock(&z->there);
    freeze_unprepare(z);
    pthread_mutex_unlock(&z->there);
    return rc;
}

void freeze_sweep(struct freeze *z)
{
    for (unsigned i = 0; i < z->n; i++)
        unmap_away(z, &z->work[i]);
}

struct freeze_image freeze_image(const struct freeze *z, unsigned i)
{
    const struct freeze_work *k = &z->work[i];

    return k->is_frozen ? (struct freeze_image){.fd = k->fd, .fd_offset = k->fd_offset, .view_fd = -1}
                        : (struct freeze_image){.fd = -1, .fd_offset = k->fd_offset, .zeros = !k->has_file, .view_fd = k->fd};
}

pid_t freeze_pid(const struct freeze *z)
{
    return z->copy_ended ? 0 : z->copy;
}

static int reap_there(struct inject *in, void *opaque, struct ff_error *err)
{
    struct freeze *z = opaque;
    const uint64_t args[INJECT_ARGS] = {(uint64_t)z->copy, 0, WNOHANG | __WALL, 0};
    int64_t got;

    return inject_call(in, SYS_wait4, args, &got, err);
}

void freeze_drop(struct freeze *z)
{
    if (!z->copy || z->is_reaped)
        return;
    run_job(z, drop_job, NULL);
    pthread_mutex_lock(&z->there);
    freeze_run_there(z, reap_there, z, NULL);
    pthread_mutex_unlock(&z->there);
    z->is_reaped = true;
}

static void free_freeze(struct freeze *z)
{
    for (unsigned i = 0; i < z->n; i++) {
        ff_close_fd(&z->work[i].fd);
        free(z->work[i].numbers);
    }
    free(z->work);
    ff_close_fd(&z->pidfd);
    ff_close_fd(&z->mark);
    pthread_cond_destroy(&z->changed);
    pthread_mutex_destroy(&z->lock);
    pthread_mutex_destroy(&z->there);
    free(z);
}

int freeze_new(pid_t pid, const struct outside_block *b, unsigned n, bool no_dump, struct freeze **out, struct ff_error *err)
{
    struct freeze *z = xcalloc(1, sizeof(*z));

    *z = (struct freeze){.pid = pid, .b = b, .n = n, .work = xcalloc(n + 1, sizeof(*z->work)), .no_dump = no_dump, .mark = -1,
                         .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)};
    pthread_mutex_init(&z->lock, NULL);
    pthread_mutex_init(&z->there, NULL);
    ff_cond_init(&z->changed);
    for (unsigned i = 0; i < n; i++)
        z->work[i].fd = -1;
    int rc = z->pidfd < 0 ? ff_error_set(err, errno, "process %d: %s", (int)pid, strerror(errno)) : freeze_look(z, err);
    if (!rc)
        rc = freeze_take_over(z, err);
    if (!rc)
        rc = way_find(pid, &z->how.way, err);
    if (!rc)
        rc = ff_thread_start(&z->thread, freeze_main, z, "freeze", err);
    if (rc) {
        free_freeze(z);
        return rc;
    }
    if ((rc = freeze_prepare(z, err)))
        freeze_end(z);
    else
        *out = z;
    return rc;
}

void freeze_end(struct freeze *z)
{
    if (!z)
        return;
    freeze_go(z);
    z->is_left = true;
    freeze_drop(z);
    freeze_tidy(z, NULL);
    freeze_sweep(z);
    pthread_mutex_lock(&z->lock);
    z->over = true;
    pthread_cond_broadcast(&z->changed);
    pthread_mutex_unlock(&z->lock);
    pthread_join(z->thread, NULL);
    free_freeze(z);
}
