/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_domain_xml.c - the definition of a child: what is its own, what stays, what it cannot have
 */
#include "unit.h"

#include <jansson.h>

#include "domain_xml.h"
#include "xalloc.h"

static const char parent[] =
    "<domain type='kvm' id='3'>\n  <name>web</name>\n  <uuid>6b0d4f9e-19a1-4c5e-9d35-2f6f0c1d0e01</uuid>\n"
    "  <title>web</title>\n  <devices>\n"
    "    <disk type='block' device='disk'>\n      <driver name='qemu' type='raw' cache='none'/>\n"
    "      <source dev='/dev/vg/a&amp;b' index='1'>\n        <reservations managed='yes'/>\n      </source>\n"
    "      <backingStore type='file'>\n        <source file='/images/base'/>\n        <backingStore/>\n      </backingStore>\n"
    "      <target dev='vda' bus='virtio'/>\n    </disk>\n"
    "    <disk type='file' device='cdrom'><source file='/images/cd.iso'/><target dev='hda'/></disk>\n"
    "    <interface type='network'><mac address='52:54:00:AA:bb:cc'/></interface>\n"
    "    <serial type='file'><source path='/var/log/web'/></serial>\n"
    "    <console type='pty'><source path='/dev/pts/3'/></console>\n"
    "    <graphics type='vnc' port='5900' autoport='no'/>\n%s  </devices>\n</domain>\n";

static const char child[] =
    "<domain type='kvm' id='3'>\n  <name>web&#60;1&#62;</name>\n  <uuid>0e01</uuid>\n"
    "  <title>web</title>\n  <devices>\n"
    "    <disk type='file' device='disk'>\n      <driver name='qemu' type='qcow2' cache='none'/>\n"
    "      <source file='/scratch/1'/>\n"
    "      \n"
    "      <target dev='vda' bus='virtio'/>\n    </disk>\n"
    "    <disk type='file' device='cdrom'><source file='/images/cd.iso'/><target dev='hda'/></disk>\n"
    "    <interface type='network'><mac address='52:54:00:00:00:01'/></interface>\n"
    "    <serial type='file'><source path='/var/log/web-web&#60;1&#62;'/></serial>\n"
    "    <console type='pty'><source path='/dev/pts/3'/></console>\n"
    "    <graphics type='vnc' port='5900' autoport='yes'/>\n  </devices>\n</domain>\n";

static int make_child_of(const char *frozen, const char *empty, const char *more, char **out, struct ff_error *err)
{
    FF_AUTO_FREE char *xml = xprintf(parent, more);
    json_t *disks = json_pack("[{ss ss ss}]", "frozen", frozen, "empty", empty, "overlay", "/scratch/1");
    struct strv macs = {0};

    strv_add(&macs, "52:54:00:aa:bb:cc=52:54:00:00:00:01");
    const struct domain_child c = {.name = "web<1>", .uuid = "0e01", .macs = &macs, .disks = disks};
    int rc = domain_xml_child(xml, &c, out, err);
    strv_free(&macs);
    json_decref(disks);
    return rc;
}

static int make_child(const char *more, char **out, struct ff_error *err)
{
    return make_child_of("/dev/vg/a&b", "", more, out, err);
}

/* Else the child would write to its parent's image */
static void finds_each_disk(void **state)
{
    FF_AUTO_FREE char *xml = NULL, *none = NULL;
    struct ff_error err;

    (void)state;
    assert_fails(make_child_of("/dev/vg/other", "", "", &none, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "/dev/vg/other");
    assert_ok(make_child_of("/images/below", "/images/cd.iso", "", &xml, &err), err);
    assert_non_null(strstr(xml, "<source file='/scratch/1'/>"));
    assert_null(strstr(xml, "/images/cd.iso"));
}

static void own(void **state)
{
    FF_AUTO_FREE char *xml = NULL;
    struct ff_error err;

    (void)state;
    assert_ok(make_child("", &xml, &err), err);
    assert_string_equal(xml, child);
}

static void cannot_have(void **state)
{
    struct ff_error err;
    char *xml;

    (void)state;
    assert_fails(make_child("<tpm model='tpm-crb'/>", &xml, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "TPM");
    assert_fails(make_child("<filesystem type='mount'/>", &xml, &err), ENOTSUP);
    assert_fails(make_child("<serial>", &xml, &err), EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(own), cmocka_unit_test(finds_each_disk), cmocka_unit_test(cannot_have)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
