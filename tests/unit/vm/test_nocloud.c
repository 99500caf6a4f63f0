/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_nocloud.c - cloud-init's data in an image become another instance's, or stay as they are
 */
#include "unit.h"

#include <fcntl.h>

#include "autojson.h"
#include "disks.h"
#include "nocloud.h"

#define SECTOR 2048
#define SECTORS 26
enum { VOLUME = 16, JOLIET, END, ROOT, JOLIET_ROOT, META, NETWORK, USER };

static uint8_t image[SECTORS * SECTOR];
static char path[] = "/tmp/nocloud-XXXXXX";
static struct ff_error why;

static void put_both(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = p[7 - i] = (uint8_t)(v >> 8 * i);
}

static void add_record(int root, bool joliet, const char *name, uint32_t sector, size_t len)
{
    uint8_t *r = image + root * SECTOR;
    size_t n = strlen(name), chars = joliet ? 2 * n : 1;

    while (*r)
        r += *r;
    put_both(r + 2, sector);
    put_both(r + 10, (uint32_t)len);
    r[32] = (uint8_t)chars;
    r[33] = 'X';
    for (size_t i = 0; joliet && i < n; i++) {
        r[33 + 2 * i] = 0;
        r[34 + 2 * i] = (uint8_t)name[i];
    }
    size_t at = 33 + chars + !(chars & 1);
    if (!joliet) { /* Rock Ridge */
        memcpy(r + at, "NM", 2);
        r[at + 2] = (uint8_t)(5 + n);
        r[at + 3] = 1;
        memcpy(r + at + 5, name, n);
        at += 5 + n;
    }
    r[0] = (uint8_t)at;
}

static void add_volume(int sector, int type, int root, const char *label)
{
    uint8_t *v = image + sector * SECTOR;
    bool joliet = type == 2;

    v[0] = (uint8_t)type;
    memcpy(v + 1, "CD001\1", 6);
    memset(v + 40, joliet ? 0 : ' ', 32);
    for (size_t i = 0; i < strlen(label); i++)
        v[40 + (joliet ? 2 * i + 1 : i)] = (uint8_t)label[i];
    if (joliet)
        memcpy(v + 88, "%/E", 3);
    v[128] = SECTOR & 0xff;
    v[129] = SECTOR >> 8;
    put_both(v + 156 + 2, (uint32_t)root);
    put_both(v + 156 + 10, SECTOR);
}

static void make_image(const char *label, const char *meta, const char *network, const char *user)
{
    static const char *const names[] = {"meta-data", "network-config", "user-data"};
    const char *texts[] = {meta, network, user};

    memset(image, 0, sizeof(image));
    add_volume(VOLUME, 1, ROOT, label);
    add_volume(JOLIET, 2, JOLIET_ROOT, label);
    add_volume(END, 255, 0, "");
    for (uint32_t i = 0; i < 3; i++) {
        add_record(ROOT, false, names[i], META + i, strlen(texts[i]));
        add_record(JOLIET_ROOT, true, names[i], META + i, strlen(texts[i]));
        memcpy(image + (META + i) * SECTOR, texts[i], strlen(texts[i]));
    }
}

static void write_image(void)
{
    FILE *f = fopen(path, "we");

    assert_true(f && fwrite(image, sizeof(image), 1, f) == 1 && !fclose(f));
}

static bool addresses;

static int change(bool try)
{
    struct nocloud n = {.instance_id = "new-1", .hostname = "web-3"};

    strv_add(&n.macs, "52:54:00:77:00:02=52:54:aa:bb:cc:dd");
    why = (struct ff_error){0};
    int rc = nocloud_change(path, &n, try, &addresses, &why);
    strv_free(&n.macs);
    return rc;
}

/* The text of a file as both root folders have it */
static void assert_text(int file, const char *want)
{
    uint8_t now[sizeof(image)];
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(read(fd, now, sizeof(now)) == sizeof(now));
    close(fd);
    if (strncmp((char *)now + file * SECTOR, want, SECTOR))
        fail_msg("\"%s\", want \"%s\"", (char *)now + file * SECTOR, want);
    for (int root = ROOT; root <= JOLIET_ROOT; root++) {
        const uint8_t *r = now + root * SECTOR;
        while (r[2] != file)
            r += *r;
        assert_int_equal(r[10] | r[11] << 8, strlen(want));
        assert_int_equal(r[17] | r[16] << 8, strlen(want));
    }
}

static void assert_changed(const char *meta, const char *want)
{
    make_image("cidata", meta, "", "");
    write_image();
    assert_ok(change(false), why);
    assert_text(META, want);
}

static void test_changed(void **state)
{
    (void)state;
    make_image("CIDATA", "instance-id: a\nlocal-hostname: 'b'   # c\n",
               "macaddress: \"52:54:00:77:00:02\"\n", "#cloud-config\nfqdn: b.example.org\nhostname: b\n");
    write_image();
    assert_true(nocloud_is(path));
    assert_ok(change(true), why);
    assert_text(META, "instance-id: a\nlocal-hostname: 'b'   # c\n");
    assert_ok(change(false), why);
    assert_text(META, "instance-id: new-1\nlocal-hostname: 'web-3'   # c\n");
    assert_text(NETWORK, "macaddress: \"52:54:aa:bb:cc:dd\"\n");
    assert_text(USER, "#cloud-config\nfqdn: web-3.example.org\nhostname: web-3\n");
}

static void test_texts(void **state)
{
    (void)state;
    assert_changed("x: 1", "x: 1\ninstance-id: new-1\n");
    assert_changed("an-instance-id: x\n  instance-id: y\n",
                   "an-instance-id: x\n  instance-id: y\ninstance-id: new-1\n");
    assert_changed("instance-id: a # b\n", "instance-id: new-1 # b\n");
    assert_changed("\"instance-id\": \"a\"\r\nm: 52:54:00:77:00:02",
                   "\"instance-id\": \"new-1\"\r\nm: 52:54:aa:bb:cc:dd");
    assert_changed("{\"local-hostname\": \"a\", \"instance-id\" : 1}",
                   "{\"instance-id\": \"new-1\", \"local-hostname\": \"web-3\", \"instance-id\" : 1}");
    assert_changed("{ \"instance-id\":\"a\", \"x\": 1 }", "{ \"instance-id\":\"new-1\", \"x\": 1 }");
    assert_changed("instance-id: \"a\n", "instance-id: \"a\ninstance-id: new-1\n");
}

static void test_addresses(void **state)
{
    static const struct {
        const char *text;
        bool gives;
    } configs[] = {{"macaddress: x\n", false}, {"mac_address: x\n", false}, {"", false},
                   {"version: 2\n  addresses: [10.0.0.2/24]\n", true}, {"address: 10.0.0.2\n", true},
                   {"{\"address\": \"10.0.0.2\"}", true}, {"dhcp4: true", false}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(configs); i++) {
        make_image("cidata", "instance-id: a\n", configs[i].text, "");
        write_image();
        assert_ok(change(true), why);
        if (addresses != configs[i].gives)
            fail_msg("%s", configs[i].text);
    }
}

static void test_no_room(void **state)
{
    char meta[SECTOR + 1];
    (void)state;

    memset(meta, 'x', SECTOR);
    memcpy(meta, "instance-id: a\n", 15);
    meta[SECTOR] = '\0';
    make_image("cidata", meta, "52:54:00:77:00:02", "");
    write_image();
    assert_fails(change(false), ENOSPC);
    assert_error(why, ENOSPC, "meta-data", "room for 2048");
    assert_text(NETWORK, "52:54:00:77:00:02"); /* all of them, or none */
}

static void test_no_such_image(void **state)
{
    struct nocloud bad = {.hostname = "a b"};
    (void)state;

    make_image("other", "instance-id: a\n", "", "");
    write_image();
    assert_false(nocloud_is(path));
    assert_fails(change(false), EINVAL);
    assert_false(nocloud_is("/dev/zero"));
    assert_false(nocloud_is("/nonexistent"));
    assert_fails(nocloud_check(&bad, &why), EINVAL);
    bad.hostname = NULL;
    strv_add(&bad.macs, "52:54:00:77:00:02");
    assert_fails(nocloud_check(&bad, &why), EINVAL);
    strv_free(&bad.macs);
}

/* Whatever an image says: nothing beyond it is touched */
static void test_damaged(void **state)
{
    static const int where[] = {VOLUME * SECTOR + 128, VOLUME * SECTOR + 156, ROOT * SECTOR,
                                JOLIET_ROOT * SECTOR};
    static const uint8_t bytes[] = {0, 1, 33, 34, 0x7f, 0xff};
    (void)state;

    for (size_t w = 0; w < FF_ARRAY_LEN(where); w++)
        for (int at = 0; at < 128; at++)
            for (size_t b = 0; b < FF_ARRAY_LEN(bytes); b++) {
                make_image("cidata", "instance-id: a\n", "52:54:00:77:00:02", "#cloud-config\n");
                image[where[w] + at] = bytes[b];
                write_image();
                change(true);
            }
}

/* --- the disks of a child --- */

/* What a fork says of the disk with the image */
static void assert_note(const char *format, bool writable, const char *want)
{
    FF_AUTO_FREE char *drive = xprintf("file=%s,if=none,id=cd", path);
    FF_AUTO_JSON json_t *argv = json_pack("[s,s,s]", "qemu", "-drive", drive), *nodes = json_array();
    FF_AUTO_JSON json_t *block =
        json_pack("[{s:s,s:{s:s,s:s,s:s,s:b,s:{s:s,s:i,s:s}}}]", "device", "cd", "inserted",
                  "node-name", "n", "drv", format, "file", path, "ro", !writable, "image", "filename", path,
                  "virtual-size", SECTORS * SECTOR, "format", format);
    const struct disks_input in = {.fork_id = "f", .argv = argv, .cwd = "/", .block = block,
                                   .nodes = nodes, .seeds = true, .awaited = true};
    struct nocloud n = {.instance_id = "i", .hostname = "h"};
    struct strv notes = {0};
    struct disks *d;

    write_image();
    assert_ok(disks_plan(&in, &d, &why), why);
    disks_try_seeds(d, &n, &notes);
    disks_try_seeds(d, &n, &notes); /* of another child */
    if (notes.n != (want != NULL) || (want && !strstr(notes.v[0], want)))
        fail_msg("%zu notes: %s", notes.n, notes.n ? notes.v[0] : "");
    strv_free(&notes);
    disks_free(d);
}

static void make_fat(size_t at, const char *label)
{
    memset(image, 0, sizeof(image));
    memcpy(image + at, label, 11);
    image[510] = 0x55;
    image[511] = 0xaa;
}

/* Data of another kind, and NoCloud data that no child gets a copy of */
static void test_other_data(void **state)
{
    (void)state;
    make_image("config-2", "", "", "");
    assert_note("raw", false, "disk cd is an OpenStack config drive");
    assert_note("raw", true, "config drive");
    assert_note("qcow2", false, NULL); /* not looked into */
    make_image("config-20", "", "", "");
    assert_note("raw", false, NULL);
    make_image("CONTEXT", "", "", "");
    assert_note("raw", false, "OpenNebula");
    make_fat(43, "config-2   ");
    assert_note("raw", true, "config drive");
    make_fat(71, "CIDATA     ");
    assert_note("raw", false, "NoCloud");
    make_fat(71, "DATA       ");
    assert_note("raw", false, NULL);
}

static char *child_line(const char *option, const char *value, const char *device, const char *node)
{
    const struct clone_place place = {"/s", NULL};
    FF_AUTO_JSON json_t *argv = json_pack("[s,s,s]", "qemu", option, value);
    FF_AUTO_JSON json_t *block =
        json_pack("[{s:s,s:{s:s,s:s,s:s,s:b,s:{s:s,s:i,s:s}}}]", "device", device, "inserted",
                  "node-name", node, "drv", "raw", "file", path, "ro", 1, "image", "filename", path,
                  "virtual-size", SECTORS * SECTOR, "format", "raw");
    FF_AUTO_JSON json_t *nodes =
        json_pack("[{s:s,s:s,s:s}]", "node-name", node, "file", path, "drv", "raw");
    const struct disks_input in = {.fork_id = "f", .argv = argv, .cwd = "/", .block = block,
                                   .nodes = nodes, .seeds = true};
    struct nocloud n = {.instance_id = "i", .hostname = "h"};
    struct strv notes = {0};
    struct disks *d;

    assert_ok(disks_plan(&in, &d, &why), why);
    disks_try_seeds(d, &n, &notes);
    assert_int_equal(notes.n, 0);
    FF_AUTO_JSON json_t *child = disks_child_argv(d, &place, 2);
    FF_AUTO_JSON json_t *files = disks_child_files(d, &place, 2);
    FF_AUTO_JSON json_t *none = disks_child_steps(d, &place, 2);
    FF_AUTO_JSON json_t *steps = disks_seed_steps(d, &place, 2, "/ff", &n);
    assert_string_equal(json_string_value(json_array_get(files, 0)), "/s/fork-f-2-disk0.iso");
    assert_int_equal(json_array_size(none), 0);
    assert_int_equal(json_array_size(steps), 2);
    assert_int_equal(disks_room(d, 3), 3 * SECTORS * SECTOR);
    char *text = xstrdup(json_string_value(json_array_get(child, 2)));
    disks_free(d);
    return text;
}

static void test_child(void **state)
{
    (void)state;
    make_image("cidata", "instance-id: a\n", "", "");
    write_image();
    FF_AUTO_FREE char *given = xprintf("file=%s,if=virtio,format=raw,readonly=on", path);
    FF_AUTO_FREE char *drive = child_line("-drive", given, "virtio0", "#block1");
    assert_string_equal(drive, "if=virtio,readonly=on,file=/s/fork-f-2-disk0.iso,format=raw");
    FF_AUTO_FREE char *cdrom = child_line("-cdrom", path, "ide1-cd0", "#block1");
    assert_string_equal(cdrom, "/s/fork-f-2-disk0.iso");
    FF_AUTO_FREE char *node = xprintf("driver=raw,node-name=n,read-only=on,file.driver=file,"
                                      "file.filename=%s", path);
    FF_AUTO_FREE char *blockdev = child_line("-blockdev", node, "", "n");
    assert_non_null(strstr(blockdev, "\"filename\": \"/s/fork-f-2-disk0.iso\"") ?:
                    strstr(blockdev, "\"filename\":\"/s/fork-f-2-disk0.iso\""));
}

static int set_up(void **state)
{
    int fd = mkstemp(path);
    (void)state;

    return fd < 0 || close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed), cmocka_unit_test(test_texts),
        cmocka_unit_test(test_addresses), cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_no_such_image),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_other_data), cmocka_unit_test(test_child)};

    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
