/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * earlier.c - an image that this host has an earlier one of; see image.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a second fork of one parent to a host that still has the first one's image: most of it is
 *              the same, and need not come from the parent again.
 * Picture      agent of the later image             agent of the earlier one
 *              GO was read: FEED, on its socket --> a relay (relay.h), to the port of the later one, with
 *                                                   that one's key
 *              prefill (feed.h): chunks of it <---- reads of the earlier image
 *                the source says by its tags (verify.h) whether that is what it has: else in parts of
 *                16 KiB, and those that differ from the source
 * Invariants   1. Nothing of an earlier image is taken that the source has not said is right, so it may be
 *                 of any age, and of another guest: that costs time alone.
 *              2. The key is given to a process of this user, or root's, on this host (message.h).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "dest.h"
#include "image.h"
#include "log.h"
#include "thread.h"

int ff_agent_older(struct ff_agent *a, const char *socket_path, struct ff_error *err)
{
    const struct ff_key *key = a->listen.key;

    if (!a->listen.verify || !key || ff_key_certs(key) || !a->port || !a->reconnect_ms ||
        a->listen.prefill == FF_PREFILL_OFF)
        return ff_error_set(err, EINVAL, "agent: an earlier image: of no use without verify=on, a key and "
                                         "reconnect=, or with prefill=off");
    if (!socket_path)
        return 0;
    if (a->n_older == FF_AGENT_OLDER_MAX)
        return ff_error_set(err, E2BIG, "agent: more than %u earlier images", FF_AGENT_OLDER_MAX);
    a->older[a->n_older] = strdup(socket_path);
    if (!a->older[a->n_older])
        return ff_error_set(err, ENOMEM, "agent: out of memory");
    a->n_older++;
    return 0;
}

/* Where this agent listens, for processes of this host */
static void own_address(const struct ff_agent *a, char *out, size_t len)
{
    const char *host = a->listen.host;

    if (!*host || !strcmp(host, "0.0.0.0"))
        host = "127.0.0.1";
    else if (!strcmp(host, "::"))
        host = "::1";
    snprintf(out, len, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, a->port);
}

static int ask_earlier(struct ff_agent *a, const char *path, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_FEED};
    int sock = ff_clone_connect(path, err);

    if (sock < 0)
        return sock;
    own_address(a, m.text, sizeof(m.text));
    memcpy(m.key, ff_key_bytes(a->listen.key), sizeof(m.key));
    int rc = ff_clone_send(sock, &m, err);
    explicit_bzero(m.key, sizeof(m.key));
    if (!rc)
        rc = ff_clone_expect(sock, a->ask_fd, &m, FF_AGENT_OLDER_MS, err);
    if (!rc && m.type != FF_CLONE_ATTACHED)
        rc = ff_error_set(err, EPROTO, "agent's socket: %s for FEED", ff_clone_name(m.type));
    ff_clone_close(&m);
    ff_close_fd(&sock);
    return rc;
}

static void *asker_main(void *opaque)
{
    struct ff_agent *a = opaque;
    struct pollfd over = {.fd = a->ask_fd, .events = POLLIN};
    struct ff_error why;
    bool any = false;

    for (unsigned i = 0; i < a->n_older && !any && !poll(&over, 1, 0); i++) {
        any = !ask_earlier(a, a->older[i], &why);
        if (!any)
            ff_log(FF_LOG_INFO, "agent: the earlier image of %s is of no use: %s", a->older[i], why.text);
    }
    if (!any && !atomic_load(&a->is_to_be_fed))
        ff_dest_await_feed(a->dest, 0);
    return NULL;
}

void ff_agent_ask_older(struct ff_agent *a)
{
    struct ff_error why;

    if (!a->n_older || a->asks)
        return;
    a->ask_fd = eventfd(0, EFD_CLOEXEC);
    a->asks = a->ask_fd >= 0 && !ff_thread_start(&a->asker, asker_main, a, "farfork-older", &why);
}

void ff_agent_ask_no_more(struct ff_agent *a)
{
    if (a->asks) {
        eventfd_write(a->ask_fd, 1);
        pthread_join(a->asker, NULL);
        a->asks = false;
    }
    ff_close_fd(&a->ask_fd);
}
