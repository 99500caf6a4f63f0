/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * way_home.h - a thread in which a system call is made finds back by itself
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      who traces a thread and makes a call in it may be killed at any moment; then nobody puts its registers
 *              back. What the call returns to does: the kernel's own way back from a signal handler.
 *
 * Picture      below the stack's red zone           call: syscall, ret      restore: rt_sigreturn, of its libc
 *              home: restore, frame: all that the thread was in the midst of
 *              end:  restore, frame: exit_group(2): of a process that a fork(2) there has made
 *              room: for what a call's arguments point at
 * Invariants   Where the tracer lives neither is used: it stops the thread before its next instruction.
 * Limits       Of the vector registers those that a system call may not change, and the first 2696 bytes of their state.
 * Sources      arch/x86/kernel/signal_64.c, fpu/signal.c; asm/sigcontext.h
 */
#ifndef FF_VM_ATTACH_WAY_HOME_H
#define FF_VM_ATTACH_WAY_HOME_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "error.h"

#define WAY_ROOM 256u

struct way {
    uint64_t call, restore; /* addresses of code there; 0: there is no way */
};

struct way_laid {
    uint64_t home, end; /* stack pointers */
    uint64_t room;
};

/* In a process that runs. Cost: its libc is read, about a millisecond. Return: 0; -ENOTSUP: it has no such code */
int way_find(pid_t pid, struct way *out, struct ff_error *err);

/* In its main thread, which the caller traces, and which stands still. Return: 0; -errno: it has no such stack */
int way_lay(pid_t pid, const struct way *w, const struct user_regs_struct *regs, uint64_t mask, struct way_laid *out,
            struct ff_error *err);

#endif
