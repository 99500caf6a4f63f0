/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pass_files.h - descriptors for a process that has no monitor to take them
 */
#ifndef FF_VM_ATTACH_PASS_FILES_H
#define FF_VM_ATTACH_PASS_FILES_H

#include <sys/types.h>

#include "error.h"

/**
 * pass_files() - that process gets these descriptors, too
 * @there: of @n: their numbers there, closed by exec(2); -1: none, after a failure
 *
 * By a socket pair that is made in it, of which this process takes one end. As inject_run() has it for a process without a
 * filter that is known.
 *
 * Cost: a millisecond. Return: 0; -errno of what was called there; else as inject_run(), outside_take_fd()
 */
int pass_files(pid_t pid, const int *fd, unsigned n, int *there, struct ff_error *err);

/* Close what pass_files() has put there; a number of -1 is none */
void pass_files_close(pid_t pid, const int *there, unsigned n);

#endif
