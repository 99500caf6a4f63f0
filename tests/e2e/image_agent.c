/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * image_agent.c - an agent of the library and nothing else, for tests: agent HOST:PORT[,...] SOCKET
 *
 * One JSON line an event on stdout. It ends when its stdin does.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "farfork-clone.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a line at a time */

static void say_child(void *opaque, unsigned child, enum ff_child_event what)
{
    static const char *const names[] = {"connected", "attached", "running", "complete",
                                        "lost"};

    (void)opaque;
    pthread_mutex_lock(&lock);
    printf("{\"event\":\"child\",\"number\":%u,\"what\":\"%s\"}\n", child, names[what]);
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

static void say(const char *event, struct ff_agent *a)
{
    struct ff_agent_stats st;

    ff_agent_stats(a, &st);
    pthread_mutex_lock(&lock);
    printf("{\"event\":\"%s\",\"port\":%u,\"total\":%llu,\"lent\":%llu,\"fetched\":%llu,"
           "\"zero\":%llu,\"faults\":%llu,\"child_faults\":%llu,\"by_group\":%llu,\"packets_lost\":%llu,"
           "\"no_group\":\"%s\",\"link\":\"%s\"}\n",
           event, ff_agent_port(a), (unsigned long long)st.image.bytes_total,
           (unsigned long long)st.bytes_lent,
           (unsigned long long)(st.image.bytes_prefill + st.image.bytes_fault +
                                st.image.bytes_duplicated),
           (unsigned long long)st.image.bytes_zero, (unsigned long long)st.image.faults,
           (unsigned long long)st.child_faults, (unsigned long long)st.bytes_group,
           (unsigned long long)st.image.group_lost, st.no_group, ff_agent_link(a));
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

static void say_pause(void *opaque, const char *why)
{
    say(why ? "paused" : "resumed", opaque);
}

static void *receive(void *opaque)
{
    struct ff_agent *a = opaque;
    struct ff_error *err = ff_error_new();

    if (ff_agent_receive(a, err)) {
        fprintf(stderr, "agent: %s\n", ff_error_message(err));
        say("failed", a);
    } else {
        say("image", a);
        if (ff_agent_wait(a, err)) {
            fprintf(stderr, "agent: %s\n", ff_error_message(err));
            say("lost", a);
        } else {
            say("complete", a);
        }
    }
    ff_agent_tell_source(a, NULL);
    ff_error_free(err);
    return NULL;
}

int main(int argc, char **argv)
{
    struct ff_error *err = ff_error_new();
    struct ff_address *address;
    struct ff_agent *a;
    pthread_t thread;
    char c;

    if (argc != 3) {
        fprintf(stderr, "usage: agent HOST:PORT[,option=value...] SOCKET\n");
        return 2;
    }
    if (ff_address_parse(argv[1], &address, err) || ff_agent_new(address, argv[2], &a, err)) {
        fprintf(stderr, "agent: %s\n", ff_error_message(err));
        return 1;
    }
    ff_agent_on_child(a, say_child, NULL);
    ff_agent_on_pause(a, say_pause, a);
    say("listening", a);
    if (pthread_create(&thread, NULL, receive, a))
        return 1;
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    say("end", a);
    ff_agent_cancel(a);
    pthread_join(thread, NULL);
    ff_agent_free(a);
    ff_address_free(address);
    ff_error_free(err);
    return 0;
}
