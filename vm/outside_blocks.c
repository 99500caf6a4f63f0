/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_blocks.c - the RAM blocks of a QEMU, by its monitor
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      Block Name    PSize  Offset        Used       Total             HVA  RO
 *                     ram    4 KiB     0x0  0x10000000  0x10000000  0x7fceabfff000  rw
 *
 *              QEMU 7.2 has no column HVA. There a guest address leads to the block:
 *                info mtree -f    0000000000100000-000000000fffffff (prio 0, ram): ram @00...100000
 *                gpa2hva 0x100000 Host virtual address for 0x100000 (ram) is 0x7f1334000000
 *              so the block begins 0x100000 bytes before. A block's name is the memory region's,
 *              perhaps with a path before it ("/objects/ram", "0000:00:02.0/vga.vram").
 *              A ROM that the guest has not mapped, the tables that it reads by fw_cfg, and two
 *              whose names end alike: by QEMU's records, outside_record.c.
 *
 * Invariants   Of a block with two sources of its address, both have to say the same.
 * Limits       A block without a name, a device's or of a backend that nothing uses, is not
 *              migrated by QEMU and is left out.
 * Sources      softmmu/physmem.c ram_block_format(), softmmu/memory.c mtree_print_flatview(),
 *              monitor/misc.c hmp_gpa2hva() of QEMU
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autojson.h"
#include "outside_private.h"
#include "xalloc.h"

#define MEMORY_VIEW " AS \"memory\"," /* the address space of the CPUs */

/* --- info ramblock --- */

/* Cut the last word of the line off; NULL: there is none */
static char *last_word(char *line)
{
    size_t len = strlen(line);

    while (len && strchr(" \r\n", line[len - 1]))
        line[--len] = '\0';
    while (len && line[len - 1] != ' ')
        len--;
    if (!len)
        return NULL;
    line[len - 1] = '\0';
    return line + len;
}

static bool last_number(char *line, uint64_t *value)
{
    char *w = last_word(line), *end;

    if (!w || strncmp(w, "0x", 2))
        return false;
    errno = 0;
    *value = strtoull(w, &end, 16);
    return !errno && !*end && end > w + 2;
}

/* "4 KiB": the unit is the last word, and the number the one before */
static bool last_size(char *line, uint32_t *bytes)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const char *unit = last_word(line), *number = unit ? last_word(line) : NULL;
    char *end;

    if (!number)
        return false;
    unsigned long n = strtoul(number, &end, 10);
    for (unsigned i = 0; i < FF_ARRAY_LEN(units); i++)
        if (!strcmp(unit, units[i].name) && !*end && n && n <= (UINT32_MAX >> units[i].shift)) {
            *bytes = (uint32_t)n << units[i].shift;
            return !(*bytes & (*bytes - 1));
        }
    return false;
}

static bool parse_ramblock(char *line, bool has_hva, struct outside_block *b)
{
    uint64_t offset;

    *b = (struct outside_block){0};
    if (has_hva && (!last_word(line) || !last_number(line, &b->hva)))
        return false;
    if (!last_number(line, &b->max_bytes) || !last_number(line, &b->len_bytes) ||
        !last_number(line, &offset) || !last_size(line, &b->psize))
        return false;
    line += strspn(line, " ");
    size_t len = strlen(line);
    while (len && line[len - 1] == ' ')
        len--;
    if (len >= sizeof(b->name))
        return false;
    memcpy(b->name, line, len);
    return b->len_bytes <= b->max_bytes;
}

int outside_parse_blocks(const char *text, struct outside_block **out, unsigned *n,
                         struct ff_error *err)
{
    FF_AUTO_FREE char *copy = xstrdup(text);
    FF_AUTO_FREE struct outside_block *b = NULL;
    unsigned at = 0;
    char *rest, *line = strtok_r(copy, "\n", &rest);

    if (!line || !strstr(line, "Block Name") || !strstr(line, "Used"))
        return ff_error_set(err, EPROTO, "ramblock: read: no heading 'Block Name ... Used' (%.60s)",
                            line ? line : "empty");
    const bool has_hva = strstr(line, "HVA");
    while ((line = strtok_r(NULL, "\n", &rest))) {
        FF_AUTO_FREE char *as_it_was = xstrdup(line);

        if (!line[strspn(line, " \r")])
            continue;
        b = xrealloc(b, (at + 1) * sizeof(*b));
        if (!parse_ramblock(line, has_hva, &b[at]))
            return ff_error_set(err, EPROTO, "ramblock: read line: not a block: %.200s",
                                as_it_was);
        at += b[at].name[0] != '\0';
    }
    if (!at)
        return ff_error_set(err, EPROTO, "ramblock: read: no block");
    *out = b;
    *n = at;
    b = NULL;
    return 0;
}

/* --- a block's address by a guest address --- */

/* The memory region's name of a block's */
static const char *region_name_of(const char *block)
{
    const char *slash = strrchr(block, '/');

    return slash ? slash + 1 : block;
}

static bool is_ram_kind(const char *kind)
{
    return !strcmp(kind, "ram") || !strcmp(kind, "rom") || !strcmp(kind, "romd");
}

bool outside_find_guest_address(const char *mtree, const char *block, uint64_t *gpa,
                                uint64_t *offset)
{
    const char *region = region_name_of(block);
    const size_t len = strlen(region);
    bool is_cpus = false; /* what gpa2hva looks at, and no device's view */

    for (const char *line = mtree; line; line = strchr(line, '\n'), line += line != NULL) {
        uint64_t end;
        char kind[16];
        int prio, at = 0;

        if (!strncmp(line, "FlatView ", 9))
            is_cpus = false;
        is_cpus |= !strncmp(line, MEMORY_VIEW, sizeof(MEMORY_VIEW) - 1);
        if (!is_cpus ||
            sscanf(line, " %" SCNx64 "-%" SCNx64 " (prio %d, %15[a-z]): %n", gpa, &end, &prio,
                   kind, &at) != 4 || !at || !is_ram_kind(kind) ||
            strncmp(line + at, region, len) || !strchr(" \r\n", line[at + len]))
            continue;
        *offset = 0;
        sscanf(line + at + len, " @%" SCNx64, offset);
        return true;
    }
    return false;
}

uint64_t outside_parse_hva(const char *text, const char *block)
{
    FF_AUTO_FREE char *want = xprintf(" (%s) is 0x", region_name_of(block));
    const char *at = strstr(text, want);

    return at ? strtoull(at + strlen(want), NULL, 16) : 0;
}

/* --- ask --- */

static int ask_monitor(struct qmp *q, const char *line, json_t **answer, struct ff_error *err)
{
    int rc = qmp_hmp(q, line, answer, err);

    return rc && rc != -EPROTO ? ff_error_context(err, "%s", line) : rc;
}

static bool has_own_region_name(const struct outside_block *b, unsigned n, unsigned i)
{
    for (unsigned k = 0; k < n; k++)
        if (k != i && !strcmp(region_name_of(b[k].name), region_name_of(b[i].name)))
            return false;
    return true;
}

/* By what `info mtree -f` shows; it may show nothing of the block */
static int add_address(struct qmp *q, const char *mtree, struct outside_block *b,
                       struct ff_error *err)
{
    FF_AUTO_JSON json_t *answer = NULL;
    char line[48];
    uint64_t gpa, offset;

    if (!outside_find_guest_address(mtree, b->name, &gpa, &offset))
        return 0;
    snprintf(line, sizeof(line), "gpa2hva 0x%" PRIx64, gpa);
    int rc = ask_monitor(q, line, &answer, err);
    if (rc)
        return rc;
    const uint64_t hva = outside_parse_hva(json_string_value(answer), b->name);
    b->hva = hva > offset ? hva - offset : 0;
    return 0;
}

/* Those from this length on that have none; they stay 0 where QEMU refuses to tell */
static int add_addresses(struct qmp *q, struct outside_block *b, unsigned n, uint64_t least,
                         struct ff_error *err)
{
    FF_AUTO_JSON json_t *mtree = NULL;

    for (unsigned i = 0; i < n; i++) {
        struct ff_error why;
        int rc = 0;

        if (b[i].hva || b[i].len_bytes < least || !has_own_region_name(b, n, i))
            continue;
        if (!mtree)
            rc = ask_monitor(q, "info mtree -f", &mtree, &why);
        if (!rc)
            rc = add_address(q, json_string_value(mtree), &b[i], &why);
        if (rc == -EREMOTEIO)
            return 0;
        if (rc && err)
            *err = why;
        if (rc)
            return rc;
    }
    return 0;
}

int outside_list(struct qmp *q, struct outside_block **out, unsigned *n, struct ff_error *err)
{
    FF_AUTO_JSON json_t *answer = NULL, *text = NULL;
    struct ff_error why;
    int rc = qmp_command(q, "x-query-ramblock", NULL, &answer, &why);

    if (!rc)
        text = json_incref(json_object_get(answer, "human-readable-text"));
    else if (rc == -EREMOTEIO) /* a QEMU that has it not */
        rc = ask_monitor(q, "info ramblock", &text, &why);
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    if (!json_is_string(text))
        return ff_error_set(err, EPROTO, "x-query-ramblock: the answer has no text");
    return outside_parse_blocks(json_string_value(text), out, n, err);
}

/* --- all blocks, verified --- */

int outside_agree(struct outside_block *b, uint64_t record, struct ff_error *err)
{
    if (!b->hva && !record)
        return ff_error_set(err, ENOENT,
                            "memory of %s: find it: this QEMU shows no address of it, by no guest "
                            "address and no record: use a QEMU of 8.0 or newer, which prints it",
                            b->name);
    if (b->hva && record && b->hva != record)
        return ff_error_set(err, ENOTUNIQ,
                            "memory of %s: find it: gpa2hva says 0x%" PRIx64 ", QEMU's record 0x%"
                            PRIx64 ": start the move again when the guest's memory is not being "
                            "changed; use a QEMU of 8.0 or newer if this persists", b->name,
                            b->hva, record);
    if (record)
        b->hva = record;
    return 0;
}

static bool have_addresses(const struct outside_block *b, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!b[i].hva)
            return false;
    return true;
}

static int add_records(pid_t pid, const struct outside_vma *v, unsigned n_vmas,
                       struct outside_block *b, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE uint64_t *record = xcalloc(FF_MAX(n, 1u), sizeof(*record));
    int rc = outside_find_records(pid, v, n_vmas, b, n, record, err);

    for (unsigned i = 0; !rc && i < n; i++)
        rc = outside_agree(&b[i], record[i], err);
    return rc;
}

int outside_place(struct qmp *q, pid_t pid, struct outside_block *b, unsigned n,
                  struct ff_error *err)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    const bool is_told = have_addresses(b, n);
    unsigned n_vmas;
    int rc = is_told ? 0 : add_addresses(q, b, n, 0, err);

    if (!rc)
        rc = outside_read_maps(pid, false, &v, &n_vmas, err);
    if (!rc && !is_told)
        rc = add_records(pid, v, n_vmas, b, n, err);
    for (unsigned i = 0; !rc && i < n; i++)
        rc = outside_check_mapped(v, n_vmas, &b[i], is_told, err);
    return rc ? rc : outside_check_apart(b, n, err);
}
