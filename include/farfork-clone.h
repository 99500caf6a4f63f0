/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork-clone.h - one image on a host, shared by the children of a fork
 */
/**
 * DOC: Theory of Operation
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
 * Threads      as in farfork.h: the calls of one handle one after the other; *_cancel() and
 *              *_stats() at any time from any thread.
 * Invariants   A child that attached reads the image's bytes, its own, or waits; never zeros
 *              where content should be, whatever ends first. When ff_child_wait_done() fails
 *              the guest must be ended: memory that is missing will never come.
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
 *          it came before; -EINVAL: nothing was handed over. An agent that does not answer is
 *          waited for until it ends
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
 * Return: as ff_child_wait_done(), but for 0: nothing will take the image back, and
 * ff_child_loaded()
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
 *         -ECANCELED; -errno: the agent lost its source, or died: the guest must be ended. Until it
 *         is, whoever touches missing memory waits; nobody reads zeros.
 */
int ff_child_wait_done(struct ff_child *c, struct ff_error *err);
void ff_child_cancel(struct ff_child *c); /* any thread */

/* The mappings stay. Before ff_child_wait_done() returned 0 the userfaultfd is left open on
 * purpose: were it closed, missing memory would read as zeros */
void ff_child_free(struct ff_child *c);

/* --- processes for children --- */

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

#ifdef __cplusplus
}
#endif

#endif
