/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_forks.c - farfork forks: what is on this host
 */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autojson.h"
#include "cli.h"
#include "defaults.h"
#include "ps.h"
#include "rundir.h"
#include "value.h"

static int forks_usage(FILE *out)
{
    fputs(
        "usage: farfork forks [--list | --wait ID | --kill ID] [OPTION...]\n\n"
        "Show forks with children on this host, whoever made them. 'vmclone --list', --wait and\n"
        "--kill, on the host that made a fork, cover all of its hosts.\n\n"
        "  --list                  list them; the default\n"
        "  --json                  print one line of JSON; with --wait, --kill: whether all has ended\n"
        "  --wait ID               wait until the children of that fork have ended here\n"
        "  --kill ID               end them and their agent\n"
        "  --agent PID             with --wait, --kill: of the fork that this agent looks after\n"
        "  --timeout SECONDS       with --wait: wait no longer\n"
        "  --rundir DIR            their run directory\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0; 1 not all have ended, or overlays in use stay; 2 usage; 3 no such fork\n"
        "here. With --wait it ends with its input, where that is a pipe.\n",
        out);
    return out == stdout ? EXIT_ALL : EXIT_USAGE;
}

static bool input_is_pipe(void)
{
    struct stat st;

    return !fstat(STDIN_FILENO, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

static int list(const char *base, bool json)
{
    FF_AUTO_JSON json_t *all = ps_forks(base);

    if (json) {
        json_dumpf(all, stdout, JSON_COMPACT);
        putchar('\n');
        return EXIT_ALL;
    }
    ps_print(all);
    if (!json_array_size(all))
        printf("no forks on this host (%s)\n", base);
    return EXIT_ALL;
}

int cmd_forks(int argc, char **argv)
{
    enum { LIST = 256, JSON, WAIT, KILL, TIMEOUT, RUNDIR, AGENT };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"list", no_argument, NULL, LIST},
                                            {"json", no_argument, NULL, JSON},
                                            {"wait", required_argument, NULL, WAIT},
                                            {"kill", required_argument, NULL, KILL},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"agent", required_argument, NULL, AGENT},
                                            {0}};
    FF_AUTO_FREE char *base = rundir_base();
    const char *wait = NULL, *kill = NULL;
    bool json = false, listing = false;
    unsigned timeout_s = 0, agent = 0;
    int c, at = 0;

    while ((c = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (c) {
        case LIST: listing = true; break;
        case JSON: json = true; break;
        case WAIT: wait = optarg; break;
        case KILL: kill = optarg; break;
        case TIMEOUT:
            if (!value_number("farfork forks", &options[at], optarg, 1, 86400, &timeout_s))
                return EXIT_USAGE;
            break;
        case AGENT:
            if (!value_number("farfork forks", &options[at], optarg, 1, INT_MAX, &agent))
                return EXIT_USAGE;
            break;
        case RUNDIR:
            free(base);
            base = xstrdup(optarg);
            break;
        default: return c == 'h' ? forks_usage(stdout) : value_unknown("farfork forks");
        }
    if (optind < argc || listing + !!wait + !!kill > 1)
        return forks_usage(stderr);
    if (!wait && !kill)
        return list(base, json);
    uint64_t limit_ms = kill ? KILL_LIMIT_MS : timeout_s * 1000ull;
    int code = ps_end(base, wait ? wait : kill, (int)agent, kill, limit_ms,
                         wait && input_is_pipe());
    if (json) {
        printf("{\"ended\": %s}\n", code == EXIT_SOME ? "false" : "true");
        fflush(stdout);
    }
    if (code == EXIT_NONE)
        fprintf(stderr, "farfork: no fork %s on this host (%s); see farfork forks\n",
                wait ? wait : kill, base);
    return code;
}
