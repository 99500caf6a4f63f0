/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_proxy.c - farfork proxy: parse, one side of a move
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "proxy.h"

static int proxy_usage(FILE *out)
{
    fputs(
        "usage: farfork proxy --source --qmp SOCKET --listen PATH [OPTION...] ADDRESS\n"
        "       farfork proxy --destination --qmp SOCKET --connect PATH [OPTION...] ADDRESS\n"
        "           [-- QEMU ARGUMENT...]\n"
        "       farfork proxy --source --domain NAME --to URI --listen PATH [OPTION...] ADDRESS\n"
        "           [-- WORD...]\n"
        "       farfork proxy --destination --domain NAME --connect PATH [OPTION...] ADDRESS\n\n"
        "One side of a move between two QEMUs that are not patched: a process beside each. The\n"
        "source's tells its QEMU to migrate, the destination's reads the memory of its QEMU.\n"
        "ADDRESS is HOST:PORT[,option...] of the destination's proxy.\n\n"
        "  --source                beside the QEMU that has the guest\n"
        "  --destination           beside the one that is to have it, started with -incoming defer\n"
        "  --qmp SOCKET            of the QEMU\n"
        "  --pid PID               of the QEMU; default: as its socket says\n"
        "  --listen PATH           unix socket where the source's QEMU sends its stream\n"
        "  --connect PATH          unix socket where the destination's QEMU reads it\n"
        "  --domain NAME           the QEMU is of libvirt's domain NAME, which the source's proxy moves\n"
        "                          by virsh migrate, with WORDs; PATH is the same on both hosts\n"
        "  --to URI                of the destination's libvirt: qemu+ssh://HOST/system\n"
        "  --keyed                 the first line of input is ADDRESS's key; its end ends the move,\n"
        "                          before the guest was let go\n"
        "  --rundir DIR            a run directory that is removed at the end\n"
        "  --untested              also with a QEMU whose version was not tested\n"
        "  --from-stream           on both sides: main memory comes by QEMU's own stream as well: slower,\n"
        "                          but nobody has to be permitted to look into QEMU\n"
        "  --metrics-dir DIR       count there, for monitoring\n"
        "  --json                  print events, a JSON object a line\n"
        "  -h, --help              print this text\n\n"
        "With -- the destination's proxy starts that QEMU itself.\n\n"
        "Exit code: 0 the guest runs at the destination; 1 it is at the source still; 2 usage; 3 it\n"
        "is lost, incomplete or unknown: the message says what to do.\n",
        out);
    return out == stdout ? 0 : EXIT_USAGE;
}

int cmd_proxy(int argc, char **argv)
{
    enum { SOURCE = 256, DESTINATION, QMP, PID, LISTEN, CONNECT, JSON, RUNDIR, UNTESTED,
           FROM_STREAM, DOMAIN, TO, KEYED, METRICS_DIR };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"source", no_argument, NULL, SOURCE},
                                            {"destination", no_argument, NULL, DESTINATION},
                                            {"qmp", required_argument, NULL, QMP},
                                            {"pid", required_argument, NULL, PID},
                                            {"listen", required_argument, NULL, LISTEN},
                                            {"connect", required_argument, NULL, CONNECT},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"untested", no_argument, NULL, UNTESTED},
                                            {"from-stream", no_argument, NULL, FROM_STREAM},
                                            {"domain", required_argument, NULL, DOMAIN},
                                            {"to", required_argument, NULL, TO},
                                            {"keyed", no_argument, NULL, KEYED},
                                            {"metrics-dir", required_argument, NULL, METRICS_DIR},
                                            {"json", no_argument, NULL, JSON},
                                            {0}};
    struct proxy_options o = {0};
    const char *listen = NULL, *connect = NULL;
    bool source = false, destination = false;
    unsigned pid;
    int opt;

    while ((opt = getopt_long(argc, argv, "+h", options, NULL)) != -1)
        switch (opt) {
        case SOURCE: source = true; break;
        case DESTINATION: destination = true; break;
        case QMP: o.qmp = optarg; break;
        case PID:
            if (!parse_number(optarg, 1u << 22, &pid)) /* the kernel's own limit */
                return proxy_usage(stderr);
            o.pid = (pid_t)pid;
            break;
        case LISTEN: listen = optarg; break;
        case CONNECT: connect = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case UNTESTED: o.untested = true; break;
        case FROM_STREAM: o.from_stream = true; break;
        case DOMAIN: o.domain = optarg; break;
        case TO: o.to = optarg; break;
        case KEYED: o.keyed = true; break;
        case METRICS_DIR: o.metrics_dir = optarg; break;
        case JSON: o.json = true; break;
        default: return proxy_usage(opt == 'h' ? stdout : stderr);
        }
    o.path = source ? listen : connect;
    if (o.path && !strncmp(o.path, "unix:", 5)) /* as QEMU writes it */
        o.path += 5;
    if (source == destination || !o.qmp == !o.domain || !o.path || (source ? connect : listen) || optind == argc)
        return proxy_usage(stderr);
    if (o.domain ? !o.to == source || o.pid || o.from_stream || strchr(o.domain, '/')
                 : o.to || o.keyed)
        return proxy_usage(stderr);
    o.address = argv[optind++];
    if (optind < argc && !strcmp(argv[optind], "--"))
        optind++;
    if (optind < argc && source != (o.domain != NULL))
        return proxy_usage(stderr);
    if (optind < argc)
        o.argv = argv + optind;
    return output_code("farfork proxy", source ? proxy_source_run(&o) : proxy_dest_run(&o),
                       PROXY_EXIT_TROUBLE);
}
