/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * launcher.h - how a command gets to another host: a template with {host} and {cmd}
 */
#ifndef FF_CONTROL_HOST_LAUNCHER_H
#define FF_CONTROL_HOST_LAUNCHER_H

#include "error.h"
#include "strv.h"

#define LAUNCHER_DEFAULT "ssh {host} {cmd}"

/* One word of a shell: quoted only if it has to be */
char *shell_quote(const char *word);

/* All words of @argv for a shell */
char *shell_join(char *const *argv);

/**
 * launcher_line() - the line that a shell runs to start @argv on @host
 * @template: {host} and {cmd} are replaced, and must be there; {cmd} is the command with its words
 *            quoted for one shell. Where the launcher's program gives its arguments to another
 *            shell, as ssh does, {cmd} is quoted once more: so for a template that begins with
 *            "ssh" or has "ssh" as the last part of its program's path
 */
char *launcher_line(const char *template, const char *host, char *const *argv);
int launcher_check(const char *template, struct ff_error *why);

#endif
