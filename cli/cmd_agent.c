/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_agent.c - farfork agent's command line
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent_state.h"
#include "cli.h"
#include "defaults.h"
#include "rundir.h"
#include "value.h"

#define TIMEOUT_S 60

static int agent_usage(FILE *out)
{
    fputs(
        "usage: farfork agent [--listen HOST:PORT[,OPTION...]] --id ID [OPTION...]\n\n"
        "Hold the memory of a forked guest on this host, for its children here. vmclone starts\n"
        "an agent on every host, farfork move one where the guest goes. It reads commands and\n"
        "prints events, a JSON object a line.\n\n"
        "  --listen ADDRESS        listen there for the parent's host; port 0: any. Without it\n"
        "                          the agent holds no memory: for a guest that moves\n"
        "                          unix: no port; the parent on this host uses the socket below\n"
        "  --keyed                 the first line of its input has a key, {\"key\":\"...\"}, which\n"
        "                          whoever sends the image, or the guest, must have\n"
        "  --memory BYTES          of the forked guest: refuse an image with more\n"
        "  --id ID                 of the fork\n"
        "  --node NAME             of this host in the fork; default: its host name\n"
        "  --rundir DIR            put the run directory there, as DIR/ID/NAME\n"
        "  --children N            reserve room for the records of so many; default: 1\n"
        "  --socket PATH           for the children; default: in the run directory\n"
        "  --stay                  do not leave the foreground when told to go on alone: for a launcher\n"
        "                          that then ends all that it has started\n"
        "  --background            start children one after the other, with a tenth of a session's\n"
        "                          share of the CPUs, until a command says otherwise\n"
        "  --parent PATH           the parent's QMP socket, for 'vmclone --list'\n"
        "  --scope one|each|none   systemd's scopes, in farfork.slice: one of the agent and all that\n"
        "                          it starts, one of each, or none; default: one, if it can be\n"
        "  --unconfined            let children start programs that have rights of their own, QEMU's\n"
        "                          bridge helper for one: no NO_NEW_PRIVS, and no filter of system\n"
        "                          calls\n"
        "  --watcher               beside the agent, and not confined, a process that watches the memory\n"
        "                          of a QEMU for a move by attaching\n"
        "  --timeout SECONDS       when detached, end a kept child that has received no guest\n"
        "                          for so long; default: 60\n"
        "  --metrics-dir DIR       count there, for monitoring\n"
        "  -h, --help              print this text\n\n"
        "When its input ends it ends its children and itself, unless every page is here or a\n"
        "command told it to keep them.\n",
        out);
    return out == stdout ? 0 : 2;
}

int cmd_agent(int argc, char **argv)
{
    enum { LISTEN = 256, MEMORY, ID, NODE, RUNDIR, SOCKET, PARENT, TIMEOUT, CHILDREN,
           KEYED, STAY, UNCONFINED, METRICS_DIR, SCOPE, BACKGROUND, WATCHER };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"listen", required_argument, NULL, LISTEN},
                                            {"keyed", no_argument, NULL, KEYED},
                                            {"memory", required_argument, NULL, MEMORY},
                                            {"id", required_argument, NULL, ID},
                                            {"node", required_argument, NULL, NODE},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"socket", required_argument, NULL, SOCKET},
                                            {"parent", required_argument, NULL, PARENT},
                                            {"children", required_argument, NULL, CHILDREN},
                                            {"stay", no_argument, NULL, STAY},
                                            {"background", no_argument, NULL, BACKGROUND},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"scope", required_argument, NULL, SCOPE},
                                            {"unconfined", no_argument, NULL, UNCONFINED},
                                            {"watcher", no_argument, NULL, WATCHER},
                                            {"metrics-dir", required_argument, NULL, METRICS_DIR},
                                            {0}};
    struct agent a = {.pipe = {-1, -1}, .front = -1, .timeout_s = TIMEOUT_S,
                      .children = 1};
    char host[256] = "localhost";
    int c, at = 0;

    gethostname(host, sizeof(host) - 1);
    FF_AUTO_FREE char *node = rundir_name_from(host), *base = rundir_base();
    a.node = node;
    a.base = base;
    while ((c = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (c) {
        case LISTEN: a.listen = optarg; break;
        case KEYED: a.keyed = true; break;
        case SCOPE:
            if (!scope_mode_parse(optarg, &a.scope))
                return value_bad("farfork agent", &options[at], optarg, "one|each|none");
            break;
        case UNCONFINED: a.unconfined = true; break;
        case WATCHER: a.watcher = true; break;
        case STAY: a.stay = true; break;
        case BACKGROUND: a.background = true; break;
        case MEMORY: a.memory_bytes = strtoull(optarg, NULL, 10); break;
        case ID: a.id = optarg; break;
        case NODE: a.node = optarg; break;
        case RUNDIR: a.base = optarg; break;
        case SOCKET: a.socket = xstrdup(optarg); break;
        case PARENT: a.parent = optarg; break;
        case METRICS_DIR: a.metrics_dir = optarg; break;
        case CHILDREN:
            if (!value_number("farfork agent", &options[at], optarg, 1, CHILDREN_MAX, &a.children))
                return EXIT_USAGE;
            break;
        case TIMEOUT:
            if (!value_number("farfork agent", &options[at], optarg, 1, 86400, &a.timeout_s))
                return EXIT_USAGE;
            break;
        default: return c == 'h' ? agent_usage(stdout) : value_unknown("farfork agent");
        }
    if (optind < argc || !a.id || (a.listen && !a.memory_bytes) || !rundir_name_valid(a.id) ||
        !rundir_name_valid(a.node))
        return agent_usage(stderr);
    return agent_daemonize(agent_run, &a);
}
