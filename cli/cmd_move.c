/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_move.c - farfork move: parse, move, print
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "move.h"
#include "move_domain.h"
#include "value.h"

#define TIMEOUT_S 60
#define LEASE_S 30

static int move_usage(FILE *out)
{
    fputs(
        "usage: farfork move [OPTION...] PARENT HOST[=ADDRESS]\n"
        "       farfork move --domain NAME [OPTION...] URI [-- WORD...]\n\n"
        "Move a running guest to another host: it stops here and runs there at once, and its\n"
        "memory follows. PARENT is the QMP socket of its QEMU, on this host; disks are on storage\n"
        "that both hosts share.\n\n"
        "  --domain NAME           move libvirt's domain NAME; URI is of the libvirt there:\n"
        "                          qemu+ssh://HOST/system. WORDs are two of virsh migrate's: --persistent\n"
        "                          and --undefinesource. Of the options below: launcher, options, agent,\n"
        "                          timeout, json\n"
        "  --address ADDRESS       with that: of HOST, for the memory\n"
        "  --launcher TEMPLATE     how to run {cmd} on {host}; default: 'ssh {host} {cmd}'\n"
        "  --via attach|transport  by a process beside each QEMU, whatever QEMU it is, or by the transport\n"
        "                          of patched QEMUs; default: attach\n"
        "  --options OPTIONS       of the transport: 'precopy=1,timeout=30'\n"
        "  --qemu PATH             the QEMU there; default: the one here\n"
        "  --tpm SOCKET            with a TPM: the control socket of an swtpm there\n"
        "  --unplug ID             the guest lets that device go before it is moved; repeatable\n"
        "  --keep-source           the QEMU here is not quit once all is there: it stands still, and\n"
        "                          cannot run the guest\n"
        "  --plug SPEC             it gets that one there, as -device has it; repeatable\n"
        "  --same-disks            do not look whether the host has the same images by their names, and no\n"
        "                          copies: you know that they are the same\n"
        "  --agent PATH            farfork there; default: this program\n"
        "  --rundir DIR            sockets, logs and state; default: /run/farfork\n"
        "  --id ID                 name the move\n"
        "  --fallback go           keep the right to take the guest back until all is there\n"
        "  --fence PROGRAM         with that: ends the QEMU there for good before that\n"
        "  --lease SECONDS         with that: the guest there stands still when it has not heard\n"
        "                          from here for so long; default: 30\n"
        "  --record FILE           with that: where it is written down before\n"
        "  --overlays DIR          with that: a folder of both hosts, for overlays of its disks\n"
        "  --timeout SECONDS       give up a move without progress after so long; default: 60\n"
        "  --unconfined            the guest's command line is yours: it may name scripts and helpers, and\n"
        "                          the agent there has no filter\n"
        "  --scope one|each|none   systemd's scopes there, in farfork.slice: one of an agent and all\n"
        "                          that it starts, one of each, or none; default: one, if it can be\n"
        "  --metrics-dir DIR       count there, on both hosts, for monitoring\n"
        "  --json                  print one JSON object\n"
        "  --quiet                 no live line\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0 the guest runs there; 1 it is here still; 2 usage; 3 it is lost, incomplete\n"
        "or unknown: the message says what to do.\n",
        out);
    return out == stdout ? 0 : EXIT_USAGE;
}

/* An option that a domain's move has no use for; NULL: none was given */
static const char *not_of_domain(const struct session_options *o, const struct move_fallback *back, const struct move_way *way)
{
    const struct {
        const char *name;
        bool given;
    } all[] = {{"--qemu", o->qemu},          {"--rundir", o->rundir},
               {"--id", o->id},              {"--fallback go", back->go},
               {"--fence", back->fence},
               {"--lease", back->lease_s},   {"--record", back->record},
               {"--overlays", back->overlays}, {"--via transport", way->via == VIA_TRANSPORT},
               {"--tpm", way->tpm},          {"--keep-source", way->keep_source},
               {"--same-disks", way->same_disks}, {"--metrics-dir", o->metrics_dir},
               {"--scope", o->scope},        {"--quiet", o->quiet},
               {"--unconfined", o->unconfined}, {"--unplug", way->unplug.n},
               {"--plug", way->plug.n}};

    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++)
        if (all[i].given)
            return all[i].name;
    return NULL;
}

/* @argv: URI, words */
static int move_domain(struct domain_options *d, const struct session_options *o,
                       const struct move_fallback *back, const struct move_way *way, char **argv)
{
    const char *option = not_of_domain(o, back, way);

    if (option) {
        fprintf(stderr, "farfork move: %s: not with --domain: leave it out\n", option);
        return EXIT_USAGE;
    }
    if (!*argv)
        return move_usage(stderr);
    d->uri = argv[0];
    d->words = argv + 1;
    d->launcher = o->launcher;
    d->agent = o->agent;
    d->link_options = o->link_options;
    d->timeout_s = o->timeout_s;
    d->json = o->json;
    return output_code("farfork move", move_domain_run(d), MOVE_EXIT_TROUBLE);
}

int cmd_move(int argc, char **argv)
{
    enum {
        LAUNCHER = 256, OPTIONS, QEMU, AGENT, RUNDIR, ID, TIMEOUT, JSON, QUIET, FALLBACK, FENCE,
        LEASE, RECORD, OVERLAYS, VIA, DOMAIN, ADDRESS, METRICS_DIR, SCOPE,
        TPM, UNPLUG, PLUG, KEEP_SOURCE, UNCONFINED, SAME_DISKS
    };
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"launcher", required_argument, NULL, LAUNCHER},
        {"options", required_argument, NULL, OPTIONS}, {"qemu", required_argument, NULL, QEMU},
        {"agent", required_argument, NULL, AGENT}, {"rundir", required_argument, NULL, RUNDIR},
        {"id", required_argument, NULL, ID}, {"timeout", required_argument, NULL, TIMEOUT},
        {"fallback", required_argument, NULL, FALLBACK}, {"fence", required_argument, NULL, FENCE},
        {"lease", required_argument, NULL, LEASE}, {"record", required_argument, NULL, RECORD},
        {"overlays", required_argument, NULL, OVERLAYS},
        {"domain", required_argument, NULL, DOMAIN}, {"address", required_argument, NULL, ADDRESS},
        {"via", required_argument, NULL, VIA},
        {"same-disks", no_argument, NULL, SAME_DISKS},
        {"unplug", required_argument, NULL, UNPLUG}, {"plug", required_argument, NULL, PLUG},
        {"unconfined", no_argument, NULL, UNCONFINED},
        {"keep-source", no_argument, NULL, KEEP_SOURCE},
        {"scope", required_argument, NULL, SCOPE},
        {"metrics-dir", required_argument, NULL, METRICS_DIR},
        {"tpm", required_argument, NULL, TPM}, {"json", no_argument, NULL, JSON},
        {"quiet", no_argument, NULL, QUIET}, {0}};
    struct session_options o = {.n = 2, .timeout_s = TIMEOUT_S};
    struct move_fallback back = {0};
    struct move_way way = {.via = VIA_ATTACH};
    struct domain_options domain = {0};
    int opt, word, at = 0;

    while ((opt = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (opt) {
        case LAUNCHER: o.launcher = optarg; break;
        case OPTIONS: o.link_options = optarg; break;
        case QEMU: o.qemu = optarg; break;
        case AGENT: o.agent = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case ID: o.id = optarg; break;
        case TIMEOUT:
            if (!value_number("farfork move", &options[at], optarg, 1, 86400, &o.timeout_s))
                return EXIT_USAGE;
            break;
        case FALLBACK:
            if ((word = value_word("farfork move", &options[at], optarg, "off|go")) < 0)
                return EXIT_USAGE;
            back.go = word == 1;
            break;
        case FENCE: back.fence = optarg; break;
        case LEASE:
            if (!value_number("farfork move", &options[at], optarg, 1, 3600, &back.lease_s))
                return EXIT_USAGE;
            break;
        case RECORD: back.record = optarg; break;
        case OVERLAYS: back.overlays = optarg; break;
        case VIA:
            if ((word = value_word("farfork move", &options[at], optarg, "attach|transport")) < 0)
                return EXIT_USAGE;
            way.via = word ? VIA_TRANSPORT : VIA_ATTACH;
            break;
        case DOMAIN: domain.name = optarg; break;
        case ADDRESS: domain.address = optarg; break;
        case TPM: way.tpm = optarg; break;
        case UNPLUG: strv_add(&way.unplug, "%s", optarg); break;
        case PLUG:
            if (strpbrk(optarg, "\r\n"))
                return value_bad("farfork move", &options[at], optarg, "one line");
            strv_add(&way.plug, "%s", optarg);
            break;
        case UNCONFINED: o.unconfined = true; break;
        case KEEP_SOURCE: way.keep_source = true; break;
        case SAME_DISKS: way.same_disks = true; break;
        case SCOPE: o.scope = optarg; break;
        case METRICS_DIR: o.metrics_dir = optarg; break;
        case JSON: o.json = true; break;
        case QUIET: o.quiet = true; break;
        default: return opt == 'h' ? move_usage(stdout) : value_unknown("farfork move");
        }
    if (domain.name)
        return move_domain(&domain, &o, &back, &way, argv + optind);
    if (argc - optind != 2 || domain.address)
        return move_usage(stderr);
    if (!back.lease_s)
        back.lease_s = LEASE_S;
    o.parent_path = argv[optind];
    int code = move_run(&o, &back, &way, argv[optind + 1]);
    strv_free(&way.unplug);
    strv_free(&way.plug);
    return output_code("farfork move", code, MOVE_EXIT_TROUBLE);
}
