/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * probe_wire.c - the messages of a probe, encoded and validated; memory to read
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "error.h"
#include "probe.h"
#include "wirebuf.h"

static const char magic[8] = "FFPROBE1";
static const char *const names[] = {"", "HELLO", "WELCOME", "KEY", "BYE", "REFUSE"};

uint32_t ff_probe_encode(uint8_t *buf, const struct ff_probe_msg *m)
{
    struct ff_wirebuf b = {.data = buf, .len = FF_MSG_MAX};

    ff_wb_put_bytes(&b, magic, sizeof(magic));
    ff_wb_put(&b, m->type, 2);
    ff_wb_put(&b, FF_PROBE_VERSION, 2);
    if (m->type == FF_PROBE_WELCOME)
        ff_wb_put_bytes(&b, m->session, FF_SESSION_LEN);
    if (m->type == FF_PROBE_KEY) {
        ff_wb_put(&b, m->addr, 8);
        ff_wb_put(&b, m->rkey, 4);
        ff_wb_put(&b, m->len_bytes, 4);
    }
    if (m->type == FF_PROBE_REFUSE)
        ff_wb_put_bytes(&b, m->text, strnlen(m->text, FF_PROBE_TEXT_MAX));
    return (uint32_t)b.pos;
}

static int get_key(struct ff_wirebuf *b, struct ff_probe_msg *out, struct ff_error *err)
{
    out->addr = ff_wb_get(b, 8);
    out->rkey = (uint32_t)ff_wb_get(b, 4);
    out->len_bytes = (uint32_t)ff_wb_get(b, 4);
    if (b->bad)
        return 0; /* the caller asks */
    if (out->len_bytes < FF_PROBE_LEN_MIN || out->len_bytes > FF_PROBE_LEN_MAX ||
        out->addr > UINT64_MAX - out->len_bytes)
        return ff_error_set(err, EPROTO, "probe: read KEY: %u bytes at 0x%llx (permitted %u..%u)",
                            out->len_bytes, (unsigned long long)out->addr, FF_PROBE_LEN_MIN,
                            FF_PROBE_LEN_MAX);
    return 0;
}

static void get_probe_text(struct ff_wirebuf *b, struct ff_probe_msg *out)
{
    size_t n = FF_MIN(ff_wb_left(b), (size_t)FF_PROBE_TEXT_MAX);
    const uint8_t *p = ff_wb_take(b, n);

    for (size_t i = 0; i < n; i++)
        out->text[i] = isprint(p[i]) ? (char)p[i] : '?';
}

int ff_probe_decode(uint8_t *buf, size_t len, enum ff_probe_type want, struct ff_probe_msg *out,
                    struct ff_error *err)
{
    struct ff_wirebuf b = {.data = buf, .len = len};
    const uint8_t *m = ff_wb_take(&b, sizeof(magic));
    unsigned type = (unsigned)ff_wb_get(&b, 2), version = (unsigned)ff_wb_get(&b, 2);
    int rc = 0;

    if (b.bad || memcmp(m, magic, sizeof(magic)))
        return ff_error_set(err, EPROTO, "probe: read %s: not a message of a probe: the other "
                            "side must be `farfork doctor`", names[want]);
    memset(out, 0, sizeof(*out));
    if (type == FF_PROBE_REFUSE) { /* whatever version it is of */
        get_probe_text(&b, out);
        return ff_error_set(err, EREMOTEIO, "the other side refused: %s", out->text);
    }
    if (version != FF_PROBE_VERSION)
        return ff_error_set(err, EPROTONOSUPPORT, "probe: read %s: version %u (this one has %u): "
                            "use the same farfork on both hosts", names[want], version,
                            FF_PROBE_VERSION);
    if (type != want)
        return ff_error_set(err, EPROTO, "probe: read message: type %u (want %s)", type,
                            names[want]);
    out->type = want;
    if (type == FF_PROBE_WELCOME) {
        const uint8_t *s = ff_wb_take(&b, FF_SESSION_LEN);
        if (s)
            memcpy(out->session, s, FF_SESSION_LEN);
    }
    if (type == FF_PROBE_KEY)
        rc = get_key(&b, out, err);
    if (!rc && (b.bad || ff_wb_left(&b)))
        rc = ff_error_set(err, EPROTO, "probe: read %s: length %zu is wrong", names[want], len);
    return rc;
}

int ff_probe_send(struct ff_link *l, const struct ff_probe_msg *m, struct ff_error *err)
{
    uint8_t buf[FF_MSG_MAX];

    return l->ops->send(l, buf, ff_probe_encode(buf, m), err);
}

int ff_probe_recv(struct ff_link *l, enum ff_probe_type want, int timeout_ms,
                  struct ff_probe_msg *out, struct ff_error *err)
{
    uint8_t buf[FF_MSG_MAX];
    int n = l->ops->recv(l, buf, timeout_ms, err);

    if (n < 0)
        return ff_error_pass(err, n, "wait for %s", names[want]);
    return ff_probe_decode(buf, (size_t)n, want, out, err);
}

int ff_probe_memory(struct ff_link *l, uint32_t most, unsigned access, struct ff_mr *mr,
                    struct ff_error *err)
{
    struct ff_error why;
    int rc = -ENOMEM;

    for (uint32_t len = most; rc == -ENOMEM && len >= FF_PROBE_LEN_MIN; len /= 2) {
        void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return ff_error_set(err, errno, "probe: %u bytes of memory: %s", len, strerror(errno));
        memset(p, 0, len);
        rc = l->ops->reg(l, p, len, access, mr, &why);
        if (rc)
            munmap(p, len);
    }
    if (rc && err)
        *err = why;
    return rc;
}

void ff_probe_memory_free(struct ff_mr *mr)
{
    if (mr->addr)
        munmap(mr->addr, mr->len_bytes);
}
