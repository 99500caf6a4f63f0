/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_verbs_listen.c - a port whose RDMA device goes is listened at again when there is a device again
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      librdmacm's functions stand here in their place: soft-RoCE cannot show it, since its
 *              kernel removes no device that a process has open, and tells none of it.
 */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "failpoint.h"
#include "kept_log.h"
#include "link.h"
#include "verbs.h"

static struct ibv_device device = {.name = "card0"};
static struct ibv_context context = {.device = &device};
static struct rdma_event_channel *channel; /* of the newest listener */
static struct rdma_cm_id *listener;
static struct rdma_cm_event removal;
static bool is_there, is_removed, no_access; /* the device; what the channel has next */
static bool lacks_second; /* card, which 192.0.2.2 is on */
static unsigned listens, ids, channels;
static in_port_t bound;

struct rdma_event_channel *rdma_create_event_channel(void)
{
    channel = calloc(1, sizeof(*channel));
    channel->fd = eventfd(0, EFD_CLOEXEC);
    channels++;
    return channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *ch)
{
    close(ch->fd);
    free(ch);
    channels--;
}

int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *c, enum rdma_port_space ps)
{
    (void)c;
    (void)ps;
    *id = calloc(1, sizeof(**id));
    (*id)->channel = ch;
    ids++;
    return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    free(id);
    ids--;
    return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    (void)id;
    (void)level;
    (void)name;
    (void)value;
    (void)len;
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    errno = ENODEV;
    if (!is_there || (lacks_second && ((struct sockaddr_in *)addr)->sin_addr.s_addr == inet_addr("192.0.2.2")))
        return -1;
    id->verbs = &context;
    bound = ((struct sockaddr_in *)addr)->sin_port;
    return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    (void)backlog;
    listener = id;
    listens++;
    return 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    (void)id;
    return bound ? bound : htons(4444);
}

int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **event)
{
    errno = no_access ? EACCES : EAGAIN;
    if (!is_removed || ch != channel || no_access)
        return -1;
    is_removed = false;
    removal = (struct rdma_cm_event){.event = RDMA_CM_EVENT_DEVICE_REMOVAL, .id = listener};
    *event = &removal;
    return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    (void)event;
    return 0;
}

const char *ibv_get_device_name(struct ibv_device *d)
{
    return d->name;
}

static struct ff_port *must_listen_at(enum ff_link_kind kind, const struct ff_peers *peers)
{
    struct ff_link_params p = {.host = "192.0.2.1", .port = "0", .timeout_ms = 1000, .insecure = true, .peers = peers};
    struct ff_port *port;
    struct ff_error err;

    if (kind == FF_LINK_AUTO)
        p.host = "";
    keep_logs_from_now(FF_LOG_INFO);
    is_there = true;
    is_removed = no_access = false;
    listens = 0;
    assert_ok(ff_port_listen(&p, kind, &port, &err), err);
    assert_true(listens > 0);
    return port;
}

static struct ff_port *must_listen(enum ff_link_kind kind)
{
    return must_listen_at(kind, NULL);
}

static void wait_for_nobody(struct ff_port *port, int timeout_ms, int want)
{
    struct ff_link *l;
    struct ff_error err;

    assert_int_equal(ff_port_accept(port, NULL, 0, timeout_ms, &l, &err), -want);
}

static void removed_and_back(enum ff_link_kind kind)
{
    struct ff_port *port = must_listen(kind);
    unsigned number = ff_port_number(port), before = listens;

    wait_for_nobody(port, 10, ETIMEDOUT);
    is_there = false;
    is_removed = true;
    wait_for_nobody(port, 10, ETIMEDOUT); /* and that is no end of it */
    assert_non_null(strstr(last_log, "card0) was removed"));
    assert_int_equal(ids, 0); /* the kernel waits for who has the device open */
    wait_for_nobody(port, 1200, ETIMEDOUT); /* tries, in vain */
    assert_int_equal(listens, before);
    is_there = true;
    wait_for_nobody(port, 1200, ETIMEDOUT);
    assert_true(listens > before);
    assert_int_equal(ff_port_number(port), number);
    assert_int_equal(ntohs(bound), number);
    assert_non_null(strstr(last_log, "there is a device again"));
    before = listens;
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, before);
    ff_port_free(port);
    assert_int_equal(ids + channels, 0);
}

static void test_removed(void **state)
{
    (void)state;
    removed_and_back(FF_LINK_VERBS);
    removed_and_back(FF_LINK_AUTO);
}

/* Its cards are there one after the other: it listens on each. A name is looked up once */
static void test_two_cards(void **state)
{
    struct ff_peers peers = {.n = 2};
    struct ff_error err;
    (void)state;

    for (unsigned i = 0; i < 2; i++) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(i ? "192.0.2.2" : "192.0.2.1")};
        peers.at[i].len = sizeof(in);
        memcpy(&peers.at[i].addr, &in, sizeof(in));
    }
    struct ff_port *port = must_listen_at(FF_LINK_VERBS, &peers);
    assert_int_equal(listens, 2);
    lacks_second = is_removed = true;
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, 3);
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, 3);
    lacks_second = false;
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, 4);
    assert_int_equal(ntohs(bound), ff_port_number(port));
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, 4);
    ff_port_free(port);
    assert_int_equal(ids + channels, 0);

    assert_ok(ff_failpoints_arm("link.look_up=delay:0", &err), err);
    port = must_listen(FF_LINK_VERBS);
    unsigned long looked = ff_failpoint_hits("link.look_up");
    assert_int_equal(looked, 1);
    is_removed = true;
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, 2);
    assert_int_equal(ff_failpoint_hits("link.look_up"), looked);
    ff_port_free(port);
}

/* A process that may no longer read events listens no more: that does not change by waiting */
static void test_no_access(void **state)
{
    struct ff_port *port = must_listen(FF_LINK_VERBS);
    (void)state;

    no_access = true;
    wait_for_nobody(port, 10, EBADFD);
    ff_port_free(port);

    port = must_listen(FF_LINK_AUTO);
    unsigned before = listens;
    no_access = true;
    wait_for_nobody(port, 700, ETIMEDOUT);
    assert_int_equal(listens, before);
    assert_non_null(strstr(last_log, "tcp alone"));
    ff_port_free(port);
    assert_int_equal(ids + channels, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed),
        cmocka_unit_test(test_two_cards),
        cmocka_unit_test(test_no_access),
    };
    return cmocka_run_group_tests_name("verbs_listen", tests, NULL, NULL);
}
