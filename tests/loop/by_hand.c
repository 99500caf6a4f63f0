/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * by_hand.c - a peer that says to a move's destination what the test writes
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "by_hand.h"

struct ff_link *hand_connect(const struct move *m, struct ff_key *key)
{
    struct ff_link_params p = {.host = "127.0.0.1", .timeout_ms = 15000, .key = key};
    struct ff_error err;
    struct ff_link *l;
    char port[16];

    for (unsigned ms = 0; !ff_dest_port(m->dest); ms++, usleep(1000))
        must(ms < 20000);
    snprintf(port, sizeof(port), "%u", ff_dest_port(m->dest));
    p.port = port;
    must_ok(ff_tcp_connect(&p, -1, &l, &err), err);
    return l;
}

struct ff_link *hand_say(const struct move *m, const uint8_t *msg, int len)
{
    struct ff_link *l = hand_connect(m, NULL);
    struct ff_error err;

    must_ok(l->ops->send(l, msg, (uint32_t)len, &err), err);
    return l;
}

struct ff_hello hand_hello(const struct move *m, struct ff_wire_region r[REGIONS_MAX])
{
    memset(r, 0, REGIONS_MAX * sizeof(*r));
    for (unsigned i = 0; i < m->n_regions; i++) {
        snprintf(r[i].name, sizeof(r[i].name), "region%u", i);
        r[i].len_bytes = m->area[i].len_bytes;
        r[i].psize = m->area[i].psize;
    }
    return (struct ff_hello){.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION,
                             .n_regions = (uint16_t)m->n_regions, .config = "test", .regions = r};
}

struct ff_resume hand_resume(const struct move *m)
{
    struct ff_wire_region table[REGIONS_MAX];
    struct ff_hello h = hand_hello(m, table);
    struct ff_resume r = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .epoch = 1,
                          .digest = ff_hello_digest(&h)};
    char hex[FF_SESSION_TEXT];

    ff_source_session(m->source, hex);
    for (unsigned i = 0; i < FF_SESSION_LEN; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        r.session[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return r;
}

void hand_refused(struct ff_link *l, const char *says)
{
    static uint8_t buf[FF_MSG_MAX];
    char text[FF_WIRE_TEXT_MAX + 1];
    enum ff_refusal code;
    struct ff_error err;

    int len = l->ops->recv(l, buf, 20000, &err);
    if (len < 0)
        loop_fail(__FILE__, __LINE__, "no refusal: %s", err.text);
    must(ff_wire_type(buf, (size_t)len, &err) == FF_MSG_REFUSE);
    must_ok(ff_wire_get_refuse(buf, (size_t)len, &code, text, &err), err);
    must(code == FF_REFUSAL_FINAL);
    if (!strstr(text, says))
        loop_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", says, text);
}
