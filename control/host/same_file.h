/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * same_file.h - do two hosts mean the same file by a name?
 */
#ifndef FF_CONTROL_HOST_SAME_FILE_H
#define FF_CONTROL_HOST_SAME_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"

struct same_files;

/* The host that has the files: a lock on each of @names, an array of strings, until same_files_free() */
struct same_files *same_files_new(const json_t *names);
/* What the other one needs: [{"path", "boot", ..}, ..] of those that it has not recognized yet */
json_t *same_files_ask(const struct same_files *s);
/* What it found; whether it has recognized all */
bool same_files_heard(struct same_files *s, const json_t *answer);
/* A file beside each of the others, for one more look; whether there is any */
bool same_files_mark(struct same_files *s);
/* -ESTALE: the first that @host has not recognized */
int same_files_refuse(const struct same_files *s, const char *host, struct ff_error *why);
void same_files_free(struct same_files *s);

/* The same for one look alone: all of them have a file beside them, too */
struct same_files *same_files_marked(const json_t *names);
/* The other host: -ESTALE: the first of those of same_files_ask() that it does not recognize */
int same_files_check(const json_t *ask, struct ff_error *why);
/* Likewise all: [{"path", "same": bool, "why": text}, ..] */
json_t *same_files_look(const json_t *ask);

#endif
