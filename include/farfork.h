/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork.h - move a running guest's memory to another process, page by page, after it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the engine behind QEMU's rdma-postcopy transport. It moves memory and an
 *              opaque device state; it knows nothing of QEMU, vCPUs, disks or devices.
 *              The caller pauses, saves, loads and runs the guest.
 *
 * Picture      source                                  destination
 *              ff_source_connect()    -- hello -->     ff_dest_accept()
 *              ff_source_publish()    -- keys -->      ff_dest_start()       pager is up
 *              ff_source_wait_watched() <- WATCHING -  ff_dest_recv_state()
 *              [log writes; ff_source_precopy() <-->      precopy=1: every page, once]
 *              (pause the guest)
 *              [ff_source_dirty()     -- dirty -->     what was written: missing again]
 *              ff_source_send_state() -- state -->
 *                                                      (load it; faults are served)
 *              ff_source_wait_ready() <-- READY --     ff_dest_ready()
 *              ff_source_go()         -- GO -->        ff_dest_wait_go()
 *                                                      (run the guest)
 *              ff_source_wait_running() <-- RUNNING -- ff_dest_running()
 *              ff_source_wait_done()  <-- DONE --      ff_dest_wait_done()
 *              [the link broke:
 *               ff_source_resume()    -- resume -->     ff_dest_recover(), and wait again]
 *              ff_source_free()                        ff_dest_free()
 *
 * Threads      make the calls of one handle one after the other, from any thread. Call *_cancel(),
 *              *_pause() and *_stats() at any time from any thread.
 * Invariants   After ff_source_go() the source must not run the guest again, whatever the call
 *              returned but -ETIME, until ff_source_resume() has returned -ETIME. A failure before
 *              that leaves the source free to resume. The destination must not run the guest before
 *              ff_dest_wait_go() has returned 0.
 * Failure      a function returns 0 or -errno, and fills the error if the caller gives one.
 */
#ifndef FARFORK_H
#define FARFORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FF_VERSION_STRING "0.1.0"

/* --- errors and messages --- */

/* What went wrong, in one line; each caller on the way up may add context */
struct ff_error;

struct ff_error *ff_error_new(void);           /* NULL only when memory is exhausted */
const char *ff_error_message(const struct ff_error *err);
int ff_error_code(const struct ff_error *err); /* errno value; 0: none */
void ff_error_free(struct ff_error *err);

enum ff_level { FF_ERROR, FF_WARN, FF_INFO, FF_DEBUG };

/**
 * ff_set_log() - decide where messages for a person go
 * @fn:  the library calls it from any thread with one line, without a newline; NULL: stderr
 * @max: the least urgent level to report
 */
void ff_set_log(void (*fn)(enum ff_level level, const char *line), enum ff_level max);

/* --- addresses --- */

struct ff_address;

/**
 * ff_address_parse() - parse "HOST:PORT[,option=value...]", or "unix[,option=value...]"
 * @text: HOST is IPv4, [IPv6] or a name; an empty one listens on every address. unix: for an agent
 *        and its source on one host; nothing listens, the agent's socket takes connected ones.
 *        Options:
 *        link=auto|tcp|verbs, device=NAME[:PORT], qps=N, tos=N[:N], timeout=SECONDS,
 *        reconnect=SECONDS, chunk=SIZE, window=CHUNKS, landing=auto|copy|continue|move,
 *        prefill=auto|pull|push|off, odp=auto|on|off, precopy=0|1, prealloc=0|1, visit=off|on and
 *        budget=SIZE (farfork-return.h), key-file=FILE (read by this call),
 *        insecure=off|on, verify=off|on, until-go=FILE, multicast=GROUP[:PORT], see
 *        ff_group_new().
 *        For a source that keeps the right to take its guest back, see ff_source_take_back():
 *        fallback=off|go, lease=SECONDS, and with fallback=go both fence=PROGRAM and record=FILE,
 *        perhaps output=pass|hold, see ff_dest_hold_output()
 * @out:  free it with ff_address_free()
 *
 * Return: 0; -EINVAL: the error names the wrong part and what is permitted; -ENOTSUP: this build
 *         does not have that link; -EPERM: others may read the key's file; why it cannot be read
 */
int ff_address_parse(const char *text, struct ff_address **out, struct ff_error *err);

/**
 * ff_address_set_key() - give @a a key, as key-file= does, from memory
 * @text: 64 hexadecimal digits, then perhaps a newline; @len characters. Wipe it afterwards
 *
 * Both ends prove to each other that they have the key before anything else is said, and seal their
 * control messages with it. A source or destination that was made from @a earlier has it not.
 *
 * Return: 0; -EINVAL: no error tells any of @text; or @a is "unix"; -ENOMEM
 */
int ff_address_set_key(struct ff_address *a, const char *text, size_t len, struct ff_error *err);

/**
 * ff_address_set_psk() - give @a a user's key of a file for TLS-PSK, instead of a key of its own
 * @path: USER:HEX in each line, as psktool(1) writes it; this call reads it
 * @user: a source: whose key it has; NULL, a destination: any of the file may come, at most 256
 *
 * The key is used as that of ff_address_set_key() is, over every link. It lasts for longer than
 * one move: who gets it later can open the control messages that he recorded, as for a key.
 *
 * Return: 0; -EPERM: everybody may read the file, or others than its owner write it; -ENOENT: there
 *         is no @user, or no file; -EINVAL: a line that is none, a key of less than 16 bytes, @a has
 *         a key or is "unix"; -E2BIG, -ENOMEM, -EIO, or why it cannot be read
 */
int ff_address_set_psk(struct ff_address *a, const char *path, const char *user,
                       struct ff_error *err);

/**
 * struct ff_x509 - certificates, and whom to take
 * @dir:      has ca-cert.pem, perhaps ca-crl.pem, and server-cert.pem with server-key.pem (a
 *            destination) or client-cert.pem with client-key.pem (a source)
 * @hostname: a source: the name that the destination's certificate must have; NULL: the address's
 * @password: of the key's file, or NULL
 * @incoming: a destination
 */
struct ff_x509 {
    const char *dir, *hostname, *password;
    bool incoming;
};

/**
 * ff_address_set_x509() - both ends prove themselves by certificates, instead of a key
 * @x: this call reads the files; nothing of it is kept
 *
 * Over tcp alone: link=verbs is refused, link=auto takes tcp. A TLS 1.3 handshake comes first on
 * each link, with the other's certificate verified at both ends; it gives the link a key, which is
 * used as that of ff_address_set_key() is.
 *
 * Return: 0; -ENOENT: a file is missing; -EINVAL: GnuTLS cannot use one, @a has a key or is "unix";
 *         -ENOMEM, or why a file cannot be read
 */
int ff_address_set_x509(struct ff_address *a, const struct ff_x509 *x, struct ff_error *err);

/* Did key-file= or one of these calls give @a a key? */
bool ff_address_has_key(const struct ff_address *a);
void ff_address_free(struct ff_address *a);

/* reconnect=SECONDS: a limit for ff_source_resume() and ff_dest_recover(), which go by what their
 * caller says; 0: the caller is not to call them */
int ff_address_reconnect_ms(const struct ff_address *a);

/* precopy=1: memory goes once while the guest still runs */
bool ff_address_precopy(const struct ff_address *a);

/* fallback=go: its source may call ff_source_take_back() */
bool ff_address_fallback(const struct ff_address *a);

/**
 * ff_address_resolve() - look up now where the host of @a is
 *
 * A source made from @a afterwards looks nothing up. Call this before fork(2): a lookup takes locks
 * of the C library, which another thread may hold at the fork.
 *
 * Cost:    the lookup, which may ask a name server
 * Threads: any, one at a time for @a
 * Return:  0; -EADDRNOTAVAIL, or the reason for which the lookup failed
 */
int ff_address_resolve(struct ff_address *a, struct ff_error *err);

/* --- memory --- */

/**
 * struct ff_region - one contiguous piece of guest RAM
 * @name:      as the peer knows it, at most 255 bytes
 * @host:      where it is mapped, aligned to @psize; borrowed until the handle is freed
 * @len_bytes: a non-zero multiple of @psize
 * @psize:     page size in bytes: 4096, or 2 MiB for hugetlb
 * @fd:        the file behind a shared mapping (memfd, tmpfs, hugetlbfs), or -1
 * @fd_offset: where in @fd the region starts
 * @zero_fill: an untouched page reads as zeros: anonymous memory, a mapping of @fd or of
 *             @private_fd
 * @is_private: for a source, with @fd -1: the region is a private mapping of @private_fd from
 *             @fd_offset on. The kernel has copies of what was written; the library looks at the
 *             rest in the file, whose holes stay. While the region is there, nobody else may write
 *             to the file
 */
struct ff_region {
    const char *name;
    void *host;
    uint64_t len_bytes;
    uint32_t psize;
    int fd;
    uint64_t fd_offset;
    bool zero_fill;
    bool is_private;
    int private_fd;
};

/* A page that the guest will touch first. @region: its place in the order of addition */
struct ff_page_ref {
    uint32_t region;
    uint64_t offset;
};

/* --- what happened --- */

/**
 * struct ff_stats - counts of one move, the same numbers on both sides
 *
 * The destination counts; the source has the last report that it received. Times are durations in
 * ns by CLOCK_MONOTONIC. bytes_* count guest memory.
 */
struct ff_stats {
    uint64_t bytes_total;
    uint64_t bytes_present;    /* with holes, except a touched one that waits for memory */
    uint64_t bytes_prefill;    /* content that prefill installed */
    uint64_t bytes_fault;      /* content that faults (and first-touch pages) installed */
    uint64_t bytes_zero;       /* zero pages, installed or holes: without a transfer */
    uint64_t bytes_duplicated; /* content that came twice: by prefill and by a fault */
    uint64_t faults;           /* pages that a fault fetched */
    uint64_t faults_waited;    /* faults that found their page being installed */
    uint64_t faults_late;      /* faults that found their page present */
    uint64_t fault_p50_ns, fault_p90_ns, fault_p99_ns, fault_p999_ns, fault_max_ns;
    uint64_t first_touch;      /* pages fetched ahead of the guest */
    uint64_t load_ns;          /* destination: state received until ready */
    uint64_t start_ns;         /* destination: GO received until running */
    uint64_t complete_ns;      /* destination: running until every page was there */
    /* how pages became visible: copied in; mapped where the link had put them; moved in */
    uint64_t bytes_copied, bytes_continued, bytes_moved;
    uint64_t prefill;          /* enum ff_prefill_mode; AUTO: the destination has not chosen yet */
    uint64_t source_cpu_ns;    /* CPU time of the library's threads there; source only */
    uint64_t dest_cpu_ns;
    /* precopy=1: installed before the guest's pause; made missing again, since the guest wrote it
     * meanwhile; duration of the pass. Prefill, fault, zero and poisoned bytes add up to bytes_total
     * and bytes_discarded */
    uint64_t bytes_precopied, bytes_discarded, precopy_ns;
    /* links that broke and were followed by another; content asked for once more over that, since
     * it was on its way; time without a link, with the break that lasts */
    uint64_t breaks, bytes_again, paused_ns;
    /* what the source could not read, since its memory has failed: who touches it at the destination
     * gets SIGBUS. It counts as present, and as nothing else */
    uint64_t bytes_poisoned;
    /* multicast=: packets that came to the destination from the group, and that did not */
    uint64_t group_packets, group_lost;
};

/* The parts of a fault's time, from the moment at which the fault thread is awake. The kernel and
 * KVM take more before that and after the wake */
enum ff_stage {
    FF_STAGE_READ,    /* the event, from the kernel */
    FF_STAGE_CLAIM,   /* find the page, claim it */
    FF_STAGE_POST,    /* post its read */
    FF_STAGE_WIRE,    /* until the bytes have arrived */
    FF_STAGE_INSTALL, /* install the page; this and the next are timed for one fault in 16 */
    FF_STAGE_WAKE,
    FF_STAGES
};

struct ff_stage_time {
    const char *name;
    uint64_t p50_ns, p99_ns;
};

enum ff_prefill_mode { FF_PREFILL_OFF, FF_PREFILL_PULL, FF_PREFILL_PUSH, FF_PREFILL_AUTO };

/* --- source --- */

struct ff_source;

/* Copies @a */
int ff_source_new(const struct ff_address *a, struct ff_source **out, struct ff_error *err);

/**
 * ff_source_add_region() - name one region of the image
 * @r: copied; keep its memory mapped until ff_source_free()
 *
 * Return: 0; -EINVAL alignment, length or name; -EEXIST a second region of that name
 */
int ff_source_add_region(struct ff_source *s, const struct ff_region *r, struct ff_error *err);

/**
 * ff_source_connect() - connect and compare both sides, while the guest still runs
 * @config: one line that must be equal on both sides (machine type and so on)
 *
 * Cost:    at most the address's timeout for each address of a name, and for the hello
 * Return:  0; -ECONNREFUSED, -ETIMEDOUT, -ECANCELED; -EREMOTEIO: the destination refused, and the
 *          error has its reason
 */
int ff_source_connect(struct ff_source *s, const char *config, struct ff_error *err);

/**
 * ff_group_new() - one image to the agents of several sources, sent once, to an IP multicast group
 * @a:       any of the sources' addresses: with multicast= and the key of all of them
 * @sources: how many there are
 *
 * From when the first source's agent runs, a thread sends packets, sealed with a key from the key of
 * @a. It waits 3 s at most for the other agents. What an agent does not get, it reads by its link.
 * Nothing is sent over verbs, with verify=on, or without a key.
 *
 * Return:  0; -ENOENT: @a has no multicast=
 */
struct ff_group;
int ff_group_new(const struct ff_address *a, unsigned sources, struct ff_group **out,
                 struct ff_error *err);
void ff_group_free(struct ff_group *g); /* after its sources; NULL: nothing */

/* Before ff_source_connect(). The regions of all sources of @g are the same, in one order, and stay
 * mapped, with bytes that do not change, until ff_group_free() */
void ff_source_use_group(struct ff_source *s, struct ff_group *g);

/* Register the regions remote-read only and send the keys; the guest still runs */
int ff_source_publish(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_send_state() - send the device state of the paused guest
 * @state: @len bytes, opaque
 * @first: @n pages that the CPU state points at; the destination fetches them at once
 *
 * From here on no byte of any region may change until ff_source_free(), or until the caller resumes
 * the guest without having called ff_source_go().
 */
int ff_source_send_state(struct ff_source *s, const void *state, size_t len,
                         const struct ff_page_ref *first, size_t n, struct ff_error *err);

/* Wait until the destination watches its memory: by then it has refused whatever it has to refuse.
 * Call it before you pause the guest; otherwise ff_source_wait_ready() waits for the same. */
int ff_source_wait_watched(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_wants_precopy() - does the destination fetch memory before the guest is paused?
 *
 * Call it after ff_source_connect(). True: the destination's address has precopy=1. The caller may
 * then log writes and call ff_source_precopy(); without that it is a move like any other.
 */
bool ff_source_wants_precopy(const struct ff_source *s);

/**
 * ff_source_precopy() - let the destination fetch every page once, while the guest runs
 *
 * Log every write to a region, by vCPUs, by devices, by the caller, from before this call until the
 * last call of ff_source_dirty(). While the guest still runs you may call ff_source_dirty() for
 * each region and then this function again: it waits until the destination has discarded those
 * pages, so that less is left for the pause. The destination fetches nothing a second time.
 *
 * Return: 0; -errno: as any failure before the pause
 */
int ff_source_precopy(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_dirty() - name the pages of a region that were written since the log began
 * @region:     its place in the order of addition
 * @bits:       bit i % 64 of bits[i / 64] is page i, counted from the start of the region
 * @page_bytes: the bytes that one bit stands for; divides the region's page size
 *
 * Call it in the pause once for every region, also for one without writes. Save the device state
 * before, since that may write memory. ff_source_send_state() comes after, and fails without this.
 */
int ff_source_dirty(struct ff_source *s, uint32_t region, const uint64_t *bits,
                    uint64_t page_bytes, struct ff_error *err);

/* -ETIMEDOUT: 45 s have passed since the first ff_source_dirty() of the pause, or since
 * ff_source_send_state() began. Both fail with the same. The guest may go on here */
int ff_source_wait_ready(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_go() - the point of no return: the destination may run the guest
 *
 * Return: 0; -ETIME: the source sent nothing, since the destination has left or waits no longer:
 *         the guest may go on here; any other failure: the guest must not run here again
 */
int ff_source_go(struct ff_source *s, struct ff_error *err);

/* Wait until the destination runs the guest, for as long as it reports to be alive */
int ff_source_wait_running(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_wait_done() - serve the destination until it has every page
 *
 * Return: 0: the image is withdrawn; -EINVAL: before ff_source_go(); else -errno: the link is broken, and the image stays
 */
int ff_source_wait_done(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_resume() - after GO, when the link broke: connect anew, and serve on
 * @a:          where the destination listens from now on, which must be the same process; NULL: as
 *              before. Without a key in it the move's is taken; a move that began without one
 *              goes on without
 * @timeout_ms: of all tries together
 *
 * Call it when ff_source_go(), ff_source_wait_running() or ff_source_wait_done() has failed. The
 * guest must not run here meanwhile, and not afterwards, but for -ETIME.
 *
 * Return: 0: call ff_source_wait_running() and ff_source_wait_done() again; -ETIME: the destination
 *         never got GO and never runs the guest: it may go on here; -EREMOTEIO: refused; -EPROTO: no
 *         such link or answer can be this move's; -ETIMEDOUT: nobody answered; -ECANCELED: also
 *         when the guest has returned (farfork-return.h); -EINTR: by ff_source_interrupt(); -ENOTSUP: the link
 *         was not over a network
 */
int ff_source_resume(struct ff_source *s, const struct ff_address *a, int timeout_ms,
                     struct ff_error *err);
void ff_source_pause(struct ff_source *s); /* any thread: break the link, as an outage does */

/**
 * ff_source_not_started() - somebody else knows that the destination never ran the guest
 * @mark: what that file says, without its newline
 *
 * For a caller that is certain of it: its process has ended, and has left the file of until-go=.
 * Between two calls of ff_source_resume(), instead of the next one.
 *
 * Return: -ETIME, with a reason: the guest may go on here; -EINVAL: nothing was let go of,
 *         ff_source_runs_there(), or ff_source_check_mark()
 */
int ff_source_not_started(struct ff_source *s, const char *mark, struct ff_error *err);

/* Any thread: 0: that file is of this move; -EINVAL: of another one, or of a link before its last */
int ff_source_check_mark(const struct ff_source *s, const char *mark, struct ff_error *err);

/* Any thread: the destination has said that it runs the guest */
bool ff_source_runs_there(const struct ff_source *s);

/* Any thread: let ff_source_resume() return -EINTR, now or when it is called next. A link that is
 * up may break */
void ff_source_interrupt(struct ff_source *s);

/**
 * ff_source_take_back() - fallback=go: run the guest here again, as it was at GO
 *
 * With fallback=go the source keeps the image, and the right to its guest, until DONE. The
 * destination runs the guest under a lease (lease=SECONDS, default 30), which the source renews for
 * as long as the caller is inside ff_source_wait_running() or ff_source_wait_done(). Its disks must
 * be written to overlays since before GO, which are committed once ff_dest_wait_done() has returned
 * 0. Call this function instead of ff_source_resume() when the destination is lost. It
 *   1. ends the link for good, and waits for the end of the destination's lease (and 1 s, and 1 %);
 *   2. writes record=FILE, on stable storage: the destination is not to go on, whoever comes back;
 *   3. runs fence=PROGRAM, which must end with 0 once the destination can neither run the guest nor
 *      write its disks. Its environment has FARFORK_DESTINATION=HOST:PORT and FARFORK_SESSION; it
 *      has 60 s.
 * Then drop the overlays, activate disks, run the guest. Whatever the world has seen since GO is
 * forgotten. ff_source_wait_done() succeeds only once the destination knows that it is final: when
 * that fails, call ff_source_resume() as ever.
 *
 * Return: 0; -EPERM: the fence failed: the guest runs nowhere, call again; -EINVAL: nothing to take
 *         back: without fallback=go, before GO, or DONE has come; -EBUSY: the guest is on its way back,
 *         or is to come back with its disks (farfork-return.h); -ECANCELED, -EINTR: as in
 *         ff_source_resume(), which may still be called then; -EIO: the record cannot be written,
 *         likewise
 */
int ff_source_take_back(struct ff_source *s, struct ff_error *err);

/* After that: say so to a destination that is still there. One try; nothing depends on it */
int ff_source_tell_taken_back(struct ff_source *s, struct ff_error *err);

void ff_source_cancel(struct ff_source *s); /* any thread: every wait ends with -ECANCELED */

/* Break the link. When this returns no thread of the library reads the regions any more.
 * Call it from any thread, but not together with ff_source_free(). */
void ff_source_stop(struct ff_source *s);
void ff_source_stats(struct ff_source *s, struct ff_stats *out);
const char *ff_source_link(struct ff_source *s); /* "tcp"; "none" before ff_source_connect() */

/* The link in a few words: which device, and why no other link */
#define FF_LINK_DETAIL_MAX 160
void ff_source_link_detail(struct ff_source *s, char out[FF_LINK_DETAIL_MAX]);
void ff_source_free(struct ff_source *s);

/* Room for a session in hexadecimal */
#define FF_SESSION_TEXT 33

/* Call it after ff_source_connect() or ff_source_hand_over(). An agent whose ff_agent_session() is
 * the same has this image. "": nobody has taken it */
void ff_source_session(const struct ff_source *s, char out[FF_SESSION_TEXT]);

/* --- destination --- */

struct ff_dest;

/* Listen. 0: the port is taken; -EADDRINUSE and others */
int ff_dest_new(const struct ff_address *a, struct ff_dest **out, struct ff_error *err);
unsigned ff_dest_port(const struct ff_dest *d);

/* As ff_source_add_region(). The memory must be unpopulated; touch none of it until ff_dest_start()
 * has returned */
int ff_dest_add_region(struct ff_dest *d, const struct ff_region *r, struct ff_error *err);

/**
 * ff_dest_accept() - wait for a source and compare both sides
 * @config: as in ff_source_connect()
 *
 * The call drops a peer with a warning, tells it why where it can, and goes on waiting, when that
 * peer is no Farfork source, speaks another version, differs in regions or config, or leaves before
 * its queues are open. It listens to several peers at once.
 *
 * Return: 0; -ECANCELED; -errno: it cannot wait any longer
 */
int ff_dest_accept(struct ff_dest *d, const char *config, struct ff_error *err);

/* Watch every region and take the source's keys: from here on the library serves faults */
int ff_dest_start(struct ff_dest *d, struct ff_error *err);

/* Call it after ff_dest_start(), which has emptied the @region-th region itself if this says so: pages
 * are ready in the region's file, and a caller that empties memory discards nothing of it */
bool ff_dest_is_emptied(const struct ff_dest *d, unsigned region);

/* Register memory to land in, report that it is watched and empty, and wait for the device state.
 * From here on nothing may discard memory until ff_dest_wait_done() has returned 0.
 * @state: free it with free() */
int ff_dest_recv_state(struct ff_dest *d, void **state, size_t *len, struct ff_error *err);

/**
 * ff_dest_on_break() - what to do when the link breaks while the caller loads or starts the guest
 * @fn: a thread of the library calls it, between ff_dest_start() and ff_dest_ready(), and again
 *      after ff_dest_wait_go(). A thread that touches missing memory then waits until there is
 *      another link, perhaps with locks held. Before READY there is none: @fn should end the
 *      process with the reason. After GO it should let another thread call ff_dest_recover().
 *      It calls nothing of the library itself. NULL: nobody is told
 */
void ff_dest_on_break(struct ff_dest *d, void (*fn)(void *opaque, const char *why), void *opaque);

/**
 * ff_dest_on_shortage() - learn that there is no memory to install a page
 * @fn: ff_dest_wait_done() calls it in its thread. @why: a page has waited for five seconds; NULL:
 *      there is memory again. A thread that touches missing memory waits; nothing is lost
 *
 * Call it before ff_dest_wait_done(). Before GO a page that waits for so long ends the move
 * instead.
 */
void ff_dest_on_shortage(struct ff_dest *d, void (*fn)(void *opaque, const char *why),
                         void *opaque);

/**
 * ff_dest_on_lease() - how to stop the guest when the source is not heard (fallback=go)
 * @fn: a thread of the library calls it from ff_dest_wait_go() on, or that itself, when GO came so
 *      late that there is no lease: nothing runs then. @may_run false: stop the guest,
 *      let its writes end and give its disks up, then return; a third of the lease is left then. The
 *      kernel kills this process (SIGKILL) when the lease ends before @fn has returned, also one
 *      that was stopped. True: the guest may run again. What it said last holds: when it has said
 *      false before the caller runs the guest, the caller does not until it says true.
 *
 * Call it before ff_dest_start(). Without it a source with fallback=go is refused. Once
 * ff_dest_wait_done() has returned 0 the guest may run, @fn has said so, and is not called any more.
 */
void ff_dest_on_lease(struct ff_dest *d, void (*fn)(void *opaque, bool may_run), void *opaque);

/* Instead of that: refuse such a source, and tell it @why, while the guest still runs there */
void ff_dest_refuse_lease(struct ff_dest *d, const char *why);

/**
 * ff_dest_hold_output() - the caller can keep what the guest sends from everybody
 *
 * Call it between ff_dest_accept() and ff_dest_start(). Without it a source with output=hold is
 * refused; a caller that cannot, this time, calls ff_dest_refuse_lease() as well.
 *
 * Return: true: the source says output=hold: hold it from before the guest runs until
 *         ff_dest_wait_done() has returned 0, then send it in its order. What a guest has sent that
 *         its source takes back is never sent.
 */
bool ff_dest_hold_output(struct ff_dest *d);

/* Any thread. Somebody knows that the source is dead for good, and that no record=FILE there says
 * that it has taken its guest back: the guest needs no lease any more, until that source is heard
 * after all. If every page is here, ff_dest_recover() returns 0 when it is called next */
void ff_dest_release(struct ff_dest *d);

/* The state is loaded: ask the source to let go */
int ff_dest_ready(struct ff_dest *d, struct ff_error *err);

/* 0: this side may run the guest now; anything else: it must never run the guest. The file of
 * until-go=, which ff_dest_new() made, is removed before it returns 0 */
int ff_dest_wait_go(struct ff_dest *d, struct ff_error *err);

int ff_dest_running(struct ff_dest *d, struct ff_error *err);

/**
 * ff_dest_wait_done() - fetch the rest in the background until every page is here
 *
 * Return: 0: all memory is here and no longer watched; with fallback=go the source has also said
 *         that it never takes the guest back; -errno: the link broke, and the guest goes on until it
 *         touches a missing page, or its lease ends
 */
int ff_dest_wait_done(struct ff_dest *d, struct ff_error *err);

/**
 * ff_dest_listen() - where the source will find this destination when it comes back
 * @a: from now on; NULL: where it came last. As to a key: as for ff_source_resume()
 *
 * Threads: any, also while ff_dest_recover() waits elsewhere. It waits here then
 */
int ff_dest_listen(struct ff_dest *d, const struct ff_address *a, struct ff_error *err);

/**
 * ff_dest_recover() - after READY, when the link broke: wait for the source, and go on with it
 * @timeout_ms: -1: no limit
 *
 * Call it when ff_dest_wait_go(), ff_dest_running() or ff_dest_wait_done() has failed, or the link
 * broke before ff_dest_running(), which is called all the same then; and after
 * ff_dest_wait_done() has succeeded, for a source that may not know yet. It listens where
 * ff_dest_listen() said, and answers the source of this move alone. Meanwhile the guest goes on
 * until it touches missing memory. When ff_dest_wait_go() has failed, no thread waits for memory
 * from here on, as after ff_dest_give_up(): nothing runs here, and the source is told so.
 *
 * Return: 0: call ff_dest_wait_done() again, unless it has returned 0 before; -ESTALE: no GO had
 *         come, and the source knows; -EKEYREVOKED: fallback=go, and the source has taken its guest
 *         back: it was stopped here, by ff_dest_on_lease(), for good; end this process;
 *         -ETIMEDOUT; -ECANCELED; -EINTR: by ff_dest_interrupt();
 *         -ENOTSUP: the link was not over a network
 */
int ff_dest_recover(struct ff_dest *d, int timeout_ms, struct ff_error *err);
void ff_dest_pause(struct ff_dest *d); /* any thread: break the link, as an outage does */

/* Any thread: let ff_dest_recover() return -EINTR, now or when it is called next. It listens no
 * more then, until it is called again */
void ff_dest_interrupt(struct ff_dest *d);

/* Any thread: whether READY was sent, so that the source may let go, or have done so */
bool ff_dest_is_ready(const struct ff_dest *d);

/* After ff_dest_wait_done() has returned 0: whether the source knows */
bool ff_dest_is_told(const struct ff_dest *d);

void ff_dest_cancel(struct ff_dest *d); /* any thread */

/**
 * ff_dest_shut_down() - the guest that runs here has shut itself down, or runs again after that
 *
 * Writes it down, on stable storage, beside the file of until-go=: FILE.shut-down. Who wants to
 * take a guest back (ff_source_take_back()) from a process that has ended, and finds that, is not to.
 * Under a lease call it while the lease lasts: whoever looks when it has ended sees what holds.
 *
 * Threads: any, one at a time, after ff_dest_wait_go()
 * Return:  0, without until-go= too; -EINVAL: no GO has come. Else -errno: the file is there or not;
 *          the next call writes what it is told, also if that is the same
 */
int ff_dest_shut_down(struct ff_dest *d, bool down, struct ff_error *err);

/**
 * ff_dest_give_up() - end the attempt, so that no thread waits for missing memory any more
 *
 * A thread that waited goes on and reads zeros. So call it only when the guest certainly does not
 * run here and never will. The handle stays, for ff_dest_stats() and ff_dest_free().
 *
 * Return: 0; -EBUSY: GO has come, the guest is this side's, and memory stays watched
 */
int ff_dest_give_up(struct ff_dest *d);

/**
 * ff_dest_is_present() - whether memory from @offset of the region that was added as the
 * @region-th, counted from 0, is here; what is not would be waited for
 * @len: how far from @offset on the same holds, at most to the end of the region
 *
 * Threads: any. What is here stays; what is not may have come since.
 */
bool ff_dest_is_present(const struct ff_dest *d, unsigned region, uint64_t offset, uint64_t *len);

/**
 * ff_dest_missing_bytes() - how much of the region that was added as the @region-th is not here
 *
 * Cost:    a counter
 * Threads: any. While pages come it may be some pages behind or ahead.
 */
uint64_t ff_dest_missing_bytes(const struct ff_dest *d, unsigned region);
void ff_dest_stats(struct ff_dest *d, struct ff_stats *out);
void ff_dest_stages(struct ff_dest *d, struct ff_stage_time out[FF_STAGES]);
const char *ff_dest_link(struct ff_dest *d);
void ff_dest_link_detail(struct ff_dest *d, char out[FF_LINK_DETAIL_MAX]);

/* Never call it while the guest may touch a missing page: the guest would read zeros */
void ff_dest_free(struct ff_dest *d);

/* --- after a move --- */

struct ff_collapse;

/* Counts ranges of 2 MiB that lie wholly in anonymous memory */
struct ff_collapse_counts {
    uint64_t ranges;
    uint64_t huge;   /* each of these is a huge page */
    uint64_t sparse; /* left alone: less than half of it holds anything */
    uint64_t failed; /* the kernel refused; khugepaged may try later */
    uint64_t cpu_ns;
    bool ended;
};

/**
 * ff_collapse_start() - make memory that came in pages of 4 KiB huge again, in the background
 * @r: @n regions; copied. Only anonymous ones count. Their memory is complete and watched no longer
 *     (ff_dest_wait_done() has returned 0) and permits huge pages (MADV_HUGEPAGE). Do not unmap it
 *     before ff_collapse_stop().
 *
 * No byte changes, whatever runs on the memory meanwhile. A range of which half is untouched takes
 * all of its 2 MiB afterwards; one that holds less stays as it is.
 *
 * Cost:    0.5 ms of CPU for 2 MiB; a thread that touches these waits for that. The collapsing
 *          thread rests for three quarters of the time.
 * Return:  0; -ENOTSUP: this host has no transparent huge pages, or they are turned off
 */
int ff_collapse_start(const struct ff_region *r, unsigned n, struct ff_collapse **out,
                      struct ff_error *err);
void ff_collapse_stats(struct ff_collapse *c, struct ff_collapse_counts *out);

/* End it after the 2 MiB under way, and free @c, which may be NULL */
void ff_collapse_stop(struct ff_collapse *c);

#ifdef __cplusplus
}
#endif

#endif
