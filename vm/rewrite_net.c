/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite_net.c - what a child's NICs are connected to
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      twins have the parent's addresses until somebody gives them others. The NIC that
 *              the guest sees stays; what is behind it goes by the policy:
 *
 *              isolated, keep  as it was, but for what two processes cannot share (below); with
 *                              isolated the guest sees no link until somebody sets it up
 *              user            a user network each, without forwarded ports
 *              bridge          a tap each, on the parent's bridge or the one that is named
 *              none            nothing, and no link
 *
 *              Two processes cannot share a tap (the kernel names a new one), a port of this host
 *              (forwarded ports go), and what was handed over as descriptors or made for this one
 *              guest beforehand: those NICs are left unconnected.
 *              A guest that is moved keeps what is behind its NICs, by the same names; what was
 *              handed over is refused. So is a socket at a path, on the same host: the second QEMU
 *              would take the path from the first, and a move that fails leaves none there.
 *              passt (QEMU 10.2 starts it) is refused but where a fork has no network of the parent's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rewrite.h"
#include "qemu_opts.h"

int net_policy_parse(const char *text, enum net_policy *net, const char **bridge,
                     struct ff_error *why)
{
    static const char *const names[] = {[NET_ISOLATED] = "isolated", [NET_USER] = "user",
                                        [NET_BRIDGE] = "bridge", [NET_NONE] = "none",
                                        [NET_KEEP] = "keep"};

    *bridge = "br0"; /* as QEMU does */
    for (unsigned i = 0; i <= NET_KEEP; i++)
        if (!strcmp(text, names[i])) {
            *net = (enum net_policy)i;
            return 0;
        }
    if (!strncmp(text, "bridge:", 7) && text[7] && !strchr(text, ',')) {
        *net = NET_BRIDGE;
        *bridge = text + 7;
        return 0;
    }
    return ff_error_set(why, EINVAL,
                        "--net %s: want isolated, user, bridge, bridge:NAME, none or keep", text);
}

/* The NIC's side of -nic, and what any of them is called */
#define NIC_KEYS "id", "model", "mac", "macaddr", "addr", "vectors"

/* With another backend, and only what the guest sees of the old one */
static char *replace(const char *value, const char *type, const char *key, const char *key_value)
{
    static const char *const kept[] = {NIC_KEYS, NULL};
    FF_AUTO_FREE char *few = qemu_opts_only(value, "type", kept);
    FF_AUTO_FREE char *other = qemu_opts_set_first(few, "type", type);

    return key ? qemu_opts_set(other, key, key_value) : xstrdup(other);
}

/* Ids of hubs that take what a tap does, headers and offloads: the guest's driver knows of those.
 * an agent puts a tap there that leads nowhere (net_dead_end_tap) */
#define FARFORK_HUB 0x46460000u

/* As many as the NIC has, which must be as many in a child */
static unsigned long queues_of(const char *value)
{
    static const char *const lists[] = {"fds", "vhostfds"};
    FF_AUTO_FREE char *queues = qemu_opts_get(value, "queues");
    unsigned long n = queues ? strtoul(queues, NULL, 10) : 1;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        FF_AUTO_FREE char *list = qemu_opts_get(value, lists[i]);
        unsigned long own = list != NULL;
        for (const char *c = list; c && *c; c++)
            own += *c == ':';
        n = own > n ? own : n;
    }
    return n;
}

/* What stands in its place has one queue */
static int check_queues(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id");
    unsigned long n = queues_of(value);

    return n < 2 ? 0
                 : ff_error_set(r->why, ENOTSUP,
                                "network %s has %lu queues, and what children can have in its "
                                "place has one: start the parent with one queue, or with a tap "
                                "that QEMU opens itself and --net isolated or keep",
                                id ? id : option, n);
}

static bool is_own_hub(const char *value)
{
    FF_AUTO_FREE char *id = qemu_opts_get(value, "hubid");

    return id && strtoul(id, NULL, 10) >= FARFORK_HUB;
}

char *net_dead_end_tap(const char *value, int fd)
{
    if (!is_own_hub(value))
        return NULL;
    FF_AUTO_FREE char *few = qemu_opts_drop(value, "hubid");
    FF_AUTO_FREE char *tap = qemu_opts_set_first(few, "type", "tap");
    FF_AUTO_FREE char *number = xprintf("%d", fd);
    return qemu_opts_set(tap, "fd", number);
}

char *net_dead_end_hub(const char *value, unsigned number)
{
    FF_AUTO_FREE char *few = replace(value, "hubport", NULL, NULL);

    return qemu_opts_set_number(few, "hubid", FARFORK_HUB + number);
}

/* Whether the guest's driver may know of a tap's offloads, which a user network has not */
static bool has_offloads(const struct rewrite *r, const char *value, const char *type)
{
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id"), *hdr = qemu_opts_get(value, "vnet_hdr"),
                      *model = qemu_opts_get(value, "model");
    bool is_virtio = model && !strncmp(model, "virtio", 6);

    for (char *const *word = r->parent; id && word[0] && word[1] && !is_virtio; word++) {
        bool is_device = qemu_option_is(word[0], "device");
        FF_AUTO_FREE char *netdev = is_device ? qemu_opts_get(word[1], "netdev") : NULL;
        FF_AUTO_FREE char *driver = is_device ? qemu_opts_get_first(word[1], "driver") : NULL;
        is_virtio = netdev && driver && !strcmp(netdev, id) && !strncmp(driver, "virtio-net", 10);
    }
    return is_virtio && !(hdr && !strcmp(hdr, "off")) &&
           (!strcmp(type, "tap") || !strcmp(type, "bridge") || is_own_hub(value));
}

/* A hub of its own, and nothing else is on it */
static void unplug(struct rewrite *r, const char *option, const char *value)
{
    if (!strcmp(option, "net")) /* a hub already, without this one on it */
        return;
    FF_AUTO_FREE char *v = net_dead_end_hub(value, (unsigned)r->out->n);
    rewrite_emit(r, option, v);
}

static void emit_without(struct rewrite *r, const char *option, const char *value,
                         const char *const *keys)
{
    char *v = xstrdup(value);

    for (; *keys; keys++) {
        char *less = qemu_opts_drop(v, *keys);
        free(v);
        v = less;
    }
    rewrite_emit(r, option, v);
    free(v);
}

static bool has_any(const char *value, const char *const *keys)
{
    for (; *keys; keys++) {
        FF_AUTO_FREE char *v = qemu_opts_get(value, *keys);
        if (v)
            return true;
    }
    return false;
}

static const char *const handed[] = {"fd", "fds", "vhostfd", "vhostfds", "sock-fds", NULL};

/* The path of a socket that it binds, or NULL; to be freed */
static char *bound_path(const char *value)
{
    FF_AUTO_FREE char *type = qemu_opts_get(value, "local.type"), *addr = qemu_opts_get(value, "addr.type");

    if (type && !strcmp(type, "unix"))
        return qemu_opts_get(value, "local.path");
    return addr && !strcmp(addr, "unix") && qemu_opts_is(value, "server")
               ? qemu_opts_get(value, "addr.path") : NULL;
}

static int refuse_passt(struct rewrite *r, const char *option, const char *value)
{
    return ff_error_set(r->why, ENOTSUP,
                        "-%s %s: QEMU starts passt, which isolates itself by namespaces that the "
                        "confinement of agents denies: run passt beside QEMU, on each host, and "
                        "connect to it by -netdev stream", option, value);
}

/* As it is: what both cannot have at once on one host, QEMU says */
static int move_backend(struct rewrite *r, const char *option, const char *value, const char *type)
{
    static const char *const ports[] = {"hostfwd", NULL}; /* its successor gets them when they are free */

    if (r->s->takes_place && !strcmp(type, "user")) {
        emit_without(r, option, value, ports);
        return 0;
    }
    if (r->s->takes_place && !strcmp(type, "tap") && strcmp(option, "net")) {
        unplug(r, option, value);
        return check_queues(r, option, value);
    }
    if (has_any(value, handed))
        return ff_error_set(
            r->why, ENOTSUP,
            "-%s %s: the parent got it as a descriptor, and QEMU there cannot open that again; "
            "move this guest by hand, see farfork-rdma-postcopy(7)",
            option, value);
    FF_AUTO_FREE char *bound = r->s->here ? bound_path(value) : NULL;
    if (bound)
        return ff_error_set(r->why, ENOTSUP,
                            "-%s %s: a second QEMU on this host would take %s from the first: move "
                            "the guest to another host, or remove that network first", option, value,
                            bound);
    rewrite_emit(r, option, value);
    return 0;
}

/* As the parent's, as far as it can be shared */
static int keep_backend(struct rewrite *r, const char *option, const char *value, const char *type)
{
    static const char *const user_drop[] = {"hostfwd", "guestfwd", "smb", NULL};
    static const char *const tap_drop[] = {"ifname", NULL};
    FF_AUTO_FREE char *script = qemu_opts_get(value, "script"),
                      *ifname = qemu_opts_get(value, "ifname");
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id");
    FF_AUTO_FREE char *bound = bound_path(value);
    bool made_before = ifname && script && !strcmp(script, "no");

    if (!strcmp(type, "user"))
        emit_without(r, option, value, user_drop);
    else if (!strcmp(type, "tap") && !has_any(value, handed) && !made_before)
        emit_without(r, option, value, tap_drop);
    else if (!strcmp(type, "bridge") || !strcmp(type, "hubport") || !strcmp(type, "none"))
        rewrite_emit(r, option, value);
    else if (r->s->net == NET_KEEP && strcmp(type, "tap") && !has_any(value, handed) && !bound)
        rewrite_emit(r, option, value);
    else {
        rewrite_note(r,
                     "network %s (%s): not connected in children, which cannot share it; see --net",
                     id ? id : option, type);
        unplug(r, option, value);
        return check_queues(r, option, value);
    }
    return 0;
}

int rewrite_net(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *named = qemu_opts_get_first(value, "type");
    const char *type = named ? named : "user"; /* -nic model=... */

    if (!strcmp(type, "nic") || !strcmp(type, "none")) { /* the guest's side */
        rewrite_emit(r, option, value);
        return 0;
    }
    if (!strcmp(type, "passt") && (r->s->incoming || r->s->net == NET_KEEP))
        return refuse_passt(r, option, value);
    if (r->s->incoming)
        return move_backend(r, option, value, type);
    if (r->s->net == NET_ISOLATED || r->s->net == NET_KEEP)
        return keep_backend(r, option, value, type);
    if (r->s->net == NET_NONE) {
        unplug(r, option, value);
    } else if (r->s->net == NET_USER) {
        if (has_offloads(r, value, type))
            return ff_error_set(r->why, ENOTSUP,
                                "--net user: -%s %s: the guest's driver has the offloads of a tap, "
                                "which a user network cannot do: take isolated, keep, none or "
                                "bridge:NAME",
                                option, value);
        FF_AUTO_FREE char *v = replace(value, "user", NULL, NULL);
        rewrite_emit(r, option, v);
    } else {
        FF_AUTO_FREE char *br = qemu_opts_get(value, "br");
        FF_AUTO_FREE char *v = replace(value, "bridge", "br", br ? br : r->s->bridge);
        rewrite_emit(r, option, v);
    }
    return check_queues(r, option, value);
}
