/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cli.h - the subcommands of farfork; each returns the exit code
 */
#ifndef FF_CLI_CLI_H
#define FF_CLI_CLI_H

int cmd_doctor(int argc, char **argv);

#endif
