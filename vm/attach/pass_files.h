/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pass_files.h - descriptors for a process that has no monitor to take them
 */
#ifndef FF_VM_ATTACH_PASS_FILES_H
#define FF_VM_ATTACH_PASS_FILES_H

#include <sys/types.h>

#include "error.h"

/**
 * pass_files() - duplicate the descriptors @fd into process @pid
 * @there: filled with their @n numbers in @pid, close-on-exec; all -1 after a failure
 *
 * Makes a socket pair in @pid, takes one end of it, and sends the descriptors with SCM_RIGHTS. Calls inject_run() with @filters
 * 0: where @pid has a seccomp filter, this process must have the right to suspend it.
 *
 * Cost:   1 ms
 * Return: 0; -errno of a system call made in @pid; else as inject_run() or outside_take_fd()
 */
int pass_files(pid_t pid, const int *fd, unsigned n, int *there, struct ff_error *err);

/* Close what pass_files() has put there; a number of -1 is none */
void pass_files_close(pid_t pid, const int *there, unsigned n);

#endif
