/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_evacuate.c - farfork evacuate: parse, and which hosts
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "evacuate.h"
#include "launcher.h"
#include "value.h"

#define JOBS 2
#define JOBS_MAX 64
#define ANSWER_S 20

static int evacuate_usage(FILE *out)
{
    fputs("usage: farfork evacuate [OPTION...] HOST[=ADDRESS][:SLOTS]... [-- MOVE-OPTION...]\n\n"
          "Move every guest of this host to others, some at once, each to the host with most memory left;\n"
          "MOVE-OPTIONs are of 'farfork move'. A guest that is still here after a move goes to the next host.\n\n"
          "  --guest NAME|PID        this one alone, by its -name or process number; repeatable\n"
          "  --hostfile FILE         hosts, one a line\n"
          "  --outside-jobs          only guests that are not part of a batch job\n"
          "  --jobs N                moves at once (2)\n"
          "  --launcher TEMPLATE     how a command gets to a host (ssh {host} {cmd})\n"
          "  --agent PROGRAM         farfork there\n"
          "  --rundir DIR            of the moves\n"
          "  --timeout SECONDS       for the hosts' first answers (20)\n"
          "  --dry-run               only say which guest would go where\n"
          "  --json                  print one line of JSON\n"
          "  --quiet                 print the last line alone\n"
          "  -h, --help              print this text\n\n"
          "Exit code: 0 all are gone; 1 some are here; 2 usage; 3 of one it is not known where it is, or it\n"
          "is incomplete or lost: the message says what to do.\n",
          out);
    return out == stdout ? 0 : EXIT_USAGE;
}

/* All but this very one */
static int other_hosts(const char *hostfile, char **args, struct hostlist *out, struct ff_error *why)
{
    int rc = hostfile ? hostlist_read_file(out, hostfile, false, why) : 0;

    for (; !rc && *args && strcmp(*args, "--"); args++)
        rc = hostlist_add(out, *args, why);
    if (!rc && !out->n)
        rc = hostlist_from_environment(out, why);
    for (size_t i = 0; !rc && i < out->n;)
        if (hostlist_is_here(&out->v[i]))
            hostlist_drop(out, i);
        else
            i++;
    return rc || out->n ? rc : ff_error_set(why, EINVAL, "no other host: name some");
}

/* What is one guest's, or evacuate's own; getopt_long() takes the beginnings of words, too */
static int check_more(const struct evacuate_options *o, size_t n_guests, struct ff_error *why)
{
    static const char *const own[] = {"--help", "--json", "--quiet", "--launcher", "--agent", "--rundir", "--domain",
                                      "--address", "--id"};
    static const char *const of_one[] = {"--record", "--tpm", "--unplug", "--plug"};

    for (size_t i = 0; i < o->n_more; i++) {
        const char *word = o->more[i];
        size_t len = strcspn(word, "=");
        bool bad = !strcmp(word, "-h") || !strcmp(word, "--");
        for (size_t k = 0; k < FF_ARRAY_LEN(own) && len > 2; k++)
            bad |= !strncmp(own[k], word, len);
        for (size_t k = 0; k < FF_ARRAY_LEN(of_one) && len > 2 && n_guests != 1; k++)
            bad |= !strncmp(of_one[k], word, len);
        if (bad)
            return ff_error_set(why, EINVAL, "%s: not among the options of every move", word);
    }
    return 0;
}

int cmd_evacuate(int argc, char **argv)
{
    enum { GUEST = 256, HOSTFILE, JOBS_AT_ONCE, LAUNCHER, AGENT, RUNDIR, TIMEOUT, OUTSIDE_JOBS, DRY_RUN, JSON, QUIET };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"guest", required_argument, NULL, GUEST},
                                            {"hostfile", required_argument, NULL, HOSTFILE},
                                            {"outside-jobs", no_argument, NULL, OUTSIDE_JOBS},
                                            {"jobs", required_argument, NULL, JOBS_AT_ONCE},
                                            {"launcher", required_argument, NULL, LAUNCHER},
                                            {"agent", required_argument, NULL, AGENT},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"dry-run", no_argument, NULL, DRY_RUN},
                                            {"json", no_argument, NULL, JSON},
                                            {"quiet", no_argument, NULL, QUIET},
                                            {0}};
    struct strv guests = {0};
    struct evacuate_options o = {
        .guests = &guests, .launcher = launcher_default(), .jobs = JOBS, .timeout_s = ANSWER_S};
    const char *hostfile = NULL;
    struct hostlist to = {0};
    struct ff_error why;
    int c, at = 0, n_own = 1;

    while (n_own < argc && strcmp(argv[n_own], "--"))
        n_own++;
    o.more = argv + n_own + (n_own < argc);
    o.n_more = n_own < argc ? (size_t)(argc - n_own - 1) : 0;
    while ((c = getopt_long(n_own, argv, "h", options, &at)) != -1)
        switch (c) {
        case GUEST: strv_add(&guests, "%s", optarg); break;
        case HOSTFILE: hostfile = optarg; break;
        case LAUNCHER: o.launcher = optarg; break;
        case AGENT: o.agent = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case DRY_RUN: o.dry_run = true; break;
        case JSON: o.json = true; break;
        case QUIET: o.quiet = true; break;
        case OUTSIDE_JOBS: o.outside_jobs = true; break;
        case JOBS_AT_ONCE:
            if (!value_number("farfork evacuate", &options[at], optarg, 1, JOBS_MAX, &o.jobs))
                return EXIT_USAGE;
            break;
        case TIMEOUT:
            if (!value_number("farfork evacuate", &options[at], optarg, 1, 86400, &o.timeout_s))
                return EXIT_USAGE;
            break;
        default: return c == 'h' ? evacuate_usage(stdout) : value_unknown("farfork evacuate");
        }
    int rc = launcher_check(o.launcher, &why);
    if (!rc && o.outside_jobs && guests.n)
        rc = ff_error_set(&why, EINVAL, "--outside-jobs and --guest: one of the two");
    if (!rc)
        rc = check_more(&o, guests.n, &why);
    if (!rc)
        rc = other_hosts(hostfile, argv + optind, &to, &why);
    if (rc)
        fprintf(stderr, "farfork: %s\n", why.text);
    int code = rc ? EXIT_USAGE : evacuate_host(&o, &to);
    hostlist_free(&to);
    strv_free(&guests);
    return code;
}
