/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unfinished.h - overlays of a parent that a vmclone which is killed leaves
 */
#ifndef FF_CONTROL_HOST_UNFINISHED_H
#define FF_CONTROL_HOST_UNFINISHED_H

#include <jansson.h>

#include "qmp.h"
#include "strv.h"

/**
 * unfinished_begin() - write down which overlays this program is about to make for a parent
 * @base:     of run directories
 * @path:     the parent's QMP socket
 * @overlays: [{"overlay-node", "overlay"}]
 * @dir:      where it is written down, by rundir_remove() no more
 *
 * Return: 0; -errno with the reason: nothing is written down then
 */
int unfinished_begin(const char *base, const char *id, const char *path, const struct qmp *parent,
                     const json_t *overlays, char **dir, struct ff_error *why);

/* From here on they may be the parent's, which it writes to */
int unfinished_ask(const char *dir, struct ff_error *why);

bool unfinished_is(const json_t *state); /* a state file of such overlays */
json_t *unfinished_files(const json_t *state); /* their names, to be released */

/**
 * unfinished_end() - who made them has ended: remove what the parent does not use, and the record
 * @kept: a line for each file that stays, and why; where somebody may need it, the record stays too
 */
void unfinished_end(const char *dir, const json_t *state, struct strv *kept);

#endif
