/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_movable.c - each device, network, job and export that cannot go is refused by name
 */
#include <jansson.h>

#include "movable.h"
#include "unit.h"

#define TREE "/machine (pc-i440fx-7.2-machine)\r\n  /peripheral (container)\r\n"
#define PLAIN                                                                                      \
    TREE "    /g (virtio-gpu-pci)\r\n      /virtio-backend (virtio-gpu-device)\r\n"                \
         "        /vfio-x[0] (memory-region)\r\n  /peripheral-anon (container)\r\n"                \
         "    /device[0] (virtio-net-pci)\r\n"

/* What the QEMU says */
static struct says {
    const char *tree, *objects, *network, *jobs, *exports, *blob, *graph; /* NULL: it has no such command, or property */
} says;

static const struct says plain = {
    PLAIN, "/objects (container)\r\n", " \\ u: index=0,type=user\r\n", "[]", "[]", "false", NULL};

static json_t *text_answer(const char *line)
{
    if (!strcmp(line, "info network"))
        return json_string(says.network);
    return json_string(strcmp(line, "info qom-tree") ? says.objects : says.tree);
}

static json_t *answer_to(const char *name, json_t *arguments)
{
    const char *path = json_string_value(json_object_get(arguments, "path"));

    if (!strcmp(name, "query-commands"))
        return json_pack("[{ss}]", "name", "xen-save-devices-state");
    if (!strcmp(name, "query-jobs"))
        return json_loads(says.jobs, 0, NULL);
    if (!strcmp(name, "x-debug-query-block-graph"))
        return says.graph ? json_loads(says.graph, 0, NULL) : NULL;
    if (!strcmp(name, "query-block-exports"))
        return json_loads(says.exports, 0, NULL);
    if (!strcmp(name, "human-monitor-command"))
        return text_answer(json_string_value(json_object_get(arguments, "command-line")));
    if (path)
        assert_non_null(strstr(path, "/machine/peripheral/g"));
    if (!strcmp(name, "qom-list"))
        return json_pack("[{ss}]", "name", says.blob ? "blob" : "edid");
    if (!strcmp(name, "qom-get"))
        return json_loads(says.blob, JSON_DECODE_ANY, NULL);
    return json_object();
}

static int carry(void *opaque, const char *line, int fd, char **answer, struct ff_error *why)
{
    assert_int_equal(fd, -1);
    json_t *m = json_loads(line, 0, NULL);
    json_t *is = answer_to(json_string_value(json_object_get(m, "execute")), json_object_get(m, "arguments"));
    json_t *a = is ? json_pack("{so}", "return", is)
                   : json_pack("{s{ss ss}}", "error", "class", "CommandNotFound", "desc", "The command has not been found");

    (void)opaque;
    (void)why;
    *answer = json_dumps(a, 0);
    json_decref(a);
    json_decref(m);
    return 0;
}

static int check(struct says that, struct ff_error *err)
{
    struct qmp *q = qmp_by(carry, NULL, getpid());

    says = that;
    int rc = movable_check(q, err);
    qmp_free(q);
    return rc;
}

static void assert_refused(struct says that, int code, const char *word)
{
    struct ff_error err;

    assert_fails(check(that, &err), code);
    if (!strstr(err.text, word))
        fail_msg("\"%s\" is not in: %s", word, err.text);
}

static void test_plain(void **unused)
{
    struct says that = plain;
    struct ff_error err;

    (void)unused;
    assert_ok(check(that, &err), err);
    that.blob = NULL; /* a QEMU that has no such property */
    assert_ok(check(that, &err), err);
    that.jobs = "[{\"id\":\"j\",\"type\":\"mirror\",\"status\":\"concluded\"}]";
    assert_ok(check(that, &err), err);
}

static void test_devices(void **unused)
{
    static const char *const types[] = {
        "vfio-pci",        "vhost-user-blk-pci", "vhost-vdpa-device-pci", "vhost-scsi-pci",
        "x-pci-proxy-dev", "ivshmem-doorbell",   "virtio-mem-pci",        "virtio-pmem-pci",
        "hv-balloon"};
    struct says that = plain;
    char tree[400];

    (void)unused;
    for (size_t i = 0; i < FF_ARRAY_LEN(types); i++) {
        snprintf(tree, sizeof(tree), PLAIN "    /device[1] (%s)\r\n", types[i]);
        that.tree = tree;
        assert_refused(that, ENOTSUP, types[i]);
        assert_refused(that, ENOTSUP, "/machine/peripheral-anon/device[1] ");
    }
    that = plain;
    that.objects = "/objects (container)\r\n  /c (cryptodev-vhost-user)\r\n";
    assert_refused(that, ENOTSUP, "/objects/c (cryptodev-vhost-user)");
    that = plain;
    that.blob = "true";
    assert_refused(that, ENOTSUP, "blob=on");
    that = plain;
    that.network = " \\ u: index=0,type=vhost-vdpa\r\n";
    assert_refused(that, ENOTSUP, "type=vhost-vdpa");
    that.network = " \\ u: index=0,type=passt,vhost-user,connected to pid 7\r\n";
    assert_refused(that, ENOTSUP, "vhost-user,connected to pid 7");
}

/* What cannot be read is not permitted */
static void test_unknown(void **unused)
{
    static const char *const trees[] = {"machine (pc)\r\n",     "/machine pc\r\n",
                                        "/machine (pc\r\n",     "/machine(pc)\r\n",
                                        TREE "   /odd (x)\r\n", TREE "      /deep (x)\r\n",
                                        "unknown command\r\n"};
    struct says that = plain;

    (void)unused;
    for (size_t i = 0; i < FF_ARRAY_LEN(trees); i++) {
        that.tree = trees[i];
        assert_refused(that, EPROTO, "not an object");
    }
    that.tree = "";
    assert_refused(that, EPROTO, "no object");
}

/* The device's backend writes to it, an export's does this */
#define GRAPH(perm)                                                                                \
    "{\"nodes\":[{\"id\":1,\"type\":\"block-backend\",\"name\":\"d0\"},{\"id\":2,\"type\":\"block-backend\",\"name\":\"\"}," \
    "{\"id\":3,\"type\":\"block-driver\",\"name\":\"disk\"}],\"edges\":[{\"parent\":1,\"child\":3,\"perm\":[\"write\"]}," \
    "{\"parent\":2,\"child\":3,\"perm\":[\"" perm "\"]}]}"

static void test_disks(void **unused)
{
    struct says that = plain;
    struct ff_error err;

    (void)unused;
    that.jobs = "[{\"id\":\"j\",\"type\":\"mirror\",\"status\":\"running\"}]";
    assert_refused(that, EBUSY, "job 'j' (mirror)");
    that.jobs = "[]";
    that.exports = "[{\"id\":\"e\",\"type\":\"nbd\",\"node-name\":\"disk\"}]";
    assert_refused(that, EBUSY, "export 'e' (nbd) of disk 'disk' may be writable");
    that.graph = GRAPH("write");
    assert_refused(that, EBUSY, "export 'e' (nbd) of disk 'disk' is writable");
    that.graph = "{\"nodes\":[],\"edges\":[]}";
    assert_refused(that, EBUSY, "export 'e' (nbd) of disk 'disk' is writable");
    that.graph = GRAPH("consistent-read");
    assert_ok(check(that, &err), err);
    that.exports = "[{\"id\":\"e\",\"type\":\"nbd\",\"node-name\":\"disk\"},{\"id\":\"f\",\"type\":\"nbd\",\"node-name\":\"x\"}]";
    assert_refused(that, EBUSY, "export 'f' (nbd) of disk 'x'");
}

UNIT_MAIN(cmocka_unit_test(test_plain), cmocka_unit_test(test_devices),
          cmocka_unit_test(test_unknown), cmocka_unit_test(test_disks))
