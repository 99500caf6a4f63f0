/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * inject.c - system calls in another process
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      seize and interrupt the main thread; block all of its signals; for each call: its registers
 *              but for the instruction pointer (a syscall instruction of its libc), the stack's and the call's;
 *              from the call's entry to its exit; the result is in rax. Then all registers and the signal mask back;
 *              detach.
 *
 * Threads      A tracer is a thread. Each run has one of its own: when it ends the kernel detaches, whatever
 *              state the other process is in, also when it never stopped.
 * Invariants   1. A call that the thread was waiting in is restarted by the kernel: what it left in
 *                 rax and orig_rax is put back, and says so. orig_rax is -1 meanwhile: nothing is restarted then.
 *              2. No handler runs between: signals are blocked, not taken. SIGSTOP cannot be: it is held
 *                 back, and delivered with the detaching. SIGTRAP is not: a blocked one that the
 *                 kernel forces would lose its handler.
 *              3. Who is killed in the midst of a call leaves a thread that goes on with its own registers (way_home.h), and no
 *                 signal: stops at a call's entry and exit are none, where a single step's SIGTRAP is.
 *              4. A filter of system calls may kill the process: it is suspended, or nothing is injected.
 * Limits       A thread that waits in the kernel for what only SIGKILL ends does not stop: -ETIMEDOUT. One whose
 *              injected call does not return within a minute is lost here: it finds its way by itself, if there is one. So all that is called in a QEMU whose guest runs is close(2).
 * Sources      ptrace(2), signal(7), arch/x86/kernel/signal.c, kernel/ptrace.c
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

#include "cleanup.h"
#include "failpoint.h"
#include "inject.h"
#include "outside.h"
#include "thread.h"
#include "xalloc.h"

#define TRACED_MS 3000
#define TRACED_TURN_MS 2
#define STOP_LIMIT_MS 2000
#define CALL_LIMIT_MS 60000 /* the registers there are not its own by then: it could not go on without them */
#define LOOK_NS 20000
#define RESTARTS 1000 /* of one call: a signal may be on its way */
#define USER_CS 0x33  /* of 64-bit code */
#define SYSCALL_LEN 2 /* 0f 05 */
#define SYSCALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD: if nobody hears of it, it is no signal */

struct inject {
    pid_t pid;
    uint64_t instruction; /* address of a syscall instruction there */
    struct user_regs_struct regs;
    uint64_t mask; /* of its signals */
    int signal;    /* that came meanwhile and could not be blocked; 0: none */
    bool stopped, lost, masked; /* masked: all its signals are blocked */
    unsigned filters; /* that are known to do no harm */
    long options;     /* of ptrace(2), that are set */
    struct way way;
    struct way_laid laid;
    pid_t forked; /* the process that the last call has made */
};

static int lose(struct inject *in, int code, const char *what, struct ff_error *err)
{
    in->lost = true;
    if (code == ESRCH || code == ECHILD)
        return ff_error_set(err, ESRCH, "process %d has ended", (int)in->pid);
    return ff_error_set(err, code, "process %d: %s: %s", (int)in->pid, what, strerror(code));
}

/* @signo: a signal; 0: an event of ptrace(2). An end is left to who has to hear it, this process perhaps */
static int wait_stop(struct inject *in, int limit_ms, int *signo, struct ff_error *err)
{
    const int how = WSTOPPED | WNOHANG | __WALL | __WNOTHREAD;
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;

    for (;;) {
        siginfo_t now = {0};

        if (waitid(P_PID, (id_t)in->pid, &now, how | WEXITED | WNOWAIT))
            return lose(in, errno, "wait for it", err);
        if (now.si_pid && now.si_code != CLD_TRAPPED)
            return lose(in, ESRCH, NULL, err);
        if (now.si_pid && !waitid(P_PID, (id_t)in->pid, &now, how) && now.si_pid) {
            in->stopped = true;
            *signo = now.si_status >> 8 ? 0 : now.si_status;
            return 0;
        }
        if (ff_now_ms() > end)
            return lose(in, ETIMEDOUT, "its main thread has not stopped in time: it waits for what nothing "
                                       "interrupts, a disk or a program that it starts: try again", err);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

/* --- one call --- */

/* To the entry of the call, and to its exit */
static int step(struct inject *in, struct user_regs_struct *r, struct ff_error *err)
{
    int signo, rc;

    for (int stops = 0; stops < 2;) {
        unsigned long made;

        if (ptrace(PTRACE_SYSCALL, in->pid, NULL, NULL))
            return lose(in, errno, "make a system call", err);
        in->stopped = false;
        if ((rc = wait_stop(in, CALL_LIMIT_MS, &signo, err))) /* an event: all of it stops, or is to go on */
            return rc;
        if (signo == SYSCALL_STOP)
            stops++;
        else if (signo)
            in->signal = signo;
        else if (in->options & PTRACE_O_TRACECLONE && stops == 1 && !ptrace(PTRACE_GETEVENTMSG, in->pid, NULL, &made))
            in->forked = (pid_t)made;
    }
    if (ptrace(PTRACE_GETREGS, in->pid, NULL, r))
        return lose(in, errno, "read registers", err);
    if (r->rip != in->instruction + SYSCALL_LEN) /* another program */
        return lose(in, EIO, "a system call there ended elsewhere", err);
    return 0;
}

/* What the kernel says of a call that it would restart: ERESTARTSYS to ERESTART_RESTARTBLOCK */
static bool wants_restart(int64_t rc)
{
    return rc <= -512 && rc >= -516;
}

/* After its registers are those of a call: if this process is killed now, the way home has its mask, too */
static int mask_signals(struct inject *in, struct ff_error *err)
{
    uint64_t all = ~(1ull << (SIGTRAP - 1));

    ff_failpoint("inject.mask");
    if (ptrace(PTRACE_SETSIGMASK, in->pid, sizeof(all), &all))
        return lose(in, errno, "block signals", err);
    in->masked = true;
    ff_failpoint("inject.mask");
    return 0;
}

int inject_call(struct inject *in, long nr, const uint64_t args[INJECT_ARGS], int64_t *result,
                struct ff_error *err)
{
    if (in->lost)
        return ff_error_set(err, ESRCH, "process %d: nothing can be called there any more", (int)in->pid);
    for (unsigned i = 0; i < RESTARTS; i++) {
        struct user_regs_struct r = in->regs;

        r.rip = in->instruction;
        if (in->way.call)
            r.rsp = in->laid.home;
        r.rax = (uint64_t)nr;
        r.orig_rax = UINT64_MAX;
        r.rdi = args[0];
        r.rsi = args[1];
        r.rdx = args[2];
        r.r10 = args[3];
        r.r8 = args[4];
        r.r9 = args[5];
        if (ptrace(PTRACE_SETREGS, in->pid, NULL, &r))
            return lose(in, errno, "write registers", err);
        int rc = in->masked ? 0 : mask_signals(in, err);
        if (!rc)
            rc = step(in, &r, err);
        if (rc)
            return rc;
        *result = (int64_t)r.rax;
        if (!wants_restart(*result))
            return 0;
    }
    return ff_error_set(err, EIO, "process %d: system call %ld is interrupted again and again", (int)in->pid, nr);
}

/* --- stopping, and going on --- */

static int find_instruction(struct inject *in, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/maps", (int)in->pid), *line = NULL;
    FF_AUTO_FREE uint8_t *code = NULL;
    uint64_t start = 0, end = 0;
    size_t room = 0;
    FILE *f = fopen(path, "re");

    while (f && !end && getline(&line, &room, f) > 0)
        if (strstr(line, "[vdso]") && sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2)
            end = 0;
    if (f)
        fclose(f);
    size_t len = end > start ? end - start : 0;
    code = malloc(len + 1);
    struct iovec here = {code, len}, there = {(void *)(uintptr_t)start, len};
    if (code && len && process_vm_readv(in->pid, &here, 1, &there, 1, 0) == (ssize_t)len)
        for (size_t i = 0; i + 1 < len; i++)
            if (code[i] == 0x0f && code[i + 1] == 0x05) {
                in->instruction = start + i;
                return 0;
            }
    return ff_error_set(err, ENOTSUP, "process %d: no system call instruction found in its vdso", (int)in->pid);
}

int inject_seize(pid_t tid, long options, int *tracer)
{
    const uint64_t end = ff_now_ms() + TRACED_MS;
    int why;

    do {
        *tracer = outside_number(tid, "TracerPid:");
        if (!ptrace(PTRACE_SEIZE, tid, NULL, (void *)options))
            return 0;
        why = errno;
    } while (why == EPERM && *tracer > 0 && ff_now_ms() < end && !poll(NULL, 0, TRACED_TURN_MS));
    return -why;
}

static int seize(struct inject *in, struct ff_error *err)
{
    int tracer, rc;

    in->options = PTRACE_O_TRACESYSGOOD;
    const int why = -inject_seize(in->pid, in->options, &tracer);
    if (!why)
        return 0;
    if (why == EPERM && tracer > 0)
        return ff_error_set(err, EBUSY, "process %d is traced by process %d, a debugger: end that first",
                            (int)in->pid, tracer);
    rc = why == EPERM ? outside_may(in->pid, true, err) : 0;
    return rc ? rc : lose(in, why, "trace it (ptrace(2))", err);
}

static int set_trace_options(struct inject *in, long options)
{
    if (ptrace(PTRACE_SETOPTIONS, in->pid, NULL, (void *)options))
        return -errno;
    in->options = options;
    return 0;
}

/* While it is stopped: of a process without one nobody can get one */
static int suspend_filter(struct inject *in, struct ff_error *err)
{
    int n = outside_number(in->pid, "Seccomp_filters:"); /* Linux 5.9 */

    if (outside_number(in->pid, "Seccomp:") == 0 || (n > 0 && (unsigned)n <= in->filters) ||
        !set_trace_options(in, in->options | PTRACE_O_SUSPEND_SECCOMP))
        return 0;
    return ff_error_set(err, EPERM,
                        "process %d has a filter of system calls (seccomp, as -sandbox makes one) that could kill "
                        "it, and suspending that failed (%s): run farfork as root, outside of a container",
                        (int)in->pid, strerror(errno));
}

static int interrupt(struct inject *in, struct ff_error *err)
{
    int signo = 0, rc;

    if (ptrace(PTRACE_INTERRUPT, in->pid, NULL, NULL))
        return lose(in, errno, "interrupt", err);
    do { /* a signal that came first is delivered first */
        if (signo && ptrace(PTRACE_CONT, in->pid, NULL, (void *)(intptr_t)signo))
            return lose(in, errno, "deliver a signal", err);
        if ((rc = wait_stop(in, STOP_LIMIT_MS, &signo, err)))
            return rc;
    } while (signo);
    return 0;
}

/* It stands in a stop: from here on all that it was doing is kept */
static int prepare_call(struct inject *in, struct ff_error *err)
{
    int rc;

    if (ptrace(PTRACE_GETREGS, in->pid, NULL, &in->regs) ||
        ptrace(PTRACE_GETSIGMASK, in->pid, sizeof(in->mask), &in->mask))
        return lose(in, errno, "read registers", err);
    if (in->regs.cs != USER_CS)
        return ff_error_set(err, ENOTSUP, "process %d is no 64-bit program", (int)in->pid);
    if ((rc = suspend_filter(in, err)))
        return rc;
    if (in->way.call && way_lay(in->pid, &in->way, &in->regs, in->mask, &in->laid, NULL))
        in->way.call = 0;
    in->instruction = in->way.call;
    return in->instruction ? 0 : find_instruction(in, err);
}

/* Of a process that has ended nothing is left to do; one that has not stopped the kernel lets go */
static void put_back(struct inject *in)
{
    if (!in->stopped || (!in->mask && !in->instruction))
        return;
    if (in->masked) /* first: what follows may be cut off */
        ptrace(PTRACE_SETSIGMASK, in->pid, sizeof(in->mask), &in->mask);
    ff_failpoint("inject.mask");
    ptrace(PTRACE_SETREGS, in->pid, NULL, &in->regs);
}

struct run {
    pid_t pid;
    unsigned filters;
    inject_fn *fn;
    void *opaque;
    struct ff_error *err;
    int rc;
};

static void *run_main(void *opaque)
{
    struct run *r = opaque;
    struct inject in = {.pid = r->pid, .filters = r->filters};

    way_find(r->pid, &in.way, NULL); /* while it runs; one that has none is lost if this process is killed */
    if ((r->rc = seize(&in, r->err)))
        return NULL;
    r->rc = interrupt(&in, r->err);
    if (!r->rc)
        r->rc = prepare_call(&in, r->err);
    if (!r->rc)
        r->rc = r->fn(&in, r->opaque, r->err);
    put_back(&in);
    if (in.stopped)
        ptrace(PTRACE_DETACH, in.pid, NULL, (void *)(intptr_t)in.signal);
    return NULL;
}

int inject_run(pid_t pid, unsigned filters, inject_fn *fn, void *opaque, struct ff_error *err)
{
    struct ff_error why = {0};
    struct run r = {.pid = pid, .filters = filters, .fn = fn, .opaque = opaque, .err = err ? err : &why};
    pthread_t thread;
    int rc = ff_thread_start(&thread, run_main, &r, "inject", r.err);

    if (rc)
        return rc;
    pthread_join(thread, NULL);
    return r.rc;
}

int inject_stopped(pid_t pid, const struct inject_how *how, int *signal, inject_fn *fn, void *opaque,
                   struct ff_error *err)
{
    struct inject in = {.pid = pid, .filters = how->filters, .way = how->way, .stopped = true, .signal = *signal};
    int rc = set_trace_options(&in, PTRACE_O_TRACESYSGOOD | how->options);

    rc = rc ? lose(&in, -rc, "set options of its tracing", err) : prepare_call(&in, err);
    if (!rc)
        rc = fn(&in, opaque, err);
    put_back(&in);
    set_trace_options(&in, how->options);
    *signal = in.signal;
    return rc;
}

int inject_fork(struct inject *in, pid_t *child, struct ff_error *err)
{
    const long options = in->options;
    const uint64_t args[INJECT_ARGS] = {0, in->laid.end}; /* no signal at its end: QEMU waits for none */
    int signo, rc;
    int64_t got;

    if (!in->way.call)
        return ff_error_set(err, ENOTSUP, "process %d: fork(2) there: it would not find its way if this process were killed: "
                            "no code that returns from a signal, or no room on its stack", (int)in->pid);
    in->forked = 0;
    rc = set_trace_options(in, options | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK);
    if (rc)
        return lose(in, -rc, "trace what it forks", err);
    rc = inject_call(in, SYS_clone, args, &got, err);
    set_trace_options(in, options);
    if (!rc && got < 0)
        rc = ff_error_set(err, (int)-got, "process %d: fork(2) there: %s", (int)in->pid, strerror((int)-got));
    struct inject made = {.pid = in->forked};
    if (!rc)
        rc = wait_stop(&made, STOP_LIMIT_MS, &signo, err);
    if (!rc && ptrace(PTRACE_SETOPTIONS, made.pid, NULL, (void *)(uintptr_t)PTRACE_O_EXITKILL))
        rc = ff_error_set(err, errno, "process %d, forked: %s", (int)made.pid, strerror(errno));
    if (rc && made.pid > 0)
        kill(made.pid, SIGKILL);
    *child = rc ? 0 : made.pid;
    return rc;
}

int inject_room(struct inject *in, const void *bytes, size_t len, uint64_t *at, struct ff_error *err)
{
    struct iovec here = {(void *)(uintptr_t)bytes, len}, there = {(void *)(uintptr_t)in->laid.room, len};

    if (!in->way.call || len > WAY_ROOM)
        return ff_error_set(err, ENOTSUP, "process %d: no room on its stack", (int)in->pid);
    *at = in->laid.room;
    if (process_vm_writev(in->pid, &here, 1, &there, 1, 0) == (ssize_t)len)
        return 0;
    return ff_error_set(err, errno, "process %d: write to its stack: %s", (int)in->pid, strerror(errno));
}
