/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qemu_opts.h - read and change one argument of a QEMU option: a=b,c=d or JSON
 */
#ifndef FF_VM_QEMU_OPTS_H
#define FF_VM_QEMU_OPTS_H

#include <stdbool.h>

/* All of them take "a,b=c,d,,e=f" (two commas are one that does not separate) or "{...}". What
 * is returned is to be freed; what is not asked to change stays byte for byte. */

/* JSON that can be read, or not JSON at all */
bool qemu_opts_valid(const char *s);

/* Value of @key, dotted for what is nested ("file.filename"); NULL: none. A key alone is "on". In
 * JSON booleans are "on" and "off", objects and arrays are NULL. */
char *qemu_opts_get(const char *s, const char *key);

/* @implied is the key that the first part has when it is a value alone: "user,id=n" */
char *qemu_opts_get_first(const char *s, const char *implied);
bool qemu_opts_is(const char *s, const char *key); /* on, yes, true, y */

char *qemu_opts_set(const char *s, const char *key, const char *value);
char *qemu_opts_set_number(const char *s, const char *key,
                           unsigned value); /* a number in JSON too */
char *qemu_opts_set_first(const char *s, const char *implied, const char *value);
char *qemu_opts_drop(const char *s, const char *key); /* wherever it is */
char *qemu_opts_drop_below(const char *s, const char *key); /* and all of @key.*, in text form */

/* Only what is named in @keys (NULL at the end) stays, and the first part of the text form */
char *qemu_opts_only(const char *s, const char *implied, const char *const *keys);

/* Whether @word is option @name: -name or --name */
bool qemu_option_is(const char *word, const char *name);

#endif
