/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration with output=hold: what the guest sends here is kept
 * from everybody until its source never takes it back
 *
 *   guest -> NIC -> [held] -> other filters -> netdev
 *
 * A filter of QEMU's (net/filter.h) on the netdev of each NIC, which is the
 * first that a packet meets on its way out.  Not filter-buffer: that sends what
 * it holds when it goes away, with QEMU or with its netdev, or when its
 * interval ends, after 71 minutes at most; and it keeps a pointer to a NIC that
 * may be unplugged.  This one sends only when it is told to, and keeps nothing
 * but bytes.  The announcement of the guest's place is held as well: a network
 * that learns it delivers to a host which may be the wrong one.
 *
 * What comes in passes.  Only packets of NICs are held: what the guest writes
 * to a serial port, a vsock or a device of the host is seen at once.  A NIC
 * that is plugged while others are held is not.
 *
 * Everything is under the BQL.
 */
#include "qemu/osdep.h"
#include "net/filter.h"
#include "net/net.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/iov.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

#define TYPE_HOLD "rdma-postcopy-hold"
OBJECT_DECLARE_SIMPLE_TYPE(Hold, HOLD)

/* Of one NIC: as many as a queue of QEMU's takes at once when they are sent, and what a host can
 * spare; then packets are lost, as where any queue of a network is full */
#define HOLD_PACKETS 10000
#define HOLD_BYTES (64 << 20)

typedef struct Packet {
    QSIMPLEQ_ENTRY(Packet) next;
    unsigned flags;
    size_t len;
    uint8_t data[];
} Packet;

struct Hold {
    NetFilterState parent_obj;
    QLIST_ENTRY(Hold) next;
    QSIMPLEQ_HEAD(, Packet) queue;
    uint64_t packets, bytes, dropped;
};

static QLIST_HEAD(, Hold) holds = QLIST_HEAD_INITIALIZER(holds);

static ssize_t hold_packet(NetFilterState *nf, NetClientState *sender, unsigned flags,
                           const struct iovec *iov, int iovcnt, NetPacketSent *sent_cb)
{
    Hold *h = HOLD(nf);
    size_t len = iov_size(iov, iovcnt);
    Packet *p;

    if (h->packets >= HOLD_PACKETS || h->bytes + len > HOLD_BYTES) {
        if (!h->dropped++) {
            warn_report("rdma-postcopy: output=hold: %s: %" PRIu64 " packets of %" PRIu64
                        " bytes are held: the guest's next ones are dropped",
                        nf->netdev_id, h->packets, h->bytes);
        }
        return len;
    }
    p = g_malloc(sizeof(*p) + len);
    p->flags = flags;
    p->len = len;
    iov_to_buf(iov, iovcnt, 0, p->data, len);
    QSIMPLEQ_INSERT_TAIL(&h->queue, p, next);
    h->packets++;
    h->bytes += len;
    return len;
}

/* In their order; not if @send is false, or the NIC was unplugged */
static void empty(Hold *h, bool send)
{
    NetFilterState *nf = NETFILTER(h);
    Packet *p;

    while ((p = QSIMPLEQ_FIRST(&h->queue))) {
        struct iovec iov = { .iov_base = p->data, .iov_len = p->len };

        QSIMPLEQ_REMOVE_HEAD(&h->queue, next);
        if (send && nf->netdev->peer) {
            qemu_netfilter_pass_to_next(nf->netdev->peer, p->flags, &iov, 1, nf);
        }
        g_free(p);
    }
    h->packets = h->bytes = 0;
}

static void hold_cleanup(NetFilterState *nf)
{
    empty(HOLD(nf), false);
    QLIST_REMOVE(HOLD(nf), next);
}

static void hold_init(Object *obj)
{
    QSIMPLEQ_INIT(&HOLD(obj)->queue);
    QLIST_INSERT_HEAD(&holds, HOLD(obj), next);
}

static void hold_class_init(ObjectClass *oc, compat_class_data *data)
{
    NetFilterClass *nfc = NETFILTER_CLASS(oc);

    nfc->receive_iov = hold_packet;
    nfc->cleanup = hold_cleanup;
}

static const TypeInfo hold_info = {
    .name = TYPE_HOLD,
    .parent = TYPE_NETFILTER,
    .instance_size = sizeof(Hold),
    .instance_init = hold_init,
    .class_init = hold_class_init,
};

static void register_types(void)
{
    type_register_static(&hold_info);
}

type_init(register_types);

/* --- all NICs --- */

static bool is_held(NetClientState *netdev)
{
    Hold *h;

    QLIST_FOREACH(h, &holds, next) {
        if (NETFILTER(h)->netdev == netdev) {
            return true;
        }
    }
    return false;
}

static void hold_nic(NICState *nic, void *opaque)
{
    static unsigned made;
    char **why = opaque;
    NetClientState *netdev = qemu_get_queue(nic)->peer;
    g_autofree char *id = NULL;
    Error *err = NULL;

    if (!netdev || *why || is_held(netdev)) {
        return;
    }
    id = g_strdup_printf("farfork-hold%u", made++);
    if (netdev->info->type == NET_CLIENT_DRIVER_VHOST_USER ||
        netdev->info->type == NET_CLIENT_DRIVER_VHOST_VDPA) {
        error_setg(&err, "it sends past QEMU");
    } else {
        /* not in /objects, which QEMU lets its user delete */
        object_new_with_props(TYPE_HOLD, object_get_root(), id, &err, "netdev", netdev->name,
                              "queue", "rx", NULL);
    }
    if (err) {
        *why = g_strdup_printf("output=hold: netdev %s: %s (want a netdev with one queue, and "
                               "without vhost)", netdev->name, error_get_pretty(err));
        error_free(err);
    }
}

char *rp_hold_output(void)
{
    char *why = NULL;

    qemu_foreach_nic(hold_nic, &why);
    rp.holds = true;
    return why;
}

void rp_release_output(bool send)
{
    Hold *h, *next;

    rp.holds = false;
    QLIST_FOREACH_SAFE(h, &holds, next, next) {
        empty(h, send);
        object_unparent(OBJECT(h));
    }
}

RdmaPostcopyOutput *rp_held_output(void)
{
    RdmaPostcopyOutput *sum = g_new0(RdmaPostcopyOutput, 1);
    Hold *h;

    QLIST_FOREACH(h, &holds, next) {
        sum->packets += h->packets;
        sum->bytes += h->bytes;
        sum->dropped += h->dropped;
    }
    return sum;
}
