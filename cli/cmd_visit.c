/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_visit.c - farfork visit: parse, visit, print
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "value.h"
#include "visit.h"

#define VISIT_VMS 10 /* the QEMU there, the process beside it, and one for each try to get home by attaching */
#define VISIT_TIMEOUT_S 60
#define BUDGET_MIB_MAX (16u << 20) /* as budget= takes */
#define VISIT_LEASE_S 30

static int visit_usage(FILE *out)
{
    fputs(
        "usage: farfork visit [OPTION...] PARENT HOST[=ADDRESS]...\n"
        "       farfork visit --serve SOCKET [--permit ALIAS=HOST[=ADDRESS]]... [OPTION...] PARENT\n\n"
        "Let a running guest work on another host, and take it back with what it wrote: it runs\n"
        "there at once, gets what it touches of its memory, and comes home when a command here has\n"
        "ended, or at Ctrl-C. PARENT is the QMP socket of its QEMU, on this host, which stays; disks\n"
        "are on storage that both hosts share. With --until, several HOSTs are visited one after the\n"
        "other, and the guest is home between them.\n\n"
        "  --until COMMAND         run it here, by /bin/sh, once the guest is there, on $FARFORK_HOST; its\n"
        "                          end brings the guest home; default: until SIGINT, SIGTERM, SIGHUP or\n"
        "                          SIGUSR1\n"
        "  --serve SOCKET          visit when the guest asks for that, until its QEMU ends or a signal\n"
        "                          comes; SOCKET is that of its virtio-serial port org.farfork.0\n"
        "  --permit ALIAS=HOST[=ADDRESS]  with --serve: the guest may visit HOST, which it calls ALIAS;\n"
        "                          repeatable; default: none\n"
        "  --data [FORMAT:]PATH    a file or block device there, which the guest gets as a disk that it\n"
        "                          may not write; FORMAT is raw unless given; repeatable\n"
        "  --budget MIB            fetch so much of its memory before it is touched, and not more: first\n"
        "                          what it touched on earlier visits; default: only what it touches\n"
        "  --fallback go           keep the right to take the guest back, as it went, until it comes home\n"
        "  --fence PROGRAM, --lease SECONDS, --record FILE, --overlays DIR  with that: as farfork move\n"
        "                          has them\n"
        "  --home ADDRESS          of this host, which HOST reaches; default: the one that it is\n"
        "                          reached from\n"
        "  --launcher TEMPLATE     how to run {cmd} on {host}; default: 'ssh {host} {cmd}'\n"
        "  --options OPTIONS       of the transport, both ways: 'timeout=30,reconnect=60'; link is tcp\n"
        "  --qemu PATH             the QEMU there; default: the one here\n"
        "  --same-disks            do not look whether the host has the same images by their names, and no\n"
        "                          copies: you know that they are the same\n"
        "  --agent PATH            farfork there; default: this program\n"
        "  --rundir DIR            sockets, logs and state; default: /run/farfork\n"
        "  --id ID                 name the visit\n"
        "  --timeout SECONDS       give up a way there, or home, without progress after so long;\n"
        "                          default: 60\n"
        "  --unconfined            as farfork move has it\n"
        "  --scope one|each|none   systemd's scopes there, as farfork move has them\n"
        "  --metrics-dir DIR       count there, on both hosts, for monitoring\n"
        "  --json                  print one JSON object\n"
        "  --quiet                 no live line\n"
        "  -h, --help              print this text\n\n"
        "Exit code: 0 the guest is home; 1 it never left; 2 usage; 3 it is there still, lost, incomplete\n"
        "or unknown, was taken back, or could not work there: the message says what to do.\n",
        out);
    return out == stdout ? 0 : EXIT_USAGE;
}

static int visit_error(const struct ff_error *why)
{
    fprintf(stderr, "farfork visit: %s\n", why->text);
    return EXIT_USAGE;
}

/* What of it can be said before anything is done */
static int serve_visits(const struct visit_serve *s, const struct session_options *o, const struct visit_options *v,
                        const struct move_fallback *back)
{
    FF_AUTO_FREE char *options = NULL;
    struct ff_error why;
    struct visit visit;

    if (v->until) {
        ff_error_set(&why, EINVAL, "--until: not with --serve: the guest says when it comes home");
        return visit_error(&why);
    }
    if (back->go || back->fence || back->record || back->overlays) {
        ff_error_set(&why, EINVAL, "--fallback, --fence, --record, --overlays: not with --serve: a guest that is taken "
                     "back would wait for an answer that it had elsewhere");
        return visit_error(&why);
    }
    int rc = visit_init(&visit, v, &why);
    visit_free(&visit);
    if (!rc)
        rc = visit_link_options(o->link_options, &options, &why);
    if (!rc)
        rc = session_check_options(o, &why);
    return rc ? visit_error(&why) : visit_serve(s, o, v);
}

/* *@goes_on: it worked there and is home, and nobody wants it to stay */
static int run_visit(const struct session_options *o, const struct visit_options *v, const struct move_fallback *back,
                     const char *host, bool *goes_on)
{
    struct visit visit;
    struct ff_error why;
    int code = EXIT_USAGE;

    if (visit_init(&visit, v, &why)) {
        visit_error(&why);
    } else {
        const struct move_way way = {.via = VIA_ATTACH, .visit = &visit};
        code = move_run(o, back, &way, host);
    }
    *goes_on = !code && !visit.signalled;
    visit_free(&visit);
    return code;
}

/* Each memory that it has been given there is gone before it is given any at the next host */
static int run_visits(const struct session_options *o, const struct visit_options *v, const struct move_fallback *back,
                      char **hosts, int n)
{
    bool goes_on = true;
    struct ff_error why;
    int code = 0;

    if (n > 1 && !v->until) {
        ff_error_set(&why, EINVAL, "%d hosts: want --until COMMAND, whose end says when the guest goes on", n);
        return visit_error(&why);
    }
    for (int i = 0; i < n && goes_on; i++) {
        FF_AUTO_FREE char *id = o->id && n > 1 ? xprintf("%s-%d", o->id, i + 1) : NULL;
        struct session_options here = *o;
        here.id = id ? id : o->id;
        code = run_visit(&here, v, back, hosts[i], &goes_on);
        if (!goes_on && i + 1 < n)
            fprintf(stderr, "farfork visit: it does not go on to %s\n", hosts[i + 1]);
    }
    return code;
}

int cmd_visit(int argc, char **argv)
{
    enum {
        LAUNCHER = 256, OPTIONS, QEMU, AGENT, RUNDIR, ID, TIMEOUT, JSON, QUIET, UNTIL, DATA, HOME_AT, METRICS_DIR, SCOPE,
        SERVE, PERMIT, BUDGET, FALLBACK, FENCE, LEASE, RECORD, OVERLAYS, UNCONFINED, SAME_DISKS
    };
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"launcher", required_argument, NULL, LAUNCHER},
        {"options", required_argument, NULL, OPTIONS}, {"qemu", required_argument, NULL, QEMU},
        {"agent", required_argument, NULL, AGENT}, {"rundir", required_argument, NULL, RUNDIR},
        {"id", required_argument, NULL, ID}, {"timeout", required_argument, NULL, TIMEOUT},
        {"until", required_argument, NULL, UNTIL}, {"data", required_argument, NULL, DATA},
        {"home", required_argument, NULL, HOME_AT}, {"scope", required_argument, NULL, SCOPE},
        {"serve", required_argument, NULL, SERVE}, {"permit", required_argument, NULL, PERMIT},
        {"budget", required_argument, NULL, BUDGET},
        {"fallback", required_argument, NULL, FALLBACK}, {"fence", required_argument, NULL, FENCE},
        {"lease", required_argument, NULL, LEASE}, {"record", required_argument, NULL, RECORD},
        {"overlays", required_argument, NULL, OVERLAYS}, {"metrics-dir", required_argument, NULL, METRICS_DIR},
        {"unconfined", no_argument, NULL, UNCONFINED}, {"same-disks", no_argument, NULL, SAME_DISKS},
        {"json", no_argument, NULL, JSON}, {"quiet", no_argument, NULL, QUIET}, {0}};
    struct session_options o = {.n = VISIT_VMS, .timeout_s = VISIT_TIMEOUT_S};
    struct strv data = {0};
    struct visit_options v = {.data = &data};
    struct visit_serve serve = {0};
    struct move_fallback back = {.lease_s = VISIT_LEASE_S};
    struct ff_error why;
    int opt, word, at = 0;

    while ((opt = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (opt) {
        case SAME_DISKS: v.same_disks = true; break;
        case LAUNCHER: o.launcher = optarg; break;
        case OPTIONS: o.link_options = optarg; break;
        case QEMU: o.qemu = optarg; break;
        case AGENT: o.agent = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case ID: o.id = optarg; break;
        case TIMEOUT:
            if (!value_number("farfork visit", &options[at], optarg, 1, 86400, &o.timeout_s))
                return EXIT_USAGE;
            break;
        case UNTIL: v.until = optarg; break;
        case DATA: strv_add(&data, "%s", optarg); break;
        case BUDGET:
            if (!value_number("farfork visit", &options[at], optarg, 1, BUDGET_MIB_MAX, &v.budget_mib))
                return EXIT_USAGE;
            break;
        case FALLBACK:
            if ((word = value_word("farfork visit", &options[at], optarg, "off|go")) < 0)
                return EXIT_USAGE;
            back.go = word == 1;
            break;
        case FENCE: back.fence = optarg; break;
        case LEASE:
            if (!value_number("farfork visit", &options[at], optarg, 1, 3600, &back.lease_s))
                return EXIT_USAGE;
            break;
        case RECORD: back.record = optarg; break;
        case OVERLAYS: back.overlays = optarg; break;
        case HOME_AT: v.home = optarg; break;
        case UNCONFINED: o.unconfined = true; break;
        case SCOPE: o.scope = optarg; break;
        case SERVE: serve.port = optarg; break;
        case PERMIT:
            if (visit_permit_add(&serve, optarg, &why))
                return visit_error(&why);
            break;
        case METRICS_DIR: o.metrics_dir = optarg; break;
        case JSON: o.json = true; break;
        case QUIET: o.quiet = true; break;
        default: return opt == 'h' ? visit_usage(stdout) : value_unknown("farfork visit");
        }
    int n = argc - optind - 1;
    if (n < 0 || !n != !!serve.port || (serve.n_permits && !serve.port))
        return visit_usage(stderr);
    o.parent_path = argv[optind];
    int code = serve.port ? serve_visits(&serve, &o, &v, &back) : run_visits(&o, &v, &back, argv + optind + 1, n);
    visit_permits_free(&serve);
    strv_free(&data);
    return output_code("farfork visit", code, MOVE_EXIT_TROUBLE);
}
