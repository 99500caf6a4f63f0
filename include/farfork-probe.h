/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork-probe.h - what a host can do, alone and with another
 */
#ifndef FARFORK_PROBE_H
#define FARFORK_PROBE_H

#include "farfork.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- this host --- */

/* UNKNOWN: it could not be looked at, and the text says who could */
enum ff_check { FF_CHECK_OK, FF_CHECK_LIMITED, FF_CHECK_NO, FF_CHECK_UNKNOWN };

/**
 * ff_host_check() - find out what this host can do, what it cannot, and why
 * @fn: called once for each subject; @why says what the host has, and what to do about it
 */
void ff_host_check(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                              const char *why),
                   void *opaque);

/* A GID of an RDMA port; rdma_cm chooses one by the address that it connects to */
struct ff_rdma_gid {
    unsigned index;
    const char *gid;    /* as an IPv6 address is written */
    const char *type;   /* "IB", "RoCE v1", "RoCE v2" */
    const char *netdev; /* "" on InfiniBand */
    bool elsewhere;     /* @netdev is in another network namespace */
};

/**
 * struct ff_rdma_port - one port of an RDMA device
 * @port:    from 1 on; 0: the device does not answer, and only @device and @trouble are set
 * @trouble: why the verbs link cannot use it, or ""
 */
struct ff_rdma_port {
    const char *device, *firmware;
    unsigned port;
    const char *state;      /* "active", "down" and others */
    const char *link_layer; /* "InfiniBand", "Ethernet" */
    const char *transport;  /* "IB" (also RoCE), "iWARP", "other" */
    unsigned active_mtu_bytes;
    uint32_t max_msg_bytes;
    uint64_t max_mr_bytes;
    bool odp, odp_rc_read;  /* on-demand paging; peers can read memory registered that way */
    unsigned n_gids;
    const struct ff_rdma_gid *gids;
    const char *trouble;
};

/**
 * ff_rdma_list() - list the RDMA devices of this host
 * @fn: called once for each port; @port is valid during the call
 *
 * Cost:    no network, no memory registered
 * Return:  the number of calls; -errno: this host has no RDMA at all
 */
int ff_rdma_list(void (*fn)(void *opaque, const struct ff_rdma_port *port), void *opaque);

/* --- this host and another --- */

/**
 * struct ff_probe_options - how to probe
 * @device:    verbs: "NAME" or "NAME:PORT"; NULL or "": any
 * @qps:       verbs: queue pairs for bandwidth; 0: 1
 * @cancel_fd: -1, or a descriptor that becomes readable to end it
 * @once:      ff_probe_serve(): end after one peer's probe over tcp, which peers do last
 */
struct ff_probe_options {
    const char *device;
    unsigned qps;
    int cancel_fd;
    bool once;
};

/* READs of one size: one after the other (latency), then as many at once as permitted */
struct ff_probe_size {
    uint32_t size_bytes;
    uint32_t reads; /* timed one by one */
    uint64_t p50_ns, p99_ns, max_ns;
    uint32_t depth; /* reads in flight for the bandwidth */
    uint64_t bytes_per_s;
};

#define FF_PROBE_SIZES 3

/**
 * struct ff_probe_link - what a probe found out about one kind of link
 * @error:      0, or an errno value: the link failed, and @reason says why
 * @connect_ns: until its queues were open
 * @n_sizes:    grows during the probe; fewer than FF_PROBE_SIZES at the end when the device carries
 *              no message so large
 */
struct ff_probe_link {
    const char *name;  /* "verbs", "tcp" */
    char about[160];   /* what the link says of itself */
    uint64_t connect_ns;
    unsigned n_sizes;
    struct ff_probe_size sizes[FF_PROBE_SIZES];
    int error;
    char reason[512];
};

enum ff_probe_event { FF_PROBE_CONNECTED, FF_PROBE_SIZE, FF_PROBE_END };

/**
 * ff_probe_serve() - let peers probe this host
 * @a:  where to listen; port 0: any. Of its options only timeout counts
 * @fn: threads of the library call it, one call at a time, with one line for a person; the first
 *      lines say where it listens, or why a kind of link does not work
 *
 * Peers may read 8 MiB of a pattern, remote-read only, and nothing else.
 *
 * Threads: two for each kind of link, while this call lasts
 * Return:  0: canceled, or it has served one peer (@o->once); -errno: no kind of link can listen
 */
int ff_probe_serve(const struct ff_address *a, const struct ff_probe_options *o,
                   void (*fn)(void *opaque, const char *line), void *opaque, struct ff_error *err);

/**
 * ff_probe_peer() - find out whether and how fast this host reads from another
 * @a:  where ff_probe_serve() listens; of its options only timeout counts
 * @fn: called when a kind of link is connected, after each size, and at its end, first for verbs,
 *      then for tcp
 *
 * The probe compares what it read with what the peer has: for latency all of it, for bandwidth what
 * the buffers hold at the end.
 *
 * Cost:    about three seconds a kind of link, or the timeout of @a where there is no answer
 * Return:  the number of links that work, 0 also when there is none, and @fn has the reason;
 *          -ECANCELED
 */
int ff_probe_peer(const struct ff_address *a, const struct ff_probe_options *o,
                  void (*fn)(void *opaque, enum ff_probe_event event,
                             const struct ff_probe_link *link),
                  void *opaque, struct ff_error *err);

#ifdef __cplusplus
}
#endif

#endif
