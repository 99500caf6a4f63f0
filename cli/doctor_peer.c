/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * doctor_peer.c - farfork doctor --serve, --peer: whether and how well two hosts can talk
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      --serve answers on one host what --peer asks on the other: probe/probe.c, printed.
 * Limits       a person waits: TIMEOUT, not the time limits of a move.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <jansson.h>
#include <net/if.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli.h"
#include "farfork-probe.h"

#define PORT "4457"
/* A person waits. No guest is sent, and what is read was made for that: anybody may ask */
#define OPTIONS ",timeout=4,insecure=on"

/* Readable on Ctrl-C, on being told to end, and for good then, since nobody reads it */
static int interrupt_fd(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) /* then it ends as any program does */
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    return fd;
}

/* [HOST][:PORT], or PORT alone where one listens */
static struct ff_address *get_address(const char *where, bool serve, struct ff_error *err)
{
    const char *end = strrchr(where, ']');
    bool only_port = serve && *where && strspn(where, "0123456789") == strlen(where);
    struct ff_address *a = NULL;
    char text[400];

    snprintf(text, sizeof(text), "%s%s%s%s", only_port ? ":" : "", where,
             only_port || strchr(end ? end : where, ':') ? "" : ":" PORT, OPTIONS);
    if (strchr(where, ',') || (!serve && (!*where || *where == ':'))) {
        fprintf(stderr, "farfork: \"%s\": want HOST[:PORT]\n", where);
        return NULL;
    }
    if (ff_address_parse(text, &a, err))
        fprintf(stderr, "farfork: %s\n", ff_error_message(err));
    return a;
}

/* --- serve --- */

/* What a peer may type; the address that it can reach is for the reader to know */
static void print_addresses(void)
{
    struct ifaddrs *list, *a;
    char host[NI_MAXHOST];

    if (getifaddrs(&list))
        return;
    for (a = list; a; a = a->ifa_next) {
        int family = a->ifa_addr ? a->ifa_addr->sa_family : 0;
        size_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if ((family != AF_INET && family != AF_INET6) || !(a->ifa_flags & IFF_UP) ||
            getnameinfo(a->ifa_addr, (socklen_t)len, host, sizeof(host), NULL, 0, NI_NUMERICHOST) ||
            strchr(host, '%')) /* link-local: no peer can type it */
            continue;
        printf("%-8s %s on %s\n", "address", host, a->ifa_name);
    }
    freeifaddrs(list);
}

static void print_line(void *opaque, const char *line)
{
    (void)opaque;
    puts(line);
    fflush(stdout);
}

int doctor_serve(const struct peer_options *o)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a = get_address(o->where ? o->where : PORT, true, err);
    struct ff_probe_options p = {.device = o->device, .qps = o->qps, .once = o->once};
    int rc = a ? 0 : 2;

    if (a) {
        p.cancel_fd = o->while_input ? dup(STDIN_FILENO) : interrupt_fd(); /* its end is readable */
        if (!o->where || *o->where == ':' || !strpbrk(o->where, ":."))
            print_addresses();
        rc = ff_probe_serve(a, &p, print_line, NULL, err) ? 1 : 0;
        if (rc)
            fprintf(stderr, "farfork: %s\n", ff_error_message(err));
        close(p.cancel_fd);
    }
    ff_address_free(a);
    ff_error_free(err);
    return rc;
}

/* --- peer --- */

static void print_size(const struct ff_probe_size *s)
{
    char size[16];

    snprintf(size, sizeof(size), "%u %s", s->size_bytes >> (s->size_bytes >> 20 ? 20 : 10),
             s->size_bytes >> 20 ? "MiB" : "KiB");
    printf("  %7s  latency p50 %.1f, p99 %.1f, max %.1f us (%u reads); %.1f MiB/s (%u at once)\n",
           size, (double)s->p50_ns / 1e3, (double)s->p99_ns / 1e3, (double)s->max_ns / 1e3,
           s->reads, (double)s->bytes_per_s / (1 << 20), s->depth);
}

static void print_event(void *opaque, enum ff_probe_event event, const struct ff_probe_link *l)
{
    (void)opaque;
    if (event == FF_PROBE_CONNECTED)
        printf("%-8s %-6s connected in %.1f ms%s%s\n", "ok", l->name, (double)l->connect_ns / 1e6,
               strcmp(l->about, l->name) ? "; " : "", strcmp(l->about, l->name) ? l->about : "");
    else if (event == FF_PROBE_SIZE)
        print_size(&l->sizes[l->n_sizes - 1]);
    else if (l->error)
        printf("%-8s %-6s %s\n", "NO", l->name, l->reason);
    fflush(stdout);
}

static void take_event(void *opaque, enum ff_probe_event event, const struct ff_probe_link *l)
{
    json_t *link, *sizes;

    if (event != FF_PROBE_END)
        return;
    link = json_pack("{ss sb}", "link", l->name, "works", !l->error);
    if (l->error)
        json_object_set_new(link, "reason", json_string(l->reason));
    if (l->connect_ns)
        json_object_update_new(link, json_pack("{ss sI}", "about", l->about, "connect_ns",
                                               (json_int_t)l->connect_ns));
    sizes = json_array();
    for (unsigned i = 0; i < l->n_sizes; i++) {
        const struct ff_probe_size *s = &l->sizes[i];
        json_array_append_new(
            sizes, json_pack("{sI sI sI sI sI sI sI}", "size_bytes", (json_int_t)s->size_bytes,
                             "reads", (json_int_t)s->reads, "p50_ns", (json_int_t)s->p50_ns,
                             "p99_ns", (json_int_t)s->p99_ns, "max_ns", (json_int_t)s->max_ns,
                             "depth", (json_int_t)s->depth, "bytes_per_second",
                             (json_int_t)s->bytes_per_s));
    }
    json_object_set_new(link, "sizes", sizes);
    json_array_append_new(opaque, link);
}

static int probe_peer(const struct peer_options *o, const struct ff_address *a,
                      struct ff_error *err)
{
    struct ff_probe_options p = {.device = o->device, .qps = o->qps, .cancel_fd = interrupt_fd()};
    json_t *links = json_array();
    int works = o->json ? ff_probe_peer(a, &p, take_event, links, err)
                        : ff_probe_peer(a, &p, print_event, NULL, err);

    if (works < 0) {
        fprintf(stderr, "farfork: %s\n", ff_error_message(err));
    } else if (o->json) {
        json_t *all = json_pack("{ss sO}", "peer", o->where, "links", links);
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
    } else if (!works) {
        printf("No link works: is `farfork doctor --serve` running on %s?\n", o->where);
    }
    json_decref(links);
    close(p.cancel_fd);
    return works > 0 ? 0 : works == -ECANCELED ? 130 : 1;
}

int doctor_peer(const struct peer_options *o)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *a = get_address(o->where, false, err);
    int rc = a ? probe_peer(o, a, err) : 2;

    ff_address_free(a);
    ff_error_free(err);
    return rc;
}
