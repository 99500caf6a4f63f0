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
 *              ff_source_free()                        ff_dest_free()
 *
 * Threads      the calls of one handle are made one after the other, from any thread;
 *              *_cancel() and *_stats() at any time from any thread.
 * Invariants   Once ff_source_go() was called the guest must not run on the source again,
 *              whatever it returned but -ETIME. Before that, a failure anywhere leaves the source
 *              free to resume. The destination must not run the guest before ff_dest_wait_go()
 *              returned 0.
 * Failure      functions return 0 or -errno and fill the error, if one is given.
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

/* What went wrong, in one line; gathers context on its way up */
struct ff_error;

struct ff_error *ff_error_new(void);           /* NULL only when memory is exhausted */
const char *ff_error_message(const struct ff_error *err);
int ff_error_code(const struct ff_error *err); /* errno value; 0: none */
void ff_error_free(struct ff_error *err);

enum ff_level { FF_ERROR, FF_WARN, FF_INFO, FF_DEBUG };

/**
 * ff_set_log() - decide where messages for a person go
 * @fn:  called from any thread with one line without a newline; NULL: stderr
 * @max: the least urgent level wanted
 */
void ff_set_log(void (*fn)(enum ff_level level, const char *line), enum ff_level max);

/* --- addresses --- */

struct ff_address;

/**
 * ff_address_parse() - parse "HOST:PORT[,option=value...]", or "unix[,option=value...]"
 * @text: IPv4, [IPv6] or a name; an empty HOST listens on every address. unix: of an agent and its
 *        source on one host; nothing listens, the agent's socket takes connected ones. Options:
 *        link=auto|tcp|verbs, device=NAME[:PORT], qps=N, timeout=SECONDS, chunk=SIZE,
 *        window=CHUNKS, landing=auto|copy|continue|move, prefill=auto|pull|push|off,
 *        odp=auto|on|off, precopy=0|1, prealloc=0|1
 * @out:  to be freed with ff_address_free()
 *
 * Return: 0, or -EINVAL naming the part that is wrong and what is permitted; -ENOTSUP: a
 *         link that this build does not have
 */
int ff_address_parse(const char *text, struct ff_address **out, struct ff_error *err);
void ff_address_free(struct ff_address *a);

/**
 * ff_address_resolve() - look up now where the host of @a is
 *
 * Sources that are made from @a afterwards do not: for a process that calls fork(2) first, since a
 * lookup takes locks of the C library that another thread may have held. Cost: the lookup; it may
 * ask a name server. Threads: any, one at a time for @a.
 * Return: 0, or -EADDRNOTAVAIL or what the lookup failed of.
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
 * @zero_fill: a page that nobody has touched reads as zeros: anonymous memory, a mapping of @fd or
 *             of @private_fd
 * @is_private: a source's, whose @fd is -1: it is a private mapping of @private_fd from @fd_offset
 *              on.
 *             What was written is in copies, the rest is looked at in the file, whose holes stay.
 *             While the region is there, nobody else writes to the file
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

/* A page that will be touched first: a region by its number of addition, a byte offset */
struct ff_page_ref {
    uint32_t region;
    uint64_t offset;
};

/* --- what happened --- */

/**
 * struct ff_stats - counts of one move, the same numbers on both sides
 *
 * The destination counts; the source has the last report it was sent. Times are of
 * CLOCK_MONOTONIC durations in ns; bytes_* are of guest memory unless they say wire.
 */
struct ff_stats {
    uint64_t bytes_total;
    uint64_t bytes_present;    /* holes count, but for those that are touched and wait for memory */
    uint64_t bytes_prefill;    /* content that prefill installed */
    uint64_t bytes_fault;      /* content that faults (and first-touch pages) installed */
    uint64_t bytes_zero;       /* zero pages: without a transfer of content; installed, or holes */
    uint64_t bytes_duplicated; /* content that came twice: by prefill and by a fault */
    uint64_t faults;           /* pages that a fault fetched */
    uint64_t faults_waited;    /* faults that found their page being installed */
    uint64_t faults_late;      /* faults that found their page there */
    uint64_t fault_p50_ns, fault_p90_ns, fault_p99_ns, fault_p999_ns, fault_max_ns;
    uint64_t first_touch;      /* pages fetched ahead of the guest */
    uint64_t load_ns;          /* destination: state received until ready */
    uint64_t start_ns;         /* destination: GO received until running */
    uint64_t complete_ns;      /* destination: running until every page was there */
    /* how pages were made visible: copied in; mapped where the link had put them; moved in */
    uint64_t bytes_copied, bytes_continued, bytes_moved;
    uint64_t prefill;          /* enum ff_prefill_mode; AUTO: the destination has yet to choose */
    uint64_t source_cpu_ns;    /* CPU time of the library's threads there; source only */
    uint64_t dest_cpu_ns;
    /* precopy=1: installed before the guest was paused; made missing again, since it was written
     * meanwhile: prefill, fault and zero bytes add up to the total and these; the pass */
    uint64_t bytes_precopied, bytes_discarded, precopy_ns;
};

/* What the time of a fault is made of, from the moment at which its thread is awake; what comes
 * before that and after the wake is the kernel's and KVM's */
enum ff_stage {
    FF_STAGE_READ,    /* the event, from the kernel */
    FF_STAGE_CLAIM,   /* find the page, claim it */
    FF_STAGE_POST,    /* until its read is posted */
    FF_STAGE_WIRE,    /* until the bytes are here */
    FF_STAGE_INSTALL, /* put the page there; this and the next are timed for one fault in 16 */
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

/* @a is copied */
int ff_source_new(const struct ff_address *a, struct ff_source **out, struct ff_error *err);

/**
 * ff_source_add_region() - name one region of the image
 * @r: copied; its memory must stay mapped until ff_source_free()
 *
 * Return: 0; -EINVAL alignment, length or name; -EEXIST a second region of that name
 */
int ff_source_add_region(struct ff_source *s, const struct ff_region *r, struct ff_error *err);

/**
 * ff_source_connect() - connect and compare both sides, while the guest still runs
 * @config: one line that must be equal on both sides (machine type and so on)
 *
 * Cost:    at most the address's timeout for each address of a name, and for the hello
 * Return:  0; -ECONNREFUSED, -ETIMEDOUT, -ECANCELED; -EREMOTEIO: the destination refused,
 *          the error has its reason
 */
int ff_source_connect(struct ff_source *s, const char *config, struct ff_error *err);

/* Register the regions remote-read only and send the keys; the guest still runs */
int ff_source_publish(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_send_state() - send the device state of the guest that is now paused
 * @state: @len bytes, opaque
 * @first: @n pages that the CPU state points at; the destination fetches them at once
 *
 * From here on no byte of any region may change until ff_source_free(), or the guest is
 * resumed before ff_source_go().
 */
int ff_source_send_state(struct ff_source *s, const void *state, size_t len,
                         const struct ff_page_ref *first, size_t n, struct ff_error *err);

/* Wait until the destination watches its memory: whatever it has to refuse it has refused
 * by then. Before the guest is paused; without it ff_source_wait_ready() waits for it. */
int ff_source_wait_watched(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_wants_precopy() - does the destination fetch memory before the guest is paused?
 *
 * After ff_source_connect(): its address said precopy=1. The caller may log writes and call
 * ff_source_precopy(); without that it is a move like any other.
 */
bool ff_source_wants_precopy(const struct ff_source *s);

/**
 * ff_source_precopy() - let the destination fetch every page once, while the guest runs
 *
 * Every write to a region is logged from before this call until ff_source_dirty() is called for
 * the last time: by vCPUs, by devices, by the caller. Called again, after ff_source_dirty() for
 * each region while the guest still runs, it waits until the destination has discarded those
 * pages, so that less is left to do in the pause; nothing is fetched a second time.
 *
 * Return: 0; -errno: as any failure before the pause
 */
int ff_source_precopy(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_dirty() - name the pages of a region that were written since the log began
 * @region:     by its number of addition
 * @bits:       bit i % 64 of bits[i / 64] is page i, counted from the start of the region
 * @page_bytes: what one bit stands for; divides the region's page size
 *
 * Once for every region, also one that nobody wrote to, between the guest's pause (and after its
 * device state was saved, which may write memory) and ff_source_send_state(), which fails without.
 */
int ff_source_dirty(struct ff_source *s, uint32_t region, const uint64_t *bits,
                    uint64_t page_bytes, struct ff_error *err);

/* -ETIMEDOUT: more than 45 s have passed since the first ff_source_dirty() of the pause, or
 * ff_source_send_state(), which fail with the same; the guest may go on here */
int ff_source_wait_ready(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_go() - the point of no return: the destination may run the guest
 *
 * Return: 0; -ETIME: nothing was sent, since the destination left or would not wait any
 *         more: the guest may go on here; any other failure: it must not run here again
 */
int ff_source_go(struct ff_source *s, struct ff_error *err);

/* As long as the destination takes to run the guest, while it says that it is alive */
int ff_source_wait_running(struct ff_source *s, struct ff_error *err);

/**
 * ff_source_wait_done() - serve the destination until it has every page
 *
 * Return: 0, and the image is withdrawn; or -errno: the link is broken, the image stays
 */
int ff_source_wait_done(struct ff_source *s, struct ff_error *err);

void ff_source_cancel(struct ff_source *s); /* any thread: every wait ends with -ECANCELED */

/* Break the link; when this returns no thread of the library reads the regions any more.
 * Any thread, but not together with ff_source_free(). */
void ff_source_stop(struct ff_source *s);
void ff_source_stats(struct ff_source *s, struct ff_stats *out);
const char *ff_source_link(struct ff_source *s); /* "tcp"; "none" before it is connected */

/* Likewise in a few words: which device, and why no other link */
#define FF_LINK_DETAIL_MAX 160
void ff_source_link_detail(struct ff_source *s, char out[FF_LINK_DETAIL_MAX]);
void ff_source_free(struct ff_source *s);

/* Room for a session in hexadecimal */
#define FF_SESSION_TEXT 33

/* After ff_source_connect() or ff_source_hand_over(): what ff_agent_session() says there, if that
 * is the image which that agent has. "": it was taken by nobody */
void ff_source_session(const struct ff_source *s, char out[FF_SESSION_TEXT]);

/* --- destination --- */

struct ff_dest;

/* Listen; the port is taken when this returns 0. -EADDRINUSE and others */
int ff_dest_new(const struct ff_address *a, struct ff_dest **out, struct ff_error *err);
unsigned ff_dest_port(const struct ff_dest *d);

/* As ff_source_add_region(); the memory must be unpopulated, and not touched until
 * ff_dest_start() returned */
int ff_dest_add_region(struct ff_dest *d, const struct ff_region *r, struct ff_error *err);

/**
 * ff_dest_accept() - wait for a source and compare both sides
 * @config: as in ff_source_connect()
 *
 * A peer that is no Farfork source, speaks another version, differs in regions or config, or leaves
 * before its queues are open, is told why where that can be, dropped with a warning, and the wait
 * goes on. Several peers are heard at once.
 * Return: 0; -ECANCELED; -errno: nobody can be waited for any more
 */
int ff_dest_accept(struct ff_dest *d, const char *config, struct ff_error *err);

/* Watch every region and take the source's keys: from here on faults are served */
int ff_dest_start(struct ff_dest *d, struct ff_error *err);

/* Register memory to land in, say that it is watched and empty, and wait for the device state.
 * Nothing may discard memory from here on until ff_dest_wait_done() has returned 0.
 * @state: to be freed by the caller with free() */
int ff_dest_recv_state(struct ff_dest *d, void **state, size_t *len, struct ff_error *err);

/**
 * ff_dest_on_break() - what to do when faults cannot be served while the state is loaded
 * @fn: called once, from a thread of the library, between ff_dest_start() and
 *      ff_dest_ready(). Whoever touches missing memory then waits for ever, perhaps with
 *      locks held: @fn should end the process with the reason.
 */
void ff_dest_on_break(struct ff_dest *d, void (*fn)(void *opaque, const char *why), void *opaque);

/**
 * ff_dest_on_shortage() - hear that there is no memory to install a page
 * @fn: called by ff_dest_wait_done(), in its thread: @why: a page has waited for five seconds;
 *      NULL: there is memory again. Whoever touches missing memory waits; nothing is lost
 *
 * Before ff_dest_wait_done(). Before GO a page that waits for so long ends the move instead.
 */
void ff_dest_on_shortage(struct ff_dest *d, void (*fn)(void *opaque, const char *why),
                         void *opaque);

/* The state is loaded: ask the source to let go */
int ff_dest_ready(struct ff_dest *d, struct ff_error *err);

/* 0: this side runs the guest now; anything else: it must not, ever */
int ff_dest_wait_go(struct ff_dest *d, struct ff_error *err);

int ff_dest_running(struct ff_dest *d, struct ff_error *err);

/**
 * ff_dest_wait_done() - fetch the rest in the background until every page is here
 *
 * Return: 0: all memory is here and no longer watched; -errno: the link broke, the guest
 *         goes on until it touches what is missing
 */
int ff_dest_wait_done(struct ff_dest *d, struct ff_error *err);

void ff_dest_cancel(struct ff_dest *d); /* any thread */

/**
 * ff_dest_give_up() - end the attempt, so that no thread waits for missing memory any more
 *
 * Whoever waited goes on and reads zeros: only while it is sure that the guest does not
 * run here and never will. The handle stays, for ff_dest_stats() and ff_dest_free().
 *
 * Return: 0; -EBUSY: GO was read by now, the guest is this side's, and memory stays watched
 */
int ff_dest_give_up(struct ff_dest *d);
void ff_dest_stats(struct ff_dest *d, struct ff_stats *out);
void ff_dest_stages(struct ff_dest *d, struct ff_stage_time out[FF_STAGES]);
const char *ff_dest_link(struct ff_dest *d);
void ff_dest_link_detail(struct ff_dest *d, char out[FF_LINK_DETAIL_MAX]);

/* Never while the guest may touch a page that is missing: that would read zeros */
void ff_dest_free(struct ff_dest *d);

/* --- after a move --- */

struct ff_collapse;

/* In ranges of 2 MiB, those that are whole in anonymous memory */
struct ff_collapse_counts {
    uint64_t ranges;
    uint64_t huge;   /* a huge page each by now */
    uint64_t sparse; /* left alone: less than half of it holds anything */
    uint64_t failed; /* could not be had; khugepaged may try later */
    uint64_t cpu_ns;
    bool ended;
};

/**
 * ff_collapse_start() - make memory that came in pages of 4 KiB huge again, in the background
 * @r: @n regions; copied. Anonymous ones alone count, others are passed over. Their memory is
 *     complete and watched no longer (ff_dest_wait_done() returned 0), permits huge pages
 *     (MADV_HUGEPAGE), and is not unmapped before ff_collapse_stop().
 *
 * No byte changes, whatever runs on the memory meanwhile. A range of which half is untouched takes
 * all of its 2 MiB afterwards; one that holds less stays as it is.
 *
 * Cost:    0.5 ms of CPU for 2 MiB; whoever touches these waits for that. Three quarters of the
 *          time the thread rests.
 * Return:  0; -ENOTSUP: this host has no transparent huge pages, or they are turned off
 */
int ff_collapse_start(const struct ff_region *r, unsigned n, struct ff_collapse **out,
                      struct ff_error *err);
void ff_collapse_stats(struct ff_collapse *c, struct ff_collapse_counts *out);

/* End it, at once but for the 2 MiB under way, and free @c, which may be NULL */
void ff_collapse_stop(struct ff_collapse *c);

#ifdef __cplusplus
}
#endif

#endif
