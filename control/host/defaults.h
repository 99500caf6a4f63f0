/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * defaults.h - what is taken where vmclone and farfork move are told nothing else
 */
#ifndef FF_CONTROL_HOST_DEFAULTS_H
#define FF_CONTROL_HOST_DEFAULTS_H

#include "error.h"
#include "strv.h"

#define CHILDREN_MAX 10000 /* of one fork */
#define EXIT_USAGE 2

bool parse_number(const char *text, unsigned max, unsigned *out); /* from 1 on */

/* All of them are to be freed */
char *defaults_id(const char *path); /* of what is done with the guest that has this socket */
char *defaults_agent(void);
char *defaults_absolute_path(const char *path);

#endif
