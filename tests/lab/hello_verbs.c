/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hello_verbs.c - inside the lab: a peer that takes no messages does not hold up a good source
 */
#include "wire.h"
#include "wirebuf.h" /* before names of hosts.h that its own would shadow */

#include "hosts.h"

#include <rdma/rdma_verbs.h>

#include "farfork.h"
#include "verbs_request.h"

#define DEST "timeout=30"
#define SOURCE "timeout=25"
#define MEMORY 65536u

/* --- a peer that has no receive buffer for what the destination answers --- */

static struct rdma_cm_id *connect_deaf(const char *to_port)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *res;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1};
    uint8_t hello[VERBS_PRIVATE_MAX];
    struct rdma_conn_param cp = {.private_data = hello,
                                 .private_data_len = verbs_put_private(
                                     hello, VERBS_CONTROL, 1, 0, NULL, FF_SESSION_LEN),
                                 .responder_resources = 1,
                                 .initiator_depth = 1,
                                 .retry_count = 6,
                                 .rnr_retry_count = 7};
    struct rdma_cm_id *id;

    assert_int_equal(rdma_getaddrinfo(HOST_B, to_port, &hints, &res), 0);
    if (rdma_create_ep(&id, res, NULL, &attr) || rdma_connect(id, &cp))
        fail_msg("connect: %s", strerror(errno));
    rdma_freeaddrinfo(res);
    /* Asked to try again that soon, soft-RoCE does so for ever, as other adapters do anyway */
    struct ibv_qp_attr soon = {.min_rnr_timer = 12};
    assert_int_equal(ibv_modify_qp(id->qp, &soon, IBV_QP_MIN_RNR_TIMER), 0);
    return id;
}

/* Returns when the destination has it */
static void say_hello(struct rdma_cm_id *id, const char *config)
{
    struct ff_wire_region r = {.name = "ram", .len_bytes = MEMORY, .psize = 4096};
    struct ff_hello h = {.oldest = FF_WIRE_VERSION, .version = FF_WIRE_VERSION, .n_regions = 1,
                         .regions = &r};
    struct ff_error err;
    struct ibv_wc wc;

    snprintf(h.config, sizeof(h.config), "%s", config);
    int len = ff_wire_put_hello(src, &h, &err);
    assert_true(len > 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, src, FF_MSG_MAX);
    assert_non_null(mr);
    assert_int_equal(rdma_post_send(id, NULL, src, (size_t)len, mr, 0), 0);
    assert_int_equal(rdma_get_send_comp(id, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    rdma_dereg_mr(mr);
}

/* --- the move that comes after it --- */

struct accepts {
    pthread_t thread;
    struct ff_dest *dest;
    int rc;
    struct ff_error err;
};

static void *dest_main(void *arg)
{
    struct accepts *a = arg;
    a->rc = ff_dest_accept(a->dest, "test", &a->err);
    return NULL;
}

static struct ff_address *address_of(unsigned number, const char *options)
{
    struct ff_address *a;
    struct ff_error err;
    char text[100];

    snprintf(text, sizeof(text), HOST_B ":%u,link=verbs,insecure=on,%s", number, options);
    assert_ok(ff_address_parse(text, &a, &err), err);
    return a;
}

static struct ff_dest *new_dest(void)
{
    struct ff_region r = {.name = "ram", .host = dst, .len_bytes = MEMORY, .psize = 4096, .fd = -1,
                          .zero_fill = true};
    struct ff_address *a = address_of(0, DEST);
    struct ff_dest *d;
    struct ff_error err;

    enter("hostb");
    int rc = ff_dest_new(a, &d, &err);
    enter("hosta");
    ff_address_free(a);
    assert_ok(rc, err);
    assert_ok(ff_dest_add_region(d, &r, &err), err);
    return d;
}

static struct ff_source *new_source(unsigned number)
{
    struct ff_region r = {.name = "ram", .host = src, .len_bytes = MEMORY, .psize = 4096, .fd = -1};
    struct ff_address *a = address_of(number, SOURCE);
    struct ff_source *s;
    struct ff_error err;

    assert_ok(ff_source_new(a, &s, &err), err);
    ff_address_free(a);
    assert_ok(ff_source_add_region(s, &r, &err), err);
    return s;
}

/* The destination has much time for a source, the good one less than that: it gets in, since the
 * deaf one is given less yet */
static void deaf_then_good(const char *config)
{
    struct accepts a = {.dest = new_dest()};
    struct ff_error err;
    char number[16];

    snprintf(number, sizeof(number), "%u", ff_dest_port(a.dest));
    assert_int_equal(pthread_create(&a.thread, NULL, dest_main, &a), 0);
    struct rdma_cm_id *deaf = connect_deaf(number);
    say_hello(deaf, config);
    struct ff_source *s = new_source(ff_dest_port(a.dest));
    int rc = ff_source_connect(s, "test", &err);
    if (rc)
        ff_dest_cancel(a.dest);
    pthread_join(a.thread, NULL);
    rdma_destroy_ep(deaf);
    ff_source_free(s);
    ff_dest_free(a.dest);
    assert_ok(rc, err);
    assert_ok(a.rc, a.err);
}

static void test_takes_no_refusal(void **state)
{
    (void)state;
    deaf_then_good("another machine");
}

static void test_takes_no_welcome(void **state)
{
    (void)state;
    deaf_then_good("test");
}

int main(void)
{
    const struct CMUnitTest tests[] = {WITH(test_takes_no_refusal), WITH(test_takes_no_welcome)};

    int rc = enter_lab();
    return rc ? rc : cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
