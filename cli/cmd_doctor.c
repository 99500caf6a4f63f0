/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_doctor.c - farfork doctor: what this host can do, what it cannot, and why
 */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "defaults.h"
#include "farfork-probe.h"
#include "outside.h"
#include "value.h"

static const char *const marks[] = {
    [FF_CHECK_OK] = "ok", [FF_CHECK_LIMITED] = "limited", [FF_CHECK_NO] = "NO",
    [FF_CHECK_UNKNOWN] = "unknown"};

struct checks {
    json_t *json; /* array; NULL: print lines */
    int missing;
};

static void print_check(void *opaque, const char *subject, enum ff_check result, const char *why)
{
    struct checks *c = opaque;

    c->missing += result == FF_CHECK_NO;
    if (c->json)
        json_array_append_new(c->json, json_pack("{ss ss ss}", "subject", subject, "result",
                                                 marks[result], "why", why));
    else
        printf("%-8s %-28s %s\n", marks[result], subject, why);
}

static void take_port(void *opaque, const struct ff_rdma_port *p)
{
    json_t *gids = json_array();

    for (unsigned i = 0; i < p->n_gids; i++) {
        const struct ff_rdma_gid *g = &p->gids[i];
        json_array_append_new(gids, json_pack("{si ss ss ss sb}", "index", (int)g->index, "gid",
                                              g->gid, "type", g->type, "netdev", g->netdev,
                                              "elsewhere", g->elsewhere));
    }
    /* what JSON's readers cannot hold is no limit */
    json_t *max_mr =
        p->max_mr_bytes >> 53 ? json_null() : json_integer((json_int_t)p->max_mr_bytes);
    json_array_append_new(
        opaque, json_pack("{ss si ss ss ss ss si sI so sb sb ss so}", "device", p->device, "port",
                          (int)p->port, "firmware", p->firmware, "state", p->state, "link_layer",
                          p->link_layer, "transport", p->transport, "active_mtu_bytes",
                          (int)p->active_mtu_bytes, "max_msg_bytes", (json_int_t)p->max_msg_bytes,
                          "max_mr_bytes", max_mr, "odp", p->odp, "odp_rc_read", p->odp_rc_read,
                          "trouble", p->trouble, "gids", gids));
}

/* Whether a guest can be moved whose QEMU farfork did not start */
static void check_attach(struct checks *c)
{
    static const char of[] = "look into it: ";
    struct ff_error why;

    if (!outside_may_stranger(&why)) {
        print_check(c, "attach", FF_CHECK_OK, "may attach to a QEMU of this user: its guest can be moved");
        return;
    }
    const char *reason = strstr(why.text, of); /* without the number of a process that has ended */
    FF_AUTO_FREE char *text = xprintf("only guests of patched QEMUs can be moved (farfork move --via transport): %s",
                                      reason ? reason + strlen(of) : why.text);
    print_check(c, "attach", FF_CHECK_LIMITED, text);
}

static int print_checks(bool json)
{
    struct checks c = {.json = json ? json_array() : NULL};

    ff_host_check(print_check, &c);
    check_attach(&c);
    doctor_host(print_check, &c);
    if (json) {
        json_t *ports = json_array();
        ff_rdma_list(take_port, ports);
        json_t *all = json_pack("{so so}", "checks", c.json, "rdma_ports", ports);
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
    }
    return c.missing ? 1 : 0;
}

static int doctor_usage(FILE *out)
{
    fputs("usage: farfork doctor [--json]\n"
          "       farfork doctor --serve [[HOST:]PORT] [--device NAME[:PORT]] [--once] [--while-input]\n"
          "       farfork doctor --peer HOST[:PORT] [--device NAME[:PORT]] [--qps N] [--json]\n\n"
          "Print what this host can do, what it cannot, and why. One line a subject:\n"
          "ok, limited (it works, with less), NO (and what to do about it) or unknown (not looked at).\n"
          "Or find out whether two hosts can talk: --serve on one, --peer on the other.\n\n"
          "  --serve                 let peers read a pattern, over verbs and TCP, until Ctrl-C\n"
          "  --peer HOST[:PORT]      connect to a host that serves; print latency and bandwidth\n"
          "  --device NAME[:PORT]    verbs: use this device, or this port of it\n"
          "  --qps N                 verbs: queue pairs for bandwidth, 1 to 8\n"
          "  --once                  serve one peer\n"
          "  --while-input           serve until standard input ends\n"
          "  --json                  print one JSON object\n"
          "  -h, --help              print this text\n\n"
          "PORT is 4457 unless given; an IPv6 address goes in brackets: [fd08::2]:4457.\n"
          "Exit code: 0 guests can move here, or a link works; 1 a subject is NO, or no link\n"
          "works; 130 interrupted.\n", out);
    return out == stdout ? 0 : 2;
}

int cmd_doctor(int argc, char **argv)
{
    enum { SERVE = 256, PEER, DEVICE, QPS, ONCE, WHILE_INPUT, JSON };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"serve", no_argument, NULL, SERVE},
                                            {"peer", required_argument, NULL, PEER},
                                            {"device", required_argument, NULL, DEVICE},
                                            {"qps", required_argument, NULL, QPS},
                                            {"once", no_argument, NULL, ONCE},
                                            {"while-input", no_argument, NULL, WHILE_INPUT},
                                            {"json", no_argument, NULL, JSON},
                                            {0}};
    struct peer_options o = {.qps = 1};
    bool serve = false, peer = false;
    int c, at = 0;

    while ((c = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (c) {
        case SERVE: serve = true; break;
        case PEER: peer = true; o.where = optarg; break;
        case DEVICE: o.device = optarg; break;
        case QPS:
            if (!value_number("farfork doctor", &options[at], optarg, 1, 8, &o.qps))
                return EXIT_USAGE;
            break;
        case ONCE: o.once = true; break;
        case WHILE_INPUT: o.while_input = true; break;
        case JSON: o.json = true; break;
        default: return c == 'h' ? doctor_usage(stdout) : value_unknown("farfork doctor");
        }
    if (serve && optind < argc)
        o.where = argv[optind++];
    if (optind < argc || (serve && (peer || o.json)) || ((o.once || o.while_input) && !serve) ||
        (o.device && !serve && !peer) || o.qps < 1 || o.qps > 8)
        return doctor_usage(stderr);
    return serve ? doctor_serve(&o) : peer ? doctor_peer(&o) : print_checks(o.json);
}
