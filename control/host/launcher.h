/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * launcher.h - how a command gets to another host: a template with {host} and {cmd}
 */
#ifndef FF_CONTROL_HOST_LAUNCHER_H
#define FF_CONTROL_HOST_LAUNCHER_H

#include <stdbool.h>

#include "error.h"
#include "strv.h"

#define LAUNCHER_DEFAULT "ssh {host} {cmd}"
/* A step of the job, beside its others, with all that the job has of that host */
#define LAUNCHER_SLURM "srun --jobid=%s --overlap --nodes=1 --ntasks=1 --cpu-bind=none --nodelist={host} {cmd}"

/* Within a job of Slurm's, but for its prolog and epilog, LAUNCHER_SLURM, else LAUNCHER_DEFAULT */
const char *launcher_default(void);

/* With the first process that it started there it ends all others, as a batch system does with a step's: so
 * that process, and the launcher here, stay as long as what they are to keep. For a template that begins with
 * "srun" or has it as the last part of its program's path */
bool launcher_ends_all(const char *template);

/* What this program starts ends with a step of its own, before the job: -EPERM, and what else to do */
int launcher_check_step(struct ff_error *why);

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
