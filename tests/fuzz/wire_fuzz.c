/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_fuzz.c - libFuzzer: every decoder of the control messages and of the tcp frames
 *
 * Input: one byte that selects the decoder's circumstances, then the message. What is decoded
 * is encoded again and must be the same bytes (reserved fields aside), decoded once more the
 * same values. What is refused must have said why and left nothing allocated.
 */
#include <assert.h>
#include <stdio.h>

#include "datagram.c"
#include "error.c"
#include "printable.c"
#include "tcp_wire.c"
#include "wire.c"
#include "wire_feed.c"
#include "wire_parts.c"
#include "wire_resume.c"

static struct ff_wire_region table[FF_WIRE_REGIONS_MAX];

static void make_table(void)
{
    if (table[0].psize)
        return;
    for (unsigned i = 0; i < FF_WIRE_REGIONS_MAX; i++) {
        table[i].psize = i % 7 ? 4096 : 2u << 20;
        table[i].len_bytes = (i + 1ull) * table[i].psize;
        snprintf(table[i].name, sizeof(table[i].name), "region%u", i);
    }
}

/* Round trips, byte for byte but for @reserved bytes from @at on */
static void same(const uint8_t *msg, size_t len, const uint8_t *out, int out_len, size_t at,
                 size_t reserved)
{
    if (out_len < 0 || (size_t)out_len != len)
        abort();
    for (size_t i = 0; i < len; i++)
        if (msg[i] != out[i] && (i < at || i >= at + reserved))
            abort();
}

static uint8_t out[FF_MSG_MAX];

static int try_hello(const uint8_t *msg, size_t len, struct ff_error *err)
{
    struct ff_hello h;
    int rc = ff_wire_get_hello(msg, len, &h, err);

    if (rc) {
        if (h.regions)
            abort();
        return rc;
    }
    if (!h.n_regions || h.n_regions > FF_WIRE_REGIONS_MAX)
        abort();
    for (unsigned i = 0; i < h.n_regions; i++) {
        const struct ff_wire_region *r = &h.regions[i];
        if (!r->name[0] || strlen(r->name) > FF_WIRE_NAME_MAX || r->psize < 4096 ||
            !r->len_bytes || r->len_bytes % r->psize || r->len_bytes > FF_WIRE_REGION_LEN_MAX)
            abort();
    }
    same(msg, len, out, ff_wire_put_hello(out, &h, err), 0, 0);
    ff_hello_free(&h);
    return 0;
}

static int try_small(enum ff_msg type, const uint8_t *msg, size_t len, struct ff_error *err)
{
    char text[FF_WIRE_TEXT_MAX + 1];
    enum ff_refusal refusal;
    struct ff_state_head head;
    struct ff_welcome w;
    struct ff_resume again;
    struct ff_stats st;
    uint32_t number;
    int rc;

    switch (type) {
    case FF_MSG_LEASE:
        rc = ff_wire_get_lease(msg, len, &number, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_lease(out, number), 0, 0);
        return rc;
    case FF_MSG_WELCOME:
        rc = ff_wire_get_welcome(msg, len, &w, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_welcome(out, &w), 0, 0);
        return rc;
    case FF_MSG_RESUME:
        rc = ff_wire_get_resume(msg, len, &again, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_resume(out, &again), 0, 0);
        return rc;
    case FF_MSG_REFUSE:
        rc = ff_wire_get_refuse(msg, len, &refusal, text, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_refuse(out, refusal, text), 0, 0);
        return rc;
    case FF_MSG_STATE:
        rc = ff_wire_get_state(msg, len, &head, err);
        if (!rc && (!head.total_bytes || head.total_bytes > FF_WIRE_STATE_MAX ||
                    head.n_first > FF_WIRE_FIRST_MAX))
            abort();
        if (!rc)
            same(msg, len, out, ff_wire_put_state(out, &head), 0, 0);
        return rc;
    case FF_MSG_GO:
    case FF_MSG_WITHDRAWN:
    case FF_MSG_WATCHING:
    case FF_MSG_LOGGING:
        rc = ff_wire_get_empty(msg, len, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_empty(out, type), 0, 0);
        return rc;
    default:
        rc = ff_wire_get_stats(msg, len, &st, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_stats(out, type, &st), 0, 0);
        return rc;
    }
}

static int try_lists(enum ff_msg type, unsigned how, const uint8_t *msg, size_t len,
                     struct ff_error *err)
{
    unsigned n_regions = 1 + how * 2, max = 1 + how * 16, n = 0;
    const uint8_t *data;
    uint32_t n_data;
    int rc;

    if (type == FF_MSG_PUBLISH) {
        static struct ff_publish pub;
        rc = ff_wire_get_publish(msg, len, &pub, n_regions, table, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_publish(out, &pub, n_regions), 0, 0);
        return rc;
    }
    if (type == FF_MSG_FEED) {
        static struct ff_offer o;
        rc = ff_wire_get_feed(msg, len, n_regions, &o, err);
        if (!rc && o.n != n_regions)
            abort();
        if (!rc)
            same(msg, len, out, ff_wire_put_feed(out, &o), 0, 0);
        return rc;
    }
    if (type == FF_MSG_KEYS) {
        struct ff_wire_key *keys = calloc(max, sizeof(*keys)); /* its end is watched */
        rc = ff_wire_get_keys(msg, len, keys, max, 64 << 20, table, n_regions, &n, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_keys(out, keys, n), 0, 0);
        free(keys);
        return rc;
    }
    if (type == FF_MSG_PARTS) {
        struct ff_wire_part *parts = calloc(max, sizeof(*parts)); /* likewise */
        rc = ff_wire_get_parts(msg, len, parts, max, table, n_regions, &n, err);
        for (unsigned i = 0; i < n && !rc; i++)
            if (parts[i].offset + parts[i].len_bytes > table[parts[i].region].len_bytes)
                abort();
        if (!rc)
            same(msg, len, out, ff_wire_put_parts(out, parts, n), 0, 0);
        free(parts);
        return rc;
    }
    if (type == FF_MSG_GRANT) {
        struct ff_grant *g = calloc(FF_WIRE_GRANTS_MAX, sizeof(*g));
        rc = ff_wire_get_grants(msg, len, g, 4 << 20, table, n_regions, &n, err);
        if (!rc)
            same(msg, len, out, ff_wire_put_grants(out, g, n), 0, 0);
        free(g);
        return rc;
    }
    if (type == FF_MSG_DATA) {
        rc = ff_wire_get_data(msg, len, max, &data, &n_data, err);
        if (!rc && (!n_data || n_data > max || data < msg || data + n_data > msg + len))
            abort();
        if (!rc)
            same(msg, len, out, ff_wire_put_data(out, data, n_data), 0, 0);
        return rc;
    }
    if (type == FF_MSG_DIRTY) {
        struct ff_dirty d;
        rc = ff_wire_get_dirty(msg, len, &d, table, n_regions, err);
        if (!rc && (d.bits < msg || d.bits + (d.n + 7) / 8 > msg + len ||
                    (d.first + d.n) * table[d.region].psize > table[d.region].len_bytes))
            abort();
        if (!rc)
            same(msg, len, out, ff_wire_put_dirty(out, &d), 0, 0);
        return rc;
    }
    struct ff_page_ref *pages = calloc(max, sizeof(*pages)); /* its end is watched */
    if (!pages)
        abort();
    rc = ff_wire_get_first(msg, len, pages, max, table, n_regions, &n, err);
    for (unsigned i = 0; i < n && !rc; i++)
        if (pages[i].region >= n_regions || pages[i].offset >= table[pages[i].region].len_bytes)
            abort();
    if (!rc)
        same(msg, len, out, ff_wire_put_first(out, pages, n), 0, 0);
    free(pages);
    return rc;
}

static int try_message(unsigned how, const uint8_t *msg, size_t len, struct ff_error *err)
{
    int type = ff_wire_type(msg, len, err);

    if (type < 0)
        return type;
    if (type == FF_MSG_HELLO)
        return try_hello(msg, len, err);
    if (type == FF_MSG_PUBLISH || type == FF_MSG_DATA || type == FF_MSG_FIRST ||
        type == FF_MSG_KEYS || type == FF_MSG_PARTS || type == FF_MSG_GRANT ||
        type == FF_MSG_DIRTY || type == FF_MSG_FEED)
        return try_lists((enum ff_msg)type, how, msg, len, err);
    return try_small((enum ff_msg)type, msg, len, err);
}

static int try_frame(unsigned how, const uint8_t *in, struct ff_error *err)
{
    static const struct tcp_tokens t = {.of = {"a session of 16", "a session of 16"}};
    uint8_t zero[128];
    struct ff_wr wr = {.id = 7, .op = how & 1 ? FF_OP_READ : FF_OP_WRITE, .len_bytes = 8192,
                       .granule_bytes = how & 2 ? 4096 : 0, .zero = how & 4 ? zero : NULL};
    struct tcp_req req;
    struct tcp_rep rep;
    enum ff_queue q;
    uint32_t n;
    int rc;

    switch (in[2]) {
    case 'c':
        if (in[3] == 's') {
            rc = tcp_sealed_decode(in, &n, err);
            if (!rc)
                tcp_sealed_encode(out, n);
            if (!rc)
                same(in, TCP_CTRL_HEAD_LEN, out, TCP_CTRL_HEAD_LEN, 0, 0);
            return rc;
        }
        rc = tcp_ctrl_decode(in, &n, err);
        if (!rc)
            tcp_ctrl_encode(out, n);
        if (!rc)
            same(in, TCP_CTRL_HEAD_LEN, out, TCP_CTRL_HEAD_LEN, 0, 0);
        return rc;
    case 'p':
        rc = tcp_pad_decode(in, &n, err);
        if (!rc)
            tcp_pad_encode(out, n);
        if (!rc)
            same(in, TCP_PAD_HEAD_LEN, out, TCP_PAD_HEAD_LEN, 0, 0);
        return rc;
    case 'j':
        rc = tcp_join_decode(in, &t, &q, err);
        if (!rc)
            tcp_join_encode(out, q, &t);
        if (!rc)
            same(in, TCP_JOIN_LEN, out, TCP_JOIN_LEN, 0, 0);
        return rc;
    case 'r':
        if (in[3] == 'p') {
            rc = tcp_rep_decode(in, how & 8 ? NULL : &wr, &rep, err);
            if (!rc)
                tcp_rep_encode(out, &rep);
            if (!rc)
                same(in, TCP_REP_LEN, out, TCP_REP_LEN, 0, 0);
            return rc;
        }
        rc = tcp_req_decode(in, &req, err);
        if (!rc && (!req.len || req.len > TCP_MAX_LEN ||
                    (req.granule && req.len / req.granule > FF_GRANULES_MAX)))
            abort();
        if (!rc)
            tcp_req_encode(out, &req);
        if (!rc)
            same(in, TCP_REQ_LEN, out, TCP_REQ_LEN, 6, 2);
        return rc;
    default:
        return ff_error_set(err, EPROTO, "no frame");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ff_error err = {.code = 0};
    int rc;

    make_table();
    if (!size || size > FF_MSG_MAX + 1)
        return 0;
    unsigned how = data[0];
    if (size >= 4 && data[1] == 'F' && data[2] == 'F') {
        uint8_t frame[TCP_REQ_LEN] = {0};
        memcpy(frame, data + 1, FF_MIN(size - 1, sizeof(frame)));
        rc = try_frame(how, frame, &err);
    } else {
        rc = try_message(how, data + 1, size - 1, &err);
    }
    if (rc && (err.code != -rc || !err.text[0] || strlen(err.text) >= sizeof(err.text)))
        abort();
    return 0;
}
