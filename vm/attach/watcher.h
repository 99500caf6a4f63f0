/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watcher.h - a process that may attach, and watches memory for one that may not
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent is confined: its filter of system calls refuses ptrace(2), or whoever takes it
 *              over had every process of its user. What it needs of that is little: memory of a QEMU
 *              that it has started is to be watched. A process that it starts before it is confined
 *              does that, and nothing else.
 * Picture      farfork attach --unix--> watcher --ptrace--> QEMU
 *                  ^                                        |
 *                  +------------- its userfaultfd ----------+
 *              A child of a fork gets views of the agent's files in the same way, by a thread of the agent. When that
 *              thread goes before it says that the child needs it no more, in whatever way, the
 *              watcher ends the child: it would wait for pages that nobody brings.
 * Invariants   1. Who asks is the agent or its descendant; the process that is to be watched is its descendant; both are
 *                 its user's.
 *              2. The watcher reads messages of fixed form, bounded before anything is allocated, and
 *                 opens no file that a message names: first which memory, then which parts of it are to be missing again.
 *              3. Of taps it makes such alone as lead nowhere (dead_tap.h). The calls are userfaultfd(2), or ioctl(2) of what is /dev/userfaultfd there, madvise(2) and
 *                 close(2), with addresses that /proc/PID/maps has; for views mmap(2) and mprotect(2), too.
 * Limits       A move has one QEMU: it is served alone, as long as who asked stays connected.
 */
#ifndef FF_VM_ATTACH_WATCHER_H
#define FF_VM_ATTACH_WATCHER_H

#include "watch_files.h"

/* The watcher: serve those who come to @listener until nobody holds the other end of @alive and nobody is
 * served. @agent: whose descendants; its filter of system calls, which they have, too, only refuses */
void watcher_serve(int listener, int alive, pid_t agent);

/* As watch_begin(), by the watcher that listens at @path. -ECONNREFUSED, -ENOENT: there is none; -ETIMEDOUT */
int watcher_begin(struct watch *w, const char *path, pid_t pid, int device, const struct outside_block *b, unsigned n,
                  struct ff_error *err);

/* As watch_files_begin(), by the watcher. Until watch_end() the end of this process, and watch_leave(), end @pid */
int watcher_files(struct watch *w, const char *path, pid_t pid, int device, const struct outside_block *b,
                  const struct watch_file *f, unsigned n, unsigned advice, struct ff_error *err);

/* As dead_tap_open(), by the watcher, since who is confined may not make namespaces */
int watcher_tap(const char *path, struct ff_error *err);

#endif
