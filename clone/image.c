/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * image.c - receive an image for children of this host; see image.h
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "address.h"
#include "image.h"
#include "children.h"
#include "cleanup.h"
#include "dest.h"
#include "farfork-return.h"
#include "kdf.h"
#include "log.h"
#include "missing.h"
#include "relay.h"
#include "source.h"
#include "thread.h"

/* --- stages --- */

/* @over_link: of an image that comes that way, which says nothing of one that was handed over */
static void set_status(struct ff_agent *a, bool over_link, enum ff_image_status status,
                       const struct ff_error *why)
{
    pthread_mutex_lock(&a->lock);
    bool ended = a->status == FF_IMAGE_COMPLETE || a->status == FF_IMAGE_LOST;
    if (!ended && !(over_link && atomic_load(&a->handed_over))) {
        a->status = status;
        if (why)
            a->why = *why;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->poke_fd, 1);
}

void ff_agent_complete(void *opaque)
{
    set_status(opaque, true, FF_IMAGE_COMPLETE, NULL);
}

int ff_agent_hand_over(struct ff_agent *a, struct ff_hello *table, int state_fd,
                       uint64_t state_bytes, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    int rc = ff_agent_take_whole(a, table, state_fd, state_bytes, err);
    if (!rc) {
        a->table = *table;
        *table = (struct ff_hello){.regions = NULL};
        a->status = FF_IMAGE_HERE;
        atomic_store(&a->handed_over, true);
        pthread_cond_broadcast(&a->changed);
    }
    ff_agent_drop_lent(a); /* of what was refused some is closed: no image may take the rest */
    pthread_mutex_unlock(&a->lock);
    if (rc)
        return rc;
    eventfd_write(a->poke_fd, 1);
    ff_dest_cancel(a->dest); /* nothing will come over the link */
    return 0;
}

int ff_agent_take_link(struct ff_agent *a, const int fd[FF_TCP_SOCKETS], struct ff_error *err)
{
    struct ff_link *link;

    int rc = ff_tcp_on_sockets(fd, a->timeout_ms, &link, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&a->lock);
    if (!a->passed || a->linked || a->adopted || atomic_load(&a->cancelled))
        rc = ff_error_set(
            err, EBUSY,
            "agent: it has a source already, takes none any more, or waits for one at its port");
    else
        a->link = link;
    a->linked |= !rc;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (rc)
        link->ops->free(link);
    return rc;
}

/* For a link, or until the image was handed over: whether there is one */
static int wait_link(struct ff_agent *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    while (!a->link && !atomic_load(&a->handed_over) && !atomic_load(&a->cancelled))
        pthread_cond_wait(&a->changed, &a->lock);
    struct ff_link *link = a->link;
    a->link = NULL;
    pthread_mutex_unlock(&a->lock);
    if (!link)
        return ff_error_set(err, ECANCELED, "canceled");
    ff_dest_use_link(a->dest, link);
    return 0;
}

int ff_agent_handed_over(struct ff_agent *a, const struct ff_error *why, struct ff_error *err)
{
    set_status(a, false, why ? FF_IMAGE_LOST : FF_IMAGE_COMPLETE, why);
    pthread_mutex_lock(&a->lock);
    int rc = a->status == FF_IMAGE_LOST ? ff_error_set(err, a->why.code, "%s", a->why.text) : 0;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static int wait_handed_over(struct ff_agent *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    while (a->status == FF_IMAGE_HERE && !atomic_load(&a->cancelled))
        pthread_cond_wait(&a->changed, &a->lock);
    int rc = a->status == FF_IMAGE_COMPLETE ? 0
             : a->status == FF_IMAGE_LOST
                 ? ff_error_set(err, a->why.code, "%s", a->why.text)
                 : ff_error_set(err, ECANCELED, "canceled");
    pthread_mutex_unlock(&a->lock);
    return rc;
}

const struct ff_hello *ff_agent_table(const struct ff_agent *a)
{
    return atomic_load(&a->handed_over) ? &a->table : ff_dest_hello(a->dest);
}

/* Children are told by the server thread; the caller by @rc */
static int lost(struct ff_agent *a, bool over_link, int rc, const struct ff_error *why,
                struct ff_error *err)
{
    struct ff_error e = *why;

    if (atomic_load(&a->cancelled))
        rc = ff_error_set(&e, ECANCELED, "canceled");
    set_status(a, over_link, FF_IMAGE_LOST, &e);
    if (err)
        *err = e;
    return rc;
}

unsigned ff_agent_port(const struct ff_agent *a)
{
    return a->port;
}

/* A source that passed its link, or is on ours, has nowhere to come back to */
static bool resumes(const struct ff_agent *a)
{
    return a->reconnect_ms && a->port && !atomic_load(&a->handed_over);
}

static int receive_image(struct ff_agent *a, struct ff_error *err)
{
    FF_AUTO_FREE void *state = NULL;
    size_t len;

    int rc = a->passed ? wait_link(a, err) : 0;
    if (a->n_older && !atomic_load(&a->is_to_be_fed))
        ff_dest_await_feed(a->dest, FF_AGENT_OLDER_MS);
    if (!rc)
        rc = ff_dest_accept(a->dest, "", err);
    if (!rc)
        rc = ff_dest_start(a->dest, err);
    if (!rc)
        rc = ff_dest_recv_state(a->dest, &state, &len, err);
    if (!rc)
        rc = ff_agent_keep_state(a, state, len, err);
    if (!rc)
        rc = ff_dest_ready(a->dest, err);
    if (!rc)
        rc = ff_dest_wait_go(a->dest, err);
    if (rc)
        return rc;
    rc = ff_dest_running(a->dest, err);
    return resumes(a) ? 0 : rc; /* ff_agent_wait() finds out again */
}

int ff_agent_receive(struct ff_agent *a, struct ff_error *err)
{
    struct ff_error why;

    int rc = receive_image(a, &why);
    if (rc)
        rc = lost(a, true, rc, &why, err);
    else
        set_status(a, true, FF_IMAGE_HERE, NULL);
    if (!atomic_load(&a->handed_over)) /* it can be no more: a status is set */
        return rc;
    ff_dest_close_port(a->dest);
    return 0;
}

static void report_pause(struct ff_agent *a, const char *why)
{
    pthread_mutex_lock(&a->lock);
    a->away = why;
    void (*fn)(void *, const char *) = a->on_pause;
    void *opaque = a->on_pause_opaque;
    pthread_mutex_unlock(&a->lock);
    if (fn)
        fn(opaque, why);
}

/* Nobody came in time who has what is missing: neither the source, nor an agent that feeds this one */
static void ended_without(struct ff_agent *a, struct ff_error *why, const char *text)
{
    char missing[FF_MISSING_TEXT];

    ff_missing_text(ff_dest_pager(a->dest), missing);
    ff_log(FF_LOG_ERROR, "agent: nobody brought %s", missing);
    ff_error_pass(why, -why->code,
                     "the source did not come back within %d s, and nobody else brought %s (%s)",
                     a->reconnect_ms / 1000, missing, text);
}

/* The link broke, for the reason *@why. 0: there is another; else the image is lost, and why */
static int await_source(struct ff_agent *a, struct ff_error *why)
{
    struct ff_error none;

    if (!resumes(a) || atomic_load(&a->cancelled) ||
        ff_pager_check(ff_dest_pager(a->dest), FF_PAGER_FAILED, NULL))
        return -why->code;
    ff_log(FF_LOG_WARN, "agent: %s; children go on with what is here, up to %d s, until the source "
                        "comes back", why->text, a->reconnect_ms / 1000);
    report_pause(a, why->text);
    int rc = ff_dest_recover(a->dest, a->reconnect_ms, &none);
    rc = rc == -EALREADY ? 0 : rc; /* the wait that follows sees that all is here */
    if (!rc)
        report_pause(a, NULL);
    else if (rc == -ETIMEDOUT)
        ended_without(a, why, none.text);
    else
        *why = none;
    return rc ? -why->code : 0;
}

static int wait_over_links(struct ff_agent *a, struct ff_error *why)
{
    int rc;

    while ((rc = ff_dest_wait_done(a->dest, why)) && !await_source(a, why))
        ;
    return rc ? -why->code : 0;
}

int ff_agent_wait(struct ff_agent *a, struct ff_error *err)
{
    struct ff_error why;

    if (!atomic_load(&a->handed_over))
        ff_agent_ask_older(a);
    int rc = atomic_load(&a->handed_over) ? wait_handed_over(a, &why) : wait_over_links(a, &why);
    ff_agent_ask_no_more(a);
    if (!rc)
        return 0;
    ff_error_pass(&why, rc, "the image was lost");
    return lost(a, !atomic_load(&a->handed_over), rc, &why, err);
}

/* It has let its image go, and no GO came here: it waits to hear that */
static bool got_no_go(struct ff_agent *a)
{
    return ff_dest_is_ready(a->dest) && !atomic_load(&ff_dest_pager(a->dest)->guest_runs);
}

int ff_agent_tell_source(struct ff_agent *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    bool lost = a->status != FF_IMAGE_HERE && a->status != FF_IMAGE_COMPLETE;
    pthread_mutex_unlock(&a->lock);
    if (!resumes(a) || (lost && !got_no_go(a)))
        return 0;
    int rc = ff_dest_recover(a->dest, a->reconnect_ms, err);
    return rc == -ESTALE ? 0 : rc;
}

void ff_agent_await_feed(struct ff_agent *a, int timeout_ms)
{
    atomic_store(&a->is_to_be_fed, true);
    ff_dest_await_feed(a->dest, timeout_ms);
}

int ff_agent_first(struct ff_agent *a, const char *working_set, struct ff_error *err)
{
    return ff_dest_first(a->dest, working_set, err);
}

char *ff_agent_working_set(struct ff_agent *a)
{
    return atomic_load(&a->handed_over) ? NULL : ff_dest_working_set(a->dest);
}

void ff_agent_on_unfed(struct ff_agent *a,
                       void (*fn)(void *opaque, const char *host, const char *port, const char *why),
                       void *opaque)
{
    pthread_mutex_lock(&a->lock);
    a->on_unfed = fn;
    a->on_unfed_opaque = opaque;
    pthread_mutex_unlock(&a->lock);
}

static void tell_unfed(struct ff_agent *a, const char *host, const char *port, const char *why)
{
    pthread_mutex_lock(&a->lock);
    void (*fn)(void *, const char *, const char *, const char *) = a->on_unfed;
    void *fn_opaque = a->on_unfed_opaque;
    pthread_mutex_unlock(&a->lock);
    if (fn)
        fn(fn_opaque, host, port, why);
}

static void relay_failed(void *opaque, const struct ff_address *to, const char *why)
{
    tell_unfed(opaque, to->host, to->port, why);
}

void ff_agent_misfed(void *opaque, const char *why)
{
    tell_unfed(opaque, NULL, NULL, why);
}

static int start_relay(struct ff_agent *a, const struct ff_address *to, bool is_older, struct ff_error *err)
{
    for (unsigned i = 0; i < a->n_relays;)
        if (ff_relay_has_ended(a->relay[i])) {
            ff_relay_stop(a->relay[i]);
            a->relay[i] = a->relay[--a->n_relays];
        } else {
            i++;
        }
    if (a->n_relays == FF_AGENT_RELAYS_MAX)
        return ff_error_set(err, E2BIG, "agent: feed: more than %u other agents",
                            FF_AGENT_RELAYS_MAX);
    const struct ff_relay_owner owner = {.failed = relay_failed, .opaque = a};
    int rc = ff_relay_start(a->dest, to, is_older, &owner, &a->relay[a->n_relays], err);
    a->n_relays += !rc;
    return rc;
}

static int feed_another(struct ff_agent *a, const struct ff_address *to, bool is_older, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    bool here = (a->status == FF_IMAGE_HERE || a->status == FF_IMAGE_COMPLETE) &&
                !atomic_load(&a->handed_over);
    pthread_mutex_unlock(&a->lock);
    if (!here)
        return ff_error_set(err, EINVAL, "agent: feed: no image has come over a link");
    pthread_mutex_lock(&a->relays_lock);
    int rc = start_relay(a, to, is_older, err);
    pthread_mutex_unlock(&a->relays_lock);
    return rc;
}

int ff_agent_feed(struct ff_agent *a, const struct ff_address *to, struct ff_error *err)
{
    return feed_another(a, to, false, err);
}

int ff_agent_feed_later(struct ff_agent *a, const struct ff_clone_msg *m, struct ff_error *err)
{
    struct ff_address *to;
    int rc = ff_address_parse(m->text, &to, err);

    if (rc)
        return rc;
    to->key = ff_key_of_bytes(m->key);
    rc = to->key ? feed_another(a, to, true, err) : ff_error_set(err, ENOMEM, "agent: out of memory");
    ff_address_free(to);
    return rc;
}

void ff_agent_stats(struct ff_agent *a, struct ff_agent_stats *out)
{
    memset(out, 0, sizeof(*out));
    ff_dest_stats(a->dest, &out->image);
    pthread_mutex_lock(&a->lock);
    out->children = a->children;
    out->children_running = a->running;
    out->children_ended = a->ended;
    for (unsigned i = 0; i < a->n_memory; i++)
        out->bytes_lent += a->memory[i].lent ? a->memory[i].len_bytes : 0;
    bool handed_over = atomic_load(&a->handed_over);
    bool here = a->status == FF_IMAGE_HERE || a->status == FF_IMAGE_COMPLETE;
    pthread_mutex_unlock(&a->lock);
    struct ff_children_stats st = {.faults = 0};
    if (handed_over)
        out->image.bytes_total = out->image.bytes_present = out->bytes_lent;
    else if (here)
        ff_children_stats(ff_dest_pager(a->dest), &st);
    out->bytes_fed = here && !handed_over ? ff_dest_bytes_fed(a->dest) : 0;
    out->bytes_same = here && !handed_over ? ff_dest_bytes_same(a->dest) : 0;
    out->bytes_group = here && !handed_over ? ff_dest_bytes_group(a->dest) : 0;
    if (here && !handed_over)
        ff_dest_no_group(a->dest, out->no_group);
    out->child_faults = st.faults;
    out->child_faults_waited = st.waited;
    out->child_faults_late = st.late;
}

const char *ff_agent_link(struct ff_agent *a)
{
    return atomic_load(&a->handed_over) ? "none" : ff_dest_link(a->dest);
}

void ff_agent_on_child(struct ff_agent *a,
                       void (*fn)(void *opaque, unsigned child, enum ff_child_event what),
                       void *opaque)
{
    pthread_mutex_lock(&a->lock);
    a->on_child = fn;
    a->on_child_opaque = opaque;
    pthread_mutex_unlock(&a->lock);
}

void ff_agent_on_pause(struct ff_agent *a, void (*fn)(void *opaque, const char *why), void *opaque)
{
    pthread_mutex_lock(&a->lock);
    a->on_pause = fn;
    a->on_pause_opaque = opaque;
    pthread_mutex_unlock(&a->lock);
}

void ff_agent_limit(struct ff_agent *a, uint64_t max_bytes)
{
    pthread_mutex_lock(&a->lock);
    a->max_bytes = max_bytes;
    pthread_mutex_unlock(&a->lock);
}

void ff_agent_session(struct ff_agent *a, char out[FF_SESSION_TEXT])
{
    pthread_mutex_lock(&a->lock);
    bool here = a->status == FF_IMAGE_HERE || a->status == FF_IMAGE_COMPLETE;
    pthread_mutex_unlock(&a->lock);
    const uint8_t *session = atomic_load(&a->handed_over) ? a->session : ff_dest_session(a->dest);
    ff_session_text(here ? session : NULL, out);
}

void ff_agent_image_name(struct ff_agent *a, char out[FF_SESSION_TEXT])
{
    pthread_mutex_lock(&a->lock);
    bool here = a->status == FF_IMAGE_HERE || a->status == FF_IMAGE_COMPLETE;
    const size_t len = a->state_bytes;
    const int fd = a->state_fd;
    pthread_mutex_unlock(&a->lock);
    FF_AUTO_FREE uint8_t *state = here && len ? malloc(len) : NULL;
    uint8_t digest[FF_KDF_LEN];
    bool is = state && pread(fd, state, len, 0) == (ssize_t)len && !ff_kdf_hash(state, len, digest);

    ff_session_text(is ? digest : NULL, out);
}

void ff_agent_together(struct ff_agent *a, unsigned n)
{
    pthread_mutex_lock(&a->lock);
    a->together = n;
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->poke_fd, 1);
}

void ff_agent_cancel(struct ff_agent *a)
{
    pthread_mutex_lock(&a->lock);
    atomic_store(&a->cancelled, true);
    bool serves = (a->status == FF_IMAGE_HERE || a->status == FF_IMAGE_COMPLETE) && !a->away &&
                  !atomic_load(&a->handed_over);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (serves) /* its source is there, to be told that it need not keep the image */
        ff_dest_leave(a->dest);
    else
        ff_dest_cancel(a->dest);
}

void ff_agent_free(struct ff_agent *a)
{
    if (!a)
        return;
    if (a->thread_up) {
        struct ff_error why;
        ff_error_set(&why, ESHUTDOWN, "the agent has ended before every page was here");
        set_status(a, false, FF_IMAGE_LOST, &why);
        atomic_store(&a->stop, true);
        eventfd_write(a->poke_fd, 1);
        pthread_join(a->thread, NULL); /* no child is known to the pager any more */
    }
    ff_agent_ask_no_more(a);
    while (a->n_relays)
        ff_relay_stop(a->relay[--a->n_relays]);
    ff_dest_free(a->dest);
    if (a->link)
        a->link->ops->free(a->link);
    ff_agent_drop_lent(a);
    ff_agent_drop_memory(a);
    while (a->n_older)
        free(a->older[--a->n_older]);
    ff_hello_free(&a->table);
    ff_close_fd(&a->listen_fd);
    ff_close_fd(&a->poke_fd);
    if (*a->path)
        unlink(a->path);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->relays_lock);
    ff_address_drop(&a->listen);
    free(a);
}
