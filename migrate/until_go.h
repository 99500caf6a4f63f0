/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * until_go.h - a file that says that no guest ran here, and one that it has shut itself down
 */
#ifndef FF_MIGRATE_UNTIL_GO_H
#define FF_MIGRATE_UNTIL_GO_H

#include <stdbool.h>

#include "error.h"

/* dir < 0: none was wanted */
struct ff_until_go {
    int dir;
    char *name; /* in that folder */
    char text[32]; /* what it says, with a newline; "": no source has come */
};

#define FF_UNTIL_GO_NONE {.dir = -1}

/* Make @path, on stable storage ("": nothing). -EEXIST: it, or the other, is of another guest */
int ff_until_go_make(struct ff_until_go *u, const char *path, struct ff_error *err);

/* A source has come: write @mark, of ff_mark_text(), into it, on stable storage. -errno: it is as it was, or not
 * whole */
int ff_until_go_sign(struct ff_until_go *u, const char *mark, struct ff_error *err);

/* Remove it, there too: a guest may run here from now on. -errno: none may */
int ff_until_go_remove(struct ff_until_go *u, struct ff_error *err);

/* After that: write beside it, on stable storage, that the guest has shut itself down; or that it
 * has not after all. -errno: it is there, or not; what is said next is written as if nothing was */
int ff_until_go_shut_down(struct ff_until_go *u, bool down, struct ff_error *err);

/* Whether it is there or not */
void ff_until_go_free(struct ff_until_go *u);

#endif
