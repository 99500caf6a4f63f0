/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream.c - QEMU's migration stream, in whatever pieces it comes: gather, ask, forward
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      know where each unit of the stream begins and ends, so that a proxy may drop,
 *              hold or add some; does not know device state.
 * Picture      "QEVM" 3, configuration
 *              OPEN_RETURN_PATH, PING, POSTCOPY_ADVISE
 *              START ram: blocks, EOS, footer
 *              PART ram: pages, EOS, footer            any number
 *              RAM_DISCARD                             any number, the guest stands still
 *              PACKAGED: LISTEN, devices, RUN          the guest runs there from here on
 *              PART ram ..., END ram, EOF
 *              or, of a pre-copy: END ram, devices, EOF, description
 * States       enum stream_state; a unit moves it once the sink has taken the unit.
 * Invariants   1. Every value is checked before the sink sees it.
 *              2. No memory is allocated after stream_new().
 *              3. What is forwarded is what came, but for a page that no longer follows a page
 *                 of its block: it gets the name that CONTINUE stands for.
 *              4. The package's RUN is a unit of its own: what holds it back holds the GO.
 * Failure      an error stays: a stream whose framing is lost is not found again.
 * Limits       device state states no length: a device that sends any before the package (dirty
 *              bitmaps, VFIO, virtio-mem's early state) is refused by name. x86 alone.
 * Sources      QEMU's docs/devel/migration, migration/savevm.c, migration/ram.c (7.2, 10.0).
 */
#include "stream_state.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"

struct stream *stream_new(const struct stream_sink *sink)
{
    struct stream *s = calloc(1, sizeof(*s));

    if (s)
        s->sink = *sink;
    return s;
}

void stream_free(struct stream *s)
{
    free(s);
}

const char *stream_kind_name(enum stream_kind kind)
{
    static const char *const names[STREAM_KINDS] = {
        "header",  "config",  "section", "blocks",   "page",    "eos", "footer",
        "command", "discard", "package", "packaged", "devices", "eof", "vmdesc"};

    return (unsigned)kind < STREAM_KINDS ? names[kind] : "unknown";
}

uint64_t stream_offset(const struct stream *s)
{
    return s->offset + s->n_gather;
}

uint32_t stream_ram_section(const struct stream *s)
{
    return s->ram_id;
}

bool stream_holds(const struct stream *s)
{
    return s->held;
}

void stream_wrote_page(struct stream *s)
{
    s->block_unsaid = true;
}

enum stream_place stream_place(const struct stream *s)
{
    if (s->failed.code)
        return STREAM_INSIDE;
    if (s->state == STREAM_ST_SECTION && s->n_blocks && !s->ram_ended)
        return STREAM_AT_SECTION;
    return s->state == STREAM_ST_RAM && s->n_blocks && !s->in_huge ? STREAM_IN_RAM : STREAM_INSIDE;
}

void stream_resume(struct stream *s)
{
    s->state = STREAM_ST_SECTION;
    s->n_gather = 0;
    s->body_left = 0;
    s->held = s->in_huge = false;
    s->last = NULL;
    s->failed = (struct ff_error){0};
}

int stream_end(const struct stream *s, struct ff_error *err)
{
    if (s->failed.code)
        return ff_error_set(err, s->failed.code, "%s", s->failed.text);
    if (s->n_gather ||
        (s->state != STREAM_ST_EOF && s->state != STREAM_ST_DEVICES && s->state != STREAM_ST_END))
        return ff_error_set(err, EPROTO,
                            "stream: offset %llu: ends in the middle (permitted "
                            "after EOF)",
                            (unsigned long long)stream_offset(s));
    return 0;
}

static int pass(struct stream *s, const void *data, size_t len, struct ff_error *err)
{
    return len ? s->sink.bytes(s->sink.opaque, data, len, err) : 0;
}

/* Name the block that CONTINUE stood for */
static int pass_named(struct stream *s, const struct stream_unit *u, const uint8_t *data,
                      struct ff_error *err)
{
    uint8_t head[8 + 1 + STREAM_NAME_MAX];
    size_t len = strlen(u->e.block->name);
    uint8_t *p = stream_put(head, u->e.addr | (u->e.data ? STREAM_RAM_PAGE : STREAM_RAM_ZERO), 8);
    int rc;

    *p++ = (uint8_t)len;
    memcpy(p, u->e.block->name, len);
    rc = pass(s, head, 9 + len, err);
    return rc ? rc : pass(s, data + 8, u->e.len - 8, err);
}

/* The sink has taken it: what the stream is from here on */
static void advance(struct stream *s, const struct stream_unit *u)
{
    const struct stream_event *e = &u->e;

    s->config_open = e->kind == STREAM_CONFIG;
    switch (e->kind) {
    case STREAM_SECTION:
        s->ram_id = e->section_id;
        s->has_ram = true;
        s->section_ends = e->section == STREAM_SECTION_END;
        break;
    case STREAM_PAGE:
        s->last = e->block;
        s->in_huge = s->packaged && (e->addr + STREAM_PAGE_LEN) % e->block->psize;
        break;
    case STREAM_FOOTER:
        s->ram_ended = s->section_ends;
        break;
    case STREAM_COMMAND:
        s->advised |= e->command == STREAM_CMD_POSTCOPY_ADVISE;
        break;
    case STREAM_PACKAGED:
        s->packaged = true;
        break;
    default:
        break;
    }
    s->state = u->next;
    s->body_left = u->body;
    s->offset += e->len;
}

/* 1: taken; 0: held */
static int deliver_unit(struct stream *s, const struct stream_unit *u, const uint8_t *data,
                        struct ff_error *err)
{
    bool page = u->e.kind == STREAM_PAGE;
    int verdict = s->sink.event(s->sink.opaque, &u->e, err), rc = 0;

    if (verdict < 0)
        return verdict;
    s->held = verdict == STREAM_HOLD;
    if (s->held)
        return 0;
    if (verdict == STREAM_DROP && !page && u->e.kind != STREAM_COMMAND &&
        u->e.kind != STREAM_DISCARD)
        return ff_error_set(err, EINVAL,
                            "stream: drop %s: not permitted (permitted page, "
                            "command, discard)",
                            stream_kind_name(u->e.kind));
    if (verdict == STREAM_DROP)
        s->block_unsaid |= page;
    else if (page && u->continues && s->block_unsaid)
        rc = pass_named(s, u, data, err);
    else
        rc = pass(s, data, u->e.len, err);
    if (rc)
        return rc;
    if (page && verdict == STREAM_FORWARD)
        s->block_unsaid = false;
    advance(s, u);
    return 1;
}

/* A unit at @data: 1 taken, 0 held or not whole */
static int take_unit(struct stream *s, const uint8_t *data, size_t len, size_t *unit,
                     struct ff_error *err)
{
    struct stream_reader r = {.data = data, .len = len};
    struct stream_unit u;
    int rc = stream_parse_unit(s, &r, &u, err);

    *unit = 0;
    if (rc || r.more)
        return rc;
    *unit = u.e.len = r.pos;
    return deliver_unit(s, &u, data, err);
}

/* A body passes as it comes */
static ssize_t take_body(struct stream *s, const uint8_t *data, size_t len, struct ff_error *err)
{
    bool bounded = s->state != STREAM_ST_DEVICES;
    size_t n = bounded ? (size_t)FF_MIN((uint64_t)len, s->body_left) : len;
    int rc = pass(s, data, n, err);

    if (rc)
        return rc;
    s->offset += n;
    if (bounded)
        s->body_left -= n;
    return (ssize_t)n;
}

/* A body has ended: 1, else 0 */
static int leave_body(struct stream *s)
{
    if (s->body_left || (s->state != STREAM_ST_PACKAGE && s->state != STREAM_ST_VMDESC))
        return 0;
    s->state = s->state == STREAM_ST_PACKAGE ? STREAM_ST_RUN : STREAM_ST_END;
    return 1;
}

/* Through the buffer, as long as a unit has begun there; returns bytes taken of @data */
static ssize_t take_gathered(struct stream *s, const uint8_t *data, size_t len, bool *stop,
                             struct ff_error *err)
{
    size_t step = 512, used = 0, unit;

    for (;;) {
        size_t more = FF_MIN(FF_MIN(step, len - used), sizeof(s->gather) - s->n_gather);
        size_t over;
        int rc;

        memcpy(s->gather + s->n_gather, data + used, more);
        s->n_gather += more;
        used += more;
        rc = take_unit(s, s->gather, s->n_gather, &unit, err);
        if (rc < 0)
            return rc;
        if (!unit && !rc && !s->held && s->n_gather < sizeof(s->gather) && used < len) {
            step *= 2;
            continue;
        }
        if (!unit && !rc && !s->held && s->n_gather == sizeof(s->gather))
            return ff_error_set(err, ENOTSUP,
                                "stream: offset %llu: a unit of more than %zu bytes "
                                "(permitted 1..%zu)",
                                (unsigned long long)s->offset, sizeof(s->gather),
                                sizeof(s->gather));
        *stop = !rc;
        if (!rc && !s->held)
            return (ssize_t)used; /* not whole, and no more is there */
        /* what was copied too much goes back; what came earlier stays */
        over = FF_MIN(s->n_gather - unit, used);
        used -= over;
        s->n_gather -= over;
        if (rc) {
            s->n_gather -= unit;
            memmove(s->gather, s->gather + unit, s->n_gather);
        }
        return (ssize_t)used;
    }
}

static ssize_t feed_units(struct stream *s, const uint8_t *data, size_t len, struct ff_error *err)
{
    size_t used = 0;
    bool stop = false;

    while (!stop) {
        size_t left = len - used, unit = 0;
        ssize_t n = 0;

        if (leave_body(s))
            continue;
        if (s->state == STREAM_ST_DEVICES || s->body_left) {
            if (s->n_gather) { /* looked at already: it belongs to the body */
                n = take_body(s, s->gather, s->n_gather, err);
                if (n < 0)
                    return n;
                s->n_gather -= (size_t)n;
                memmove(s->gather, s->gather + n, s->n_gather);
                continue;
            }
            if (!left)
                break;
            n = take_body(s, data + used, left, err);
        } else if (s->n_gather) {
            n = take_gathered(s, data + used, left, &stop, err);
        } else if (left) {
            int rc = take_unit(s, data + used, left, &unit, err);

            if (rc < 0)
                return rc;
            n = rc ? (ssize_t)unit : 0;
            if (!rc && s->held)
                break;
            if (!rc) /* begun: from here on through the buffer */
                n = take_gathered(s, data + used, left, &stop, err);
        } else {
            break;
        }
        if (n < 0)
            return n;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

ssize_t stream_feed(struct stream *s, const void *data, size_t len, struct ff_error *err)
{
    struct ff_error why = {0};
    ssize_t n;

    if (s->failed.code)
        return ff_error_set(err, s->failed.code, "%s", s->failed.text);
    s->held = false;
    n = feed_units(s, data, len, &why);
    if (n < 0) {
        s->failed = why;
        return ff_error_set(err, why.code, "%s", why.text);
    }
    return n;
}
