/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * image_new.c - an agent begins: its link, its socket, its thread
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "address.h"
#include "dest.h"
#include "image.h"
#include "source.h"
#include "thread.h"

static int check_options(const struct ff_address *listen, struct ff_error *err)
{
    if (listen->precopy)
        return ff_error_set(err, EINVAL,
                            "agent: precopy=1: an agent takes images of paused guests alone; "
                            "leave it out");
    if (listen->visit)
        return ff_error_set(err, EINVAL, "agent: visit=on: children do not return; leave it out");
    if (listen->landing != FF_LANDING_AUTO && listen->landing != FF_LANDING_COPY)
        return ff_error_set(err, EINVAL,
                            "agent: landing: children would see pages that are half there; "
                            "use landing=copy");
    return 0;
}

int ff_agent_new_on_link(const struct ff_address *listen, struct ff_link *link,
                         const char *socket_path, struct ff_agent **out, struct ff_error *err)
{
    struct ff_address addr = *listen;

    int rc = check_options(listen, err);
    if (rc)
        return rc;
    struct ff_agent *a = calloc(1, sizeof(*a));
    if (!a)
        return ff_error_set(err, ENOMEM, "agent: out of memory");
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->relays_lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->listen = ff_address_copy(listen);
    a->state_fd = a->listen_fd = a->ask_fd = -1;
    a->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->passed = addr.passed && !link;
    a->timeout_ms = addr.timeout_ms;
    a->reconnect_ms = addr.reconnect_ms;
    rc = a->poke_fd < 0 ? ff_error_set(err, errno, "agent: eventfd: %s", strerror(errno)) : 0;
    addr.landing = FF_LANDING_COPY;
    if (!rc && getrandom(a->session, sizeof(a->session), 0) != sizeof(a->session))
        rc = ff_error_set(err, EIO, "agent: no random numbers: %s", strerror(errno));
    if (!rc)
        rc = link || a->passed ? ff_dest_new_on_link(&addr, link, &a->dest, err)
                               : ff_dest_new(&addr, &a->dest, err);
    if (!rc) {
        a->port = ff_dest_port(a->dest);
        ff_dest_own(a->dest, &(struct ff_dest_owner){.adopt = ff_agent_adopt,
                                                     .complete = ff_agent_complete,
                                                     .misfed = ff_agent_misfed,
                                                     .opaque = a});
        rc = a->listen_fd = ff_clone_listen(socket_path, err);
    }
    if (rc >= 0) {
        snprintf(a->path, sizeof(a->path), "%s", socket_path);
        rc = ff_thread_start(&a->thread, ff_image_server_main, a, "farfork-agent", err);
        a->thread_up = !rc;
    }
    if (rc)
        ff_agent_free(a);
    else
        *out = a;
    return rc;
}

int ff_agent_new(const struct ff_address *listen, const char *socket_path, struct ff_agent **out,
                 struct ff_error *err)
{
    return ff_agent_new_on_link(listen, NULL, socket_path, out, err);
}
