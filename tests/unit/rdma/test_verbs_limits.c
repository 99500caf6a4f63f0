/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_verbs_limits.c - what the verbs link makes of devices that are not here
 */
#include "unit.h"

#include "verbs.h"

struct device {
    const char *name;
    enum ibv_transport_type transport;
    struct ibv_device_attr dev;
    struct ibv_port_attr port;
};

static const struct device connectx = {
    "like a ConnectX-5",
    IBV_TRANSPORT_IB,
    {.max_mr_size = UINT64_MAX,
     .max_qp = 262144,
     .max_qp_wr = 32768,
     .max_sge = 30,
     .max_sge_rd = 30,
     .max_cq = 16777216,
     .max_cqe = 4194303,
     .max_mr = 16777216,
     .max_pd = 8388608,
     .max_qp_rd_atom = 16,
     .max_qp_init_rd_atom = 16},
    {.state = IBV_PORT_ACTIVE,
     .max_msg_sz = 1u << 30,
     .max_mtu = IBV_MTU_4096,
     .active_mtu = IBV_MTU_1024},
};

static const struct device rxe = {
    "soft-RoCE",
    IBV_TRANSPORT_IB,
    {.max_mr_size = UINT64_MAX, .max_qp = 1048560, .max_qp_wr = 1048576, .max_sge = 32,
     .max_sge_rd = 32, .max_cq = 1048576, .max_cqe = 32767, .max_mr = 524287, .max_pd = 1048576,
     .max_qp_rd_atom = 128, .max_qp_init_rd_atom = 128},
    {.state = IBV_PORT_ACTIVE, .max_msg_sz = 1u << 23, .active_mtu = IBV_MTU_1024},
};

/* each limit a little different, and most of them small */
static const struct device iwarp = {
    "like an iWARP card",
    IBV_TRANSPORT_IWARP,
    {.max_mr_size = 0, .max_qp = 64, .max_qp_wr = 48, .max_sge = 4, .max_sge_rd = 1, .max_cq = 128,
     .max_cqe = 200, .max_mr = 1000, .max_pd = 32, .max_qp_rd_atom = 4, .max_qp_init_rd_atom = 2},
    {.state = IBV_PORT_ACTIVE, .max_msg_sz = (1u << 20) + 77, .active_mtu = IBV_MTU_1024},
};

/* one less of anything is refused */
static const struct device least = {
    "the least",
    IBV_TRANSPORT_IB,
    {.max_mr_size = VERBS_CTRL_BYTES, .max_qp = 3, .max_qp_wr = 16, .max_sge = 1, .max_sge_rd = 1,
     .max_cq = 4, .max_cqe = 32, .max_mr = 8, .max_pd = 1, .max_qp_rd_atom = 1,
     .max_qp_init_rd_atom = 1},
    {.state = IBV_PORT_ACTIVE, .max_msg_sz = VERBS_CTRL_LEN},
};

static struct verbs_limits limits_of(const struct device *d)
{
    struct verbs_limits l;
    struct ff_error err;

    if (verbs_get_limits(&d->dev, &d->port, d->transport, &l, &err))
        fail_msg("%s: %s", d->name, err.text);
    return l;
}

static void test_devices(void **state)
{
    (void)state;

    struct verbs_limits l = limits_of(&connectx);
    assert_int_equal(l.max_len, 4 << 20);
    assert_true(l.max_mr_bytes == UINT64_MAX);
    assert_int_equal(l.depth, FF_QUEUE_DEPTH);
    assert_int_equal(l.max_qps, 8);
    assert_int_equal(l.init_rd, 16);
    assert_int_equal(l.resp_rd, 16);
    assert_false(l.iwarp || l.odp_read || l.odp_write);

    l = limits_of(&rxe);
    assert_int_equal(l.max_len, 4 << 20);
    assert_int_equal(l.init_rd, 16); /* not 128: no card has that */

    l = limits_of(&iwarp);
    assert_int_equal(l.max_len, 1 << 20); /* whole pages */
    assert_true(l.max_mr_bytes == UINT64_MAX); /* 0 says nothing */
    assert_int_equal(l.max_mrs, 1000);
    assert_int_equal(l.depth, 48);
    assert_int_equal(l.max_qps, 3); /* (200 - 48) / 48 */
    assert_int_equal(l.init_rd, 2);
    assert_int_equal(l.resp_rd, 4);
    assert_true(l.iwarp);

    l = limits_of(&least);
    assert_int_equal(l.max_len, FF_MSG_MAX);
    assert_int_equal(l.depth, 16);
    assert_int_equal(l.max_qps, 1);
    assert_int_equal(l.init_rd, 1);
    assert_int_equal(l.max_mrs, 8);

    struct device d = connectx; /* as many as you like */
    d.dev.max_mr = d.dev.max_qp = d.dev.max_cqe = d.dev.max_qp_wr = -1;
    l = limits_of(&d);
    assert_int_equal(l.depth, FF_QUEUE_DEPTH);
    assert_int_equal(l.max_qps, 8);
    assert_int_equal(l.max_mrs, INT32_MAX);
}

static void refused(const struct device *d, int code, const char *name, const char *has,
                    const char *needs)
{
    struct verbs_limits l = {.max_len = 12345};
    struct ff_error err = {.code = 0};

    if (verbs_get_limits(&d->dev, &d->port, d->transport, &l, &err) != -code)
        fail_msg("%s = %s: not refused with %d: %s", name, has, code, err.text);
    if (!strstr(err.text, name) || !strstr(err.text, has) || !strstr(err.text, needs))
        fail_msg("\"%s\", \"%s\", \"%s\" are not in: %s", name, has, needs, err.text);
    assert_int_equal(l.max_len, 12345);
    assert_fails(verbs_get_limits(&d->dev, &d->port, d->transport, &l, NULL), code);
}

static void test_refused_devices(void **state)
{
    struct device d;
    (void)state;

#define REFUSED(field, value, name, needs)                                                  \
    do {                                                                                    \
        d = least;                                                                          \
        d.field = value;                                                                    \
        refused(&d, ENOTSUP, name, #value, "need " needs);                                  \
    } while (0)
    REFUSED(port.max_msg_sz, 65551, "max_msg_sz", "65552");
    REFUSED(dev.max_mr_size, 1114383, "max_mr_size", "1114384");
    REFUSED(dev.max_mr, 7, "max_mr ", "8");
    REFUSED(dev.max_qp, 2, "max_qp ", "3");
    REFUSED(dev.max_cq, 3, "max_cq ", "4");
    REFUSED(dev.max_qp_wr, 15, "max_qp_wr", "16");
    REFUSED(dev.max_cqe, 31, "max_cqe", "32");
    REFUSED(dev.max_sge, 0, "max_sge", "1");
    REFUSED(dev.max_qp_rd_atom, 0, "max_qp_rd_atom", "1");
    REFUSED(dev.max_qp_init_rd_atom, 0, "max_qp_init_rd_atom", "1");

    d = connectx;
    d.port.state = IBV_PORT_DOWN;
    refused(&d, ENETDOWN, "port is not active", "state 1", "want 4");
    d = connectx;
    d.transport = IBV_TRANSPORT_USNIC;
    refused(&d, ENOTSUP, "transport", "2", "link=tcp");
}

static int check(const struct verbs_limits *l, unsigned access)
{
    struct ff_error err = {.code = 0};
    int flags = verbs_check_reg(l, 4096, access, 0, &err);

    if (flags < 0)
        fail_msg("access %u: %s", access, err.text);
    return flags;
}

static void test_registrations(void **state)
{
    struct verbs_limits ib = limits_of(&connectx), iw = limits_of(&iwarp), few = limits_of(&least);
    struct ff_error err;
    (void)state;

    /* an image is remote-read only, wherever */
    assert_int_equal(check(&ib, FF_ACCESS_REMOTE_READ), IBV_ACCESS_REMOTE_READ);
    assert_int_equal(check(&iw, FF_ACCESS_REMOTE_READ), IBV_ACCESS_REMOTE_READ);
    assert_int_equal(check(&ib, FF_ACCESS_REMOTE_WRITE),
                     IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
    /* where a READ lands: nobody may write, but on iWARP it cannot land otherwise */
    assert_int_equal(check(&ib, 0), IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(check(&iw, 0), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

    /* the device's limits, and one more */
    assert_true(verbs_check_reg(&few, VERBS_CTRL_BYTES, 0, 7, &err) >= 0);
    assert_fails(verbs_check_reg(&few, VERBS_CTRL_BYTES + 1, 0, 7, &err), EINVAL);
    assert_error(err, EINVAL, "1114385", "1..1114384");
    assert_fails(verbs_check_reg(&few, 0, 0, 0, &err), EINVAL);
    assert_fails(verbs_check_reg(&few, 4096, 0, 8, &err), ENOSPC);
    assert_error(err, ENOSPC, "8 segments", "max_mr 8");
}

static void test_on_demand(void **state)
{
    static const unsigned read = FF_ACCESS_ON_DEMAND | FF_ACCESS_REMOTE_READ,
                          write = FF_ACCESS_ON_DEMAND | FF_ACCESS_REMOTE_WRITE;
    struct ibv_odp_caps caps = {.general_caps = IBV_ODP_SUPPORT,
                                .per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_READ};
    struct verbs_limits l = limits_of(&connectx);
    struct ff_error err;
    (void)state;

    assert_fails(verbs_check_reg(&l, 4096, read, 0, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "on-demand paging for READ", "odp=off");

    verbs_get_odp(&caps, &l);
    assert_int_equal(check(&l, read), IBV_ACCESS_ON_DEMAND | IBV_ACCESS_REMOTE_READ);
    assert_fails(verbs_check_reg(&l, 4096, write, 0, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "for WRITE");
    assert_fails(verbs_check_reg(&l, 4096, FF_ACCESS_ON_DEMAND, 0, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "for READ and WRITE");

    caps.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_WRITE;
    verbs_get_odp(&caps, &l);
    assert_int_equal(check(&l, write),
                     IBV_ACCESS_ON_DEMAND | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(check(&l, FF_ACCESS_ON_DEMAND), IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE);

    caps.general_caps = 0; /* which is what counts */
    verbs_get_odp(&caps, &l);
    assert_false(l.odp_read || l.odp_write);
}

static void test_qps(void **state)
{
    struct verbs_limits l = limits_of(&iwarp);
    struct ff_error err;
    (void)state;

    assert_ok(verbs_check_qps(&l, 1, &err), err);
    assert_ok(verbs_check_qps(&l, 3, &err), err);
    assert_fails(verbs_check_qps(&l, 4, &err), EINVAL);
    assert_error(err, EINVAL, "4 prefill", "1..3", "qps=");
    assert_fails(verbs_check_qps(&l, 0, &err), EINVAL);
}

/* Either side's two limits bound the other side's other one */
static void test_reads_in_flight(void **state)
{
    struct verbs_limits l = limits_of(&iwarp); /* asks for 2, lets 4 */
    struct rdma_conn_param asked = {.responder_resources = 16, .initiator_depth = 16}, p;
    struct ff_error err;
    (void)state;

    assert_ok(verbs_answer_reads(&l, &asked, &p, &err), err);
    assert_int_equal(p.responder_resources, 4);
    assert_int_equal(p.initiator_depth, 2);

    asked = (struct rdma_conn_param){.responder_resources = 3, .initiator_depth = 1};
    assert_ok(verbs_answer_reads(&l, &asked, &p, &err), err);
    assert_int_equal(p.responder_resources, 3);
    assert_int_equal(p.initiator_depth, 1);

    asked.initiator_depth = 0; /* nothing may be read there */
    assert_fails(verbs_answer_reads(&l, &asked, &p, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "3 READs", "permits 0");
    asked = (struct rdma_conn_param){.responder_resources = 0, .initiator_depth = 16};
    assert_fails(verbs_answer_reads(&l, &asked, &p, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "0 READs", "permits 16");
}

UNIT_MAIN(cmocka_unit_test(test_devices), cmocka_unit_test(test_refused_devices),
          cmocka_unit_test(test_registrations), cmocka_unit_test(test_on_demand),
          cmocka_unit_test(test_qps), cmocka_unit_test(test_reads_in_flight))
