/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork-clone.h - one image on a host, shared by the children of a fork
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      run several guests of one image on one host. An agent receives the image as a
 *              destination does, into shared memory of its own (memfds), and runs no guest.
 *              Children map that memory privately: the kernel copies what they write.
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
 * Threads      as in farfork.h: make the calls of one handle one after the other. Call *_cancel()
 *              and *_stats() at any time from any thread.
 * Invariants   An attached child reads the image's bytes or its own, or it waits. It never reads
 *              zeros where content should be, whatever ends first. When ff_child_wait_done() fails,
 *              end the guest: missing memory will never come.
 */
#ifndef FARFORK_CLONE_H
#define FARFORK_CLONE_H

#include "farfork.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ff_agent;
struct ff_child;

enum ff_child_event {
    FF_CHILD_CONNECTED, /* it has sent its table of memory, and waits for the image */
    FF_CHILD_ATTACHED, /* its memory is mapped and watched, it has the state */
    FF_CHILD_RUNNING,
    FF_CHILD_COMPLETE, /* all of its memory is here: it needs the agent no more */
    FF_CHILD_LOST      /* it ended, or the agent dropped it, before that */
};

/**
 * struct ff_agent_stats - counts of one image and its children
 * @children:            connected now, with those that still attach
 * @children_running:    of those, the ones that reported to run
 * @children_ended:      left, or dropped; after complete or before
 * @image:               as of any move; its faults count fetched pages, not children's faults
 * @bytes_lent:          of image.bytes_present: in files of the source, lent or handed over
 * @bytes_fed:           of image.bytes_prefill: from other agents
 * @bytes_same:          of image.bytes_prefill: from the agent of an earlier image (ff_agent_older())
 * @bytes_group:         of image.bytes_prefill: from the group that the source sends to (multicast=)
 * @no_group:            why not all came from there; "": it did, or there is none
 * @child_faults:        fault events of children
 * @child_faults_waited: of those, found the page under way for another child
 * @child_faults_late:   of those, found the page present
 */
struct ff_agent_stats {
    unsigned children, children_running, children_ended;
    struct ff_stats image;
    uint64_t bytes_lent, bytes_fed, bytes_same, bytes_group;
    char no_group[160];
    uint64_t child_faults, child_faults_waited, child_faults_late;
};

/**
 * ff_agent_new() - listen for a source, and for children on this host
 * @listen:      as ff_dest_new(); landing= is copy, precopy= is not permitted. unix: no port; a
 *               source comes through @socket_path alone
 * @socket_path: the path of a unix socket, which this call makes and ff_agent_free() removes. The
 *               permissions of its folder decide who may connect; the agent drops peers of another
 *               user than its own and root
 *
 * Children may connect before the image is there; they wait.
 * Return:  0; -EADDRINUSE: the port, or something is at @socket_path; -EINVAL: precopy=1
 */
int ff_agent_new(const struct ff_address *listen, const char *socket_path, struct ff_agent **out,
                 struct ff_error *err);
unsigned ff_agent_port(const struct ff_agent *a); /* 0: unix */

/* Refuse an image of more than @max_bytes. Call it before ff_agent_receive(), and before others
 * know where the agent listens. Without a limit an agent allocates as much as any image claims to
 * have */
void ff_agent_limit(struct ff_agent *a, uint64_t max_bytes);

/* Which image the agent has: a number that it made for the source of that image, see
 * ff_source_session(). "": none yet */
void ff_agent_session(struct ff_agent *a, char out[FF_SESSION_TEXT]);

/**
 * ff_agent_image_name() - which image the agent has, by what it holds: the same in every agent that has it
 * @out: made from the device state, which has the registers and clocks of one instant; "": there is none yet
 *
 * Cost:    the state is read, a millisecond a MiB
 * Threads: any
 */
void ff_agent_image_name(struct ff_agent *a, char out[FF_SESSION_TEXT]);

/**
 * ff_agent_receive() - wait for a source, take its image's table and state, and let it go
 *
 * A source on this host may have handed its image over before this call, or do so during it. The
 * agent then serves children at once, and ff_agent_wait() waits for that source's
 * ff_source_let_run().
 *
 * Return:  0: from here on the agent serves children; -ECANCELED; -errno: as ff_dest_accept() to
 *          ff_dest_running(); the agent tells waiting children why
 */
int ff_agent_receive(struct ff_agent *a, struct ff_error *err);

/**
 * ff_agent_wait() - fetch the rest in the background until every page is here
 *
 * When the link breaks the agent waits for its source to come back (ff_source_resume()), for the
 * reconnect= seconds of its address, and goes on over that link. Children run on meanwhile, and a
 * thread that touches a missing page waits. A source that passed its link ("unix") cannot come back.
 *
 * Return:  0: the agent tells all children, and later ones until ff_agent_free(); -errno: the source
 *          did not come back in time, or took back what it had handed over: the agent tells the
 *          children, and they must end
 */
int ff_agent_wait(struct ff_agent *a, struct ff_error *err);
/**
 * ff_agent_tell_source() - wait for a source that may not know how it ended here
 *
 * Call it when ff_agent_wait() has returned 0, or ff_agent_receive() has failed, before you leave: a
 * link that broke just then has left the source with the image. It hears that every page is here, or
 * that no GO came and none will be taken; after anything else this returns at once. It waits as long
 * as ff_agent_wait() waits for a source.
 *
 * Return:  0: the source knows, or has nowhere to ask; -ETIMEDOUT; -ECANCELED: ff_agent_cancel()
 */
int ff_agent_tell_source(struct ff_agent *a, struct ff_error *err);

/**
 * ff_agent_feed() - serve the image that comes here to another agent as well
 * @to: where that agent listens for a source
 *
 * Call it when ff_agent_receive() has returned 0, any number of times up to 32. From then on a thread
 * of the agent's connects to @to, for 2 s if need be, and again when the connection breaks, and serves
 * what is here of the image until that agent has all of it. The other agent reads in the background
 * from here; its faults go to the source. Both need the key of one fork, and the connection is by whatever
 * network the image came.
 *
 * Return:  0; -EINVAL: nothing can be served: no image came over a link, or there is no key; -E2BIG
 */
int ff_agent_feed(struct ff_agent *a, const struct ff_address *to, struct ff_error *err);

/**
 * ff_agent_older() - fetch from an agent on this host what an earlier image of the guest has as well
 * @socket_path: of that agent; NULL: only say whether it would be of use
 *
 * Call it before ff_agent_receive(), up to 4 times; the first that has an image feeds this one (as
 * ff_agent_feed()), and the source is asked for what differs, which it says itself: verify=on. Faults go to the
 * source.
 *
 * Return:  0; -EINVAL: of no use without verify=on, a key and reconnect=, or with prefill=off; -E2BIG; -ENOMEM
 */
int ff_agent_older(struct ff_agent *a, const char *socket_path, struct ff_error *err);

/* Learn that ff_agent_feed() came to nothing after all. @fn: a thread of the library calls it, with
 * where the other agent was to be; or with NULL when another agent fed this one what the source does not
 * have (verify=on): nothing of that was taken, and nothing more is */
void ff_agent_on_unfed(struct ff_agent *a,
                       void (*fn)(void *opaque, const char *host, const char *port, const char *why),
                       void *opaque);

/* Another agent will feed this one: what is fetched in the background waits for it, but only so long.
 * Any thread, before the source's GO; with 0 at any time: none will */
void ff_agent_await_feed(struct ff_agent *a, int timeout_ms);

/**
 * ff_agent_first() - bring these pages before all others
 * @working_set: what ff_agent_working_set() returned for another agent, or an earlier image of the same
 *               guest; a hint, of which is left out what is not there
 *
 * Any thread, before the source's GO.
 * Return:  0; -ENOMEM
 */
int ff_agent_first(struct ff_agent *a, const char *working_set, struct ff_error *err);

/* The pages that children have waited for so far, in that order, after those that came first by
 * ff_agent_first(). Any thread, after ff_agent_receive(). To be freed with free(); NULL: there are none, or
 * none that came over a link */
char *ff_agent_working_set(struct ff_agent *a);

/* Learn that the agent waits for its source. @fn: ff_agent_wait() calls it in its thread. @why: the
 * link broke; NULL: there is another. Call this before ff_agent_wait() */
void ff_agent_on_pause(struct ff_agent *a, void (*fn)(void *opaque, const char *why), void *opaque);
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

/* Learn what children do. @fn: a thread of the library calls it, one call at a time, and answers no
 * other child meanwhile. @child is the number that the child gave. Call this before
 * ff_agent_receive(), and before others know the agent's socket */
void ff_agent_on_child(struct ff_agent *a,
                       void (*fn)(void *opaque, unsigned child, enum ff_child_event what),
                       void *opaque);
/**
 * ff_agent_together() - let children start running together
 * @n: how many are expected here and do not run yet; call again when that changes. The agent holds
 *     all children until @n are ready, or for 2 s after the last one became ready. 0, the default:
 *     each runs as soon as it is ready
 *
 * A guest that runs takes CPUs from those that still start. So many guests that start at once all
 * run sooner when they wait for each other.
 *
 * Threads: any, at any time
 */
void ff_agent_together(struct ff_agent *a, unsigned n);
void ff_agent_cancel(struct ff_agent *a); /* any thread */

/* The agent notifies children that still miss pages; a thread that touches one blocks */
void ff_agent_free(struct ff_agent *a);

/**
 * ff_source_lend() - give memory to an agent on this host instead of sending it
 * @socket_path: the agent's, at which its children connect
 *
 * Call it after all regions were added and before ff_source_connect(). It passes the files of those
 * regions that have an fd: the agent and its children map that very memory, and read nothing of it
 * over the link. So the file must have all of the region's content, and that must never change
 * again, neither by writes nor by discards. Add a region with fd -1 otherwise. A child can open the
 * file for writing, by /proc/self/fd, unless the file is sealed.
 *
 * When the source's address is "unix", this call also passes the connections that
 * ff_source_connect() then uses.
 *
 * Return:  0, also when no region has an fd; -ECONNREFUSED, -ENOENT: nobody listens there;
 *          -EBUSY: the agent has an image, or another source lends to it; or the agent's reason to
 *          refuse
 */
int ff_source_lend(struct ff_source *s, const char *socket_path, struct ff_error *err);

/**
 * ff_source_hand_over() - give an agent on this host the whole image at once
 * @socket_path: as in ff_source_lend()
 * @config:      as in ff_source_connect()
 * @state:       as in ff_source_send_state()
 *
 * Call it instead of ff_source_lend() and all that follows, except ff_source_let_run(). It lends
 * the regions that have an fd, under the same rules, and copies what the others hold into files of
 * the agent's. When it has returned 0 children load. It uses no link.
 *
 * Return:  0; -EFBIG: more than 32 MiB have no fd, or some memory of huge pages has none; nothing
 *          was done: lend, and connect; else as ff_source_lend(). After any failure you may
 *          connect: either that works, or the agent learns that it does not
 */
int ff_source_hand_over(struct ff_source *s, const char *socket_path, const char *config,
                        const void *state, size_t len, struct ff_error *err);

/**
 * ff_source_let_run() - the image that was handed over will never change: children may run
 *
 * Between ff_source_hand_over() and this call the caller may still fail to keep the image as it is.
 * A caller that then frees the source, or dies, ends the children, of which none has run. After
 * this call the source can be freed. It waits for an agent that does not answer until that agent
 * ends.
 *
 * Return:  0; -ECONNRESET, -EPIPE: the agent has ended, and so will the children; -ECONNABORTED:
 *          the agent was canceled, likewise; -ECANCELED: ff_source_cancel(), and nobody knows
 *          whether it came before; -EINVAL: nothing was handed over
 */
int ff_source_let_run(struct ff_source *s, struct ff_error *err);

/* @number: the caller's, for messages and ff_agent_on_child() */
int ff_child_new(const char *socket_path, unsigned number, struct ff_child **out,
                 struct ff_error *err);

/* As ff_dest_add_region(); ignores @r->fd. ff_child_attach() replaces the mapping at @r->host */
int ff_child_add_region(struct ff_child *c, const struct ff_region *r, struct ff_error *err);

/* A region, as the agent has it: @region.fd, open for reading and borrowed, has it at @region.fd_offset */
struct ff_child_file {
    struct ff_region region;
    bool present; /* all of it is there: it need not be watched */
};

/**
 * ff_child_map_by() - the regions are another process's memory, which @fn maps
 * @fn: ff_child_attach() calls it once, in its thread, instead of mapping anything here: @f, in the order of addition,
 *      are to be mapped MAP_PRIVATE at @region.host there, and watched for missing pages, but for those that are
 *      present. *@uffd becomes a duplicate of that process's userfaultfd, which is taken over; it stays as it is
 *      where all is present. 0; -errno, and the reason
 *
 * Call this before ff_child_attach(). That process keeps a descriptor of the userfaultfd until ff_child_wait_done()
 * has returned 0; ff_child_free() closes what this one has. All else is the same.
 */
void ff_child_map_by(struct ff_child *c,
                     int (*fn)(void *opaque, const struct ff_child_file *f, unsigned n, int *uffd,
                               struct ff_error *err),
                     void *opaque);

/**
 * ff_child_attach() - wait for the image and map it privately over every region
 * @config: as in ff_source_connect()
 *
 * It compares regions by name; their order may differ. It maps them MAP_PRIVATE from the agent's
 * files and watches what is not there yet: a thread that touches such a page waits for the agent.
 *
 * A region of huge pages needs as many free ones as it is large, beside the image's, since a child
 * may write to each. Release first what was at @r->host (an open file of huge pages keeps its own).
 * fork(2) does not inherit regions.
 *
 * Return:  0; -ECANCELED; -ENOENT, -ECONNREFUSED: no agent; -EINVAL: regions or config differ, and
 *          nothing was mapped; -ENOMEM: not enough huge pages; or the reason for which the agent
 *          refused, or lost the image. After a failure do not use the regions any more
 */
int ff_child_attach(struct ff_child *c, const char *config, struct ff_error *err);

/* The device state, valid until ff_child_free() */
void ff_child_state(const struct ff_child *c, const void **state, size_t *len);

/* The file that is now mapped for a region, and where the region starts in it. @region: its place
 * in the order of addition. @c owns the file. -1: not attached */
int ff_child_fd(const struct ff_child *c, unsigned region, uint64_t *offset);

/* Tell the agent: the state is loaded; all but the vCPUs has started; the guest runs. Permitted
 * while another thread is in one of the three calls below */
int ff_child_loaded(struct ff_child *c, struct ff_error *err);
int ff_child_ready(struct ff_child *c, struct ff_error *err);
int ff_child_running(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_start() - wait until the image is final, and devices may start
 *
 * Call it in a thread of its own as soon as the child is attached: loading the state may wait for
 * memory that never comes, and only this call, and then those below, report it.
 *
 * Return: as ff_child_wait_done(), but for 0: the image is final and ff_child_loaded() was called;
 *         or all memory is here and the agent has ended: finish loading first
 */
int ff_child_wait_start(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_run() - wait until the guest may run, see ff_agent_together()
 *
 * Call it after ff_child_wait_start(), and ff_child_ready() from any thread.
 *
 * Return: as ff_child_wait_done(), but for 0: ff_child_ready() was called, and the guest may run
 */
int ff_child_wait_run(struct ff_child *c, struct ff_error *err);

/**
 * ff_child_wait_done() - wait until all memory is on this host
 *
 * Return: 0: all memory is here and no longer watched: the child needs the agent no more;
 *         -ECANCELED; -errno: the agent lost its source, or died: end the guest. Until then a
 *         thread that touches missing memory waits; nobody reads zeros.
 */
int ff_child_wait_done(struct ff_child *c, struct ff_error *err);
void ff_child_cancel(struct ff_child *c); /* any thread */

/* The mappings stay. Before ff_child_wait_done() has returned 0 this leaves the userfaultfd open on
 * purpose: missing memory would read as zeros if it were closed */
void ff_child_free(struct ff_child *c);

#ifdef __cplusplus
}
#endif

#endif
