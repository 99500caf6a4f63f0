/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * working_set_file.h - what was touched of a guest's memory somewhere else, for the next time: a working set
 *                      (migrate/working_set.h) in a file
 *
 * Who writes it has it from another host: of its text printable ASCII is kept, of some length. Whether it is a
 * working set at all, the library sees (ff_dest_first()).
 */
#ifndef FF_CONTROL_HOST_WORKING_SET_FILE_H
#define FF_CONTROL_HOST_WORKING_SET_FILE_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

/* One line, which JSON can carry, and agents take in time */
bool working_set_is_text(const char *text);

/* Where that of a guest is whose QEMU is @pid: gone with it. @rundir NULL: the default. To be freed; NULL: the folder
 * is not there, or not this user's */
char *working_set_path(const char *rundir, pid_t pid);

/* 0: *@out, to be freed; 1: there is none; -errno: it cannot be read; -EINVAL: it is none */
int working_set_load(const char *path, char **out, struct ff_error *why);

/* Replace it at once, or not at all: 0, -errno. working_set_keep(): that of @pid, as above, without those of QEMUs that
 * have ended; 0 also where it cannot be */
int working_set_store(const char *path, const char *text, struct ff_error *why);
int working_set_keep(const char *rundir, pid_t pid, const char *text, struct ff_error *why);

#endif
