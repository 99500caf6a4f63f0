/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * overlay_records.h - which overlays a child owns, and when they go
 */
#ifndef FF_CONTROL_HOST_OVERLAY_RECORDS_H
#define FF_CONTROL_HOST_OVERLAY_RECORDS_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

/* A child's record: in the run directory of its agent, DIR/N.overlays */
struct overlay_owner {
    char *dir;
    unsigned number;
};

/* The child that a running QEMU is, by its command line; false: it is none, or not of this user */
bool overlay_records_owner(char *const *argv, pid_t pid, struct overlay_owner *out);
/* DIR/N.plugged: what -device takes, of devices that farfork move has plugged into that one: a JSON array */
#define PLUGGED_FILE ".plugged"

void overlay_records_owner_free(struct overlay_owner *o);

/**
 * overlay_records_add() - write down that a child owns these files, before they are made
 * @files: an array of strings
 *
 * From now on they go when the child has ended and nobody has them open.
 * Return: 0, or -errno with the reason: nothing is written down then
 */
int overlay_records_add(const char *dir, unsigned number, const json_t *files,
                        struct ff_error *why);
/* Those of a child, none if it has no record. -EIO: there is one that cannot be read as a whole */
int overlay_records_read(const char *dir, unsigned number, struct strv *files,
                         struct ff_error *why);
void overlay_records_forget(const char *dir, unsigned number); /* others own them now */
bool overlay_records_left(const char *dir); /* of any child */

/**
 * overlay_records_create() - an empty file that was not there, for this user alone
 * @like: an image whose owner and mode it gets, as far as this user may give them; NULL: it does
 *        not
 * @fd:   it is open for overlay_records_fill(), and to be closed; NULL: it is not
 *
 * Return: 0; -EEXIST, also of a symbolic link; -EPERM: also of a folder where everybody could put
 *         another file in its place; -errno: nothing is there
 */
int overlay_records_create(const char *file, const char *like, int *fd, struct ff_error *why);

/* Run a program that writes @file, by its descriptor: by now another file may have that name. -EIO */
int overlay_records_fill(int fd, const char *file, const json_t *words, int limit_ms,
                         struct ff_error *why);

/* overlay_records_add() and overlay_records_create() of each; on failure none of them is there */
int overlay_records_make(const char *dir, unsigned number, const json_t *files,
                         struct ff_error *why);
/* Remove a file that a record names. 0, also where it is not there; -EINVAL: it is no regular file, or
 * has another name than forks give; -errno */
int overlay_records_unlink(const char *file);
void overlay_records_unmake(const char *dir, unsigned number); /* nobody has used them yet */

/**
 * overlay_records_sweep() - remove the overlays of children that have ended, but those that are in
 * use
 * @base: of run directories; those of this host are looked at, of all forks
 * @id:   for @kept, which may be NULL: a line for each overlay of this fork that stays, and why
 *
 * A run directory that was left for its overlays goes with the last of them.
 * Cost:  as file_users(), if there is any such overlay
 */
void overlay_records_sweep(const char *base, const char *id, struct strv *kept);

/**
 * overlay_records_on() - whose overlay is there that has this image behind it, of all records of
 * this host
 * @but: an overlay that does not count
 *
 * Return: a text that names it, to be released; NULL: there is none
 */
char *overlay_records_on(const char *base, const char *image, const char *but);

/* The last step of an agent without children: its run directory goes, unless overlays are left
 * there; then @state stays, as that of an agent that has ended */
void overlay_records_leave(const char *base, const char *dir, const json_t *state);

#endif
