/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite.h - what the rewriting of options has in common
 */
#ifndef FF_VM_REWRITE_H
#define FF_VM_REWRITE_H

#include "command_line.h"

struct rewrite {
    const struct vm_spec *s;
    struct strv *out, *notes;
    struct strv paths;  /* handed out by rewrite_path() */
    char *const *parent; /* the parent's words */
    char *own;           /* the parent's "RUNDIR/N.", where it is a child itself; or NULL */
    struct ff_error *why;
    bool nographic, nodefaults, has_serial, has_display;
};

/* One option with its argument: add to r->out whatever stands for it. 0, or -errno with r->why */
typedef int rewrite_fn(struct rewrite *r, const char *option, const char *value);

/* A path in the run directory instead of @path: RUNDIR/N.NAME, no two of them the same. NAME is
 * that of the first parent, however often its guest was forked and moved since */
char *rewrite_path(struct rewrite *r, const char *path);
void rewrite_note(struct rewrite *r, const char *fmt, ...) FF_PRINTF(2, 3);
const char *rewrite_where(const struct rewrite *r); /* for a note */
void rewrite_emit(struct rewrite *r, const char *option, const char *value);

/* rewrite_chardev.c */
rewrite_fn rewrite_chardev; /* -chardev */
rewrite_fn rewrite_serial;  /* -serial, -parallel, -debugcon */
rewrite_fn rewrite_monitor; /* -qmp, -qmp-pretty, -monitor, -qtest */

/* rewrite_net.c */
rewrite_fn rewrite_net;     /* -netdev, -nic, -net */

#endif
