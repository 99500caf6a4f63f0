/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * way_home.c - a thread in which a system call is made finds back by itself; see way_home.h
 */
#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

#include "cleanup.h"
#include "way_home.h"
#include "xalloc.h"

#define CODE_MAX (64u << 20)  /* of one mapping: no libc has as much */
#define RED_ZONE 128u         /* below the stack pointer: of the function that was interrupted */
#define XSTATE_MAX 2696u      /* what every thread has whose kernel knows of AVX-512: not what it has to ask for */
#define XSTATE_MIN 576u
#define XSTATE_ROOM 16384u
#define SW_RESERVED 464u      /* where a frame says what follows */
#define FP_MAGIC1 0x46505853u /* asm/sigcontext.h, which has no place beside ucontext.h */
#define FP_MAGIC2 0x46505845u
#define UC_FLAGS 7u           /* of the kernel: vector state; the stack's segment, to be restored as it was */

/* What the kernel calls sw_reserved */
struct frame_state {
    uint32_t magic1, extended_bytes;
    uint64_t features;
    uint32_t state_bytes, padding[7];
};

struct frame {
    uint64_t restore;
    ucontext_t context;
};

/* --- code --- */

static uint64_t find_code(const uint8_t *code, size_t len, uint64_t at, const uint8_t *want, size_t n)
{
    const uint8_t *p = memmem(code, len, want, n);

    return p ? at + (uint64_t)(p - code) : 0;
}

static const uint8_t call[] = {0x0f, 0x05, 0xc3};
static const uint8_t restore[] = {0x48, 0xc7, 0xc0, SYS_rt_sigreturn, 0, 0, 0, 0x0f, 0x05};

static void look_in(pid_t pid, uint64_t start, uint64_t end, struct way *w)
{
    const size_t len = end - start;
    FF_AUTO_FREE uint8_t *code = len <= CODE_MAX ? malloc(len) : NULL;
    struct iovec here = {code, len}, there = {(void *)(uintptr_t)start, len};

    if (!code || process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)len)
        return;
    if (!w->call)
        w->call = find_code(code, len, start, call, sizeof(call));
    if (!w->restore)
        w->restore = find_code(code, len, start, restore, sizeof(restore));
}

/* Where it was found last: most processes are asked often */
static struct {
    pthread_mutex_t lock;
    pid_t pid;
    struct way way;
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_code_there(pid_t pid, uint64_t at, const uint8_t *want, size_t n)
{
    uint8_t is[sizeof(restore)];
    struct iovec here = {is, n}, there = {(void *)(uintptr_t)at, n};

    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)n && !memcmp(is, want, n);
}

static bool recall(pid_t pid, struct way *out)
{
    pthread_mutex_lock(&last.lock);
    *out = last.pid == pid ? last.way : (struct way){0};
    pthread_mutex_unlock(&last.lock);
    return out->call && is_code_there(pid, out->call, call, sizeof(call)) &&
           is_code_there(pid, out->restore, restore, sizeof(restore));
}

static void keep(pid_t pid, const struct way *w)
{
    pthread_mutex_lock(&last.lock);
    last.pid = pid;
    last.way = *w;
    pthread_mutex_unlock(&last.lock);
}

int way_find(pid_t pid, struct way *out, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/maps", (int)pid), *line = NULL;
    size_t room = 0;

    if (recall(pid, out))
        return 0;
    *out = (struct way){0};
    for (int libc = 1; libc >= 0 && (!out->call || !out->restore); libc--) {
        FILE *f = fopen(path, "re");
        uint64_t start, end;
        char perms[5];

        while (f && (!out->call || !out->restore) && getline(&line, &room, f) > 0)
            if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &start, &end, perms) == 3 && !strcmp(perms, "r-xp") &&
                !strstr(line, "[vsyscall]") && (!libc || strstr(line, "/libc")))
                look_in(pid, start, end, out);
        if (f)
            fclose(f);
    }
    if (out->call && out->restore) {
        keep(pid, out);
        return 0;
    }
    *out = (struct way){0};
    return ff_error_set(err, ENOTSUP, "process %d: no code found in it that returns from a signal", (int)pid);
}

/* --- frames --- */

/* As a signal handler's frame has it: the bytes, or 0: none */
static uint32_t read_vectors(pid_t pid, uint8_t *state)
{
    struct iovec v = {state, XSTATE_ROOM};
    struct frame_state s = {.magic1 = FP_MAGIC1};
    const uint32_t magic2 = FP_MAGIC2;

    if (ptrace(PTRACE_GETREGSET, pid, (void *)(uintptr_t)NT_X86_XSTATE, &v) || v.iov_len < XSTATE_MIN)
        return 0;
    s.state_bytes = FF_MIN((uint32_t)v.iov_len, XSTATE_MAX);
    s.extended_bytes = s.state_bytes + (uint32_t)sizeof(magic2);
    memcpy(&s.features, state + SW_RESERVED, sizeof(s.features));
    memcpy(state + SW_RESERVED, &s, sizeof(s));
    memcpy(state + s.state_bytes, &magic2, sizeof(magic2));
    return s.extended_bytes;
}

/* A call that the thread waited in begins again, as the kernel would have it begin */
static void begin_again(struct user_regs_struct *r)
{
    const int64_t rc = (int64_t)r->rax;

    if ((int64_t)r->orig_rax < 0 || rc > -512 || rc < -516 || rc == -515)
        return;
    r->rax = rc == -516 ? (uint64_t)SYS_restart_syscall : r->orig_rax;
    r->rip -= 2;
}

static void fill_frame(struct frame *f, const struct way *w, const struct user_regs_struct *r, uint64_t mask,
                       uint64_t vectors)
{
    greg_t *g = f->context.uc_mcontext.gregs;
    const uint64_t segments = (r->cs & 0xffff) | (r->gs & 0xffff) << 16 | (r->fs & 0xffff) << 32 | r->ss << 48;

    *f = (struct frame){.restore = w->restore};
    f->context.uc_flags = UC_FLAGS; /* an alternate stack of no length changes none */
    memcpy(&f->context.uc_sigmask, &mask, sizeof(mask));
    memcpy(&f->context.uc_mcontext.fpregs, &vectors, sizeof(vectors));
    g[REG_R8] = (greg_t)r->r8, g[REG_R9] = (greg_t)r->r9, g[REG_R10] = (greg_t)r->r10, g[REG_R11] = (greg_t)r->r11;
    g[REG_R12] = (greg_t)r->r12, g[REG_R13] = (greg_t)r->r13, g[REG_R14] = (greg_t)r->r14;
    g[REG_R15] = (greg_t)r->r15, g[REG_RDI] = (greg_t)r->rdi, g[REG_RSI] = (greg_t)r->rsi;
    g[REG_RBP] = (greg_t)r->rbp, g[REG_RBX] = (greg_t)r->rbx, g[REG_RDX] = (greg_t)r->rdx;
    g[REG_RAX] = (greg_t)r->rax, g[REG_RCX] = (greg_t)r->rcx, g[REG_RSP] = (greg_t)r->rsp;
    g[REG_RIP] = (greg_t)r->rip, g[REG_EFL] = (greg_t)r->eflags, g[REG_CSGSFS] = (greg_t)segments;
}

int way_lay(pid_t pid, const struct way *w, const struct user_regs_struct *regs, uint64_t mask, struct way_laid *out,
            struct ff_error *err)
{
    /* upwards: room, end, home, vectors */
    struct {
        uint8_t vectors[XSTATE_ROOM + 64];
        struct frame end, home;
    } *all = calloc(1, sizeof(*all));
    struct user_regs_struct was = *regs, over = *regs;

    if (!all)
        return ff_error_set(err, ENOMEM, "process %d: out of memory here", (int)pid);
    const uint32_t n = read_vectors(pid, all->vectors);
    const uint64_t vectors = (regs->rsp - RED_ZONE - n) & ~63ull;
    out->home = vectors - sizeof(struct frame) - 8;
    out->end = out->home - sizeof(struct frame) - 8;
    out->room = (out->end - WAY_ROOM) & ~63ull;
    begin_again(&was);
    fill_frame(&all->home, w, &was, mask, n ? vectors : 0);
    over.rip = w->call;
    over.rax = SYS_exit_group;
    over.rdi = 0;
    over.rsp = out->room;
    fill_frame(&all->end, w, &over, ~0ull, 0);
    struct iovec here[] = {{&all->end, sizeof(all->end)}, {&all->home, sizeof(all->home)}, {all->vectors, n}};
    struct iovec there[] = {{(void *)(uintptr_t)out->end, sizeof(all->end)},
                            {(void *)(uintptr_t)out->home, sizeof(all->home)}, {(void *)(uintptr_t)vectors, n}};
    const ssize_t want = (ssize_t)(2 * sizeof(struct frame) + n), got = process_vm_writev(pid, here, 3, there, 3, 0);
    const int why = got < 0 ? errno : EFAULT;

    free(all);
    return got == want ? 0 : ff_error_set(err, why, "process %d: write to its stack at 0x%llx: %s", (int)pid,
                                          (unsigned long long)regs->rsp, strerror(why));
}
