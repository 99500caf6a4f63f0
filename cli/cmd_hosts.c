/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_hosts.c - farfork hosts: what each of these hosts has for guests, asked of all at once
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      before a fork or a move: is everybody there, and who has room? Each host runs 'farfork hosts
 *              --here' by the launcher, which says it as one line of JSON (host_facts.h).
 * Failure      a host that does not answer, or has no farfork, has a row with the reason, and the exit code says
 *              so.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "autojson.h"
#include "cli.h"
#include "defaults.h"
#include "host_facts.h"
#include "hostlist.h"
#include "hosts_probe.h"
#include "launcher.h"
#include "reserve.h"
#include "rundir.h"
#include "value.h"

#define EXIT_SOME_SILENT 1
#define GIB (1ull << 30)

static int hosts_usage(FILE *out)
{
    fputs("usage: farfork hosts [OPTION...] [HOST[=ADDRESS][:SLOTS]...]\n\n"
          "Show what hosts have for guests: CPUs, memory, huge pages, KVM, RDMA, guests and forks. Without\n"
          "HOST: the hosts of the batch job (SLURM_JOB_NODELIST, PBS_NODEFILE), or this one.\n\n"
          "  --hostfile FILE         hosts, one a line\n"
          "  --launcher TEMPLATE     how a command gets to a host (ssh {host} {cmd})\n"
          "  --agent PROGRAM         farfork there\n"
          "  --rundir DIR            run directory there\n"
          "  --timeout SECONDS       for each answer (20)\n"
          "  --probe                 measure latency and rate, one host after the other, some seconds each\n"
          "  --here                  this host alone, without a launcher\n"
          "  --qemus                 with --here: also ask the QEMUs here for their versions\n"
          "  --reserve ID,NODE:BYTES  with --here: promise that memory to a fork; 0: no longer\n"
          "  --json                  print one line of JSON\n"
          "  -h, --help              print this text\n\n"
          "Exit code: 0; 1 a host has not answered; 2 usage\n",
          out);
    return out == stdout ? 0 : EXIT_USAGE;
}

struct hosts_options {
    const char *launcher, *agent, *rundir, *reserve;
    unsigned timeout_s;
    bool json, probe, qemus;
};

static int reserve(const char *base, const char *text, json_t *facts, struct ff_error *why)
{
    char id[64], node[64];
    unsigned long long bytes;
    uint64_t others = 0;
    int len = 0;

    if (sscanf(text, "%63[^,],%63[^:]:%llu%n", id, node, &bytes, &len) != 3 || text[len] || !rundir_name_valid(id) ||
        !rundir_name_valid(node))
        return -EINVAL;
    int rc = reserve_take(base, id, node, bytes,
                          (uint64_t)json_integer_value(json_object_get(facts, "available_bytes")), &others, why);
    json_object_set_new(facts, "reserved_bytes", json_integer((json_int_t)others));
    return rc == -EINVAL ? -EIO : rc;
}

static int say_here(const struct hosts_options *o)
{
    FF_AUTO_FREE char *base = o->rundir ? xstrdup(o->rundir) : rundir_base();
    FF_AUTO_JSON json_t *facts = host_facts(base);

    if (o->qemus) {
        FF_AUTO_FREE char *agent = defaults_agent();
        json_object_set_new(facts, "qemus", host_qemus(agent));
    }
    if (o->reserve) {
        struct ff_error why = {0};
        int rc = reserve(base, o->reserve, facts, &why);
        if (rc == -EINVAL)
            return hosts_usage(stderr);
        json_object_set_new(facts, "granted", json_boolean(!rc));
        if (rc)
            json_object_set_new(facts, "reason", json_lossy(why.text));
    }

    json_dumpf(facts, stdout, JSON_COMPACT);
    putchar('\n');
    return 0;
}

/* Memory of guests that are elsewhere, and need it */
static void print_images(const json_t *holders)
{
    json_t *h;
    size_t i;

    json_array_foreach(holders, i, h)
        if (strcmp(text_of(h, "of"), "fork"))
            printf(", keeps %.1f GiB for %s elsewhere",
                   (double)json_integer_value(json_object_get(h, "resident_bytes")) / GIB,
                   *text_of(h, "name") ? text_of(h, "name") : "a guest");
}

static void print_row(const char *host, unsigned slots, const json_t *f, const json_t *probed)
{
    FF_AUTO_FREE char *free_huge = xstrdup("-");
    json_t *h;
    size_t i;

    json_array_foreach(json_object_get(f, "huge_pages"), i, h)
        if (json_integer_value(json_object_get(h, "size_bytes")) == 2 << 20 &&
            json_integer_value(json_object_get(h, "total"))) {
            free(free_huge);
            free_huge = xprintf("%lld/%lld", (long long)json_integer_value(json_object_get(h, "free")),
                                (long long)json_integer_value(json_object_get(h, "total")));
        }
    printf("%-20s %4lld %6.2f %6.1f %6.1f %9s %4s %4zu %6zu %6zu  %s, Linux %s", host,
           (long long)json_integer_value(json_object_get(f, "cpus")),
           json_real_value(json_object_get(f, "load")),
           (double)json_integer_value(json_object_get(f, "available_bytes")) / GIB,
           (double)json_integer_value(json_object_get(f, "memory_bytes")) / GIB, free_huge,
           json_is_true(json_object_get(f, "kvm")) ? "yes" : "no", json_array_size(json_object_get(f, "rdma")),
           json_array_size(json_object_get(f, "guests")), json_array_size(json_object_get(f, "forks")),
           text_of(f, "version"), text_of(f, "kernel"));
    json_array_foreach(json_object_get(f, "qemus"), i, h)
        printf(", QEMU %s", text_of(h, "version"));
    print_images(json_object_get(f, "holders"));
    if (slots != SLOTS_ANY)
        printf(", %u slots", slots);
    if (json_is_object(probed))
        printf(", %s %.0f us, %.0f MiB/s", text_of(probed, "link"),
               (double)json_integer_value(json_object_get(probed, "p50_ns")) / 1e3,
               (double)json_integer_value(json_object_get(probed, "bytes_per_second")) / (1 << 20));
    else if (probed)
        printf(", %s", json_string_value(probed));
    putchar('\n');
}

/* How fast this host reads from there; or a string, why it does not. NULL: nobody asked */
static json_t *probe(const struct node *n, const struct asked *a, const struct hosts_options *o)
{
    struct ff_error why = {0};

    if (!o->probe)
        return NULL;
    json_t *probed = hosts_probe(n, text_of(a->entry, "launcher"), text_of(a->entry, "agent"), o->timeout_s, &why);
    return probed ? probed : json_lossy(why.text);
}

/* What all have said: whether all have */
static bool print_hosts(const struct hostlist *l, struct asked *a, const struct hosts_options *o)
{
    FF_AUTO_JSON json_t *all = json_array();
    bool every = true;

    if (!o->json)
        printf("%-20s %4s %6s %6s %6s %9s %4s %4s %6s %6s\n", "host", "cpus", "load", "free", "GiB", "huge 2M",
               "kvm", "rdma", "guests", "forks");
    for (size_t i = 0; i < l->n; i++) {
        FF_AUTO_JSON json_t *f = asked_answer(&a[i]);
        FF_AUTO_FREE char *why = json_is_object(f) ? NULL : asked_why(&a[i]);
        FF_AUTO_JSON json_t *probed = why ? NULL : probe(&l->v[i], &a[i], o);
        every &= !why;
        if (o->json)
            json_array_append_new(all, json_pack("{ss ss si sO* sO* so*}", "host", l->v[i].host, "address",
                                                 l->v[i].address, "slots", (int)l->v[i].slots, "facts",
                                                 why ? NULL : f, "probe", probed, "error", why ? json_lossy(why) : NULL));
        else if (why)
            printf("%-20s %s\n", l->v[i].host, why);
        else
            print_row(l->v[i].host, l->v[i].slots, f, probed);
    }
    if (o->json) {
        json_dumpf(all, stdout, JSON_COMPACT);
        putchar('\n');
    }
    return every;
}

static int ask_all(const struct hostlist *l, const struct hosts_options *o)
{
    FF_AUTO_FREE char *agent = o->agent ? xstrdup(o->agent) : defaults_agent();
    struct asked *a = xcalloc(l->n, sizeof(*a));

    asked_prepare();
    char *words[] = {"hosts", "--here", "--qemus", NULL};

    for (size_t i = 0; i < l->n; i++) {
        const char *launcher = o->launcher ? o->launcher : hostlist_is_here(&l->v[i]) ? "" : launcher_default();
        a[i] = asked_new(json_pack("{ss ss ss ss}", "host", l->v[i].host, "launcher", launcher, "agent", agent,
                                   "rundir", o->rundir ? o->rundir : ""));
        asked_start(&a[i], words);
    }
    asked_read(a, l->n, o->timeout_s * 1000ull);
    bool every = print_hosts(l, a, o);
    asked_free(a, l->n);
    return every ? 0 : EXIT_SOME_SILENT;
}

/* @args: as they were named; none: of the environment */
static int show_hosts(const char *hostfile, char **args, const struct hosts_options *o)
{
    struct hostlist hosts = {0};
    struct ff_error why;
    int rc = hostfile ? hostlist_read_file(&hosts, hostfile, false, &why) : 0;

    for (; !rc && *args; args++)
        rc = hostlist_add(&hosts, *args, &why);
    if (!rc && !hosts.n)
        rc = hostlist_from_environment(&hosts, &why);
    if (!rc && o->launcher)
        rc = launcher_check(o->launcher, &why);
    if (rc)
        fprintf(stderr, "farfork: %s\n", why.text);
    int code = rc ? EXIT_USAGE : ask_all(&hosts, o);
    hostlist_free(&hosts);
    return code;
}

int cmd_hosts(int argc, char **argv)
{
    enum { HOSTFILE = 256, LAUNCHER, AGENT, RUNDIR, TIMEOUT, PROBE, HERE, QEMUS, RESERVE, JSON };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"hostfile", required_argument, NULL, HOSTFILE},
                                            {"launcher", required_argument, NULL, LAUNCHER},
                                            {"agent", required_argument, NULL, AGENT},
                                            {"rundir", required_argument, NULL, RUNDIR},
                                            {"timeout", required_argument, NULL, TIMEOUT},
                                            {"probe", no_argument, NULL, PROBE},
                                            {"here", no_argument, NULL, HERE},
                                            {"qemus", no_argument, NULL, QEMUS},
                                            {"reserve", required_argument, NULL, RESERVE},
                                            {"json", no_argument, NULL, JSON},
                                            {0}};
    struct hosts_options o = {.timeout_s = 20};
    const char *hostfile = NULL;
    bool here = false;
    int c, at = 0;

    while ((c = getopt_long(argc, argv, "h", options, &at)) != -1)
        switch (c) {
        case HOSTFILE: hostfile = optarg; break;
        case LAUNCHER: o.launcher = optarg; break;
        case AGENT: o.agent = optarg; break;
        case RUNDIR: o.rundir = optarg; break;
        case PROBE: o.probe = true; break;
        case HERE: here = true; break;
        case QEMUS: o.qemus = true; break;
        case RESERVE: o.reserve = optarg; break;
        case JSON: o.json = true; break;
        case TIMEOUT:
            if (!value_number("farfork hosts", &options[at], optarg, 1, 86400, &o.timeout_s))
                return EXIT_USAGE;
            break;
        default: return c == 'h' ? hosts_usage(stdout) : value_unknown("farfork hosts");
        }
    if (((o.reserve || o.qemus) && !here) || (here && (optind < argc || hostfile || o.launcher || o.agent || o.probe)))
        return hosts_usage(stderr);
    return here ? say_here(&o) : show_hosts(hostfile, argv + optind, &o);
}
