/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_outside.c - a QEMU's blocks and memory by texts: monitor, maps, smaps, who forbids it
 */
#include "unit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <sys/stat.h>

#include "outside_private.h"

static struct ff_error err;

/* --- info ramblock, info mtree, gpa2hva --- */

static const char blocks_7_2[] =
    "          Block Name    PSize              Offset               Used              Total\r\n"
    "                  n0    4 KiB  0x0000000000000000 0x0000000008000000 0x0000000008000000\r\n"
    "         /objects/n1    2 MiB  0x0000000008000000 0x0000000008000000 0x0000000008000000\r\n"
    " /rom@etc/acpi/tables    4 KiB  0x0000000010080000 0x0000000000020000 0x0000000000200000\r\n";

static const char blocks_10_0[] =
    "              Block Name    PSize              Offset               Used              Total   "
    "             HVA  RO\n"
    "          name of spaces    1 GiB  0x0000000000000000 0x0000000080000000 0x0000000080000000 "
    "0x00007fceabfff000  rw\n"
    "0000:00:02.0/a-long-name-of-a-block/vga.vram    4 KiB  0x0000000010080000 0x0000000000020000 "
    "0x0000000000200000 0x00007fceaba00000  ro\n";

static void test_blocks(void **state)
{
    FF_AUTO_FREE struct outside_block *b = NULL, *c = NULL;
    unsigned n;
    (void)state;

    assert_ok(outside_parse_blocks(blocks_7_2, &b, &n, &err), err);
    assert_int_equal(n, 3);
    assert_string_equal(b[0].name, "n0");
    assert_true(b[0].len_bytes == 128 << 20 && b[0].psize == 4096 && !b[0].hva);
    assert_string_equal(b[1].name, "/objects/n1");
    assert_int_equal(b[1].psize, 2 << 20);
    assert_string_equal(b[2].name, "/rom@etc/acpi/tables");
    assert_true(b[2].len_bytes == 0x20000 && b[2].max_bytes == 0x200000);

    assert_ok(outside_parse_blocks(blocks_10_0, &c, &n, &err), err);
    assert_int_equal(n, 2);
    assert_string_equal(c[0].name, "name of spaces");
    assert_true(c[0].len_bytes == 2ull << 30 && c[0].psize == 1u << 30);
    assert_true(c[0].hva == 0x7fceabfff000);
    assert_string_equal(c[1].name, "0000:00:02.0/a-long-name-of-a-block/vga.vram");
    assert_true(c[1].hva == 0x7fceaba00000);
}

static void test_bad_blocks(void **state)
{
#define HEAD "  Block Name    PSize   Offset     Used    Total\n"
    static const char *const bad[] = {
        "",
        "\n",
        HEAD,
        "unknown command: 'info ramblock'\n",
        HEAD "  ram  4 KiB  0x0 0x1000\n",
        HEAD "  ram  4 KiB  0x0 0x1000 4096\n",
        HEAD "  ram  4 KiB  0x0 0x1000 0x\n",
        HEAD "  ram  4 KiB  0x0 0x2000 0x1000\n",           /* more used than there is */
        HEAD "  ram  4 kiB  0x0 0x1000 0x1000\n",
        HEAD "  ram  3 KiB  0x0 0x1000 0x1000\n",
        HEAD "  ram  8 GiB  0x0 0x1000 0x1000\n",
        HEAD "  ram  -4 KiB  0x0 0x1000 0x1000\n",
        HEAD "  4 KiB  0x0 0x1000 0x1000\n", /* none has a name */
        HEAD "  ram  4 KiB  0x0 0x1000 0x11112222333344445\n",
        "  Block Name    PSize   Offset     Used    Total  HVA  RO\n"
        "  ram  4 KiB  0x0 0x1000 0x1000\n",
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct outside_block *b = NULL;
        unsigned n;

        err = (struct ff_error){0};
        if (outside_parse_blocks(bad[i], &b, &n, &err) != -EPROTO)
            fail_msg("not refused: %s", bad[i]);
        assert_error(err, EPROTO, "ramblock: ");
    }
}

static const char mtree[] =
    "FlatView #0\r\n AS \"I/O\", root: io\r\n"
    "  00000000000000e9-00000000000000e9 (prio 0, i/o): ram\r\n"
    "FlatView #1\r\n AS \"cpu-smm-0\", root: mem-container-smram\r\n"
    "  0000000000010000-000000000001ffff (prio 0, ram): ram1\r\n"
    "FlatView #2\r\n AS \"memory\", root: system\r\n Root memory region: system\r\n"
    "  00000000000c0000-00000000000dffff (prio 1, rom): pc.rom KVM\r\n"
    "  00000000000e0000-00000000000effff (prio 0, ram): ram @00000000000e0000 KVM\r\n"
    "  0000000000100000-0000000007ffffff (prio 0, ram): ram @0000000000100000 KVM\r\n"
    "  0000000008000000-000000000fffffff (prio 0, ram): ram1 KVM\r\n"
    "  0000000100000000-000000017fffffff (prio 0, ram): tcg\n"
    "  0000000180000000-000000018003ffff (prio 0, romd): system.flash0 KVM\n"
    "FlatView #3\n AS \"e1000\", root: bus master container\n"
    "  0000000000000000-00000000000fffff (prio 0, ram): of a device\n\n";

static void test_guest_address(void **state)
{
    uint64_t gpa, offset;
    (void)state;

    assert_true(outside_find_guest_address(mtree, "ram", &gpa, &offset));
    assert_true(gpa == 0xe0000 && offset == 0xe0000);
    assert_true(outside_find_guest_address(mtree, "/objects/ram1", &gpa, &offset));
    assert_true(gpa == 0x8000000 && offset == 0);
    assert_true(outside_find_guest_address(mtree, "tcg", &gpa, &offset));
    assert_true(gpa == 1ull << 32 && offset == 0);
    assert_false(outside_find_guest_address(mtree, "ra", &gpa, &offset));
    assert_false(outside_find_guest_address(mtree, "of a device", &gpa, &offset));
    assert_true(outside_find_guest_address(mtree, "pc.rom", &gpa, &offset));
    assert_true(gpa == 0xc0000 && offset == 0);
    assert_true(outside_find_guest_address(mtree, "system.flash0", &gpa, &offset));
    assert_true(gpa == 0x180000000);

    assert_true(outside_parse_hva("Host virtual address for 0xe0000 (ram) is 0x7f76580ff000\r\n",
                                  "/objects/ram") == 0x7f76580ff000);
    assert_true(!outside_parse_hva("Host virtual address for 0xe0000 (ram1) is 0x7f7\r\n", "ram"));
    assert_true(!outside_parse_hva("No memory is mapped at address 0xe0000\r\n", "ram"));
}

/* --- maps, smaps --- */

#define MIB (1ull << 20)
#define MEMFD "/memfd:memory-backend-memfd (deleted)\n"
static const char maps[] =
    "55d0c0000000-55d0c0100000 r-xp 00000000 fe:01 77   /usr/bin/qemu-system-x86_64\n"
    "55d0c1000000-55d0c5000000 rw-p 00000000 00:00 0    [heap]\n"
    /* 64 MiB, split by madvise, then another memfd of 64 MiB directly behind */
    "7f0000000000-7f0000200000 rw-s 00000000 00:01 1064 " MEMFD
    "7f0000200000-7f0000201000 rw-s 00200000 00:01 1064 " MEMFD
    "7f0000201000-7f0004000000 rw-s 00201000 00:01 1064 " MEMFD
    "7f0004000000-7f0008000000 rw-s 00000000 00:01 1065 " MEMFD
    "7f0008000000-7f0008001000 ---p 00000000 00:00 0 \n"
    /* a piece is missing */
    "7f1000000000-7f1000200000 rw-s 00000000 00:01 1066 " MEMFD
    "7f1000201000-7f1004000000 rw-s 00201000 00:01 1066 " MEMFD
    /* the file's offset jumps */
    "7f2000000000-7f2000200000 rw-s 00000000 00:01 1067 " MEMFD
    "7f2000200000-7f2004000000 rw-s 00300000 00:01 1067 " MEMFD
    /* anonymous, joined with a neighbour, and named */
    "7f3000000000-7f3010000000 rw-p 00000000 00:00 0 \n"
    "7f3010000000-7f3018000000 rw-p 00000000 00:00 0                          [anon:guest ram]\n"
    "7f4000021000-7f4004000000 ---p 00000000 00:00 0 \n"
    /* the next file's offset would fit */
    "7f4800000000-7f4800100000 rw-s 00000000 00:01 1068 " MEMFD
    "7f4800100000-7f4800200000 rw-s 00100000 00:01 1069 " MEMFD
    "7f5000000000-7f5000100000 rw-s 00000000 fe:01 88   /home/a name with spaces: it\n";

static unsigned parse_text(const char *text, struct outside_vma **v)
{
    unsigned n;
    FILE *f = fmemopen((void *)(uintptr_t)text, strlen(text), "r");

    assert_non_null(f);
    assert_ok(outside_parse_maps(f, v, &n, &err), err);
    fclose(f);
    return n;
}

static struct outside_block block_at(uint64_t hva, uint64_t len)
{
    return (struct outside_block){.name = "ram", .hva = hva, .len_bytes = len, .psize = 4096};
}

static void test_maps(void **state)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n = parse_text(maps, &v);
    (void)state;

    assert_int_equal(n, 17);
    assert_true(v[2].start == 0x7f0000000000 && v[2].end == 0x7f0000200000);
    assert_true(v[2].is_shared && v[2].is_writable && v[2].inode == 1064 && v[2].minor == 1);
    assert_true(v[4].offset == 0x201000);
    assert_string_equal(v[2].name, "/memfd:memory-backend-memfd (deleted)");
    assert_true(!v[0].is_writable && !v[6].is_readable);
    assert_string_equal(v[6].name, "");
    assert_string_equal(v[16].name, "/home/a name with spaces: it");
}

static void test_spans(void **state)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n = parse_text(maps, &v);
    struct outside_span s;
    struct outside_block b = block_at(0x7f0000000000, 64 * MIB);
    (void)state;

    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    assert_true(s.of.inode == 1064 && s.of.offset == 0);
    b = block_at(0x7f0004000000, 64 * MIB);
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    assert_int_equal(s.of.inode, 1065);
    b = block_at(0x7f0000200000, 2 * MIB); /* begins inside: its offset there */
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    assert_true(s.of.offset == 0x200000);
    b = block_at(0x7f0000201000 + 4096, MIB);
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    assert_true(s.of.offset == 0x202000 && s.at == 0x7f0000202000);
    b = block_at(0x7f3008000000, 256 * MIB); /* of two anonymous ones */
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    assert_true(!s.of.inode && !s.of.is_shared && s.of.offset == 0);

    b = block_at(0x7f0000000000, 64 * MIB + 4096); /* the next memfd is not part of it */
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "memory of ram", "other memory begins at 0x7f0004000000");
    b = block_at(0x7f1000000000, 64 * MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "a hole at 0x7f1000200000");
    b = block_at(0x7f2000000000, 64 * MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "offset 0x300000");
    b = block_at(0x7f4800000000, 2 * MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "other memory begins at 0x7f4800100000");
    b = block_at(0x7f5000000000, 2 * MIB); /* the end of all */
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "a hole at 0x7f5000100000");
    b = block_at(0x7f0fff000000, MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    assert_error(err, ENOENT, "nothing is mapped at 0x7f0fff000000");
    b = block_at(0x7fffffffff000, MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
    b = block_at(0x7f5000000000, UINT64_MAX - MIB);
    assert_fails(outside_find_span(v, n, &b, &s, &err), ENOENT);
}

static void test_by_length(void **state)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n = parse_text(maps, &v);
    struct outside_block b = block_at(0, 256 * MIB);
    (void)state;

    assert_ok(outside_find_by_length(v, n, &b, &err), err);
    assert_true(b.hva == 0x7f3000000000);
    b = block_at(0, 64 * MIB); /* two memfds; the heap, of this length too, is none */
    assert_fails(outside_find_by_length(v, n, &b, &err), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "0x7f0000000000", "0x7f0004000000", "another size");
    b = block_at(0, 62 * MIB); /* the second half of what jumps, with the length of a split one */
    assert_ok(outside_find_by_length(v, n, &b, &err), err);
    assert_true(b.hva == 0x7f2000200000);
    b = block_at(0, 100 * MIB);
    assert_fails(outside_find_by_length(v, n, &b, &err), ENOENT);
    assert_error(err, ENOENT, "no mapping", "104857600", "10.0");
    b = (struct outside_block){.name = "huge", .len_bytes = 384 * MIB - MIB, .psize = 2 * MIB};
    assert_ok(outside_find_by_length(v, n, &b, &err), err); /* rounded up to a page */
    assert_true(b.hva == 0x7f3000000000);
    b = block_at(0, 0);
    assert_fails(outside_find_by_length(v, n, &b, &err), EINVAL);
}

static void test_smaps(void **state)
{
    static const char smaps[] =
        "7f0000000000-7f0000200000 rw-s 00000000 00:01 1064 " MEMFD
        "Size:               2048 kB\nAnonymous:             0 kB\nTHPeligible:           1\n"
        "VmFlags: rd wr sh mr mw me ms um dc nh \n"
        "7f0000200000-7f0000400000 rw-s 00200000 00:01 1064 " MEMFD
        "Size:               2048 kB\nVmFlags: rd wr sh mr mw me ms um ht dc nh \n"
        "7f0000400000-7f0000600000 rw-s 00400000 00:01 1064 " MEMFD
        "Size:               2048 kB\nVmFlags: rd wr sh mr mw me ms umm uw\n";
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n = parse_text(smaps, &v);
    struct outside_block b = block_at(0x7f0000000000, 4 * MIB);
    struct outside_span s;
    (void)state;

    assert_int_equal(n, 3);
    assert_true(!v[0].is_hugetlb && v[1].is_hugetlb);
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
    b.len_bytes += 4096;
    assert_ok(outside_find_span(v, n, &b, &s, &err), err);
}

static void test_bad_maps(void **state)
{
    static const char *const bad[] = {
        "nonsense\n",
        "VmFlags: um\n",
        "7f0000200000-7f0000000000 rw-s 00000000 00:01 1064 x\n",
        "7f0000000000-7f0000200000 rws 00000000 00:01 1064 x\n",
        "7f0000000000-7f0000200000 rw-s 00000000 00:01 1064 x\nand so on\n",
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct outside_vma *v = NULL;
        unsigned n;
        FILE *f = fmemopen((void *)(uintptr_t)bad[i], strlen(bad[i]), "r");

        assert_non_null(f);
        if (outside_parse_maps(f, &v, &n, &err) != -EPROTO)
            fail_msg("not refused: %s", bad[i]);
        fclose(f);
    }
}

/* --- who forbids it --- */

#define PTRACE (1ull << CAP_SYS_PTRACE)
#define OF_1000 .uid = {1000, 1000, 1000}, .gid = {100, 100, 100}, .owner = 1000
#define ME_1000 .my_uid = 1000, .my_euid = 1000, .my_gid = 100, .my_egid = 100

static void test_judge(void **state)
{
    static const struct {
        struct outside_facts f;
        bool attach;
        const char *reason, *remedy;
    } rows[] = {
        {{OF_1000, ME_1000, .ptrace_scope = 1}, true, "ptrace_scope is 1", "let farfork start"},
        {{OF_1000, ME_1000, .ptrace_scope = 1}, false, "shows no reason", "Run farfork"},
        {{OF_1000, ME_1000, .ptrace_scope = 1, .is_ancestor = true}, true, "no reason", "Run"},
        {{OF_1000, ME_1000, .ptrace_scope = 2, .is_ancestor = true}, true, "ptrace_scope is 2",
         "sysctl kernel.yama.ptrace_scope=0"},
        {{OF_1000, ME_1000, .ptrace_scope = 3}, true, "ptrace_scope is 3", "sysctl"},
        {{OF_1000, .my_effective = PTRACE, .ptrace_scope = 3}, true, "nobody may", "boot again"},
        {{OF_1000, .my_effective = PTRACE, .ptrace_scope = 2}, true, "user namespace", "Run"},
        {{OF_1000, .my_effective = PTRACE, .ptrace_scope = 0, .label = "libvirt-1 (enforce)",
          .my_label = "unconfined"}, true, "libvirt-1 (enforce)", "AppArmor"},
        {{OF_1000, ME_1000, .label = "system_u:system_r:svirt_t:s0:c1,c2"}, true, "svirt_t",
         "without the policy"},
        {{OF_1000, ME_1000, .label = "u:unconfined_r:unconfined_t:s0"}, true, "no reason", "Run"},
        {{.uid = {64055, 64055, 64055}, .gid = {100, 100, 100}, .owner = 64055, ME_1000}, true,
         "uid 64055 64055 64055, this process 1000", "setcap cap_sys_ptrace+ep"},
        {{.uid = {1000, 1000, 0}, .gid = {100, 100, 100}, .owner = 1000, ME_1000}, true,
         "uid 1000 1000 0", "as that user"},
        {{.uid = {1000, 1000, 1000}, .gid = {100, 36, 100}, .owner = 1000, ME_1000}, true,
         "gid 100 36 100", "newgrp"},
        {{OF_1000, .my_uid = 1000, .my_euid = 7, .my_gid = 100, .my_egid = 100}, false,
         "this process 7", "as that user"},
        {{OF_1000, .my_uid = 1000, .my_euid = 7, .my_gid = 100, .my_egid = 100}, true,
         "no reason", "Run"},
        {{OF_1000, ME_1000, .permitted = 1 << CAP_NET_ADMIN}, true, "capabilities",
         "without them"},
        {{OF_1000, ME_1000, .permitted = 1, .my_permitted = 1}, false, "capabilities", "without"},
        {{.uid = {1000, 1000, 1000}, .gid = {100, 100, 100}, .owner = 0, ME_1000}, true,
         "not dumpable", "-runas"},
        {{OF_1000, ME_1000, .is_refused_to_self = true, .my_seccomp = 2}, true, "seccomp",
         "--cap-add SYS_PTRACE"},
        {{ME_1000, .is_hidden = true}, false, "hides it", "as the QEMU's user"},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(rows); i++) {
        err = (struct ff_error){0};
        assert_fails(outside_judge(&rows[i].f, 4711, rows[i].attach, &err), EPERM);
        if (err.code != EPERM || !strstr(err.text, "process 4711: ") ||
            !strstr(err.text, rows[i].reason) || !strstr(err.text, rows[i].remedy))
            fail_msg("row %zu: want '%s' and '%s': %s", i, rows[i].reason, rows[i].remedy,
                     err.text);
    }
}

static void write_text(int dir, const char *path, const char *text)
{
    FF_AUTO_CLOSE int fd = openat(dir, path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* A /proc of our own, with what this machine may not have */
static void test_facts(void **state)
{
    char top[] = "/tmp/outsideXXXXXX", other[32], me[32], parent[64];
    static const char *const folders[] = {"sys", "sys/kernel", "sys/kernel/yama", "self",
                                          "self/attr", "2147480000", "2147480000/attr",
                                          "2147480001"};
    struct outside_facts f;
    struct stat st;
    (void)state;

    assert_non_null(mkdtemp(top));
    FF_AUTO_CLOSE int dir = open(top, O_RDONLY | O_DIRECTORY);
    assert_true(dir >= 0);
    for (size_t i = 0; i < FF_ARRAY_LEN(folders); i++)
        assert_int_equal(mkdirat(dir, folders[i], 0700), 0);
    write_text(dir, "sys/kernel/yama/ptrace_scope", "1\n");
    write_text(dir, "self/status", "Name:\tfarfork\nUid:\t11\t12\t13\t14\nGid:\t21\t22\t23\t24\n"
                                   "CapPrm:\t00000000000000ff\nCapEff:\t0000000000080001\n"
                                   "Seccomp:\t2\nSeccomp_filters:\t1\n");
    write_text(dir, "self/attr/current", "unconfined\n");
    snprintf(other, sizeof(other), "%d/status", 2147480000);
    write_text(dir, other, "Name:\tUid: 7\nUid:\t31\t32\t33\t34\nGid:\t41\t42\t43\t44\n"
                           "PPid:\t2147480001\nCapPrm:\t0000000000003000\nSeccomp:\t0\n");
    write_text(dir, "2147480000/attr/current", "libvirt-1 (enforce)\n");
    snprintf(parent, sizeof(parent), "PPid:\t%d\n", getpid());
    write_text(dir, "2147480001/status", parent);

    assert_ok(outside_read_facts(top, 2147480000, &f, &err), err);
    assert_true(f.my_uid == 11 && f.my_euid == 12 && f.my_gid == 21 && f.my_egid == 22);
    assert_true(f.my_permitted == 0xff && f.my_effective == 0x80001 && f.my_seccomp == 2);
    assert_true(f.uid[0] == 31 && f.uid[1] == 32 && f.uid[2] == 33);
    assert_true(f.gid[0] == 41 && f.gid[1] == 42 && f.gid[2] == 43 && f.permitted == 0x3000);
    assert_int_equal(f.ptrace_scope, 1);
    assert_true(f.is_ancestor && !f.is_hidden);
    assert_string_equal(f.label, "libvirt-1 (enforce)");
    assert_string_equal(f.my_label, "unconfined");
    assert_int_equal(fstat(dir, &st), 0);
    assert_int_equal(f.owner, st.st_uid);

    assert_int_equal(unlinkat(dir, "sys/kernel/yama/ptrace_scope", 0), 0);
    assert_int_equal(unlinkat(dir, "2147480001/status", 0), 0);
    assert_ok(outside_read_facts(top, 2147480000, &f, &err), err);
    assert_true(f.ptrace_scope == -1 && !f.is_ancestor);
    assert_ok(outside_read_facts(top, getpid(), &f, &err), err); /* it is, and is not shown */
    assert_true(f.is_hidden);
    assert_fails(outside_read_facts(top, 2147480003, &f, &err), ESRCH);

    assert_int_equal(unlinkat(dir, "self/status", 0), 0);
    assert_int_equal(unlinkat(dir, "self/attr/current", 0), 0);
    assert_int_equal(unlinkat(dir, other, 0), 0);
    assert_int_equal(unlinkat(dir, "2147480000/attr/current", 0), 0);
    snprintf(me, sizeof(me), "%s", top);
    for (size_t i = FF_ARRAY_LEN(folders); i--;)
        assert_int_equal(unlinkat(dir, folders[i], AT_REMOVEDIR), 0);
    assert_int_equal(rmdir(me), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_bad_blocks),
        cmocka_unit_test(test_guest_address), cmocka_unit_test(test_maps),
        cmocka_unit_test(test_spans),         cmocka_unit_test(test_by_length),
        cmocka_unit_test(test_smaps),         cmocka_unit_test(test_bad_maps),
        cmocka_unit_test(test_judge),         cmocka_unit_test(test_facts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
