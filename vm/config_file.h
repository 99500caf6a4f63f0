/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * config_file.h - what a -readconfig of a running QEMU stands for
 */
#ifndef FF_VM_CONFIG_FILE_H
#define FF_VM_CONFIG_FILE_H

#include "strv.h"

/**
 * config_file_expand() - write options in the place of each -readconfig FILE
 * @argv:  of the running QEMU; changed in place
 * @cwd:   its working directory, or NULL
 * @age_s: how long it has been running, in seconds
 *
 * A -readconfig stays as it is when its file cannot be read, is younger than the process, or has
 * a section that is no option of the same name: command_line_rewrite() refuses it by name.
 */
void config_file_expand(struct strv *argv, const char *cwd, double age_s);

/* The same for who looks for an option that he then tries: of a file of any age, without the sections that
 * are no option of the same name */
void config_file_look(struct strv *argv, const char *cwd);

#endif
