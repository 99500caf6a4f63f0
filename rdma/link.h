/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * link.h - a connection with one-sided reads and writes and a control channel
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what migrate/ needs of a network, and no more. verbs, tcp and loop fill
 *              one table of operations; nothing above this line knows which it is.
 *              A link knows nothing of pages, guests or userfaultfd.
 *
 * Picture      side A                              side B
 *              send() --- control messages ------> recv()      ordered, both ways
 *              reg(): rkey --- (in a message) -->
 *                     <------- post(READ, rkey) -- poll(): FF_WC_READ
 *              poll() serves it where no adapter does; on verbs the adapter does
 *                     ---- post(WRITE + imm) ----> poll(): FF_WC_RECV_IMM
 *              Queues are independent: what waits on PREFILL never delays FAULT.
 *
 * Threads      each queue belongs to one thread at a time, which alone calls post() and
 *              poll() on it. send(), shutdown(), reg() and dereg(): any thread.
 *              recv(): one thread at a time.
 * Failure      a link breaks once and for good: every post(), poll(), send() and recv()
 *              from then on returns a negative errno with the reason. No call waits
 *              longer than the time limit that it was given or that the link states.
 *              Requests of a queue complete in the order in which they were posted, but for
 *              PREFILL with more than one queue pair.
 * Limits       FF_MSG_MAX bytes a control message; FF_QUEUE_DEPTH work requests in
 *              flight a queue; FF_GRANULES_MAX granules a request.
 */
#ifndef FF_RDMA_LINK_H
#define FF_RDMA_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct ff_datagrams;
struct ff_error;
struct ff_group_at;
struct ff_key;

#define FF_MSG_MAX (64u << 10)
#define FF_QUEUE_DEPTH 64u
#define FF_GRANULES_MAX 1024u
#define FF_SESSION_LEN 16
#define FF_LINK_SECRET_LEN 32

enum ff_queue { FF_QUEUE_FAULT, FF_QUEUE_PREFILL, FF_QUEUES };

/* ON_DEMAND: do not pin, where the link says that it can; else reg() pins */
enum ff_access {
    FF_ACCESS_REMOTE_READ = 1,
    FF_ACCESS_REMOTE_WRITE = 2,
    FF_ACCESS_ON_DEMAND = 4,
};

/* Registered memory. @rkey lets the peer name it; addresses within are the owner's. */
struct ff_mr {
    void *addr;
    uint64_t len_bytes;
    unsigned access; /* 0: for own requests only */
    uint32_t rkey, lkey;
};

enum ff_op { FF_OP_READ, FF_OP_WRITE };

struct ff_wr {
    uint64_t id;
    enum ff_op op;
    void *local;
    bool in_file;    /* READ: @local is whole pages of a mapped file, whose file system may be full */
    uint32_t lkey;   /* of own memory that was registered and holds @local */
    uint64_t remote; /* the peer's address inside the memory that @rkey names */
    uint32_t rkey;
    uint32_t len_bytes;
    /* READ: a link with finds_zeros sets bit i of @zero for a granule of zeros
     * and leaves the bytes at @local alone; the caller clears @zero first. 0: never.
     * Likewise it sets bit i of @poison, and that of @zero, for a granule that the peer itself
     * cannot read: it holds no zeros. NULL: such a granule breaks the link */
    uint32_t granule_bytes;
    uint8_t *zero, *poison;
    uint32_t imm; /* WRITE: the peer's poll() returns it when all bytes are there */
};

enum ff_wc_op { FF_WC_READ, FF_WC_WRITE, FF_WC_RECV_IMM };

struct ff_wc {
    uint64_t id;
    enum ff_wc_op op;
    uint32_t len_bytes;
    uint32_t imm;
    bool torn; /* READ: it may not be what the peer has at any time. No link sets it: verify.h does */
};

/* The file behind memory, from @offset on; @fd -1: none. @is_private: what was written is in
 * copies. @of: the memory is another process's, where it has pages of @psize; what nobody touched
 * is @zeros, or in the file */
struct ff_backing {
    int fd;
    uint32_t psize : 30, is_private : 1, zeros : 1; /* a link has thousands of these */
    uint64_t offset;
    struct ff_foreign *of;
};

struct ff_link;

struct ff_link_ops {
    const char *name;

    /* @len: at most max_mr_bytes. Any number of threads at once. */
    int (*reg)(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
               struct ff_error *err);
    /* From now on a request for @mr breaks the link. On verbs that can be one that has completed,
     * too: the peer's adapter may have sent it twice, and the second be under way. So give memory
     * back that the peer reads when the data queues have done their work, not between. */
    void (*dereg)(struct ff_link *l, struct ff_mr *mr);

    /* The memory of @mr is a mapping of @file: what serves a READ leaves its holes alone. Or it is
     * another process's, and is read there. NULL: an adapter serves, and a file tells it nothing. */
    void (*backed)(struct ff_link *l, const struct ff_mr *mr, const struct ff_backing *file);

    /* 0, or -ENOMEM with the limit, the number needed and how to raise it: whether this
     * process may pin @bytes more. NULL: nothing is pinned. */
    int (*may_pin)(struct ff_link *l, uint64_t bytes, struct ff_error *err);

    /* Open the queues after the hello. @session is the shared secret of this connection,
     * chosen by the passive side. */
    int (*open_queues)(struct ff_link *l, const uint8_t session[FF_SESSION_LEN], int timeout_ms,
                       struct ff_error *err);

    /* Active side, when the peer has answered: 0, or -EACCES: without a key its word counts for
     * nothing here. open_queues() asks as well. NULL: there was nothing to doubt */
    int (*check_peer)(struct ff_link *l, struct ff_error *err);

    /* Of a sealed link: what both ends have for @label on @q, and nobody else. 0 or -EIO */
    int (*secret)(struct ff_link *l, enum ff_queue q, const char *label,
                  uint8_t out[FF_LINK_SECRET_LEN]);

    /* 0, -EAGAIN when FF_QUEUE_DEPTH requests are in flight, or the link is broken */
    int (*post)(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr, struct ff_error *err);

    /* Serve the peer and gather completions: their number, 0 after @timeout_ms (0: do not
     * wait), or the link is broken. A request the peer refuses breaks the link. */
    int (*poll)(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n, int timeout_ms,
                struct ff_error *err);

    /* Shows one of @events (as poll(2) has them) when poll() has something to do. To be asked
     * after each poll() that returned 0; the descriptor is there until free(). */
    int (*fd)(struct ff_link *l, enum ff_queue q, short *events);

    /* 0, or the link is broken; -ECONNRESET or -EPIPE: nothing of the message left this side */
    int (*send)(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err);

    /* Bytes received into @buf (FF_MSG_MAX large), -ETIMEDOUT, or the link is broken */
    int (*recv)(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err);

    /* Shows POLLIN when recv() may have something, after a recv() that found nothing. For who waits
     * for several peers; NULL: the link has none */
    int (*control_fd)(struct ff_link *l);

    /* From now on a peer may be silent for so long before it counts as gone */
    void (*set_timeout)(struct ff_link *l, int timeout_ms);

    /* One end of a multicast group, who @sends or who hears, by the interface of this link; it outlasts
     * the link. 0, or why not. NULL: none is to be had */
    int (*join)(struct ff_link *l, const struct ff_group_at *at, bool sends, struct ff_datagrams **out,
                struct ff_error *err);

    void (*shutdown)(struct ff_link *l); /* break it: wakes every wait, on both sides */
    void (*free)(struct ff_link *l);     /* no other thread may be inside */
};

/* What a link can do, known once it is connected */
struct ff_link {
    const struct ff_link_ops *ops;
    uint32_t max_len_bytes; /* of one work request */
    uint64_t max_mr_bytes;  /* of one registration */
    bool pins;              /* reg() without ON_DEMAND pins, and so populates, what it registers */
    bool on_demand;         /* reg() can do without */
    bool finds_zeros;       /* a READ tells granules of zeros (struct ff_wr) */
    bool pushes;            /* WRITE works for certain */
    bool sealed;            /* the peer has the key; nobody else reads or changes a message */
    uint32_t rtt_us;        /* shortest round trip seen when it was opened; 0: not known */
    char about[160];        /* for a person: which link, which device, why not another */
};

/* The byte that IP has for a traffic class (DSCP times 4), of each queue's packets; control's are as
 * FAULT's. Zeros: as the link has it by itself */
struct ff_tos {
    bool set;
    uint8_t of[FF_QUEUES];
};

/* A listening address (tcp). */
struct ff_listener;

#define FF_PEERS_MAX 16u /* addresses of one name; a host has one or two */

struct ff_peers {
    unsigned n;
    struct {
        socklen_t len;
        struct sockaddr_storage addr;
    } at[FF_PEERS_MAX];
};

struct ff_link_params {
    const char *host;   /* name or address; NULL or "": any, when listening */
    const char *port;   /* number */
    int timeout_ms;     /* a peer that is silent for so long is gone */
    int connect_ms;     /* active: likewise until it has answered; 0: timeout_ms */
    const char *device; /* verbs: "NAME" or "NAME:PORT"; NULL or "": any */
    unsigned qps;       /* verbs: queue pairs of the PREFILL queue; 0: 1 */
    struct ff_tos tos;  /* verbs: the active side's is both sides' */
    const struct ff_peers *peers; /* where the host is; NULL or none: look it up */
    struct ff_key *key; /* both ends prove that they have it (handshake.h); NULL: neither does */
    bool insecure; /* without a key: talk to anybody. Else to processes of this user on this host */
};

/* What to do about a peer that is refused since there is no key */
#define FF_LINK_NO_KEY "there is no key: give key-file=FILE on both sides, or insecure=on"

/* Where the host of @p is, in the order in which to try */
int ff_peers_find(const struct ff_link_params *p, struct ff_peers *out, struct ff_error *err);

int ff_tcp_listen(const struct ff_link_params *p, struct ff_listener **out, struct ff_error *err);
unsigned ff_tcp_port(const struct ff_listener *ls); /* the bound port, for port 0 */

/* Wait for a peer's control connection: 0, -ETIMEDOUT (@timeout_ms >= 0), -ECANCELED.
 * The link borrows @ls until its queues are open. */
int ff_tcp_accept(struct ff_listener *ls, int timeout_ms, struct ff_link **out,
                  struct ff_error *err);
void ff_tcp_listener_cancel(struct ff_listener *ls); /* any thread */
void ff_tcp_listener_free(struct ff_listener *ls);

/* @cancel_fd: -1, or a descriptor that becomes readable to give up (-ECANCELED) */
int ff_tcp_connect(const struct ff_link_params *p, int cancel_fd, struct ff_link **out,
                   struct ff_error *err);

/* The link over sockets that are connected already: the control connection, then each queue's.
 * Takes them, also on failure. -EINVAL: one is no stream socket of this host */
#define FF_TCP_SOCKETS (1 + FF_QUEUES)
int ff_tcp_on_sockets(const int fd[FF_TCP_SOCKETS], int timeout_ms, struct ff_link **out,
                      struct ff_error *err);

/* Both sides' sockets for that */
int ff_tcp_socket_pairs(int a[FF_TCP_SOCKETS], int b[FF_TCP_SOCKETS], struct ff_error *err);

/* --- whichever link there is --- */

enum ff_link_kind { FF_LINK_AUTO, FF_LINK_TCP, FF_LINK_VERBS };

/* One port that sources of every kind may connect to */
struct ff_port;

/* AUTO: for both, the same port number; tcp alone where there is no RDMA */
int ff_port_listen(const struct ff_link_params *p, enum ff_link_kind kind, struct ff_port **out,
                   struct ff_error *err);
unsigned ff_port_number(const struct ff_port *port);

/* As ff_tcp_accept(), for every kind, but for -ECANCELED: ff_port_cancel(). -EAGAIN: one of the @n
 * descriptors @also shows POLLIN; at most FF_PORT_ALSO_MAX */
#define FF_PORT_ALSO_MAX 9u
int ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                   struct ff_link **out, struct ff_error *err);
void ff_port_cancel(struct ff_port *port); /* any thread */
void ff_port_free(struct ff_port *port);

/* AUTO: verbs, or within 6 s tcp, when the two do not come together by RDMA; about says why */
int ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                    struct ff_link **out, struct ff_error *err);

/* Two ends in one process, for tests */
int ff_loop_pair(struct ff_link **a, struct ff_link **b, struct ff_error *err);

#endif
