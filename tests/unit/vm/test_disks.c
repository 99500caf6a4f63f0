/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_disks.c - what a fork of disks refuses, and how a child's command line is written
 *
 * That the bytes are right: tests/e2e/disks.py, with real QEMUs.
 */
#include "unit.h"

#include <fcntl.h>

#include "disks.h"
#include "autojson.h"
#include "qemu_opts.h"

static struct ff_error why;

static json_t *words(const char *const *w)
{
    json_t *a = json_array();

    for (; *w; w++)
        json_array_append_new(a, json_string(*w));
    return a;
}

/* As query-block has it; @more: members of "inserted" that differ */
static json_t *block(const char *device, const char *node, const char *driver, const char *file,
                     const char *backing, const char *header)
{
    json_t *image = json_pack("{s:s,s:s,s:i,s:s*}", "filename", file, "format", driver,
                              "virtual-size", 1 << 20, "full-backing-filename", header);

    if (backing)
        json_object_set_new(image, "backing-image",
                            json_pack("{s:s,s:s,s:i}", "filename", backing, "format", "raw",
                                      "virtual-size", 1 << 20));
    return json_pack("{s:s,s:s,s:{s:s,s:s,s:b,s:s,s:b,s:s,s:{s:b,s:b},s:o}}", "device", device,
                     "qdev", "/machine/x", "inserted", "node-name", node, "drv", driver, "ro", 0,
                     "file", file, "encrypted", 0, "detect_zeroes", "off", "cache", "direct", 0,
                     "no-flush", 0, "image", image);
}

/* Two images whose lower one is raw to the parent, and @header says of it so much */
static json_t *layered(const char *base, const char *header)
{
    json_t *b = block("d", "n", "qcow2", "a.img", base, base);
    json_t *image = json_object_get(json_object_get(b, "inserted"), "image");

    if (header)
        json_object_set_new(image, "backing-filename-format", json_string(header));
    return b;
}

static int plan_as(const char *const *argv, json_t *disks, bool stopped, bool move,
                   struct disks **d)
{
    FF_AUTO_JSON json_t *a = words(argv), *b = disks;
    const struct disks_input in = {.fork_id = "f", .argv = a, .cwd = "/nonexistent/cwd",
                                   .block = b, .stopped = stopped, .move = move};

    why.text[0] = '\0';
    return disks_plan(&in, d, &why);
}

static int plan(const char *const *argv, json_t *disks, bool stopped, struct disks **d)
{
    return plan_as(argv, disks, stopped, false, d);
}

static void test_length(void **state)
{
    static const char *const argv[] = {"qemu", "-drive", "file=a.img,if=virtio", NULL};
    struct disks *d = NULL;

    (void)state;
    for (unsigned max = 0; max < 4; max++) {
        FF_AUTO_JSON json_t *a = words(argv), *b = json_pack("[o]", layered("base.img", "raw"));
        const struct disks_input in = {.fork_id = "f", .argv = a, .cwd = "/nonexistent/cwd",
                                       .block = b, .max_chain = max};
        int rc = disks_plan(&in, &d, &why);

        if (max == 1) {
            assert_int_equal(rc, -EMLINK);
            assert_non_null(strstr(why.text, "2 images"));
            continue;
        }
        assert_int_equal(rc, 0);
        disks_free(d);
    }
}

static void test_refused(void **state)
{
    char looks[] = "/tmp/disks-XXXXXX";
    int fd = mkstemp(looks);
    assert_true(fd >= 0 && write(fd, "QFI\373", 4) == 4);
    close(fd);
    (void)state;
    const char *const drive[] = {"qemu", "-drive", "file=a.img,if=virtio", NULL};
    const char *const other[] = {"qemu", "-drive", "file=b.img,if=virtio", NULL};
    const char *const temporary[] = {"qemu", "-drive", "id=d,file=a.img,snapshot=on", NULL};
    const char *const all[] = {"qemu", "-snapshot", "-drive", "id=d,file=a.img", NULL};
    const struct {
        const char *const *argv;
        json_t *disk;
        const char *says[2];
    } bad[] = {
        {drive, block("d", "n", "throttle", "a.img", NULL, NULL), {"throttle", "raw, qcow2"}},
        {drive, block("d", "n", "mirror_top", "a.img", NULL, NULL), {"mirror_top", "job"}},
        {other, block("d", "n", "raw", "a.img", NULL, NULL), {"a.img", "added later"}},
        {drive, block("", "n", "raw", "a.img", NULL, NULL), {"a.img", "added later"}},
        {temporary, block("d", "n", "qcow2", "a.img", NULL, NULL), {"snapshot=on", "disk d"}},
        {all, block("d", "n", "qcow2", "a.img", NULL, NULL), {"snapshot=on", "disk d"}},
        {drive, block("d", "n", "qcow2", "a.img", "/base", NULL), {"\"\"", "rebase"}},
        {all, block("d", "n", "qcow2", "/tmp/vl.x", "a.img", NULL), {"-snapshot", "disk d"}},
        {temporary,
         block("d", "n", "qcow2", "/tmp/vl.x", "a.img", NULL),
         {"snapshot=on", "disk d"}},
        {drive, block("d", "n", "qcow2", "a.img", "/base", "/other"), {"/other", "/base"}},
        {drive, block("d", "n", "qcow2", "a.img", NULL, "/base"), {"without", "/base"}},
        {drive, block("d", "n", "raw", "nbd://h/x", NULL, NULL), {"nbd://h/x", "--overlays"}},
        {drive, layered("/base", "qcow2"), {"/base as raw", "-b /base -F raw a.img"}},
        {drive, layered(looks, NULL), {"as raw", "names the format qcow2"}},
    };
    struct disks *d;

    for (int like = 0; like < 2; like++) { /* what is raw, and said or seen to be so */
        json_t *b = like ? layered("/base", "raw") : layered("/dev/null", NULL);
        assert_int_equal(plan(drive, json_pack("[o]", b), false, &d), 0);
        disks_free(d);
    }

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        json_t *b = json_pack("[o]", bad[i].disk);
        if (plan(bad[i].argv, b, false, &d) >= 0)
            fail_msg("not refused: %zu", i);
        for (size_t k = 0; k < 2; k++)
            if (!strstr(why.text, bad[i].says[k]))
                fail_msg("%zu: \"%s\" is not in: %s", i, bad[i].says[k], why.text);
    }
    unlink(looks);
}

/* Its overlay's name is taken: by itself, or by who knows whom */
/* Somebody else makes the parent's overlay: what is found afterwards has to be it */
static void test_awaited(void **state)
{
    static const char *const argv[] = {"qemu", "-drive", "file=/nonexistent/a.img,if=virtio", NULL};
    FF_AUTO_JSON json_t *a = words(argv);

    (void)state;
    for (int wrong = 0; wrong < 4; wrong++) {
        FF_AUTO_JSON json_t *before =
            json_pack("[o]", block("d", "n", "raw", "/nonexistent/a.img", NULL, NULL));
        FF_AUTO_JSON json_t *after = json_pack(
            "[o]", block(wrong == 1 ? "other" : "d", "m", wrong == 3 ? "raw" : "qcow2", "/nonexistent/o",
                         wrong == 2 ? "/nonexistent/b.img" : "/nonexistent/a.img", NULL));
        const struct disks_input in = {.fork_id = "f", .argv = a, .cwd = "/", .block = before,
                                       .awaited = true};
        struct disks *d = NULL;
        assert_int_equal(disks_plan(&in, &d, &why), 0);
        FF_AUTO_JSON json_t *steps = disks_prepare(d), *actions = disks_actions(d),
                            *images = disks_awaited(d);
        assert_int_equal(json_array_size(steps) + json_array_size(actions), 0);
        assert_string_equal(json_string_value(json_array_get(images, 0)), "/nonexistent/a.img");
        assert_int_equal(disks_take_over(d, before, &why), -EPROTO); /* it is not there yet */
        assert_int_equal(disks_take_over(d, after, &why), wrong ? -EPROTO : 0);
        FF_AUTO_JSON json_t *left = disks_awaited(d), *now = disks_overlays(d);
        assert_int_equal(json_array_size(left), !!wrong);
        assert_int_equal(json_array_size(now), !wrong);
        if (!wrong) {
            const json_t *o = json_array_get(now, 0);
            assert_string_equal(text_of(o, "overlay"), "/nonexistent/o");
            assert_string_equal(text_of(o, "frozen"), "/nonexistent/a.img");
            assert_int_equal(disks_check_still(d, &why), 0); /* its guest has gone on by then */
            disks_taken_back(d, text_of(o, "overlay-node"));
            FF_AUTO_JSON json_t *none = disks_overlays(d);
            assert_int_equal(json_array_size(none), 0);
        }
        disks_free(d);
    }
}

static void test_used_id(void **state)
{
    char dir[] = "/tmp/ff-disks-XXXXXX";
    assert_non_null(mkdtemp(dir));
    FF_AUTO_FREE char *image = xprintf("%s/a.img", dir);
    FF_AUTO_FREE char *overlay = xprintf("%s.fork-f-disk0.qcow2", image);
    const char *const argv[] = {"qemu", "-drive", "file=/nonexistent,id=d", NULL};
    struct disks *d;
    (void)state;

    close(open(overlay, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    json_t *b = block("d", "n", "qcow2", overlay, image, image);
    assert_fails(plan(argv, json_pack("[o]", b), false, &d), EEXIST);
    assert_non_null(strstr(why.text, "fork id 'f' was used before; the parent writes to /tmp/"));
    b = block("d", "n", "raw", image, NULL, NULL);
    assert_fails(plan(argv, json_pack("[o]", b), false, &d), EEXIST);
    assert_non_null(strstr(why.text, "remove it if no guest uses it"));
    unlink(overlay);
    rmdir(dir);
}

static void same_words(json_t *got, const char *const *want)
{
    FF_AUTO_JSON json_t *g = got, *w = words(want);

    if (!json_equal(g, w))
        fail_msg("%s\nwant %s", json_dumps(g, 0), json_dumps(w, 0));
}

static void test_argv(void **state)
{
    const char *const argv[] = {"qemu", "-hda", "a.img", "--drive",
                                "file=b,,c.img,if=none,id=b,format=raw,cache=none,file.locking=off",
                                "-drive", "if=none,id=empty", "-append", "x", NULL};
    const char *const want[] = {"qemu", "-hda", "/s/fork-f-7-disk0.qcow2", "--drive",
                                "if=none,id=b,cache=none,file=/s/fork-f-7-disk1.qcow2,"
                                "format=qcow2",
                                "-drive", "if=none,id=empty", "-append", "x", NULL};
    struct disks *d;
    json_t *b = json_pack("[o,o,{s:s}]", block("ide0-hd0", "#1", "raw", "a.img", NULL, NULL),
                          block("b", "#2", "raw", "b,c.img", NULL, NULL), "device", "empty");
    const struct clone_place here = {"/s", NULL}, nbd = {"/s", "[fd00::1]:99"};
    (void)state;

    if (plan(argv, b, false, &d) < 0)
        fail_msg("%s", why.text);
    assert_int_equal(disks_count(d), 2);
    same_words(disks_child_argv(d, &here, 7), want);
    same_words(disks_child_argv(d, &nbd, 7), want);

    FF_AUTO_JSON json_t *steps = disks_child_steps(d, &nbd, 7);
    FF_AUTO_JSON json_t *step = json_pack(
        "{s:[s,s,s,s,s,s,s,s,s,s,s,s]}", "argv", "qemu-img", "create", "-q", "-u", "-f", "qcow2",
        "-F", "raw", "-b", "nbd://[fd00::1]:99/disk1", "/s/fork-f-7-disk1.qcow2", "1048576");
    assert_true(json_equal(json_array_get(steps, 1), step));
    assert_int_equal(disks_room(d, 3), 6 << 20);
    disks_free(d);
}

static void is(char *got, const char *want)
{
    assert_string_equal(got, want);
    free(got);
}

/* Nodes that only a replaced disk used are gone; what a read-only disk uses too stays */
static void test_blockdev(void **state)
{
    const char *const argv[] = {
        "qemu", "-blockdev", "driver=file,node-name=f,filename=/a", "-blockdev",
        "{\"driver\":\"raw\",\"node-name\":\"top\",\"file\":\"f\"}", "-blockdev",
        "driver=raw,node-name=ro,file=shared,read-only=on", "-blockdev",
        "driver=file,node-name=shared,filename=/r", "-blockdev", "driver=file,node-name=idle",
        "-device", "virtio-blk-pci,drive=top", NULL};
    struct disks *d;
    json_t *ro = block("", "ro", "raw", "/r", NULL, NULL);
    (void)state;

    json_object_set_new(json_object_get(ro, "inserted"), "ro", json_true());
    assert_int_equal(plan(argv, json_pack("[o,o]", ro, block("", "top", "raw", "/a", NULL, NULL)),
                          false, &d), 0);
    const struct clone_place here = {"/s", NULL}, nbd = {"/s", "unix:/n"};
    FF_AUTO_JSON json_t *got = disks_child_argv(d, &here, 1);
    assert_int_equal(json_array_size(got), 9);
    const char *top = json_string_value(json_array_get(got, 2));
    is(qemu_opts_get(top, "node-name"), "top");
    is(qemu_opts_get(top, "file.filename"), "/s/fork-f-1-disk1.qcow2");
    for (size_t i = 3; i < 9; i++)
        assert_string_equal(json_string_value(json_array_get(got, i)),
                            argv[i < 7 ? i + 2 : i + 4]);

    FF_AUTO_JSON json_t *remote = disks_child_argv(d, &nbd, 1);
    assert_int_equal(json_array_size(remote), 7);
    const char *n = json_string_value(json_array_get(remote, 4));
    is(qemu_opts_get(n, "node-name"), "ro");
    is(qemu_opts_get(n, "file.server.path"), "/n");
    assert_true(qemu_opts_is(n, "read-only"));
    disks_free(d);
}

/* The same images; by now one is behind an overlay, and one medium was changed */
static void test_move(void **state)
{
    const char *const argv[] = {"qemu", "-drive", "file=a.img,id=a,cache=none,format=raw", "-drive",
                                "file=/b.img,id=b,format=raw", "-cdrom", "/c.iso", "-drive",
                                "driver=null-co,id=z", "-blockdev",
                                "driver=qcow2,node-name=top,file=f", "-blockdev",
                                "driver=file,node-name=f,filename=/t.qcow2", NULL};
    const char *const filter[] = {"qemu", "-blockdev", "driver=raw,node-name=t,file.filename=/t",
                                  NULL};
    struct disks *d;
    json_t *cd = block("ide1-cd0", "#3", "raw", "/c.iso", NULL, NULL);
    (void)state;

    json_object_set_new(json_object_get(cd, "inserted"), "ro", json_true());
    json_t *as_started = json_pack(
        "[o,o,o,o,o]", block("a", "#1", "raw", "/nonexistent/cwd/a.img", NULL, NULL),
        block("b", "#2", "raw", "/b.img", NULL, NULL), json_incref(cd),
        block("z", "#4", "null-co", "null-co://", NULL, NULL),
        block("", "top", "qcow2", "/t.qcow2", NULL, NULL));
    if (plan_as(argv, as_started, false, true, &d) < 0)
        fail_msg("%s", why.text);
    same_words(disks_move_argv(d), argv);
    disks_free(d);

    json_t *changed = json_pack("[o,o,o,o]",
                                block("a", "#1", "raw", "/nonexistent/cwd/a.img", NULL, NULL),
                                block("b", "o", "qcow2", "/b.over", "/b.img", "/b.img"), cd,
                                block("", "ff1", "qcow2", "/t.over", "/t.qcow2", "/t.qcow2"));
    json_t *nodes = json_pack("[{s:s,s:s}]", "node-name", "top", "file", "/t.qcow2");
    FF_AUTO_JSON json_t *a = words(argv);
    const struct disks_input in = {.fork_id = "f", .argv = a, .cwd = "/nonexistent/cwd",
                                   .block = changed, .nodes = nodes, .move = true};
    if (disks_plan(&in, &d, &why) < 0)
        fail_msg("%s", why.text);
    FF_AUTO_JSON json_t *got = disks_move_argv(d);
    const char *b = json_string_value(json_array_get(got, 4));
    assert_string_equal(json_string_value(json_array_get(got, 2)), argv[2]);
    is(qemu_opts_get(b, "file"), "/b.over");
    is(qemu_opts_get(b, "format"), "qcow2");
    assert_string_equal(json_string_value(json_array_get(got, 6)), "/c.iso");
    const char *top = json_string_value(json_array_get(got, 10));
    is(qemu_opts_get(top, "node-name"), "top");
    is(qemu_opts_get(top, "file.filename"), "/t.over");
    assert_int_equal(json_array_size(got), 11); /* the node that was below it goes */
    disks_free(d);
    json_decref(changed);
    json_decref(nodes);

    nodes = json_pack("[{s:s,s:s}]", "node-name", "t", "file", "/t");
    json_t *mirror = json_pack("[o]", block("", "m", "mirror_top", "/t", NULL, NULL));
    FF_AUTO_JSON json_t *f = words(filter);
    const struct disks_input job = {.fork_id = "f", .argv = f, .cwd = "/", .block = mirror,
                                    .nodes = nodes, .move = true};
    assert_fails(disks_plan(&job, &d, &why), ENOTSUP);
    assert_non_null(strstr(why.text, "mirror_top"));
    json_decref(mirror);
    json_decref(nodes);

    FF_AUTO_JSON json_t *none = words((const char *const[]){"qemu", NULL});
    json_t *late = json_pack("[o]", block("", "n", "raw", "/late", NULL, NULL));
    const struct disks_input added = {.fork_id = "f", .argv = none, .cwd = "/", .block = late,
                                      .move = true};
    assert_fails(disks_plan(&added, &d, &why), ENOTSUP);
    json_decref(late);
}

/* A disk that is elsewhere is opened by its name and format, and what its headers say */
static void test_move_chain(void **state)
{
    static const char file[] = "file=/b.img,id=b,format=raw";
    static const char json[] = "json:{\"driver\": \"raw\", \"offset\": 512, \"file\": "
                               "{\"driver\": \"file\", \"filename\": \"/b.img\"}}";
    const struct {
        const char *option, *driver, *now, *backing, *header, *says;
    } all[] = {
        {file, "qcow2", "/o", "/b.img", "/b.img", NULL},
        {file, "qcow2", "/o", "/b.img", NULL, "names backing file \"\""},
        {file, "qcow2", "/o", "/b.img", "/other", "/other"},
        {file, "qcow2", "/o", NULL, "/b.img", "without the backing file"},
        {file, "raw", "/c.img", NULL, NULL, NULL},
        {"file=/b.img,id=b,offset=512", "raw", "/c.img", NULL, NULL, "offset"},
        {"file=/b.img,id=b,size=512", "qcow2", "/o", "/b.img", "/b.img", "size"},
        {"file=/b.img,id=b,backing.driver=raw", "qcow2", "/o", "/b.img", "/b.img", "backing."},
        {"file=/b.img,id=b,backing=n", "qcow2", "/o", "/b.img", "/b.img", NULL},
        {"file=/b.img,id=b,offset=512", "raw", json, NULL, NULL, NULL}, /* as it was started */
        {"file=/c.img,id=b", "raw", json, NULL, NULL, "json:"},
        /* not elsewhere: the option says what is behind it */
        {"file=/o,id=b,backing.driver=raw", "qcow2", "/o", "/b.img", NULL, NULL},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++) {
        const char *const argv[] = {"qemu", "-drive", all[i].option, NULL};
        json_t *b = json_pack("[o]", block("b", "#1", all[i].driver, all[i].now, all[i].backing,
                                           all[i].header));
        struct disks *d = NULL;
        int rc = plan_as(argv, b, false, true, &d);
        if (rc != (all[i].says ? -ENOTSUP : 0) || (rc && !strstr(why.text, all[i].says)))
            fail_msg("%zu: %d %s", i, rc, why.text);
        if (!rc)
            disks_free(d);
    }
}

/* What was ejected is not put into the drive again: the drive alone is, or it is said why not */
static void test_ejected(void **state)
{
    const struct {
        const char *option, *value, *device; /* the drive with nothing in it */
        const char *want, *want_option;      /* NULL: as it was */
        const char *says;
    } all[] = {
        {"-drive", "if=none,id=cd,file=/c.iso,media=cdrom", "cd", "if=none,id=cd,media=cdrom", NULL,
         NULL},
        {"-drive", "if=none,id=cd,file.driver=file,file.filename=/c.iso,readonly=on", "cd",
         "if=none,id=cd,readonly=on", NULL, NULL},
        {"-drive", "if=none,id=cd", "cd", NULL, NULL, NULL},
        {"-drive", "if=none,id=other,file=/c.iso", "ide1-cd0", NULL, NULL, NULL},
        {"-drive", "file=/c.iso,media=cdrom", "ide1-cd0", "media=cdrom", NULL, NULL},
        {"-drive", "media=cdrom", "ide1-cd0", NULL, NULL, NULL},
        {"-cdrom", "/c.iso", "ide1-cd0", "index=2,media=cdrom", "-drive", NULL},
        {"-fda", "/c.img", "floppy0", NULL, NULL, "/c.img"},
        {"-device", "ide-cd,drive=n", "", NULL, NULL, "ide-cd,drive=n"},
        {"-device", "ide-cd,drive=used", "", NULL, NULL, NULL},
        {"-device", "ide-cd", "", NULL, NULL, NULL},
        {"-name", "x", "ide1-cd0", NULL, NULL, NULL}, /* QEMU's default */
    };
    const struct clone_place here = {"/s", NULL};
    (void)state;

    for (size_t i = 0; i < 2 * FF_ARRAY_LEN(all); i++) {
        const size_t k = i / 2, move = i % 2;
        const char *const argv[] = {"qemu", "-drive", "file=/a,format=raw", "-blockdev",
                                    "driver=file,node-name=n,filename=/c.iso", "-blockdev",
                                    "driver=raw,node-name=used,file.filename=/u", all[k].option,
                                    all[k].value, NULL};
        json_t *b = json_pack("[{s:s,s:s},o,o]", "device", all[k].device, "qdev", "/machine/cd",
                              block("hd", "#1", "raw", "/a", NULL, NULL),
                              block("", "used", "raw", "/u", NULL, NULL));
        struct disks *d = NULL;
        int rc = plan_as(argv, b, false, move, &d);
        if (rc != (all[k].says ? -ENOTSUP : 0) || (rc && !strstr(why.text, all[k].says)) ||
            (rc && !strstr(why.text, "ejected")))
            fail_msg("%zu: %d %s", i, rc, why.text);
        if (rc)
            continue;
        FF_AUTO_JSON json_t *out = move ? disks_move_argv(d) : disks_child_argv(d, &here, 1);
        size_t n = json_array_size(out);
        assert_string_equal(json_string_value(json_array_get(out, n - 1)),
                            all[k].want ? all[k].want : all[k].value);
        assert_string_equal(json_string_value(json_array_get(out, n - 2)),
                            all[k].want_option ? all[k].want_option : all[k].option);
        disks_free(d);
    }
}

/* A child has the medium that is in the drive now, or it is said why not */
static void test_changed(void **state)
{
    const struct {
        const char *option, *value, *device;
        const char *want; /* NULL: as it was */
        const char *says;
        const char *image; /* NULL: /new.iso */
    } all[] = {
        {"-drive", "if=none,id=cd,file=/c.iso,media=cdrom", "cd",
         "if=none,id=cd,media=cdrom,file=/new.iso,format=raw", NULL, NULL},
        {"-drive", "if=none,id=cd", "cd", "if=none,id=cd,file=/new.iso,format=raw", NULL, NULL},
        {"-drive", "if=none,id=cd,file=/new.iso,media=cdrom", "cd", NULL, NULL, NULL},
        {"-drive", "file=/new.iso,media=cdrom", "ide1-cd0", NULL, NULL, NULL},
        {"-cdrom", "/new.iso", "ide1-cd0", NULL, NULL, NULL},
        {"-drive", "file=/c.iso,media=cdrom", "ide1-cd0", NULL, "/new.iso", NULL},
        {"-cdrom", "/c.iso", "ide1-cd0", NULL, "/new.iso", NULL},
        {"-name", "x", "ide1-cd0", NULL, "/new.iso", NULL}, /* QEMU's default */
        {"-blockdev", "driver=file,node-name=n,filename=/c.iso", "", NULL, "/new.iso", NULL},
        /* QEMU's name for what the option names */
        {"-cdrom", "nbd://h/iso", "ide1-cd0", NULL, NULL, "nbd://h:10809/iso"},
        {"-cdrom", "nbd://h:99/iso", "ide1-cd0", NULL, NULL, "nbd://h:99/iso"},
        {"-drive", "file=nbd://[::1]/iso,id=cd", "cd", NULL, NULL, "nbd://::1:10809/iso"},
        {"-drive", "file=nbd://[::1]:99/iso,media=cdrom", "ide1-cd0", NULL, NULL,
         "nbd://::1:99/iso"},
        {"-drive", "if=none,id=cd", "cd", "if=none,id=cd,file=nbd://[::1]:99/iso,format=raw", NULL,
         "nbd://::1:99/iso"},
        {"-drive", "file=nbd://h/iso,id=cd,file.tls-creds=t", "cd", NULL, "nbd://g/iso",
         "nbd://g:10809/iso"},
        {"-cdrom", "nbd://h/iso", "ide1-cd0", NULL, "nbd://h:98/iso", "nbd://h:98/iso"},
        {"-drive", "file=/c.iso,offset=512,media=cdrom", "ide1-cd0", NULL, NULL,
         "json:{\"driver\":\"raw\",\"offset\":512,\"file\":{\"driver\":\"file\",\"filename\":\"/c.iso\"}}"},
        {"-drive", "driver=file,filename=/c.iso,id=cd", "cd", NULL, NULL, "/c.iso"},
        {"-drive", "file=/c.iso,id=cd,snapshot=on", "cd", NULL, NULL,
         "json:{\"driver\":\"qcow2\"}"},
    };
    const struct clone_place here = {"/s", NULL};
    (void)state;

    for (size_t i = 0; i < 2 * FF_ARRAY_LEN(all); i++) {
        const size_t k = i / 2, move = i % 2;
        const char *const argv[] = {"qemu", all[k].option, all[k].value, NULL};
        const char *const want[] = {"qemu", all[k].option,
                                    all[k].want ? all[k].want : all[k].value, NULL};
        json_t *b = block(all[k].device, "#block7", "raw",
                          all[k].image ? all[k].image : "/new.iso",
                          strstr(all[k].value, "snapshot") ? "/c.iso" : NULL, NULL);
        struct disks *d = NULL;
        json_object_set_new(json_object_get(b, "inserted"), "ro", json_true());
        int rc = plan_as(argv, json_pack("[o]", b), false, move, &d);
        if (rc != (all[k].says ? -ENOTSUP : 0) || (rc && !strstr(why.text, all[k].says)))
            fail_msg("%zu: %d %s", i, rc, why.text);
        if (rc)
            continue;
        same_words(move ? disks_move_argv(d) : disks_child_argv(d, &here, 1), want);
        disks_free(d);
    }
}

/* A file without a format node is raw, also as the backing file of an overlay of an earlier fork */
static void test_bare_file(void **state)
{
    static const char *const argv[] = {
        "qemu", "-blockdev", "driver=file,filename=a.img,node-name=n", NULL};
    static const char *const drive[] = {"qemu", "-drive", "file=a.img,if=virtio,discard=on", NULL};
    static const struct clone_place here = {.scratch = "/s"};
    json_t *later = layered("base.img", "raw");
    json_t *base = json_object_get(
        json_object_get(json_object_get(later, "inserted"), "image"), "backing-image");
    struct disks *d = NULL;
    (void)state;

    assert_int_equal(plan(argv, json_pack("[o]", block("", "n", "file", "a.img", NULL, NULL)),
                          false, &d), 0);
    FF_AUTO_JSON json_t *steps = disks_child_steps(d, &here, 1);
    const json_t *create = json_object_get(json_array_get(steps, 0), "argv");
    assert_string_equal(json_string_value(json_array_get(create, 7)), "raw");
    disks_free(d);

    json_object_set_new(base, "format", json_string("file"));
    assert_int_equal(plan(drive, json_pack("[o]", later), false, &d), 0);
    /* -drive takes "on", blockdev-add does not */
    FF_AUTO_JSON json_t *prepare = disks_prepare(d);
    const json_t *add = json_object_get(json_array_get(prepare, json_array_size(prepare) - 1),
                                        "qmp");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(add, "arguments"), "discard")), "unmap");
    disks_free(d);
}

UNIT_MAIN(cmocka_unit_test(test_length), cmocka_unit_test(test_bare_file),
          cmocka_unit_test(test_refused),
          cmocka_unit_test(test_used_id), cmocka_unit_test(test_awaited), cmocka_unit_test(test_argv),
          cmocka_unit_test(test_blockdev), cmocka_unit_test(test_move),
          cmocka_unit_test(test_move_chain),
          cmocka_unit_test(test_ejected), cmocka_unit_test(test_changed))
