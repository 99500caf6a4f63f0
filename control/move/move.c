/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move.c - farfork move: let a running guest end here and run on another host
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connect to the guest's QEMU; refuse what cannot be moved
 *              an agent on the host, without an image -> run directory
 *              its QEMU, from the command line here   -> waits for a migration (-incoming defer)
 *              migrate-incoming, by the agent         -> listens; its port is known
 *              keep                                   -> the agent ends nothing any more
 *              migrate rdma-postcopy:                 -> runs there; memory follows
 *              completed, and seen there: quit here
 *              the agent is let go
 *
 * Failure      until the source says that it gave the guest away it goes on here, and what was
 *              started there is ended; see move_follow.c for what comes after. That the guest is
 *              here is only said where its QEMU said so last: it may have ended, or be moved by
 *              somebody else.
 *              Killed, this program leaves both QEMUs and the agent: the move goes on to its end,
 *              only the QEMU here is not quit.
 * Limits       every wait ends after --timeout seconds without anything new.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "farfork.h"
#include "launcher.h"
#include "move.h"
#include "rundir.h"

#define TIMEOUT_S 60
#define EXIT_HERE 1
#define EXIT_TROUBLE 3

static int usage(FILE *out)
{
    fputs("usage: farfork move [OPTION...] PARENT HOST[=ADDRESS]\n\n"
          "Move a running guest to another host: it ends here and runs there at once, its memory\n"
          "follows. PARENT is the QMP socket of its QEMU, on this host; disks are on storage that\n"
          "both hosts share.\n\n"
          "  --launcher TEMPLATE     how to run {cmd} on {host}; default: 'ssh {host} {cmd}'\n"
          "  --options OPTIONS       of the transport: 'precopy=1,timeout=30'\n"
          "  --qemu PATH             the QEMU there; default: the one here\n"
          "  --agent PATH            farfork there; default: this program\n"
          "  --rundir DIR            sockets, logs and state; default: /run/farfork\n"
          "  --id ID                 name the move\n"
          "  --timeout SECONDS       give up what does not move for so long; default: 60\n"
          "  --json                  print one JSON object\n"
          "  --quiet                 no live line\n"
          "  -h, --help              print this text\n\n"
          "Exit code: 0 the guest runs there; 1 its QEMU says that it is here still; 2 usage; 3 it\n"
          "is lost, incomplete or unknown where: the message says what to do.\n", out);
    return out == stdout ? 0 : EXIT_USAGE;
}

static int say(const struct why *why)
{
    fprintf(stderr, "farfork move: %s\n", why->text);
    return EXIT_USAGE;
}

/* 0: the guest can be sent */
static int prepare(struct move *m)
{
    struct why *why = &m->c.why;
    int rc = clone_plan(&m->c, why);

    if (!rc)
        rc = move_find_parent(m, why);
    if (!rc)
        rc = move_check_argv(m, why);
    if (!rc)
        rc = move_start(m, why);
    return rc;
}

static int run(struct move *m)
{
    clone_block_signals(&m->c);
    m->begin_ms = now_exact_ms();
    m->downtime_ms = -1;
    int rc = prepare(m);
    if (!rc)
        move_guest(m);
    if (m->sent)
        move_show(m, true);
    move_let_go(m);
    if (m->outcome == MOVE_HERE)
        move_see_here(m);
    int code = m->outcome == MOVE_THERE ? 0 : m->outcome == MOVE_HERE ? EXIT_HERE : EXIT_TROUBLE;
    if (m->o.json)
        move_print_json(m, code);
    else
        move_print_text(m, code);
    return output_code("farfork move", code, EXIT_TROUBLE);
}

static int check_options(const struct clone_options *o, struct why *why)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a = NULL;
    AUTO_FREE char *address = xprintf("127.0.0.1:1%s%s", o->link_options ? "," : "",
                                      o->link_options ? o->link_options : "");
    int rc = ff_address_parse(address, &a, err);

    if (rc)
        refuse(why, EINVAL, "--options: %s", ff_error_message(err));
    else if (o->id && !rundir_name_valid(o->id))
        rc = refuse(why, EINVAL, "--id %s: want at most 40 letters, digits and . _ -, the first a "
                                 "letter or digit", o->id);
    else
        rc = launch_check(o->launcher, why);
    ff_address_free(a);
    ff_error_free(err);
    return rc;
}

static int move(struct move *m, const char *socket, const char *host)
{
    struct clone_options *o = &m->o;
    AUTO_FREE char *path = absolute_path(socket), *id = o->id ? xstrdup(o->id) : default_id(path);
    AUTO_FREE char *agent = o->agent ? xstrdup(o->agent) : default_agent();
    AUTO_FREE char *rundir = o->rundir ? absolute_path(o->rundir) : NULL;
    struct why why;

    o->parent_path = path;
    o->id = id;
    o->agent = agent;
    o->rundir = rundir;
    m->c.o = o;
    int rc = check_options(o, &why);
    if (!rc)
        rc = nodes_add(&m->c.nodes, host, &why);
    int code = rc ? say(&why) : run(m);
    words_free(&m->argv);
    json_decref(m->images);
    overlays_owner_free(&m->owner);
    clone_free(&m->c);
    return code;
}

int cmd_move(int argc, char **argv)
{
    enum { LAUNCHER = 256, OPTIONS, QEMU, AGENT, RUNDIR, ID, TIMEOUT, JSON, QUIET };
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"launcher", required_argument, NULL, LAUNCHER},
        {"options", required_argument, NULL, OPTIONS}, {"qemu", required_argument, NULL, QEMU},
        {"agent", required_argument, NULL, AGENT}, {"rundir", required_argument, NULL, RUNDIR},
        {"id", required_argument, NULL, ID}, {"timeout", required_argument, NULL, TIMEOUT},
        {"json", no_argument, NULL, JSON}, {"quiet", no_argument, NULL, QUIET}, {0}};
    struct move m = {.o = {.launcher = LAUNCH_DEFAULT, .n = 1, .timeout_s = TIMEOUT_S,
                           .move = true}};
    int opt;

    while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1)
        switch (opt) {
        case LAUNCHER: m.o.launcher = optarg; break;
        case OPTIONS: m.o.link_options = optarg; break;
        case QEMU: m.o.qemu = optarg; break;
        case AGENT: m.o.agent = optarg; break;
        case RUNDIR: m.o.rundir = optarg; break;
        case ID: m.o.id = optarg; break;
        case TIMEOUT:
            if (!parse_number(optarg, 86400, &m.o.timeout_s))
                return usage(stderr);
            break;
        case JSON: m.o.json = true; break;
        case QUIET: m.o.quiet = true; break;
        default: return usage(opt == 'h' ? stdout : stderr);
        }
    return argc - optind == 2 ? move(&m, argv[optind], argv[optind + 1]) : usage(stderr);
}
