/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hosts_probe.c - farfork hosts --probe: how fast this host reads from another
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "farfork-probe.h"
#include "hosts_probe.h"
#include "launcher.h"
#include "spawn.h"

#define PAGE_BYTES 4096

/* What doctor --serve says first: where it listens */
static void see_port(void *opaque, const char *line)
{
    unsigned *port = opaque;
    const char *at = strncmp(line, "tcp: listening", 14) ? NULL : strstr(line, "port ");

    if (at && sscanf(at, "port %u", port) != 1)
        *port = 0;
}

static unsigned wait_serving(struct spawn *there, unsigned timeout_s, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + timeout_s * 1000ull;
    unsigned port = 0;

    while (!port && ff_now_ms() < end)
        if (spawn_read_lines(there, 100, see_port, &port))
            break;
    if (!port)
        ff_error_set(why, EIO, "probe: %s", there->words ? there->words : "farfork doctor --serve does not answer");
    return port;
}

/* The first link that works is the one that a guest takes */
static void take_best(void *opaque, enum ff_probe_event event, const struct ff_probe_link *l)
{
    json_t *o = opaque;
    uint64_t most = 0;

    if (event != FF_PROBE_END || l->error || json_object_get(o, "link"))
        return;
    json_object_set_new(o, "link", json_string(l->name));
    for (unsigned i = 0; i < l->n_sizes; i++) {
        const struct ff_probe_size *s = &l->sizes[i];
        most = FF_MAX(most, s->bytes_per_s);
        if (s->size_bytes == PAGE_BYTES)
            json_object_update_new(o, json_pack("{sI sI}", "p50_ns", (json_int_t)s->p50_ns, "p99_ns",
                                                (json_int_t)s->p99_ns));
    }
    json_object_set_new(o, "bytes_per_second", json_integer((json_int_t)most));
}

static json_t *read_from(const struct node *n, unsigned port, struct ff_error *why)
{
    const struct ff_probe_options p = {.cancel_fd = -1};
    FF_AUTO_FREE char *at =
        xprintf(strchr(n->address, ':') ? "[%s]:%u,timeout=4,insecure=on" : "%s:%u,timeout=4,insecure=on", n->address,
                port);
    struct ff_address *a = NULL;
    json_t *o = json_object();
    int works = ff_address_parse(at, &a, why);

    if (!works)
        works = ff_probe_peer(a, &p, take_best, o, why);
    ff_address_free(a);
    if (works > 0)
        return o;
    json_decref(o);
    if (!works)
        ff_error_set(why, EIO, "probe: no link to %s works: 'farfork doctor --peer' says why", n->address);
    return NULL;
}

json_t *hosts_probe(const struct node *n, const char *launcher, const char *agent, unsigned timeout_s,
                    struct ff_error *why)
{
    char *words[] = {(char *)agent, "doctor", "--serve", ":0", "--once", "--while-input", NULL};
    FF_AUTO_FREE char *line = *launcher ? launcher_line(launcher, n->host, words) : NULL;
    struct spawn there;

    if (spawn_start(&there, words, line, why))
        return NULL;
    unsigned port = wait_serving(&there, timeout_s, why);
    json_t *o = port ? read_from(n, port, why) : NULL;
    spawn_end(&there, 0);
    spawn_free(&there);
    return o;
}
