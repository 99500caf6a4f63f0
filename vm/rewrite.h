/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite.h - what clone_argv.c and its parts share
 */
#ifndef FF_CLI_CLONE_REWRITE_H
#define FF_CLI_CLONE_REWRITE_H

#include "command_line.h"

struct rewrite {
    const struct child_spec *s;
    struct words *out, *notes;
    struct words paths;  /* handed out by child_path() */
    char *own;           /* the parent's "RUNDIR/N.", where it is a child itself; or NULL */
    struct why *why;
    bool nographic, nodefaults, has_serial, has_display;
};

/* One option with its argument: add to r->out whatever stands for it. 0, or -errno with r->why */
typedef int rewrite_fn(struct rewrite *r, const char *option, const char *value);

/* A path in the run directory instead of @path: RUNDIR/N.NAME, no two of them the same. NAME is that of
 * the first parent, however often its guest was forked and moved since */
char *child_path(struct rewrite *r, const char *path);
void note(struct rewrite *r, const char *fmt, ...) PRINTF(2, 3);
const char *where(const struct rewrite *r); /* for a note */
void emit(struct rewrite *r, const char *option, const char *value);

/* clone_chardev.c */
rewrite_fn rewrite_chardev; /* -chardev */
rewrite_fn rewrite_serial;  /* -serial, -parallel, -debugcon */
rewrite_fn rewrite_monitor; /* -qmp, -qmp-pretty, -monitor, -qtest */

/* clone_net.c */
rewrite_fn rewrite_net;     /* -netdev, -nic, -net */

/* clone_disks.c */
rewrite_fn rewrite_disk;    /* -drive, -blockdev, -hda and others; "": an image without an option */

#endif
