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
 *              [log writes; ff_source_pass() <-->      precopy=1: every page, once]
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
 *              whatever it returned but -ETIME. Before that, a failure anywhere leaves the source free
 *              to resume. The destination must not run the guest before ff_dest_wait_go()
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
 * @is_private: a source's, whose @fd is -1: it is a private mapping of @private_fd from @fd_offset on.
 *             What was written is in copies, the rest is looked at in the file, whose holes stay. While
 *             the region is there, nobody else writes to the file
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
    uint64_t bytes_precopied, bytes_discarded, pass_ns;
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
 * ff_source_wants_pass() - does the destination fetch memory before the guest is paused?
 *
 * After ff_source_connect(): its address said precopy=1. The caller may log writes and call
 * ff_source_pass(); without that it is a move like any other.
 */
bool ff_source_wants_pass(const struct ff_source *s);

/**
 * ff_source_pass() - let the destination fetch every page once, while the guest runs
 *
 * Every write to a region is logged from before this call until ff_source_dirty() is called for
 * the last time: by vCPUs, by devices, by the caller. Called again, after ff_source_dirty() for
 * each region while the guest still runs, it waits until the destination has discarded those
 * pages, so that less is left to do in the pause; nothing is fetched a second time.
 *
 * Return: 0; -errno: as any failure before the pause
 */
int ff_source_pass(struct ff_source *s, struct ff_error *err);

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
void ff_dest_on_shortage(struct ff_dest *d, void (*fn)(void *opaque, const char *why), void *opaque);

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

/* --- fork: one image on this host, shared by its children --- */

/**
 * DOC: Fork
 *
 * Purpose      several guests of one image on one host. An agent receives the image, as a
 *              destination does, into shared memory that it makes itself (memfds) and runs no
 *              guest. Children map that memory privately: the kernel copies what they write.
 *
 * Picture      source                agent                              child
 *              (guest paused:        ff_agent_new()     listens on both
 *               image frozen)        ff_agent_receive()
 *              ff_source_lend()  --> what is on this host is taken as it is
 *              ff_source_connect() .. ff_source_go()    <-- ff_child_new(), add_region(),
 *                                                           ff_child_attach()
 *                                                           (load ff_child_state())
 *                                                       <-- ff_child_loaded()
 *                                                       --> ff_child_wait_start()
 *                                                           (start devices)
 *                                                       <-- ff_child_ready()
 *                                                       --> ff_child_wait_run()
 *                                                           (run) ff_child_running()
 *              ff_source_wait_done() ff_agent_wait()    --> ff_child_wait_done()
 *
 * Threads      as above: the calls of one handle one after the other; *_cancel() and
 *              *_stats() at any time from any thread.
 * Invariants   A child that attached reads the image's bytes, its own, or waits; never zeros
 *              where content should be, whatever ends first. When ff_child_wait_done() fails
 *              the guest must be ended: memory that is missing will never come.
 */
struct ff_agent;
struct ff_child;

/* Room for a session in hexadecimal */
#define FF_SESSION_TEXT 33

enum ff_child_event {
    FF_CHILD_CONNECTED, /* it has said what memory it has, and waits for the image */
    FF_CHILD_ATTACHED, /* its memory is mapped and watched, it has the state */
    FF_CHILD_RUNNING,
    FF_CHILD_COMPLETE, /* all of its memory is here: it needs the agent no more */
    FF_CHILD_LOST      /* it ended, or was dropped, before that */
};

/**
 * struct ff_agent_stats - counts of one image and its children
 * @children:            connected now, those that still attach included
 * @children_running:    of those, which said that they run
 * @children_ended:      left, or dropped; after complete or before
 * @image:               as of any move; faults there are pages fetched, not children's faults
 * @bytes_lent:          of image.bytes_present: in files of the source, lent or handed over
 * @child_faults:        events of children, whatever their page was
 * @child_faults_waited: of those, what found its page under way for somebody else
 * @child_faults_late:   of those, what found its page there
 */
struct ff_agent_stats {
    unsigned children, children_running, children_ended;
    struct ff_stats image;
    uint64_t bytes_lent;
    uint64_t child_faults, child_faults_waited, child_faults_late;
};

/**
 * ff_agent_new() - listen for a source, and for children on this host
 * @listen:      as ff_dest_new(); landing= is copy, precopy= is not permitted. unix: there is no
 *               port, a source comes through @socket_path alone
 * @socket_path: a unix socket, made here and removed by ff_agent_free(); who may use it is decided
 *               by its folder. Peers of another user than ours or root are dropped
 *
 * Children may connect before the image is there: they wait.
 * Return:  0; -EADDRINUSE: the port, or something is at @socket_path; -EINVAL: precopy=1
 */
int ff_agent_new(const struct ff_address *listen, const char *socket_path, struct ff_agent **out,
                 struct ff_error *err);
unsigned ff_agent_port(const struct ff_agent *a); /* 0: unix */

/* No image may have more memory than @max_bytes; before ff_agent_receive(), and before others know
 * where it listens. Without it an agent allocates what any image says that it has */
void ff_agent_limit(struct ff_agent *a, uint64_t max_bytes);

/* Which image it has: a number that this agent made for the source that it took the image from, see
 * ff_source_session(). "": it has none yet */
void ff_agent_session(struct ff_agent *a, char out[FF_SESSION_TEXT]);

/**
 * ff_agent_receive() - wait for a source, take its image's table and state, and let it go
 *
 * A source on this host may have handed its image over before, or does so now: children are served
 * since, and ff_agent_wait() waits for its ff_source_let_run().
 *
 * Return:  0: from here on children are served; -ECANCELED; -errno: as ff_dest_accept() to
 *          ff_dest_running(); children that wait are told why
 */
int ff_agent_receive(struct ff_agent *a, struct ff_error *err);

/**
 * ff_agent_wait() - fetch the rest in the background until every page is here
 *
 * Return:  0: children are told, and so are those that come later, until ff_agent_free();
 *          -errno: the link broke, or who handed it over took it back: children are told, and must
 *          end
 */
int ff_agent_wait(struct ff_agent *a, struct ff_error *err);
#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function and a struct of one name, as in C */
#endif
void ff_agent_stats(struct ff_agent *a, struct ff_agent_stats *out);
#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

/* As ff_dest_link() */
const char *ff_agent_link(struct ff_agent *a);

/* What children do. @fn: called from a thread of the library, one call at a time, while no other
 * child is answered; @child is the number that the child gave. Before ff_agent_receive(), and
 * before others know the agent's socket */
void ff_agent_on_child(struct ff_agent *a,
                       void (*fn)(void *opaque, unsigned child, enum ff_child_event what),
                       void *opaque);
/**
 * ff_agent_together() - children are to run together; at any time from any thread
 * @n: that are expected here and do not run yet: to be told when that changes. None may run before
 *     @n are ready, or none has become ready for two seconds; 0, the default: each as soon as it is
 *     ready
 *
 * Many guests that are started at once all run sooner so: those that run already would take the
 * CPUs from those that start.
 */
void ff_agent_together(struct ff_agent *a, unsigned n);
void ff_agent_cancel(struct ff_agent *a); /* any thread */

/* Children that are not complete lose their memory: they are told, and wait in missing pages */
void ff_agent_free(struct ff_agent *a);

/**
 * ff_source_lend() - give memory to an agent on this host instead of sending it
 * @socket_path: the agent's, at which its children connect
 *
 * After all regions were added, before ff_source_connect(). Those that have an fd are passed: the
 * agent and its children map that very memory, and nothing of it is read over the link. So the
 * file's content must be the region's, all of it, and must never change again, neither by writes
 * nor by discards. Add a region with fd -1 where that is not so. A child can open the file for
 * writing, by /proc/self/fd, unless it is sealed.
 *
 * When the source's address is "unix", the agent also gets the connections here, which
 * ff_source_connect() then uses.
 *
 * Return:  0, also when no region has an fd; -ECONNREFUSED, -ENOENT: nobody listens there;
 *          -EBUSY: the agent has an image, or another source lends to it; or what else it
 *          refused for
 */
int ff_source_lend(struct ff_source *s, const char *socket_path, struct ff_error *err);

/* After ff_source_connect() or ff_source_hand_over(): what ff_agent_session() says there, if that is
 * the image which that agent has. "": it was taken by nobody */
void ff_source_session(const struct ff_source *s, char out[FF_SESSION_TEXT]);

/**
 * ff_source_hand_over() - give an agent on this host the whole image at once
 * @socket_path: as in ff_source_lend()
 * @config:      as in ff_source_connect()
 * @state:       as in ff_source_send_state()
 *
 * Instead of ff_source_lend() and all that follows it but ff_source_let_run(). Regions that have an
 * fd are lent, and are subject to the same rules; of the others what they hold is copied into files
 * of the agent's. When this has returned 0 children load; no link is used.
 *
 * Return:  0; -EFBIG: more than 32 MiB have no fd, or some of huge pages, and nothing was done:
 *          lend, and connect; else as ff_source_lend(). After any failure one may connect: either
 *          that works, or the agent hears that it does not
 */
int ff_source_hand_over(struct ff_source *s, const char *socket_path, const char *config,
                        const void *state, size_t len, struct ff_error *err);

/**
 * ff_source_let_run() - what was handed over will never change: children may run
 *
 * Between the two the caller may still fail to keep the image as it is: who frees the source
 * instead, or dies, ends the children, of which none has run. After it the source can be freed.
 *
 * Return:  0; -ECONNRESET, -EPIPE: the agent has ended, and so will the children; -ECONNABORTED: it
 *          was canceled, likewise; -ECANCELED: ff_source_cancel(), of which it is not known whether
 *          it came before; -EINVAL: nothing was handed over. An agent that does not answer is waited
 *          for until it ends
 */
int ff_source_let_run(struct ff_source *s, struct ff_error *err);

/* @number: the caller's, for messages and ff_agent_on_child() */
int ff_child_new(const char *socket_path, unsigned number, struct ff_child **out,
                 struct ff_error *err);

/* As ff_dest_add_region(); @r->fd is ignored. What is mapped at @r->host is replaced */
int ff_child_add_region(struct ff_child *c, const struct ff_region *r, struct ff_error *err);

/* @fn: called by ff_child_attach() in its thread, when memory is about to be mapped and when it is.
 * In between it cannot be accessed at all: keep others from it. Before ff_child_attach() */
void ff_child_on_map(struct ff_child *c, void (*fn)(void *opaque, bool begins), void *opaque);

/**
 * ff_child_attach() - wait for the image and map it privately over every region
 * @config: as in ff_source_connect()
 *
 * Regions are compared by name; their order may differ. They are mapped MAP_PRIVATE from the
 * agent's files, and what is not there yet is watched: who touches it waits for the agent.
 *
 * A region of huge pages needs as many free ones as it is large, beside the image's: a child may
 * come to write to each. Let go of what was at @r->host before (a file of huge pages that is still
 * open keeps its own). Regions are not inherited by fork(2).
 *
 * Return:  0; -ECANCELED; -ENOENT, -ECONNREFUSED: no agent; -EINVAL: regions or config differ, and
 *          nothing was mapped; -ENOMEM: not enough huge pages; or what the agent refused or lost
 *          the image for. After a failure the regions are not to be used any more
 */
int ff_child_attach(struct ff_child *c, const char *config, struct ff_error *err);

/* The device state, valid until ff_child_free() */
void ff_child_state(const struct ff_child *c, const void **state, size_t *len);

/* The file that is now mapped for a region (by its number of addition), and where it starts in it;
 * owned by @c. -1: not attached */
int ff_child_fd(const struct ff_child *c, unsigned region, uint64_t *offset);

/* The state is loaded; all but the vCPUs has been started; the guest runs: tell the agent. Also
 * while another thread is in one of the three below */
int ff_child_loaded(struct ff_child *c, struct ff_error *err);
int ff_child_ready(struct ff_child *c, struct ff_error *err);
int ff_child_running(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_start() - wait until the image is for good, and devices may be started
 *
 * Call it in a thread of its own as soon as the child is attached: loading the state may wait for
 * memory that never comes, and only this, and then those below, say so.
 * Return: as ff_child_wait_done(), but for 0: nothing will take the image back, and ff_child_loaded()
 *         was called, or all memory is here and the agent has ended: load it first
 */
int ff_child_wait_start(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_run() - wait until the guest may run, see ff_agent_together()
 *
 * After ff_child_wait_start(), and ff_child_ready() from any thread.
 * Return: as ff_child_wait_done(), but for 0: ff_child_ready() was called, and the guest may run
 */
int ff_child_wait_run(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_done() - wait until all memory is on this host
 *
 * Return: 0: it is, and it is no longer watched: the child needs the agent no more;
 *         -ECANCELED; -errno: the agent lost its source, or died: the guest must be ended. Until it is,
 *         whoever touches missing memory waits; nobody reads zeros.
 */
int ff_child_wait_done(struct ff_child *c, struct ff_error *err);
void ff_child_cancel(struct ff_child *c); /* any thread */

/* The mappings stay. Before ff_child_wait_done() returned 0 the userfaultfd is left open on
 * purpose: were it closed, missing memory would read as zeros */
void ff_child_free(struct ff_child *c);

/* --- processes for children --- */

/**
 * struct ff_process - a process to be started: a group of its own, no input
 * @log:    its output is appended there
 * @cwd:    its folder; NULL: the caller's
 * @argv:   the program and its arguments, NULL at the end
 * @before: commands that must succeed first, likewise, one after the other; NULL: none
 */
struct ff_process {
    const char *log, *cwd;
    char *const *argv;
    char *const *const *before;
};

/**
 * ff_process_exec() - start a program
 * @trouble_fd: ends when the program runs; before that, a line that says why it does not
 *
 * Return: 0: a process is there, the caller's child
 */
int ff_process_exec(const struct ff_process *p, pid_t *pid, int *trouble_fd, struct ff_error *err);

/**
 * ff_process_serve() - be a fork server: children are forked off here, and go on as if started anew
 * @sock: connected, SOCK_STREAM, to who asks for children
 * @argc, @argv: in a child: its own; they stay for as long as it lives
 *
 * To be called early in main(), when what needs no arguments is done and every other thread sleeps.
 * Children share what was done by then: memory that nobody writes, and the layout of addresses.
 * The server ends with the other end of @sock.
 *
 * Return: 0: in a child; -errno: there is no server, and no child
 */
int ff_process_serve(int sock, int *argc, char ***argv, struct ff_error *err);

/**
 * ff_process_wait_server() - wait until a process at the other end of @sock is a server
 * Return: 0; -EPIPE: it has ended; -EAGAIN: nothing was heard for five seconds
 */
int ff_process_wait_server(int sock, struct ff_error *err);

/**
 * ff_process_fork() - as ff_process_exec(), by a server that runs the program of @p->argv[0] already
 *
 * The child is the caller's own if that is a subreaper (PR_SET_CHILD_SUBREAPER), and the server its
 * child. After an error none runs, nor will; the server is not to be asked again.
 */
int ff_process_fork(int sock, const struct ff_process *p, pid_t *pid, int *trouble_fd,
                    struct ff_error *err);

/* --- this host --- */

enum ff_check { FF_CHECK_OK, FF_CHECK_LIMITED, FF_CHECK_NO };

/**
 * ff_host_check() - find out what this host can do, what it cannot, and why
 * @fn: called once for each subject; @why says what was found and what to do about it
 */
void ff_host_check(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                              const char *why),
                   void *opaque);

/* A GID of an RDMA port; what rdma_cm chooses by the address that is connected to */
struct ff_rdma_gid {
    unsigned index;
    const char *gid;    /* as an IPv6 address is written */
    const char *type;   /* "IB", "RoCE v1", "RoCE v2" */
    const char *netdev; /* "" on InfiniBand */
    bool elsewhere;     /* @netdev is in another network namespace */
};

/**
 * struct ff_rdma_port - one port of an RDMA device
 * @port:    from 1 on; 0: the device could not be asked, only @device and @trouble are set
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
    bool odp, odp_rc_read;  /* on-demand paging; memory so registered can be read remotely */
    unsigned n_gids;
    const struct ff_rdma_gid *gids;
    const char *trouble;
};

/**
 * ff_rdma_list() - list the RDMA devices of this host
 * @fn: called once for each port; what it is given is valid during the call
 *
 * Cost:    no network, no memory registered
 * Return:  the number of calls; -errno: RDMA cannot be had here at all
 */
int ff_rdma_list(void (*fn)(void *opaque, const struct ff_rdma_port *port), void *opaque);

/* --- this host and another --- */

/**
 * struct ff_probe_options - how to probe
 * @device:    verbs: "NAME" or "NAME:PORT"; NULL or "": any
 * @qps:       verbs: queue pairs for bandwidth; 0: 1
 * @cancel_fd: -1, or a descriptor that becomes readable to end it
 * @once:      ff_probe_serve(): end when one peer has been served over tcp, which peers do last
 */
struct ff_probe_options {
    const char *device;
    unsigned qps;
    int cancel_fd;
    bool once;
};

/* READs of one size: one after the other (latency), then as many at once as there may be */
struct ff_probe_size {
    uint32_t size_bytes;
    uint32_t reads; /* timed one by one */
    uint64_t p50_ns, p99_ns, max_ns;
    uint32_t depth; /* reads in flight for the bandwidth */
    uint64_t bytes_per_s;
};

#define FF_PROBE_SIZES 3

/**
 * struct ff_probe_link - what was found out about one kind of link
 * @error:      0, or an errno value: the link could not be made or used, and @reason says why
 * @connect_ns: until its queues were open
 * @n_sizes:    grows while it is probed; fewer than FF_PROBE_SIZES at the end when the device
 *              carries no message so large
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
 * @fn: called from any thread of the library, one call at a time, with one line for a person;
 *      the first ones say where it listens, or why a kind of link cannot be had
 *
 * Peers may read 8 MiB of a pattern, remote-read only, and nothing else.
 *
 * Threads: two for each kind of link, while this call lasts
 * Return:  0: canceled, or one peer was served (@o->once); -errno: no kind of link can listen
 */
int ff_probe_serve(const struct ff_address *a, const struct ff_probe_options *o,
                   void (*fn)(void *opaque, const char *line), void *opaque, struct ff_error *err);

/**
 * ff_probe_peer() - find out whether and how fast this host reads from another
 * @a:  where ff_probe_serve() listens; of its options only timeout counts
 * @fn: called when a kind of link is connected, after each size, and at its end, first for
 *      verbs, then for tcp. What was read is compared with what it should be: for latency all
 *      of it, for bandwidth what the buffers hold at the end
 *
 * Cost:    about three seconds a kind of link, or the timeout of @a where there is no answer
 * Return:  the number of links that work, 0 also when there is none: @fn was told why;
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
