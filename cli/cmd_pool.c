/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_pool.c - farfork pool: children that vmclone --keep has started ahead, on this host's behalf
 */
#include <getopt.h>
#include <stdio.h>

#include "cli.h"
#include "pool.h"
#include "ps.h"
#include "value.h"

static int pool_usage(FILE *out)
{
    fputs("usage: farfork pool [--list | --end PARENT] [OPTION...]\n\n"
          "Show what 'vmclone --keep' keeps ready on this host, and what each child costs.\n\n"
          "  --list                  list pools; the default\n"
          "  --end PARENT            end the pool of that QMP socket, with children that wait\n"
          "  --json                  print one line of JSON\n"
          "  --rundir DIR            vmclone's run directory\n"
          "  -h, --help              print this text\n\n"
          "Exit code: 0; 1 it has not ended in time; 2 usage; 3 no such pool\n",
          out);
    return out == stdout ? EXIT_ALL : EXIT_USAGE;
}

int cmd_pool(int argc, char **argv)
{
    enum { LIST = 256, END, JSON, RUNDIR };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"list", no_argument, NULL, LIST},
                                            {"end", required_argument, NULL, END},
                                            {"json", no_argument, NULL, JSON},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {0}};
    const char *end = NULL, *base = NULL;
    bool json = false, list = false;
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1)
        switch (c) {
        case LIST: list = true; break;
        case END: end = optarg; break;
        case JSON: json = true; break;
        case RUNDIR: base = optarg; break;
        default: return c == 'h' ? pool_usage(stdout) : value_unknown("farfork pool");
        }
    if (optind < argc || (list && end))
        return pool_usage(stderr);
    return end ? pool_end(base, end) : pool_list(base, json);
}
