/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_attach.c - farfork attach: parse, one side of a move
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "attach.h"
#include "child_domain.h"
#include "cli.h"
#include "defaults.h"
#include "parent.h"
#include "value.h"

#define PID_MAX_LIMIT (1u << 22) /* the kernel's own */

static int attach_usage(FILE *out)
{
    fputs(
        "usage: farfork attach --source --qmp SOCKET [OPTION...] ADDRESS\n"
        "       farfork attach --destination --qmp SOCKET --connect PATH [OPTION...] ADDRESS\n"
        "       farfork attach --source|--destination --domain NAME [OPTION...] ADDRESS\n"
        "       farfork attach --parent --qmp SOCKET | --domain NAME\n"
        "       farfork attach --child FILE\n\n"
        "One side of a move, beside its QEMU, which may be any: farfork move starts both. ADDRESS is\n"
        "HOST:PORT[,option...] of the destination's.\n\n"
        "  --source                beside the QEMU that has the guest\n"
        "  --destination           beside the one that is to have it, started with -incoming defer\n"
        "  --parent                beside one whose guest is forked: vmclone starts it, and speaks QMP at its input\n"
        "  --child FILE            in place of a forked domain that an agent starts, which FILE describes\n"
        "  --qmp SOCKET            of the QEMU\n"
        "  --pid PID               of the QEMU; default: as its socket says\n"
        "  --connect PATH          unix socket where the destination's QEMU is to wait for its migration\n"
        "  --monitor PATH          unix socket where QMP says ADDRESS, by migrate or migrate-incoming\n"
        "                          with rdma-postcopy:ADDRESS, and query-migrate how far it is\n"
        "  --domain NAME           the QEMU is of libvirt's domain NAME: the first line of input is ADDRESS's key,\n"
        "                          the second one the domain, as farfork move --domain gives them; the end of\n"
        "                          input ends the move, before the guest was let go\n"
        "  --rundir DIR            a run directory that is removed at the end\n"
        "  --keep                  source: its QEMU is not ended when all is there: it stands still\n"
        "  --watcher PATH          destination: unix socket of who may attach to QEMU\n"
        "  --return PATH           the guest went with visit=on, and comes back: the monitor of the process on this host\n"
        "                          that moved it; the destination's ADDRESS has precopy=1 then\n"
        "  --image TEXT            the guest is a child of a fork, whose memory is a private view of that image: what it has\n"
        "                          written travels alone; both sides have the same TEXT\n"
        "  --view PID:START        destination, with that: a process of this host that has private views of it, too; START: when\n"
        "                          that was started, field 22 of /proc/PID/stat\n"
        "  --replaces PID:START:SOCKET  destination: a QEMU of this host and its QMP socket; it stands still before the guest\n"
        "                          runs here, and is ended then: it goes on if the guest stays where it is\n"
        "  --metrics-dir DIR       count there, for monitoring\n"
        "  --json                  print events, a JSON object a line\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0 the guest runs at the destination; 1 it is at the source still; 2 usage; 3 it\n"
        "is lost, incomplete or unknown: the message says what to do. There the source's side holds its QEMU, and\n"
        "ends with that, or by SIGTERM, which leaves it stopped (SIGSTOP).\n",
        out);
    return out == stdout ? 0 : EXIT_USAGE;
}

/* "PID:START"; what follows it; "?": it is none */
static const char *take_process(char *text, pid_t *pid, uint64_t *start)
{
    char *end;
    const long number = strtol(text, &end, 10);

    if (number < 1 || number > PID_MAX_LIMIT || *end != ':')
        return "?";
    *pid = (pid_t)number;
    text = end + 1;
    *start = strtoull(text, &end, 10);
    return end > text ? end : "?";
}

int cmd_attach(int argc, char **argv)
{
    enum { SOURCE = 256, DESTINATION, QMP, PID, CONNECT, JSON, MONITOR, RUNDIR, KEEP, WATCHER, METRICS_DIR,
           DOMAIN, PARENT, CHILD, RETURN, IMAGE, VIEW, REPLACES };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"source", no_argument, NULL, SOURCE},
                                            {"destination", no_argument, NULL, DESTINATION},
                                            {"parent", no_argument, NULL, PARENT},
                                            {"child", required_argument, NULL, CHILD},
                                            {"qmp", required_argument, NULL, QMP},
                                            {"pid", required_argument, NULL, PID},
                                            {"connect", required_argument, NULL, CONNECT},
                                            {"monitor", required_argument, NULL, MONITOR},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"keep", no_argument, NULL, KEEP},
                                            {"watcher", required_argument, NULL, WATCHER},
                                            {"metrics-dir", required_argument, NULL, METRICS_DIR},
                                            {"domain", required_argument, NULL, DOMAIN},
                                            {"return", required_argument, NULL, RETURN},
                                            {"image", required_argument, NULL, IMAGE},
                                            {"view", required_argument, NULL, VIEW},
                                            {"replaces", required_argument, NULL, REPLACES},
                                            {"json", no_argument, NULL, JSON},
                                            {0}};
    struct attach_options o = {0};
    bool source = false, destination = false, parent = false;
    const char *child = NULL;
    unsigned pid;
    int opt, at = 0;

    while ((opt = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (opt) {
        case SOURCE: source = true; break;
        case DESTINATION: destination = true; break;
        case PARENT: parent = true; break;
        case CHILD: child = optarg; break;
        case QMP: o.qmp = optarg; break;
        case PID:
            if (!value_number("farfork attach", &options[at], optarg, 1, PID_MAX_LIMIT, &pid))
                return EXIT_USAGE;
            o.pid = (pid_t)pid;
            break;
        case CONNECT: o.path = optarg; break;
        case MONITOR: o.monitor = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case WATCHER: o.watcher = optarg; break;
        case KEEP: o.keep = true; break;
        case DOMAIN: o.domain = optarg; break;
        case RETURN: o.returns = optarg; break;
        case IMAGE: o.image = optarg; break;
        case VIEW:
            if (strcmp(take_process(optarg, &o.view, &o.view_start), ""))
                return value_bad("farfork attach", &options[at], optarg, "PID:START");
            break;
        case REPLACES:
            o.replaces = take_process(optarg, &o.replaces_pid, &o.replaces_start);
            if (*o.replaces++ != ':')
                return value_bad("farfork attach", &options[at], optarg, "PID:START:SOCKET");
            break;
        case METRICS_DIR: o.metrics_dir = optarg; break;
        case JSON: o.json = true; break;
        default: return opt == 'h' ? attach_usage(stdout) : value_unknown("farfork attach");
        }
    if ((parent && (argc != 4 || !o.qmp == !o.domain)) || (child && argc != 3))
        return attach_usage(stderr);
    if (parent)
        return parent_run(o.qmp, o.domain);
    if (child)
        return child_domain_run(child);
    if (o.path && !strncmp(o.path, "unix:", 5)) /* as QEMU writes it */
        o.path += 5;
    if (o.domain ? o.qmp || o.path || o.pid || o.monitor || o.keep || o.watcher || o.returns || o.image || o.replaces : !o.qmp || !o.path != source)
        return attach_usage(stderr);
    if (source == destination || (o.watcher && source) || (o.keep && !source) || (source && (o.view || o.replaces)) ||
        (o.image && o.returns) || (o.view && !o.image) ||
        argc - optind != !o.monitor)
        return attach_usage(stderr);
    if (!o.monitor)
        o.address = argv[optind];
    return output_code("farfork attach", source ? attach_source_run(&o) : attach_dest_run(&o), ATTACH_EXIT_TROUBLE);
}
