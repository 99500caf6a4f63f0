/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * option_files.h - options of QEMU that name files: those that it writes, those with relative names
 */
#ifndef FF_VM_OPTION_FILES_H
#define FF_VM_OPTION_FILES_H

#include "rewrite.h"

/* The argument of -@option with files of the child's own in the place of those that the parent
 * writes; to be freed */
char *option_files_own(struct rewrite *r, const char *option, const char *value);

rewrite_fn option_files_set;    /* -set: refused where it names such a file */
rewrite_fn option_files_global; /* -global */
rewrite_fn option_files_icount; /* -icount: rr= is refused */
rewrite_fn option_files_plugin; /* -plugin: left out, with a note */

/* Whether the argument names a file that is looked for in QEMU's current folder. What a child has of
 * its own does not count */
bool option_files_relative(const char *option, const char *value);

#endif
