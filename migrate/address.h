/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * address.h - "HOST:PORT[,option=value...]" or "unix[,...]" taken apart
 */
#ifndef FF_MIGRATE_ADDRESS_H
#define FF_MIGRATE_ADDRESS_H

#include "datagram.h"
#include "farfork.h"
#include "link.h"

enum ff_landing_choice {
    FF_LANDING_AUTO,
    FF_LANDING_COPY,
    FF_LANDING_CONTINUE,
    FF_LANDING_MOVE,
};
enum ff_odp_choice { FF_ODP_AUTO, FF_ODP_ON, FF_ODP_OFF };

struct ff_address {
    bool passed;    /* "unix": no address: an agent's socket passes the connections */
    char host[256]; /* "": any */
    char port[8];
    struct ff_peers peers; /* where the host is, if it was looked up */
    enum ff_link_kind link;
    char device[72]; /* "NAME" or "NAME:PORT"; "": any */
    unsigned qps;    /* queue pairs for prefill */
    struct ff_tos tos;
    int timeout_ms; /* a peer silent for so long is gone */
    int pause_ms; /* from the first word of the pause until GO; then the guest goes on here */
    int reconnect_ms; /* after GO, when the link broke: wait so long for another; 0: for none */
    int go_timeout_ms; /* likewise, once GO was sent, unless both sides resume: a break then cannot
                        * be undone */
    uint32_t chunk_bytes;
    unsigned window; /* chunks of prefill in flight; 0: as the link needs */
    enum ff_landing_choice landing;
    enum ff_prefill_mode prefill;
    enum ff_odp_choice odp;
    bool insecure;      /* without a key: talk to anybody */
    struct ff_key *key; /* both ends prove that they have it; NULL: neither does */
    char until_go[256]; /* destination: a file that is there until GO was read; "": none */
    bool prealloc; /* destination: make memory ready while nobody has come */
    bool fallback; /* source: it keeps the right to take its guest back until WITHDRAWN */
    bool gives_up; /* fallback=off was given: see ff_dest_keep() */
    int lease_ms;  /* ... for so long the destination runs without hearing from it */
    char fence[256], record[256]; /* ... a program, a file; "": none */
    bool holds_output; /* ... and nobody sees until then what the guest sends there */
    bool verify; /* a keyed hash of what is read is checked before it is installed */
    bool precopy; /* destination: one pass while the guest still runs */
    bool visit; /* destination: the guest is to return: prefill is off but for a budget, and the move never ends by itself */
    uint64_t budget_bytes; /* ... what prefill may ask for, in all; 0: it is off */
    bool chose_prefill; /* prefill= was given */
    struct ff_group_at group; /* source: where its image goes to many at once; port 0: nowhere */
};

/* A copy with a reference of its own to the key: ff_address_drop() it, which leaves @a alone */
struct ff_address ff_address_copy(const struct ff_address *a);
void ff_address_drop(struct ff_address *a);

#endif
