/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_promote.c - farfork promote: parse, find the child, move it into its parent's place, print
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "autojson.h"
#include "cli.h"
#include "defaults.h"
#include "move.h"
#include "promote.h"
#include "rundir.h"
#include "value.h"

#define TIMEOUT_S 60
#define HERE "localhost=127.0.0.1"

static int promote_usage(FILE *out)
{
    fputs(
        "usage: farfork promote [OPTION...] CHILD [HOST[=ADDRESS]]\n"
        "       farfork promote --look SOCKET [OPTION...]\n\n"
        "Let a child of a fork take its parent's place, on the parent's host: the parent ends, and the child\n"
        "goes on as that guest, with its name, QMP socket and NICs. What the parent did since the fork is given\n"
        "up. CHILD is on this host: FORK.NUMBER, as 'farfork forks' lists them, or the QMP socket of its QEMU. HOST is\n"
        "the parent's; default: this one, too.\n\n"
        "  --parent SOCKET         the parent's QMP socket; default: that which was forked\n"
        "  --commit                write the child's overlays into the images below them, where nobody else uses these\n"
        "  --launcher TEMPLATE     how to run {cmd} on {host}; default: 'ssh {host} {cmd}'\n"
        "  --agent PATH            farfork there; default: this program\n"
        "  --look SOCKET           print as JSON what the parent at that QMP socket of this host was started with: for a\n"
        "                          child that is on another host\n"
        "  --image NAME            with that: look for children here that have that image\n"
        "  --options OPTIONS       of the transport: 'timeout=30'\n"
        "  --rundir DIR            sockets, logs and state, of the fork, too; default: /run/farfork\n"
        "  --id ID                 name the guest's run directory\n"
        "  --timeout SECONDS       give up without progress after so long; default: 60\n"
        "  --unconfined            the parent's command line is yours: it may name scripts and helpers\n"
        "  --json                  print one JSON object\n"
        "  --quiet                 no live line\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0 the child is the guest now; 1 child and parent are what they were; 2 usage; 3 it is\n"
        "incomplete or unknown: the message says what to do.\n",
        out);
    return out == stdout ? 0 : EXIT_USAGE;
}

static int print_look(const struct session_options *o, const char *parent, const char *image)
{
    FF_AUTO_FREE char *base = o->rundir ? defaults_absolute_path(o->rundir) : rundir_base();
    FF_AUTO_JSON json_t *found = NULL;
    struct ff_error why;

    if (promote_look(parent, base, image, o->timeout_s, &found, &why)) {
        fprintf(stderr, "farfork promote: %s\n", why.text);
        return MOVE_EXIT_HERE;
    }
    json_dumpf(found, stdout, JSON_COMPACT);
    putchar('\n');
    return 0;
}

static int promote_child(struct session_options *o, const char *child, const char *parent, const char *host,
                         bool commit)
{
    FF_AUTO_FREE char *base = o->rundir ? defaults_absolute_path(o->rundir) : rundir_base();
    const struct move_fallback none = {0};
    struct promote p = {.host = host, .commit = commit};
    struct move_way way = {.via = VIA_ATTACH, .promote = &p};
    struct ff_error why;
    int code = MOVE_EXIT_HERE;

    if (promote_find(&p, base, child, parent, &why)) {
        fprintf(stderr, "farfork promote: %s\n", why.text);
    } else {
        o->parent_path = p.child_qmp;
        code = move_run(o, &none, &way, host);
    }
    promote_free(&p);
    return code;
}

int cmd_promote(int argc, char **argv)
{
    enum { PARENT = 256, COMMIT, LAUNCHER, AGENT, LOOK, IMAGE, OPTIONS, RUNDIR, ID, TIMEOUT, UNCONFINED, JSON, QUIET };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"parent", required_argument, NULL, PARENT},
                                            {"commit", no_argument, NULL, COMMIT},
                                            {"launcher", required_argument, NULL, LAUNCHER},
                                            {"agent", required_argument, NULL, AGENT},
                                            {"look", required_argument, NULL, LOOK},
                                            {"image", required_argument, NULL, IMAGE},
                                            {"options", required_argument, NULL, OPTIONS},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"id", required_argument, NULL, ID},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"unconfined", no_argument, NULL, UNCONFINED},
                                            {"json", no_argument, NULL, JSON},
                                            {"quiet", no_argument, NULL, QUIET},
                                            {0}};
    struct session_options o = {.n = 2, .timeout_s = TIMEOUT_S};
    const char *parent = NULL, *looked = NULL, *image = "";
    bool commit = false;
    int opt, at = 0;

    while ((opt = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (opt) {
        case PARENT: parent = optarg; break;
        case COMMIT: commit = true; break;
        case LAUNCHER: o.launcher = optarg; break;
        case AGENT: o.agent = optarg; break;
        case LOOK: looked = optarg; break;
        case IMAGE: image = optarg; break;
        case OPTIONS: o.link_options = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case ID: o.id = optarg; break;
        case TIMEOUT:
            if (!value_number("farfork promote", &options[at], optarg, 1, 86400, &o.timeout_s))
                return EXIT_USAGE;
            break;
        case UNCONFINED: o.unconfined = true; break;
        case JSON: o.json = true; break;
        case QUIET: o.quiet = true; break;
        default: return opt == 'h' ? promote_usage(stdout) : value_unknown("farfork promote");
        }
    const int words = argc - optind;
    if (looked ? words : words != 1 && words != 2)
        return promote_usage(stderr);
    return output_code("farfork promote", looked ? print_look(&o, looked, image)
                                                 : promote_child(&o, argv[optind], parent, words == 2 ? argv[optind + 1] : HERE, commit),
                       MOVE_EXIT_TROUBLE);
}
