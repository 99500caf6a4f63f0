/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * groups.c - one image to several agents by multicast: every byte is right, whatever becomes of packets
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "family.h"
#include "packet.h"

#define AGENTS_MAX 3

static char options[240];
static struct family *f[AGENTS_MAX];
static pthread_t follows[AGENTS_MAX];
static unsigned n_agents;
static struct ff_group *group;
static struct sockaddr_in at;

static void setup(void)
{
    image_new(3000);
}

/* Agents of one image, with one key, whose children touch nothing before all is there */
static void agents_are(unsigned n, const char *more)
{
    at = (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)(20000 + getpid() % 20000)),
                              .sin_addr = {htonl(0xefc00700u + (unsigned)getpid() % 250)}};
    snprintf(options, sizeof(options), "key-file=%s,chunk=64K,multicast=%s:%u%s", loop_key_file(),
             inet_ntoa(at.sin_addr), ntohs(at.sin_port), more);
    n_agents = n;
    for (unsigned i = 0; i < n; i++) {
        f[i] = family_new();
        f[i]->options = options;
        f[i]->n_children = 2;
        f[i]->resumes = true;
        for (unsigned k = 0; k < f[i]->n_children; k++)
            f[i]->child[k].when = WHEN_COMPLETE;
    }
}

static void *follow(void *family)
{
    family_source(family, S_DONE);
    return NULL;
}

/* @faults: of the sources' process */
static void begin(const char *faults)
{
    char text[260];
    struct ff_error err;

    for (unsigned i = 0; i < n_agents; i++)
        family_fork(f[i]);
    snprintf(text, sizeof(text), ",%s", options);
    struct ff_address *a = loop_address(1, text);
    must_ok(ff_group_new(a, n_agents, &group, &err), err);
    ff_address_free(a);
    for (unsigned i = 0; i < n_agents; i++) {
        f[i]->group = group;
        family_start(f[i]);
    }
    must_ok(ff_failpoints_arm(faults, &err), err); /* no thread is there to look */
    for (unsigned i = 0; i < n_agents; i++)
        must(!pthread_create(&follows[i], NULL, follow, f[i]));
}

static uint64_t by_group(unsigned i)
{
    printf("      agent %u: %llu of %llu KiB by prefill from the group, %llu by faults; packets: %llu, "
           "%llu lost: %s\n", i,
           (unsigned long long)f[i]->stats.bytes_group >> 10,
           (unsigned long long)f[i]->stats.image.bytes_prefill >> 10,
           (unsigned long long)f[i]->stats.image.bytes_fault >> 10,
           (unsigned long long)f[i]->stats.image.group_packets,
           (unsigned long long)f[i]->stats.image.group_lost, f[i]->stats.no_group);
    return f[i]->stats.bytes_group;
}

/* family_must_succeed() frees what the test looks at */
static void all_end_well(bool (*good)(unsigned i))
{
    for (unsigned i = 0; i < n_agents; i++)
        pthread_join(follows[i], NULL);
    for (unsigned i = 0; i < n_agents; i++) {
        must(wait_flag(&f[i]->ended, 20000));
        by_group(i);
        if (!good(i))
            loop_fail(__FILE__, __LINE__, "agent %u: not as it was to be", i);
    }
    for (unsigned i = 0; i < n_agents; i++)
        family_must_succeed(f[i]);
    ff_group_free(group);
    loop_remove_key();
}

/* A machine that is busy loses some */
static bool most_came(unsigned i)
{
    return f[i]->stats.bytes_group > f[i]->stats.image.bytes_prefill / 2;
}

static bool some_came(unsigned i)
{
    const struct ff_agent_stats *st = &f[i]->stats;

    return st->bytes_group && st->bytes_group < st->image.bytes_prefill;
}

static bool some_lost(unsigned i)
{
    return some_came(i) && f[i]->stats.image.group_lost;
}

static bool none_came(unsigned i)
{
    return !f[i]->stats.bytes_group;
}

static void three(void)
{
    agents_are(3, "");
    begin("");
    all_end_well(most_came);
}

static bool came_at_all(unsigned i)
{
    return f[i]->stats.bytes_group;
}

/* Its children may have been quicker than any whole page */
static bool heard(unsigned i)
{
    return f[i]->stats.image.group_packets;
}

static void busy(void)
{
    agents_are(3, "");
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 2; k++)
            f[i]->child[k].when = k ? WHEN_HERE : AT_ONCE;
    begin("");
    all_end_well(heard);
}

static void lossy(void)
{
    agents_are(3, "");
    for (unsigned i = 0; i < 3; i++)
        f[i]->faults = "dest.group.packet=fail@40,dest.group.packet=fail@300-310,"
                       "dest.group.packet=fail@500-900,dest.group.packet=fail@1000-1001,"
                       "dest.group.packet=fail@1500-1503,dest.group.packet=fail@1700";
    begin("");
    all_end_well(some_lost);
}

static bool is_filtered(unsigned i)
{
    return i ? most_came(i) && !*f[i]->stats.no_group
             : none_came(i) && strstr(f[i]->stats.no_group, "filters it");
}

/* To one of them the network lets nothing pass */
static void filtered(void)
{
    agents_are(2, "");
    f[0]->faults = "dest.group.packet=fail";
    begin("");
    all_end_well(is_filtered);
}

static bool all_filtered(unsigned i)
{
    return none_came(i) && strstr(f[i]->stats.no_group, "filters it");
}

static void all_deaf(void)
{
    agents_are(2, "");
    for (unsigned i = 0; i < 2; i++)
        f[i]->faults = "dest.group.packet=fail";
    begin("");
    all_end_well(all_filtered);
}

static bool some_then_none(unsigned i)
{
    return some_came(i) && strstr(f[i]->stats.no_group, "nothing more came");
}

/* As a switch does that takes the group for one that nobody has joined */
static void filtered_later(void)
{
    agents_are(2, "");
    for (unsigned i = 0; i < 2; i++)
        f[i]->faults = "dest.group.packet=fail@400+";
    begin("source.group.send=delay:2000");
    all_end_well(some_then_none);
}

static bool late_is_late(unsigned i)
{
    return i ? some_came(i) : most_came(i);
}

/* It runs when the source has begun to send, by when it has waited long enough */
static void late(void)
{
    agents_are(2, "");
    f[1]->faults = "dest.running=delay:3300000";
    begin("source.group.send=delay:2000");
    all_end_well(late_is_late);
}

static void sender_fails(void)
{
    agents_are(2, "");
    begin("source.group.send=fail@30+");
    all_end_well(some_came);
}

/* Nobody says END, and nothing more comes */
static void sender_stops(void)
{
    agents_are(2, "");
    begin("source.group.send=delay:4000000@30");
    all_end_well(some_came);
}

static void links_break(void)
{
    agents_are(2, "");
    begin("");
    wait_count(f[1]->group_so_far, 512ul << 10);
    ff_source_pause(f[1]->source);
    all_end_well(came_at_all);
    must(f[1]->breaks);
}

static bool all_here(unsigned i)
{
    return !i || came_at_all(i);
}

/* RUNNING does not come over: who has no link joins when there is the next */
static void break_before_running(void)
{
    agents_are(2, "");
    f[0]->faults = "control.send=fail@4"; /* WELCOME, WATCHING, READY */
    begin("");
    all_end_well(all_here);
    must(f[0]->breaks);
}

static void agent_dies(void)
{
    agents_are(3, ",reconnect=0");
    f[0]->n_children = 0;
    f[0]->resumes = false;
    begin("");
    wait_count(f[0]->group_so_far, 512ul << 10);
    kill(f[0]->agent_pid, SIGKILL);
    family_reap(f[0]->agent_pid, SIGKILL);
    f[0]->agent_pid = 0;
    pthread_join(follows[0], NULL);
    must(f[0]->source_rc);
    unlink(f[0]->path);
    family_free(f[0]);
    f[0] = f[2];
    follows[0] = follows[2];
    n_agents = 2;
    all_end_well(most_came);
}

static bool came_or_cannot(unsigned i)
{
    return came_at_all(i) || strstr(f[i]->stats.no_group, "the parent cannot send to the group");
}

/* By the interface of an IPv4 link, which may have no IPv6 */
static void ipv6(void)
{
    agents_are(2, "");
    snprintf(options, sizeof(options), "key-file=%s,chunk=64K,multicast=[ff15::7%02x]:%u", loop_key_file(),
             getpid() % 250, ntohs(at.sin_port));
    begin("");
    all_end_well(came_or_cannot);
}

static void verified(void)
{
    agents_are(2, ",verify=on");
    begin("");
    all_end_well(none_came);
}

#define AT 0x3ea /* a cell that comes late by itself */

/* One agent knows what is touched, so all get that first: before the first cells of the image are all there */
static void touched_first(void)
{
    agents_are(2, "");
    f[0]->first = "region1=40+4,60;region0=3e8+20,7;region1=1f0+5";
    f[1]->n_children = 1;
    f[1]->child[0] = (struct family_child){.when = WHEN_COMPLETE, .only_peek = true, .peek_at = AT};
    begin(loop_in_lab() ? "source.group.send=delay:20000" : "source.group.send=delay:8000");
    wait_count(f[1]->group_so_far, 150ul * CELL); /* of some 250 before that cell */
    atomic_store(&f[1]->late_may_start, true);
    must(wait_flag(&f[1]->child[0].peeked, 20000));
    pthread_join(follows[1], NULL);
    must(wait_flag(&f[1]->ended, 20000) && wait_flag(&f[1]->child[0].done, 20000));
    by_group(1);
    must(came_at_all(1) && !f[1]->stats.image.faults);
    family_free(f[1]);
    atomic_store(&f[1]->children_may_end, true);
    family_reap(f[1]->child[0].pid, 5 << 8);
    n_agents = 1;
    all_end_well(came_at_all);
}

/* --- a stranger in the group --- */

static atomic_bool stranger_ends;
static atomic_uint said_again;

/* All that it hears it says again: as it was, with one bit changed, and cut */
static void *stranger_main(void *arg)
{
    struct ip_mreqn join = {.imr_multiaddr = at.sin_addr, .imr_address = {htonl(INADDR_LOOPBACK)}};
    int yes = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint8_t p[2048];

    must(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
    must(!bind(fd, (struct sockaddr *)&at, sizeof(at)));
    must(!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof(join)));
    must(!setsockopt(out, IPPROTO_IP, IP_MULTICAST_IF, &join, sizeof(join)));
    while (!atomic_load(&stranger_ends)) {
        ssize_t n = recv(fd, p, sizeof(p), MSG_DONTWAIT);
        if (n < 0)
            usleep(200);
        if (n <= 0 || said_again % 3 || n == 33) { /* of its own it hears one in three */
            said_again += n > 0;
            continue;
        }
        sendto(out, p, (size_t)n, 0, (struct sockaddr *)&at, sizeof(at));
        p[said_again / 3 % (unsigned)n] ^= 4;
        sendto(out, p, (size_t)n, 0, (struct sockaddr *)&at, sizeof(at));
        sendto(out, p, 33, 0, (struct sockaddr *)&at, sizeof(at));
        said_again++;
    }
    close(fd);
    close(out);
    return arg;
}

static void stranger(void)
{
    pthread_t t;

    agents_are(2, "");
    for (unsigned i = 0; i < 2; i++)
        f[i]->child[0].when = AT_ONCE;
    begin("");
    must(!pthread_create(&t, NULL, stranger_main, NULL));
    all_end_well(heard);
    atomic_store(&stranger_ends, true);
    pthread_join(t, NULL);
    printf("      %u packets said again\n", atomic_load(&said_again) / 3);
    must(atomic_load(&said_again) > 300);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"three agents", three, 40},
        {"children touch all meanwhile", busy, 40},
        {"packets are lost", lossy, 40},
        {"one agent gets nothing", filtered, 40},
        {"no agent gets anything", all_deaf, 40},
        {"after a while no agent gets anything", filtered_later, 40},
        {"an agent joins late", late, 40},
        {"the source cannot send any more", sender_fails, 40},
        {"the source stops for a while", sender_stops, 40},
        {"a link breaks meanwhile", links_break, 40},
        {"a link breaks before anything is sent", break_before_running, 40},
        {"an agent dies meanwhile", agent_dies, 40},
        {"an IPv6 group", ipv6, 40},
        {"verify=on: nothing is sent", verified, 40},
        {"what is touched comes first", touched_first, 40},
        {"a stranger repeats and changes packets", stranger, 40},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
