/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_parse.c - one unit of QEMU's migration stream: its bounds, and every value checked; RAM
 * apart
 */
#include "stream_state.h"

#include <errno.h>

#include "cleanup.h"

#define MAGIC 0x5145564du /* "QEVM" */
#define RAM_VERSION 4
#define MACHINE_MAX 255
#define CAPABILITIES_MAX 64

static const struct {
    const char *name;
    int len; /* -1: it varies */
} commands[STREAM_CMDS] = {
    [STREAM_CMD_OPEN_RETURN_PATH] = {"OPEN_RETURN_PATH", 0},
    [STREAM_CMD_PING] = {"PING", 4},
    [STREAM_CMD_POSTCOPY_ADVISE] = {"POSTCOPY_ADVISE", -1},
    [STREAM_CMD_POSTCOPY_LISTEN] = {"POSTCOPY_LISTEN", 0},
    [STREAM_CMD_POSTCOPY_RUN] = {"POSTCOPY_RUN", 0},
    [STREAM_CMD_RAM_DISCARD] = {"POSTCOPY_RAM_DISCARD", -1},
    [STREAM_CMD_PACKAGED] = {"PACKAGED", 4},
    [STREAM_CMD_ENABLE_COLO] = {"ENABLE_COLO", 0},
    [STREAM_CMD_POSTCOPY_RESUME] = {"POSTCOPY_RESUME", 0},
    [STREAM_CMD_RECV_BITMAP] = {"RECV_BITMAP", -1},
    [STREAM_CMD_SWITCHOVER_START] = {"SWITCHOVER_START", 0},
};

const char *stream_command_name(unsigned command)
{
    return command < STREAM_CMDS && commands[command].name ? commands[command].name : "unknown";
}

static int parse_header(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                        struct ff_error *err)
{
    uint32_t magic = (uint32_t)stream_get(r, 4), version;

    if (r->more)
        return 0;
    if (magic != MAGIC)
        return STREAM_REFUSE(s, 0, EPROTO, "read magic: 0x%08x (permitted 0x%08x)", magic, MAGIC);
    version = (uint32_t)stream_get(r, 4);
    if (r->more)
        return 0;
    if (version != 3)
        return STREAM_REFUSE(s, 4, ENOTSUP, "read version: %u (permitted 3)", version);
    u->e.kind = STREAM_HEADER;
    u->next = STREAM_ST_CONFIG;
    return 0;
}

static int parse_config(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                        struct ff_error *err)
{
    unsigned type = (unsigned)stream_get(r, 1);
    uint32_t len;

    if (r->more)
        return 0;
    if (type != STREAM_SECTION_CONFIG)
        return STREAM_REFUSE(s, 0, ENOTSUP, "read configuration: section type %u (permitted %u)",
                             type, STREAM_SECTION_CONFIG);
    len = (uint32_t)stream_get(r, 4);
    if (r->more)
        return 0;
    if (!len || len > MACHINE_MAX)
        return STREAM_REFUSE(s, 1, EPROTO, "read machine: %u bytes (permitted 1..%u)", len,
                             MACHINE_MAX);
    u->e.kind = STREAM_CONFIG;
    u->e.data = stream_take(r, len);
    u->e.data_len = len;
    u->next = STREAM_ST_SECTION;
    return 0;
}

static int parse_capabilities(struct stream *s, struct stream_reader *r, struct ff_error *err)
{
    uint32_t n = (uint32_t)stream_get(r, 4);
    bool shared = false;

    if (r->more)
        return 0;
    if (n > CAPABILITIES_MAX)
        return STREAM_REFUSE(s, r->pos - 4, EPROTO, "read capabilities: %u (permitted 0..%u)", n,
                             CAPABILITIES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = r->pos;
        const char *name;
        size_t len = stream_take_name(r, &name);

        if (r->more)
            return 0;
        if (stream_name_is(name, len, "mapped-ram") || stream_name_is(name, len, "multifd") ||
            stream_name_is(name, len, "x-colo"))
            return STREAM_REFUSE(s, at, ENOTSUP, "read capability: '%.*s' is on (permitted off)",
                                 (int)len, name);
        shared |= stream_name_is(name, len, "x-ignore-shared");
    }
    s->ignore_shared = shared;
    return 0;
}

static int parse_subsection(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                            struct ff_error *err)
{
    const char *name;
    size_t len = stream_take_name(r, &name), at;
    uint32_t version = (uint32_t)stream_get(r, 4);
    int rc = 0;

    if (r->more)
        return 0;
    if (version != 1)
        return STREAM_REFUSE(s, r->pos - 4, ENOTSUP,
                             "read configuration: '%.*s' of version %u "
                             "(permitted 1)",
                             (int)len, name, version);
    at = r->pos;
    if (stream_name_is(name, len, "configuration/capabilities")) {
        rc = parse_capabilities(s, r, err);
    } else if (stream_name_is(name, len, "configuration/target-page-bits")) {
        uint32_t bits = (uint32_t)stream_get(r, 4);

        if (!r->more && bits != 12)
            return STREAM_REFUSE(s, at, ENOTSUP, "read target page bits: %u (permitted 12)", bits);
    } else if (stream_name_is(name, len, "configuration/uuid")) {
        stream_take(r, 16);
    } else {
        return STREAM_REFUSE(s, 1, ENOTSUP,
                             "read configuration: '%.*s' (permitted capabilities, "
                             "target-page-bits, uuid)",
                             (int)len, name);
    }
    if (rc || r->more)
        return rc;
    u->e.kind = STREAM_CONFIG;
    u->e.data = r->data + at;
    u->e.data_len = r->pos - at;
    u->next = STREAM_ST_SECTION;
    return 0;
}

static int parse_start(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                       struct ff_error *err)
{
    const char *name;
    uint32_t id = (uint32_t)stream_get(r, 4), instance, version;
    size_t len = stream_take_name(r, &name);

    if (r->more)
        return 0;
    if (!stream_name_is(name, len, "ram"))
        return STREAM_REFUSE(s, 0, ENOTSUP,
                             "read section: '%.*s' states no length before post-copy "
                             "(permitted 'ram'); move without that device or capability",
                             (int)len, name);
    instance = (uint32_t)stream_get(r, 4);
    version = (uint32_t)stream_get(r, 4);
    if (r->more)
        return 0;
    if (s->has_ram)
        return STREAM_REFUSE(s, 0, EPROTO,
                             "read section: 'ram' begins a second time (permitted once)");
    if (instance || version != RAM_VERSION)
        return STREAM_REFUSE(s, r->pos - 8, ENOTSUP,
                             "read section: 'ram' instance %u of version %u "
                             "(permitted 0 and %u)",
                             instance, version, RAM_VERSION);
    u->e.kind = STREAM_SECTION;
    u->e.section_id = id;
    u->next = STREAM_ST_RAM;
    return 0;
}

static int parse_part(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                      struct ff_error *err)
{
    uint32_t id = (uint32_t)stream_get(r, 4);

    if (r->more)
        return 0;
    if (!s->n_blocks || s->ram_ended)
        return STREAM_REFUSE(s, 0, EPROTO, "read section: type %u %s (permitted between)",
                             u->e.section,
                             s->ram_ended ? "after RAM's end" : "before RAM's blocks");
    if (id != s->ram_id)
        return STREAM_REFUSE(s, 1, EPROTO, "read section: number %u (permitted %u)", id, s->ram_id);
    u->e.kind = STREAM_SECTION;
    u->e.section_id = id;
    u->next = STREAM_ST_RAM;
    return 0;
}

/* Permitted: none before ADVISE but these two, and a package once */
static int check_order(const struct stream *s, unsigned command, struct ff_error *err)
{
    switch (command) {
    case STREAM_CMD_POSTCOPY_LISTEN:
    case STREAM_CMD_POSTCOPY_RUN:
        return STREAM_REFUSE(s, 1, EPROTO, "read command: %s outside a package (permitted inside)",
                             stream_command_name(command));
    case STREAM_CMD_POSTCOPY_ADVISE: /* QEMU empties its memory then */
        if (s->n_blocks)
            return STREAM_REFUSE(s, 1, EPROTO, "read command: %s after the blocks (permitted before)",
                                 stream_command_name(command));
        break;
    case STREAM_CMD_RAM_DISCARD:
    case STREAM_CMD_PACKAGED:
        if (!s->n_blocks || !s->advised || s->packaged)
            return STREAM_REFUSE(s, 1, EPROTO,
                                 "read command: %s %s (permitted after POSTCOPY_ADVISE "
                                 "and the blocks, before the package)",
                                 stream_command_name(command),
                                 s->packaged ? "after a package" : "too early");
        break;
    case STREAM_CMD_POSTCOPY_RESUME:
    case STREAM_CMD_RECV_BITMAP:
        if (!s->packaged)
            return STREAM_REFUSE(s, 1, EPROTO,
                                 "read command: %s before a package (permitted after)",
                                 stream_command_name(command));
        break;
    default:
        break;
    }
    return 0;
}

static int parse_discard(struct stream *s, struct stream_reader *r, size_t end,
                         struct stream_unit *u, struct ff_error *err)
{
    unsigned version = (unsigned)stream_get(r, 1), nul;
    const char *name;
    size_t len = stream_take_name(r, &name), left;

    nul = (unsigned)stream_get(r, 1);
    left = end - FF_MIN(r->pos, end);
    if (r->more || r->pos > end || !left || left % 16 || left / 16 > STREAM_RANGES_MAX)
        return STREAM_REFUSE(s, 3, EPROTO,
                             "read discard: %zu bytes of ranges (permitted 16..%u, "
                             "whole 16)",
                             left, 16 * STREAM_RANGES_MAX);
    if (version || nul)
        return STREAM_REFUSE(s, 5, EPROTO,
                             "read discard: version %u, end of name %u (permitted 0, 0)", version,
                             nul);
    u->e.block = stream_find_block(s, name, len);
    if (!u->e.block)
        return STREAM_REFUSE(s, 6, EPROTO, "read discard: block '%.*s' (permitted: those listed)",
                             (int)len, name);
    for (; r->pos < end; u->e.n_ranges++) {
        struct stream_range *g = &s->ranges[u->e.n_ranges];

        g->start = stream_get(r, 8);
        g->len_bytes = stream_get(r, 8);
        if (g->start > u->e.block->len_bytes || g->len_bytes > u->e.block->len_bytes - g->start ||
            (g->start | g->len_bytes) % STREAM_PAGE_LEN)
            return STREAM_REFUSE(s, r->pos - 16, EPROTO,
                                 "read discard: '%s' from 0x%llx, 0x%llx bytes "
                                 "(permitted whole pages within 0x%llx)",
                                 u->e.block->name, (unsigned long long)g->start,
                                 (unsigned long long)g->len_bytes,
                                 (unsigned long long)u->e.block->len_bytes);
    }
    u->e.kind = STREAM_DISCARD;
    u->e.ranges = s->ranges;
    return 0;
}

/* The package begins with LISTEN, whose bytes belong to this unit, and ends with RUN */
static int parse_package(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                         struct ff_error *err)
{
    static const uint8_t listen[] = {STREAM_SECTION_COMMAND, 0, STREAM_CMD_POSTCOPY_LISTEN, 0, 0};
    const uint8_t *got;

    u->e.value = stream_get(r, 4);
    if (u->e.value < 2 * sizeof(listen))
        return STREAM_REFUSE(s, 5, EPROTO, "read package: %llu bytes (permitted %zu..%u)",
                             (unsigned long long)u->e.value, 2 * sizeof(listen), UINT32_MAX);
    got = stream_take(r, sizeof(listen));
    if (r->more)
        return 0;
    if (memcmp(got, listen, sizeof(listen)))
        return STREAM_REFUSE(s, 9, ENOTSUP,
                             "read package: begins %02x %02x %02x (permitted "
                             "POSTCOPY_LISTEN, 08 00 04)",
                             got[0], got[1], got[2]);
    u->e.kind = STREAM_PACKAGE;
    u->body = u->e.value - 2 * sizeof(listen);
    u->next = STREAM_ST_PACKAGE;
    return 0;
}

static int parse_command(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                         struct ff_error *err)
{
    unsigned command = (unsigned)stream_get(r, 2);
    size_t len = stream_get(r, 2), data;
    int rc;

    if (r->more)
        return 0;
    if (!command || command >= STREAM_CMDS)
        return STREAM_REFUSE(s, 1, ENOTSUP, "read command: %u (permitted 1..%u)", command,
                             STREAM_CMDS - 1);
    if (command == STREAM_CMD_ENABLE_COLO)
        return STREAM_REFUSE(s, 1, ENOTSUP, "read command: ENABLE_COLO (permitted: x-colo off)");
    if ((commands[command].len >= 0 && len != (size_t)commands[command].len) ||
        (command == STREAM_CMD_POSTCOPY_ADVISE && len && len != 16))
        return STREAM_REFUSE(s, 3, EPROTO, "read %s: %zu bytes (permitted %s%d)",
                             stream_command_name(command), len,
                             commands[command].len < 0 ? "0 or " : "",
                             commands[command].len < 0 ? 16 : commands[command].len);
    rc = check_order(s, command, err);
    if (rc)
        return rc;
    data = r->pos;
    u->e.data = stream_take(r, len);
    if (r->more)
        return 0;
    u->e.kind = STREAM_COMMAND;
    u->e.command = (enum stream_command)command;
    u->e.data_len = len;
    u->next = STREAM_ST_SECTION;
    r->pos = data;
    switch (command) {
    case STREAM_CMD_PING:
        u->e.value = stream_get(r, 4);
        return 0;
    case STREAM_CMD_RAM_DISCARD: {
        struct stream_reader body = {.data = r->data, .len = data + len, .pos = data};

        r->pos = data + len;
        return parse_discard(s, &body, data + len, u, err);
    }
    case STREAM_CMD_PACKAGED:
        return parse_package(s, r, u, err);
    case STREAM_CMD_RECV_BITMAP: {
        u->e.block = len ? stream_find_block(s, (const char *)u->e.data + 1, len - 1) : NULL;
        if (!u->e.block || u->e.data[0] != len - 1)
            return STREAM_REFUSE(s, 5, EPROTO,
                                 "read RECV_BITMAP: %zu bytes that name no block "
                                 "(permitted: one of those listed)",
                                 len);
        break;
    }
    default:
        break;
    }
    r->pos = data + len;
    return 0;
}

static int parse_section(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                         struct ff_error *err)
{
    unsigned type = (unsigned)stream_get(r, 1);

    if (r->more)
        return 0;
    u->e.section = (enum stream_section)type;
    switch (type) {
    case STREAM_SECTION_SUBSECTION:
        if (s->config_open)
            return parse_subsection(s, r, u, err);
        break;
    case STREAM_SECTION_START:
        return parse_start(s, r, u, err);
    case STREAM_SECTION_PART:
    case STREAM_SECTION_END:
        return parse_part(s, r, u, err);
    case STREAM_SECTION_FULL:
        if (s->packaged || !s->ram_ended)
            return STREAM_REFUSE(s, 0, ENOTSUP,
                                 "read section: device state of unknown length %s "
                                 "(permitted in a package, or after RAM's end without one)",
                                 s->packaged ? "after a package" : "before RAM");
        /* the type's byte passes with the rest */
        r->pos = 0;
        u->e.kind = STREAM_DEVICES;
        u->next = STREAM_ST_DEVICES;
        return 0;
    case STREAM_SECTION_COMMAND:
        return parse_command(s, r, u, err);
    case STREAM_SECTION_EOF:
        if (!s->ram_ended)
            return STREAM_REFUSE(s, 0, EPROTO,
                                 "read section: EOF before RAM's end (permitted after)");
        u->e.kind = STREAM_EOF;
        u->next = STREAM_ST_EOF;
        return 0;
    default:
        break;
    }
    return STREAM_REFUSE(s, 0, EPROTO, "read section: type 0x%02x (permitted 0..4, 8)", type);
}

static int parse_footer(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                        struct ff_error *err)
{
    unsigned type = (unsigned)stream_get(r, 1);
    uint32_t id = (uint32_t)stream_get(r, 4);

    if (r->more)
        return 0;
    if (type != STREAM_SECTION_FOOTER || id != s->ram_id)
        return STREAM_REFUSE(s, 0, EPROTO,
                             "read footer: 0x%02x of section %u (permitted 0x%02x, %u)", type, id,
                             STREAM_SECTION_FOOTER, s->ram_id);
    u->e.kind = STREAM_FOOTER;
    u->e.section_id = id;
    u->next = STREAM_ST_SECTION;
    return 0;
}

static int parse_run(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                     struct ff_error *err)
{
    static const uint8_t run[] = {STREAM_SECTION_COMMAND, 0, STREAM_CMD_POSTCOPY_RUN, 0, 0};
    const uint8_t *got = stream_take(r, sizeof(run));

    if (r->more)
        return 0;
    if (memcmp(got, run, sizeof(run)))
        return STREAM_REFUSE(s, 0, ENOTSUP,
                             "read package: ends %02x %02x %02x (permitted POSTCOPY_RUN, "
                             "08 00 05)",
                             got[0], got[1], got[2]);
    u->e.kind = STREAM_PACKAGED;
    u->next = STREAM_ST_SECTION;
    return 0;
}

static int parse_vmdesc(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                        struct ff_error *err)
{
    unsigned type = (unsigned)stream_get(r, 1);

    if (r->more)
        return 0;
    if (type != STREAM_SECTION_VMDESC)
        return STREAM_REFUSE(s, 0, EPROTO, "read after EOF: 0x%02x (permitted 0x%02x)", type,
                             STREAM_SECTION_VMDESC);
    u->body = stream_get(r, 4);
    u->e.kind = STREAM_VMDESC;
    u->e.value = u->body;
    u->next = STREAM_ST_VMDESC;
    return 0;
}

int stream_parse_unit(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                      struct ff_error *err)
{
    *u = (struct stream_unit){.e.offset = s->offset};
    switch (s->state) {
    case STREAM_ST_HEADER:
        return parse_header(s, r, u, err);
    case STREAM_ST_CONFIG:
        return parse_config(s, r, u, err);
    case STREAM_ST_SECTION:
        return parse_section(s, r, u, err);
    case STREAM_ST_RAM:
        return stream_parse_ram(s, r, u, err);
    case STREAM_ST_FOOTER:
        return parse_footer(s, r, u, err);
    case STREAM_ST_RUN:
        return parse_run(s, r, u, err);
    case STREAM_ST_EOF:
        return parse_vmdesc(s, r, u, err);
    default: /* a body, and what follows the end */
        return STREAM_REFUSE(s, 0, EPROTO, "read after the end (permitted: nothing)");
    }
}
