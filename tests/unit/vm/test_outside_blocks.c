/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_outside_blocks.c - every RAM block of a QEMU: what monitors print, its records, its mappings
 *
 * A child has a heap with records as QEMU's, and others that only look like them.
 */
#include "unit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "outside_private.h"

#define MIB (1ull << 20)
#define LEN (4 * MIB)

static struct ff_error err;

/* --- what monitors print --- */

static const char blocks_7_2[] = /* pc with VGA, two e1000, two flash images, a backend unused */
    " Block Name    PSize              Offset               Used              Total\r\n"
    " pc.ram    4 KiB  0x0000000000800000 0x0000000006000000 0x0000000006000000\r\n"
    " 0000:00:02.0/vga.vram    4 KiB  0x0000000006900000 0x0000000001000000 0x0000000001000000\r\n"
    " 4 KiB  0x0000000000000000 0x0000000000800000 0x0000000000800000\r\n"
    " /rom@etc/acpi/tables    4 KiB  0x00000000079c0000 0x0000000000020000 0x0000000000200000\r\n"
    " system.flash0    4 KiB  0x0000000006800000 0x0000000000040000 0x0000000000040000\r\n"
    " 0000:00:03.0/e1000.rom    4 KiB  0x0000000007940000 0x0000000000040000 0x0000000000040000\r\n"
    " 0000:00:04.0/e1000.rom    4 KiB  0x0000000007980000 0x0000000000040000 0x0000000000040000\r\n"
    " /rom@etc/acpi/rsdp    4 KiB  0x0000000007c00000 0x0000000000001000 0x0000000000001000\r\n"
    "\r\n";

static const char blocks_10_0[] = /* q35; the nameless one is a device's */
    "              Block Name    PSize              Offset               Used              Total   "
    "             HVA  RO\n"
    "                  pc.ram    4 KiB  0x0000000000000000 0x0000000006000000 0x0000000006000000 "
    "0x00007f6e45e00000  rw\n"
    "                            4 KiB  0x0000000006000000 0x0000000000001000 0x0000000000001000 "
    "0x00007f6e43000000  rw\n"
    "   /rom@etc/table-loader    4 KiB  0x0000000007380000 0x0000000000001000 0x0000000000010000 "
    "0x00007f6e43c00000  ro\n";

static void test_printed(void **state)
{
    FF_AUTO_FREE struct outside_block *b = NULL, *c = NULL;
    unsigned n;
    (void)state;

    assert_ok(outside_parse_blocks(blocks_7_2, &b, &n, &err), err);
    assert_int_equal(n, 7); /* QEMU migrates no block without a name */
    assert_string_equal(b[2].name, "/rom@etc/acpi/tables");
    assert_true(b[2].len_bytes == 0x20000 && b[2].max_bytes == 2 * MIB && !b[2].hva);
    assert_string_equal(b[4].name, "0000:00:03.0/e1000.rom");
    assert_string_equal(b[5].name, "0000:00:04.0/e1000.rom");
    assert_string_equal(b[6].name, "/rom@etc/acpi/rsdp");

    assert_ok(outside_parse_blocks(blocks_10_0, &c, &n, &err), err);
    assert_int_equal(n, 2);
    assert_string_equal(c[1].name, "/rom@etc/table-loader");
    assert_true(c[1].hva == 0x7f6e43c00000 && c[1].max_bytes == 0x10000);
}

static void test_agree(void **state)
{
    struct outside_block b = {.name = "pc.rom"};
    (void)state;

    assert_fails(outside_agree(&b, 0, &err), ENOENT);
    assert_error(err, ENOENT, "memory of pc.rom", "no guest address", "8.0");
    assert_ok(outside_agree(&b, 0x7f0000000000, &err), err); /* the record alone */
    assert_true(b.hva == 0x7f0000000000);
    assert_ok(outside_agree(&b, 0, &err), err); /* gpa2hva alone */
    assert_ok(outside_agree(&b, 0x7f0000000000, &err), err);
    assert_fails(outside_agree(&b, 0x7f0000001000, &err), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "memory of pc.rom", "0x7f0000000000", "0x7f0000001000");
}

/* --- mappings --- */

static const char maps[] =
    "555564529000-55556553e000 rw-p 00000000 00:00 0    [heap]\n"
    /* a resizable block of 2 MiB, and its guard */
    "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n"
    "7f0000200000-7f0000201000 ---p 00000000 00:00 0 \n"
    /* two blocks of 1 MiB in one VMA */
    "7f1000000000-7f1000200000 rw-p 00000000 00:00 0 \n"
    /* split by madvise, of a file */
    "7f2000000000-7f2000100000 rw-s 00000000 00:01 1064 /memfd:memory-backend-memfd (deleted)\n"
    "7f2000100000-7f2000101000 rw-s 00100000 00:01 1064 /memfd:memory-backend-memfd (deleted)\n"
    "7f2000101000-7f2000200000 rw-s 00101000 00:01 1064 /memfd:memory-backend-memfd (deleted)\n"
    /* a page of it protected */
    "7f3000000000-7f3000100000 rw-p 00000000 00:00 0 \n"
    "7f3000100000-7f3000101000 ---p 00000000 00:00 0 \n"
    "7f3000101000-7f3000200000 r--p 00000000 00:00 0 \n"
    /* a forked guest's: what is used is in the image */
    "7f5000000000-7f5000020000 rw-p 00300000 00:01 2048 /memfd:farfork-image (deleted)\n"
    "7f5000020000-7f5000200000 rw-p 00000000 00:00 0 \n"
    "7ffe00000000-7ffe00200000 rw-p 00000000 00:00 0    [stack]\n";

static struct outside_block block_at(const char *name, uint64_t hva, uint64_t len, uint64_t max)
{
    struct outside_block b = {.hva = hva, .len_bytes = len, .max_bytes = max, .psize = 4096};

    snprintf(b.name, sizeof(b.name), "%s", name);
    return b;
}

static void test_mapped(void **state)
{
    static const struct {
        uint64_t hva, len, max;
        int code;
        const char *text;
    } rows[] = {
        {0x7f0000000000, 0x20000, 2 * MIB, 0, NULL},
        {0x7f0000000000, 2 * MIB, 2 * MIB + 4096, EACCES, "0x7f0000200000-0x7f0000201000"},
        {0x7f0000000000, 0x20000, 4 * MIB, ENOENT, "a hole at 0x7f0000201000"},
        {0x7f1000000000, MIB, MIB, 0, NULL},
        {0x7f1000100000, MIB, MIB, 0, NULL}, /* joined with the one before */
        {0x7f1000100000, MIB, 2 * MIB, ENOENT, "a hole at 0x7f1000200000"},
        {0x7f2000000000, 2 * MIB, 2 * MIB, 0, NULL},
        {0x7f3000000000, MIB, MIB, 0, NULL},
        {0x7f3000101000, 4096, 4096, 0, NULL},
        {0x7f3000000000, 2 * MIB, 2 * MIB, EACCES, "0x7f3000100000-0x7f3000101000"},
        {0x7f5000000000, 0x20000, 2 * MIB, 0, NULL},
        {0x7f5000000000, 0x21000, 2 * MIB, ENOENT, "other memory begins at 0x7f5000020000"},
        {0x555564529000, 4096, 4096, ENOENT, "[heap]"},
        {0x7ffe00000000, 4096, 4096, ENOENT, "[stack]"},
        {0x7f4000000000, 4096, 4096, ENOENT, "nothing is mapped"},
        {0x7f0000000000, 0, 0, ENOENT, "nothing is mapped"},
    };
    FF_AUTO_FREE struct outside_vma *v = NULL;
    FILE *f = fmemopen((void *)(uintptr_t)maps, strlen(maps), "r");
    unsigned n;
    (void)state;

    assert_non_null(f);
    assert_ok(outside_parse_maps(f, &v, &n, &err), err);
    fclose(f);
    for (size_t i = 0; i < FF_ARRAY_LEN(rows); i++) {
        struct outside_block b = block_at("vga.rom", rows[i].hva, rows[i].len, rows[i].max);
        const int rc = outside_check_mapped(v, n, &b, false, &err);

        if (rc != -rows[i].code ||
            (rc && (!strstr(err.text, "memory of vga.rom: ") || !strstr(err.text, rows[i].text))))
            fail_msg("row %zu: %d: %s", i, rc, rc ? err.text : "");
    }
    const struct outside_block ppi = block_at("tpm-ppi", 0x555564529000, 4096, 4096);
    assert_ok(outside_check_mapped(v, n, &ppi, true, &err), err);
}

static void test_apart(void **state)
{
    struct outside_block b[] = {
        block_at("n0", 0x7f0000000000, MIB, MIB),
        block_at("n1", 0x7f0000100000, MIB, MIB), /* directly behind */
        block_at("tables", 0x7f0000300000, 0x20000, MIB),
    };
    (void)state;

    assert_ok(outside_check_apart(b, 3, &err), err);
    b[1].hva = b[0].hva; /* two names, one memory */
    assert_fails(outside_check_apart(b, 3, &err), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "memory of n1", "where n0 is");
    b[1].hva = 0x7f0000300000 + 0x80000; /* behind what is used of it */
    assert_fails(outside_check_apart(b, 3, &err), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "memory of tables", "where n1 is");
}

/* --- records --- */

#define N_HOSTS 5
enum { RAM, N0, N1, SPLIT, TABLES }; /* what the child tells of, in this order */

struct other {
    pid_t pid;
    int go, told;
    uint64_t hosts[N_HOSTS];
};

static void *map_len(void)
{
    void *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        _exit(3);
    return p;
}

/* The next record on the heap, at the front of the list */
static void *head;

static uint64_t add_record_at(struct outside_record *r, const char *name, uint64_t used,
                              uint64_t max)
{
    struct outside_record *next = head;

    *r = (struct outside_record){.host = (uintptr_t)map_len(), .used_length = used,
                                 .max_length = max, .le_next = (uintptr_t)next,
                                 .le_prev = (uintptr_t)&head};
    snprintf(r->idstr, sizeof(r->idstr), "%s", name);
    if (next)
        next->le_prev = (uintptr_t)&r->le_next;
    head = r;
    return r->host;
}

/* As QLIST_REMOVE_RCU() does, which leaves the record as it is */
static void remove_record(const struct outside_record *r)
{
    struct outside_record *next = (void *)(uintptr_t)r->le_next;

    *(uint64_t *)(uintptr_t)r->le_prev = r->le_next;
    if (next)
        next->le_prev = r->le_prev;
}

/* Of the VMA of the heap that has @at */
static uint64_t heap_start(uint64_t at)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n;

    if (outside_read_maps(getpid(), false, &v, &n, &err))
        _exit(4);
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(v[i].name, "[heap]") && v[i].start <= at && at < v[i].end)
            return v[i].start;
    _exit(5);
}

static void records(int told, int go)
{
    uint64_t hosts[N_HOSTS];
    char c, *heap = sbrk(4 * MIB);

    if (heap == (void *)-1)
        _exit(2);
    struct outside_record *r = (void *)(((uintptr_t)heap + 4095) & ~4095ull), *old[2];
    hosts[RAM] = add_record_at(r++, "ram", LEN, LEN);
    add_record_at(r++, "ram1", LEN, LEN);          /* it begins alike */
    add_record_at(r++, "/objects/ram", LEN, LEN);  /* it ends alike */
    add_record_at(old[0] = r++, "n0", LEN, LEN);
    add_record_at(old[1] = r++, "ram", LEN, LEN);
    add_record_at(r, "n0", LEN, LEN);
    r++->host += 8; /* no memory begins there */
    hosts[N0] = add_record_at(r++, "n0", LEN, LEN);
    hosts[N1] = add_record_at(r++, "n1", LEN, LEN);
    hosts[TABLES] = add_record_at(r++, "tables", MIB, LEN);
    for (int i = 0; i < 2; i++)
        remove_record(old[i]);
    /* the heap is read in pieces of 1 MiB */
    const uint64_t start_at = heap_start((uintptr_t)r);
    const uint64_t middle = start_at + ((uintptr_t)r - start_at) / MIB * MIB + MIB;
    hosts[SPLIT] = add_record_at((void *)(uintptr_t)(middle - 176), "split", LEN, LEN);
    if (write(told, hosts, sizeof(hosts)) != sizeof(hosts) || read(go, &c, 1) != 1)
        _exit(0);
    add_record_at(r, "n1", LEN, LEN); /* a guest's bytes, or a QEMU that is not one */
    if (write(told, hosts, sizeof(hosts)) != sizeof(hosts) || read(go, &c, 1) != 1)
        _exit(0);
}

static void hear(struct other *o)
{
    struct pollfd p = {.fd = o->told, .events = POLLIN};

    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(read(o->told, o->hosts, sizeof(o->hosts)), sizeof(o->hosts));
}

static void start(struct other *o)
{
    int down[2], up[2];

    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    o->pid = fork();
    assert_true(o->pid >= 0);
    if (!o->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        records(up[1], down[0]);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    o->go = down[1];
    o->told = up[0];
    hear(o);
}

static void end(struct other *o)
{
    int status;

    close(o->go);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    close(o->told);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int find(pid_t pid, const struct outside_block *b, unsigned n, uint64_t *hva)
{
    FF_AUTO_FREE struct outside_vma *v = NULL;
    unsigned n_vmas;

    assert_ok(outside_read_maps(pid, false, &v, &n_vmas, &err), err);
    return outside_find_records(pid, v, n_vmas, b, n, hva, &err);
}

static void test_records(void **state)
{
    const struct outside_block b[] = {
        block_at("ram", 0, LEN, LEN),         block_at("n0", 0, LEN, LEN),
        block_at("n1", 0, LEN, LEN),          block_at("split", 0, LEN, LEN),
        block_at("tables", 0, 2 * MIB, LEN), /* resized since */
        block_at("ra", 0, LEN, LEN),          block_at("n0", 0, LEN, LEN + 4096),
        block_at("tables", 0, LEN, 0),        block_at("tables", 0, MIB, 0),
    };
    uint64_t hva[FF_ARRAY_LEN(b)];
    struct other o;
    (void)state;

    start(&o);
    assert_ok(find(o.pid, b, FF_ARRAY_LEN(b), hva), err);
    for (unsigned i = 0; i < N_HOSTS; i++)
        if (!o.hosts[i] || hva[i] != o.hosts[i])
            fail_msg("%s: 0x%" PRIx64 ", want 0x%" PRIx64, b[i].name, hva[i], o.hosts[i]);
    assert_true(!hva[5] && !hva[6] && !hva[7]); /* no such name; another length */
    assert_true(hva[8] == o.hosts[TABLES]);
    assert_int_equal(write(o.go, "", 1), 1);
    hear(&o);
    assert_fails(find(o.pid, b, FF_ARRAY_LEN(b), hva), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "memory of n1", "two records");
    assert_ok(find(o.pid, b, 2, hva), err); /* the other ones are as they were */
    assert_true(hva[1] == o.hosts[N0]);
    end(&o);
    err = (struct ff_error){0};
    assert_fails(outside_find_records(o.pid, NULL, 0, b, 2, hva, &err), ESRCH);
}

/* Without a monitor: blocks of one length, by name */
static void test_locate(void **state)
{
    struct outside_block b[] = {block_at("n0", 0, LEN, 0), block_at("n1", 0, LEN, 0),
                                block_at("n2", 0, LEN, 0)};
    struct other o;
    (void)state;

    start(&o);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(outside_locate(o.pid, &b[i], &err), err);
        assert_true(b[i].hva == o.hosts[i + N0]);
    }
    const int rc = outside_locate(o.pid, &b[2], &err); /* no record: by length: many */
    assert_true((rc == -ENOTUNIQ || rc == -ENOENT) && !b[2].hva);
    end(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed), cmocka_unit_test(test_agree),
        cmocka_unit_test(test_mapped),  cmocka_unit_test(test_apart),
        cmocka_unit_test(test_records), cmocka_unit_test(test_locate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
