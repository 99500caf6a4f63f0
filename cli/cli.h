/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cli.h - the subcommands of farfork; each returns the exit code
 */
#ifndef FF_CLI_CLI_H
#define FF_CLI_CLI_H

#include <stdbool.h>

#include "farfork-probe.h"

int cmd_doctor(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_move(int argc, char **argv);
int cmd_visit(int argc, char **argv);
int cmd_agent(int argc, char **argv);
int cmd_forks(int argc, char **argv);
int cmd_hosts(int argc, char **argv);
int cmd_evacuate(int argc, char **argv);
int cmd_promote(int argc, char **argv);
int cmd_pool(int argc, char **argv);
int cmd_attach(int argc, char **argv);
int cmd_nocloud(int argc, char **argv);

/* What was printed has to get there: @code, or @failed where it is 0 and the output could not be
 * written, which is said */
int output_code(const char *program, int code, int failed);

/* doctor_peer.c: farfork doctor --serve, --peer. @where: [HOST][:PORT] */
struct peer_options {
    const char *where, *device;
    unsigned qps;
    bool once, while_input, json;
};

/* doctor_host.c: @fn as for ff_host_check(), for each file that an installation puts on a host */
void doctor_host(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                            const char *why),
                 void *opaque);

int doctor_serve(const struct peer_options *o);
int doctor_peer(const struct peer_options *o);

#endif
