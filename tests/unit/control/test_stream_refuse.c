/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_stream_refuse.c - QEMU's migration stream: refused with what was received and what is
 * permitted
 */
#include "stream_taken.h"

static void test_refuses_head(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        int code;
        const char *text;
    } wrong[] = {
        {0, 'X', EPROTO, "magic"},
        {7, 2, ENOTSUP, "version: 2"},
        {8, 8, ENOTSUP, "configuration: section type 8"},
        {12, 0, EPROTO, "machine: 0 bytes"},
        {24, 9, EPROTO, "type 0x09"},
        {26, 'x', ENOTSUP, "xonfiguration"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        end(state);
        begin(state);
        sample_postcopy(&in);
        in.data[wrong[i].at] = wrong[i].value;
        refused(wrong[i].code, wrong[i].text);
    }
}

static void test_refuses_capabilities(void **state)
{
    static const char *const names[] = {"multifd", "mapped-ram", "x-colo"};

    for (unsigned i = 0; i < FF_ARRAY_LEN(names); i++) {
        end(state);
        begin(state);
        sample_head(&in, names[i]);
        refused(ENOTSUP, names[i]);
    }
}

static void test_refuses_other_sections(void **state)
{
    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_start(&in, "dirty-bitmap");
    refused(ENOTSUP, "dirty-bitmap");
}

static void test_refuses_early_devices(void **state)
{
    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_put(&in, STREAM_SECTION_FULL, 1);
    refused(ENOTSUP, "before RAM");
}

static void test_refuses_flags(void **state)
{
    static const struct {
        unsigned flags;
        int code;
        const char *text;
    } wrong[] = {
        {STREAM_RAM_XBZRLE, ENOTSUP, "XBZRLE"},
        {STREAM_RAM_HOOK, ENOTSUP, "HOOK"},
        {STREAM_RAM_COMPRESSED, ENOTSUP, "COMPRESS_PAGE"},
        {STREAM_RAM_MULTIFD_FLUSH, ENOTSUP, "MULTIFD_FLUSH"},
        {STREAM_RAM_PAGE | STREAM_RAM_ZERO, EPROTO, "flags 0x00a"},
        {STREAM_RAM_EOS | STREAM_RAM_CONTINUE, EPROTO, "flags 0x030"},
        {1, EPROTO, "flags 0x001"},
        {0, EPROTO, "flags 0x000"},
        {STREAM_RAM_PAGE | STREAM_RAM_CONTINUE, EPROTO, "CONTINUE on the first"},
        {STREAM_RAM_MEM_SIZE, EPROTO, "0 bytes in all"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_setup(&in, STREAM_PAGE_LEN);
        sample_section(&in, STREAM_SECTION_PART);
        sample_put(&in, wrong[i].flags, 8);
        refused(wrong[i].code, wrong[i].text);
    }
}

static void test_refuses_pages(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_setup(&in, STREAM_PAGE_LEN);
        sample_section(&in, STREAM_SECTION_PART);
        sample_page(&in, i ? "pc.ram" : "pc.rom", i == 1 ? SAMPLE_PAGES * STREAM_PAGE_LEN : 0, 0);
        in.data[in.len - 1] = i == 2;
        if (i == 0)
            refused(EPROTO, "pc.rom");
        else if (i == 1)
            refused(EPROTO, "below 0x8000");
        else
            refused(EPROTO, "filled with 1");
    }
}

static void put_block(const char *name, uint64_t len, uint64_t psize)
{
    sample_name(&in, name);
    sample_put(&in, len, 8);
    if (psize)
        sample_put(&in, psize, 8);
}

static void test_refuses_blocks(void **state)
{
    static const struct {
        const char *name;
        uint64_t len, psize;
        const char *text;
    } wrong[] = {
        {"a", 0x1000, 0, "each name once"},
        {"", 0x1000, 0, "in pages of 16"},
        {"b", 0, 0, "of 0 bytes"},
        {"b", 0x1001, 0, "whole"},
        {"b", 0x800000, 0, "4096..4194304"},
        {"b", 0x400000, 0x3000, "12288"},
        {"b", 0x201000, 0x200000, "divides"},
        {"b", 0x400000, 1ull << 40, "1099511627776"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_start(&in, "ram");
        sample_put(&in, 0x401000 | STREAM_RAM_MEM_SIZE, 8);
        put_block("a", 0x1000, 0);
        put_block(wrong[i].name, wrong[i].len, wrong[i].psize);
        sample_section_end(&in);
        refused(EPROTO, wrong[i].text);
    }
}

static void test_refuses_too_many_blocks(void **state)
{
    char name[16];

    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_start(&in, "ram");
    sample_put(&in, ((STREAM_BLOCKS_MAX + 1ull) << 12) | STREAM_RAM_MEM_SIZE, 8);
    for (unsigned i = 0; i <= STREAM_BLOCKS_MAX; i++) {
        snprintf(name, sizeof(name), "block%u", i);
        put_block(name, 0x1000, 0);
    }
    refused(ENOTSUP, "more than 512");
}

static void test_refuses_commands(void **state)
{
    static const struct {
        unsigned command, len;
        int code;
        const char *text;
    } wrong[] = {
        {0, 0, ENOTSUP, "command: 0"},
        {STREAM_CMDS, 0, ENOTSUP, "command: 12"},
        {STREAM_CMD_ENABLE_COLO, 0, ENOTSUP, "ENABLE_COLO"},
        {STREAM_CMD_PING, 3, EPROTO, "PING: 3 bytes (permitted 4)"},
        {STREAM_CMD_POSTCOPY_ADVISE, 8, EPROTO, "8 bytes (permitted 0 or 16)"},
        {STREAM_CMD_POSTCOPY_LISTEN, 0, EPROTO, "outside a package"},
        {STREAM_CMD_POSTCOPY_RUN, 0, EPROTO, "outside a package"},
        {STREAM_CMD_RAM_DISCARD, 20, EPROTO, "too early"},
        {STREAM_CMD_PACKAGED, 4, EPROTO, "too early"},
        {STREAM_CMD_RECV_BITMAP, 4, EPROTO, "before a package"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_command(&in, (enum stream_command)wrong[i].command,
                       "a body of zeros or of nothing in particular", (uint16_t)wrong[i].len);
        refused(wrong[i].code, wrong[i].text);
    }
}

static void test_refuses_discards(void **state)
{
    static const struct {
        const char *name;
        struct stream_range r;
        unsigned n;
        const char *text;
    } wrong[] = {
        {"pc.rom", {0, 0x1000}, 1, "pc.rom"},
        {"pc.ram", {0, 0x1000}, 0, "0 bytes of ranges"},
        {"pc.ram", {0, 0x9000}, 1, "within 0x8000"},
        {"pc.ram", {0x8000, 0x1000}, 1, "within 0x8000"},
        {"pc.ram", {~0xfffull, 0x2000}, 1, "within 0x8000"},
        {"pc.ram", {0x10, 0x1000}, 1, "whole pages"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_setup(&in, STREAM_PAGE_LEN);
        in.len += stream_write_discard(in.data + in.len, wrong[i].name, &wrong[i].r, wrong[i].n);
        refused(EPROTO, wrong[i].text);
    }
}

static void test_refuses_packages(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        size_t at;

        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        sample_setup(&in, STREAM_PAGE_LEN);
        at = in.len;
        sample_package(&in);
        if (i == 0) {
            in.data[at + 8] = 9;
            refused(EPROTO, "package: 9 bytes (permitted 10..");
        } else if (i == 1) {
            in.data[at + 11] = 3;
            refused(ENOTSUP, "begins 08 00 03");
        } else if (i == 2) {
            in.data[in.len - 3] = 4;
            refused(ENOTSUP, "ends 08 00 04");
            assert_int_equal(got.out.len, in.len - 5); /* no GO */
        } else {
            sample_package(&in);
            refused(EPROTO, "after a package");
        }
    }
}

static void test_refuses_sections(void **state)
{
    for (unsigned i = 0; i < 5; i++) {
        end(state);
        begin(state);
        sample_head(&in, "postcopy-ram");
        if (i)
            sample_setup(&in, STREAM_PAGE_LEN);
        if (i == 1)
            sample_setup(&in, STREAM_PAGE_LEN);
        if (i == 4)
            sample_put(&in, STREAM_SECTION_EOF, 1);
        sample_section(&in, STREAM_SECTION_PART);
        if (i == 2)
            in.data[in.len - 1]++;
        if (i == 3) {
            sample_section_end(&in);
            in.data[in.len - 5] = 0;
        }
        switch (i) {
        case 0:
            refused(EPROTO, "before RAM's blocks");
            break;
        case 1:
            refused(EPROTO, "a second time");
            break;
        case 2:
            refused(EPROTO, "number 3 (permitted 2)");
            break;
        case 3:
            refused(EPROTO, "footer: 0x00");
            break;
        default:
            refused(EPROTO, "EOF before RAM's end");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_refuses_head),           T(test_refuses_capabilities),
        T(test_refuses_other_sections), T(test_refuses_early_devices),
        T(test_refuses_flags),          T(test_refuses_pages),
        T(test_refuses_blocks),         T(test_refuses_too_many_blocks),
        T(test_refuses_commands),       T(test_refuses_discards),
        T(test_refuses_packages),       T(test_refuses_sections),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
