/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * vmclone.c - fork a running guest into children on this and other hosts
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      parse, one call, print. --serve makes each fork with the options of this command
 *              line; the guest chooses only its number of children and the user data.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "fork.h"
#include "fork_place.h"
#include "defaults.h"
#include "farfork.h"
#include "launcher.h"
#include "pool.h"
#include "rundir.h"
#include "scope.h"
#include "serve.h"
#include "value.h"

#define TIMEOUT_S 60
#define FANOUT_MAX 32
#define CHILD_MEMORY_MAX (64u << 20) /* MiB */
#define DOMAIN_NODE "localhost"

static int vmclone_usage(FILE *out)
{
    fputs(
        "usage: vmclone [OPTION...] PARENT N [HOST[=ADDRESS][:SLOTS]...]\n"
        "       vmclone --domain NAME [OPTION...] N [HOST[=ADDRESS][:SLOTS]...]\n"
        "       vmclone --serve PORT [OPTION...] PARENT N [HOST[=ADDRESS][:SLOTS]...]\n"
        "       vmclone --keep N [OPTION...] PARENT [HOST[=ADDRESS][:SLOTS]...]\n"
        "       vmclone --list | --wait ID | --kill ID [OPTION...]\n\n"
        "Fork a running guest into N children. PARENT is the QMP socket of its QEMU, on this\n"
        "host; it goes on. Children go to the hosts in turn: those named, or those of the batch job\n"
        "(SLURM_JOB_NODELIST, PBS_NODEFILE), or this one.\n\n"
        "  --domain NAME           fork a domain of this host's libvirt, as root; children are transient domains\n"
        "  --hostfile FILE         hosts, one a line\n"
        "  --place pack|spread     by memory that hosts have, and reserve it: onto few hosts, or where most\n"
        "                          is left; default: in turn\n"
        "  --child-memory MiB      that a child is counted with for that; default: all that its guest has\n"
        "  --launcher TEMPLATE     how to run {cmd} on {host}; default: 'ssh {host} {cmd}', in a job of\n"
        "                          Slurm's srun\n"
        "  --fanout NUMBER|auto    so many hosts get the memory from this one, and each feeds so many\n"
        "                          others; 0: all from this one; default: auto\n"
        "  --multicast GROUP|auto  send the memory once, to a multicast group, for all other hosts;\n"
        "                          auto: from three of them on; default: off\n"
        "  --working-set FILE|none children's first pages come first: as FILE says, where they are kept\n"
        "                          for later forks; default: for those of the same parent\n"
        "  --prestart              start children before the parent freezes\n"
        "  --template              leave the parent paused, to be forked again\n"
        "  --net POLICY            isolated (default), user, bridge[:NAME], none, keep\n"
        "  --scratch DIR           put overlays of children there; default: /var/tmp\n"
        "  --overlays DIR          put overlays of the parent there; default: beside\n"
        "                          each image\n"
        "  --nbd ADDRESS:PORT      serve the disks to hosts that lack the parent's\n"
        "  --hostname TEMPLATE     of children; default: '{name}-{n}'\n"
        "  --ip TEMPLATE           ADDRESS/LENGTH[,GATEWAY] or dhcp; once for each NIC\n"
        "  --user-data TEXT        for farfork-guest's hooks\n"
        "  --options OPTIONS       of the memory's transport: 'window=4,timeout=30'\n"
        "  --qemu PATH             the children's QEMU; default: the parent's\n"
        "  --agent PATH            farfork on every host; default: beside this program\n"
        "  --rundir DIR            sockets, logs and state; default: /run/farfork\n"
        "  --id ID                 name the fork\n"
        "  --timeout SECONDS       give up a fork without progress after so long; default: 60\n"
        "  --follow                stay until the children have ended, and print how each did\n"
        "  --unconfined            the guest's command line is yours: it may name scripts and helpers, and\n"
        "                          agents have no filter\n"
        "  --scope one|each|none   systemd's scopes there, in farfork.slice: one of an agent and all\n"
        "                          that it starts, one of each, or none; default: one, if it can be\n"
        "  --metrics-dir DIR       count there, on every host, for monitoring\n"
        "  --json                  print one JSON object; with --follow one a line\n"
        "  --quiet                 no live lines\n"
        "  --serve PORT            fork when the guest asks for it (farfork-guest fork), into N\n"
        "                          children at most; PORT is the socket of its port org.farfork.0\n"
        "  --max-children NUMBER   with --serve: alive at a time, of all forks; default: 4 times N\n"
        "  --max-forks NUMBER      with --serve: in a minute; default: 60\n"
        "  --same-disks            do not look whether other hosts have the same images by their names, and\n"
        "                          no copies: you know that they are the same\n"
        "  --max-chain NUMBER      refuse a parent whose disk has more images, overlay upon overlay;\n"
        "                          default: 32 with --serve, else no limit\n"
        "  --keep N                stay, and keep N children of PARENT started on each host for the\n"
        "                          next fork of it by vmclone with the same hosts and options\n"
        "  --list                  list forks: those with children on this host, and on hosts\n"
        "                          that this one has sent children to\n"
        "  --wait ID               wait until the children of that fork have ended\n"
        "  --kill ID               end them and their agents\n"
        "  --version               print the version\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0 all children run; 1 some do; 2 usage; 3 none does. With --follow also 1:\n"
        "a child ended without farfork-guest's exit code 0.\n",
        out);
    return out == stdout ? EXIT_ALL : EXIT_USAGE;
}

static int print_error(const struct ff_error *why)
{
    fprintf(stderr, "vmclone: %s\n", why->text);
    return EXIT_USAGE;
}

struct command {
    const char *hostfile, *wait, *kill, *serve;
    bool list;
    enum placing place;
    unsigned timeout_s, max_children, max_forks, keep; /* 0: not given */
};

/* What the agent does elsewhere: it is of the domain's user here, who may not. All that this program
 * starts from now on is there */
static int enter_scope(struct fork_options *o, struct ff_error *why)
{
    enum scope_mode mode = SCOPE_AUTO;
    int rc = session_check_options(&o->s, why);

    if (rc || geteuid())
        return rc;
    if (o->s.scope)
        scope_mode_parse(o->s.scope, &mode);
    if (mode == SCOPE_EACH)
        return ff_error_set(why, EINVAL, "--scope each: a domain's user cannot ask systemd for each child: "
                            "want one or none");
    if (!scope_stays(mode))
        rc = scope_take(o->s.id, DOMAIN_NODE, 0, getpid(), why);
    o->s.scope = "none";
    if (rc == -EIO && mode == SCOPE_AUTO)
        fprintf(stderr, "vmclone: %s\n", why->text);
    return mode == SCOPE_AUTO ? 0 : rc;
}

static int fork_domain(const struct fork_options *given, char **args)
{
    FF_AUTO_FREE char *id = given->s.id ? xstrdup(given->s.id) : defaults_id(given->domain);
    FF_AUTO_FREE char *name = xprintf("libvirt:%s", given->domain);
    struct fork_options o = *given;
    struct hostlist hosts = {0};
    struct ff_error why;

    o.s.id = id;
    o.s.parent_path = name;
    int rc = *args ? 0 : hostlist_add(&hosts, DOMAIN_NODE, &why);
    for (char **host = args; !rc && *host; host++)
        rc = hostlist_add(&hosts, *host, &why);
    if (!rc)
        rc = enter_scope(&o, &why);
    if (!rc)
        rc = domain_books_open(o.domain, o.overlays, o.s.timeout_s, &o.s.books, &why);
    o.s.unconfined |= !rc;
    int code = rc ? print_error(&why) : fork_run(&o, &hosts);
    domain_books_close(o.s.books);
    hostlist_free(&hosts);
    return code;
}

static int fork_guest(const struct fork_options *given, const struct command *cmd, char **args)
{
    FF_AUTO_FREE char *scratch = given->scratch ? defaults_absolute_path(given->scratch) : NULL;
    FF_AUTO_FREE char *overlays = given->overlays ? defaults_absolute_path(given->overlays) : NULL;
    struct fork_options o = *given;
    struct hostlist hosts = {0};
    struct ff_error why;
    int rc = 0;

    o.s.parent_path = args[0];
    o.scratch = scratch;
    o.overlays = overlays;
    if (o.domain)
        return fork_domain(&o, args + 1);
    if (cmd->hostfile)
        rc = hostlist_read_file(&hosts, cmd->hostfile, false, &why);
    for (args += cmd->keep ? 1 : 2; !rc && *args; args++)
        rc = hostlist_add(&hosts, *args, &why);
    if (!rc && !hosts.n)
        rc = hostlist_from_environment(&hosts, &why);
    FF_AUTO_FREE char *id = o.s.id || !cmd->place ? NULL : defaults_id(o.s.parent_path);
    if (id)
        o.s.id = id;
    if (!rc && cmd->place)
        rc = fork_place(&o, cmd->place, &hosts, &why);
    int code = rc ? print_error(&why) : EXIT_ALL;
    if (!rc && cmd->keep)
        code = pool_keep(&o, &hosts, cmd->keep);
    else if (!rc && (o.events || !pool_fork(&o, &hosts, &code))) /* --serve names its forks */
        code = fork_run(&o, &hosts);
    hostlist_free(&hosts);
    return code;
}

struct given {
    const struct fork_options *o;
    const struct command *cmd;
    char **args;
};

/* One fork of --serve: everything is as given, but what the guest has said */
static int fork_for_guest(void *opaque, const char *id, unsigned n, const char *user, int events)
{
    const struct given *given = opaque;
    struct fork_options o = *given->o;

    o.s.id = id;
    o.s.n = n;
    o.user_data = user;
    o.follow = true;
    o.events = events;
    return fork_guest(&o, given->cmd, given->args);
}

static int serve_guest(const struct fork_options *o, const struct command *cmd, char **args)
{
    struct given given = {.o = o, .cmd = cmd, .args = args};
    FF_AUTO_FREE char *id = o->s.id ? xstrdup(o->s.id) : defaults_id(args[0]);
    struct serve_limits limits = {
        .children = cmd->max_children ? cmd->max_children : SERVE_CHILDREN_TIMES * o->s.n,
        .forks = cmd->max_forks ? cmd->max_forks : SERVE_FORKS,
    };
    const struct fork_serve s = {.port = cmd->serve, .id = id, .max = o->s.n, .limits = &limits,
                            .fork = fork_for_guest, .opaque = &given};
    struct ff_error why;

    return fork_serve(&s, &why) ? print_error(&why) : EXIT_ALL;
}

static int check_command(const struct fork_options *o, const struct command *cmd)
{
    struct ff_error why;
    int rc = session_check_options(&o->s, &why);

    if (rc)
        print_error(&why);
    else if (o->domain && (cmd->serve || cmd->hostfile || o->nbd || o->prestart))
        rc = fprintf(stderr, "vmclone: --domain: its children are on this host, and start when libvirt "
                             "has made their parent's overlays: leave out --serve, --hostfile, --nbd "
                             "and --prestart\n");
    else if (cmd->keep && (o->domain || cmd->serve || o->nbd || o->prestart || o->template ||
                           o->follow || o->user_data))
        rc = fprintf(stderr, "vmclone: --keep: leave out --domain, --serve, --nbd, --prestart, and "
                             "what each fork says for itself: --template, --follow, --user-data\n");
    else if (cmd->place && (o->domain || cmd->keep))
        rc = fprintf(stderr, "vmclone: --place: leave out --domain and --keep\n");
    else if (o->child_bytes && !cmd->place)
        rc = fprintf(stderr, "vmclone: --child-memory is for --place\n");
    else if (o->nbd && (!strchr(o->nbd, ':') || strpbrk(o->nbd, ",?#/")))
        rc = fprintf(stderr, "vmclone: --nbd %s: want ADDRESS:PORT\n", o->nbd);
    else if (!cmd->serve && (cmd->max_children || cmd->max_forks))
        rc = fprintf(stderr, "vmclone: --max-children and --max-forks are for --serve\n");
    else if (o->nbd && o->prestart)
        rc = fprintf(
            stderr,
            "vmclone: --nbd serves frozen disks, so no child can start before the freeze: leave "
            "--prestart out\n");
    return rc;
}

static bool parse_multicast(const char *text, const char **out, struct ff_error *why)
{
    *out = strcmp(text, "off") ? text : NULL;
    return !*out || !strcmp(text, "auto") || !fork_group_check(text, why);
}

static int parse_and_run(int argc, char **argv)
{
    enum {
        HOSTFILE = 256,
        FANOUT,
        MULTICAST,
        LAUNCHER,
        WORKING_SET,
        PRESTART,
        TEMPLATE,
        NET,
        SCRATCH,
        OPTIONS,
        QEMU,
        AGENT,
        RUNDIR,
        ID,
        TIMEOUT,
        OVERLAYS,
        NBD,
        HOSTNAME,
        IP,
        USER_DATA,
        FOLLOW,
        JSON,
        QUIET,
        LIST,
        WAIT,
        KILL,
        SERVE,
        MAX_CHILDREN,
        MAX_FORKS,
        MAX_CHAIN,
        SAME_DISKS,
        METRICS_DIR,
        SCOPE,
        DOMAIN,
        KEEP,
        PLACE,
        CHILD_MEMORY,
        UNCONFINED,
        VERSION
    };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"domain", required_argument, NULL, DOMAIN},
                                            {"keep", required_argument, NULL, KEEP},
                                            {"place", required_argument, NULL, PLACE},
                                            {"child-memory", required_argument, NULL, CHILD_MEMORY},
                                            {"hostfile", required_argument, NULL, HOSTFILE},
                                            {"fanout", required_argument, NULL, FANOUT},
                                            {"multicast", required_argument, NULL, MULTICAST},
                                            {"launcher", required_argument, NULL, LAUNCHER},
                                            {"working-set", required_argument, NULL, WORKING_SET},
                                            {"prestart", no_argument, NULL, PRESTART},
                                            {"template", no_argument, NULL, TEMPLATE},
                                            {"net", required_argument, NULL, NET},
                                            {"scratch", required_argument, NULL, SCRATCH},
                                            {"overlays", required_argument, NULL, OVERLAYS},
                                            {"nbd", required_argument, NULL, NBD},
                                            {"hostname", required_argument, NULL, HOSTNAME},
                                            {"ip", required_argument, NULL, IP},
                                            {"user-data", required_argument, NULL, USER_DATA},
                                            {"options", required_argument, NULL, OPTIONS},
                                            {"qemu", required_argument, NULL, QEMU},
                                            {"agent", required_argument, NULL, AGENT},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"id", required_argument, NULL, ID},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"follow", no_argument, NULL, FOLLOW},
                                            {"json", no_argument, NULL, JSON},
                                            {"quiet", no_argument, NULL, QUIET},
                                            {"list", no_argument, NULL, LIST},
                                            {"wait", required_argument, NULL, WAIT},
                                            {"kill", required_argument, NULL, KILL},
                                            {"serve", required_argument, NULL, SERVE},
                                            {"max-children", required_argument, NULL, MAX_CHILDREN},
                                            {"max-forks", required_argument, NULL, MAX_FORKS},
                                            {"max-chain", required_argument, NULL, MAX_CHAIN},
                                            {"same-disks", no_argument, NULL, SAME_DISKS},
                                            {"scope", required_argument, NULL, SCOPE},
                                            {"metrics-dir", required_argument, NULL, METRICS_DIR},
                                            {"unconfined", no_argument, NULL, UNCONFINED},
                                            {"version", no_argument, NULL, VERSION},
                                            {0}};
    struct fork_options o = {.net = NET_ISOLATED, .bridge = "br0", .fanout = -1,
                              .s.timeout_s = TIMEOUT_S};
    struct command cmd = {0};
    unsigned child_mib, fanout = 0;
    struct ff_error why;
    int opt, word, at = 0;

    while ((opt = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (opt) {
        case DOMAIN: o.domain = optarg; break;
        case KEEP:
            if (!value_number("vmclone", &options[at], optarg, 1, CHILDREN_MAX, &cmd.keep))
                return EXIT_USAGE;
            break;
        case HOSTFILE: cmd.hostfile = optarg; break;
        case PLACE:
            if ((word = value_word("vmclone", &options[at], optarg, "pack|spread")) < 0)
                return EXIT_USAGE;
            cmd.place = word ? PLACE_SPREAD : PLACE_PACK;
            break;
        case CHILD_MEMORY:
            if (!value_number("vmclone", &options[at], optarg, 1, CHILD_MEMORY_MAX, &child_mib))
                return EXIT_USAGE;
            o.child_bytes = (uint64_t)child_mib << 20;
            break;
        case FANOUT:
            if (strcmp(optarg, "auto") && !value_number("vmclone", &options[at], optarg, 0, FANOUT_MAX, &fanout))
                return EXIT_USAGE;
            o.fanout = strcmp(optarg, "auto") ? (int)fanout : -1;
            break;
        case MULTICAST:
            if (!parse_multicast(optarg, &o.multicast, &why))
                return print_error(&why);
            break;
        case LAUNCHER: o.s.launcher = optarg; break;
        case WORKING_SET: o.working_set = optarg; break;
        case PRESTART: o.prestart = true; break;
        case TEMPLATE: o.template = true; break;
        case NET:
            if (net_policy_parse(optarg, &o.net, &o.bridge, &why))
                return print_error(&why);
            break;
        case SCRATCH: o.scratch = optarg; break;
        case OVERLAYS: o.overlays = optarg; break;
        case NBD: o.nbd = optarg; break;
        case HOSTNAME: o.hostname = optarg; break;
        case IP: strv_add(&o.ip, "%s", optarg); break;
        case USER_DATA: o.user_data = optarg; break;
        case OPTIONS: o.s.link_options = optarg; break;
        case QEMU: o.s.qemu = optarg; break;
        case AGENT: o.s.agent = optarg; break;
        case RUNDIR: o.s.rundir = optarg; break;
        case ID: o.s.id = optarg; break;
        case TIMEOUT:
            if (!value_number("vmclone", &options[at], optarg, 1, 86400, &cmd.timeout_s))
                return EXIT_USAGE;
            break;
        case UNCONFINED: o.s.unconfined = true; break;
        case FOLLOW: o.follow = true; break;
        case SCOPE: o.s.scope = optarg; break;
        case METRICS_DIR: o.s.metrics_dir = optarg; break;
        case JSON: o.s.json = true; break;
        case QUIET: o.s.quiet = true; break;
        case LIST: cmd.list = true; break;
        case WAIT: cmd.wait = optarg; break;
        case KILL: cmd.kill = optarg; break;
        case SERVE: cmd.serve = optarg; break;
        case MAX_CHILDREN:
            if (!value_number("vmclone", &options[at], optarg, 1, CHILDREN_MAX, &cmd.max_children))
                return EXIT_USAGE;
            break;
        case MAX_FORKS:
            if (!value_number("vmclone", &options[at], optarg, 1, SERVE_FORKS_MAX, &cmd.max_forks))
                return EXIT_USAGE;
            break;
        case SAME_DISKS: o.same_disks = true; break;
        case MAX_CHAIN:
            if (!value_number("vmclone", &options[at], optarg, 1, CHILDREN_MAX, &o.max_chain))
                return EXIT_USAGE;
            break;
        case VERSION: puts("vmclone " FF_VERSION_STRING); return EXIT_ALL;
        default: return opt == 'h' ? vmclone_usage(stdout) : value_unknown("vmclone");
        }
    int others = cmd.list + !!cmd.wait + !!cmd.kill, args = argc - optind;
    int least = cmd.keep ? 1 : 2;
    if (others > 1 || (others ? args > 0 || o.domain : o.domain ? args < 1 : args < least))
        return vmclone_usage(stderr);
    if (cmd.list)
        return fork_list(o.s.rundir, o.s.json, cmd.timeout_s ? cmd.timeout_s : o.s.timeout_s);
    if (cmd.wait)
        return fork_wait(o.s.rundir, cmd.wait, cmd.timeout_s);
    if (cmd.kill)
        return fork_kill(o.s.rundir, cmd.kill, cmd.timeout_s ? cmd.timeout_s : o.s.timeout_s);
    if (cmd.timeout_s)
        o.s.timeout_s = cmd.timeout_s;
    if (cmd.serve && !o.max_chain)
        o.max_chain = SERVE_CHAIN;
    if (check_command(&o, &cmd))
        return EXIT_USAGE;
    const char *number = argv[optind + !o.domain];
    if (cmd.keep)
        return fork_guest(&o, &cmd, argv + optind);
    if (!parse_number(number, CHILDREN_MAX, &o.s.n)) {
        fprintf(stderr, "vmclone: \"%s\": want a number of children from 1 to %d\n", number,
                CHILDREN_MAX);
        return EXIT_USAGE;
    }
    return cmd.serve ? serve_guest(&o, &cmd, argv + optind) : fork_guest(&o, &cmd, argv + optind);
}

int main(int argc, char **argv)
{
    signal(SIGCHLD, SIG_DFL); /* who started it may have had it ignored: then nothing is known of a child's end */
    return output_code("vmclone", parse_and_run(argc, argv), EXIT_SOME);
}
