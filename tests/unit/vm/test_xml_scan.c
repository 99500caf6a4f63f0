/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_xml_scan.c - tags, paths and attributes of XML, and texts that are none
 */
#include "unit.h"

#include "xml_scan.h"

static const char domain[] = "<?xml version='1.0'?>\n<!-- <cpu>none</cpu> -->\n<domain type='kvm' id=\"3\">\n"
                             "  <metadata><![CDATA[<cpu>]]><x:cpu xmlns:x='a > b'/></metadata>\n"
                             "  <cpu mode='custom' match='exact'>\n    <model fallback='forbid'>qemu64</model>\n"
                             "    <feature policy='require' name='>svm'/>\n  </cpu>\n"
                             "  <devices><cpu/><disk type='file'/></devices>\n</domain>\n";

static void elements(void **state)
{
    FF_AUTO_FREE char *cpu = NULL, *disk = NULL, *none = NULL;
    struct ff_error err;

    (void)state;
    assert_ok(xml_element(domain, "/domain/cpu", &cpu, &err), err);
    assert_true(!strncmp(cpu, "<cpu mode='custom'", 18) && !strcmp(cpu + strlen(cpu) - 9, "/>\n  </cpu>" + 2));
    assert_ok(xml_element(domain, "/domain/devices/disk", &disk, &err), err);
    assert_string_equal(disk, "<disk type='file'/>");
    assert_ok(xml_element(domain, "/domain/genid", &none, &err), err);
    assert_null(none);
}

static void attributes(void **state)
{
    struct xml_scan s = {.at = domain};
    struct ff_error err;
    const char *value;
    size_t len;

    (void)state;
    assert_int_equal(xml_scan_next(&s, &err), 1);
    assert_string_equal(s.path, "/domain");
    assert_true(xml_scan_attribute(&s, "id", &value, &len) && len == 1 && *value == '3');
    assert_true(xml_scan_attribute(&s, "type", &value, &len) && len == 3 && !strncmp(value, "kvm", 3));
    assert_false(xml_scan_attribute(&s, "typ", &value, &len));
    while (strcmp(s.path, "/domain/cpu/feature"))
        assert_int_equal(xml_scan_next(&s, &err), 1);
    assert_true(s.opens && s.closes);
    assert_true(xml_scan_attribute(&s, "name", &value, &len) && !strncmp(value, ">svm", len));
}

static void malformed(void **state)
{
    static const char *const bad[] = {"<a>", "<a></b>", "</a>", "<a b='", "<a><!-- </a>", "<>", "<a><b></a></b>", "<"};
    struct ff_error err;
    char deep[4096] = "";
    char *none;

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        assert_fails(xml_element(bad[i], "/x", &none, &err), EPROTO);
    for (int i = 0; i < 300; i++)
        strcat(deep, "<ab>");
    assert_fails(xml_element(deep, "/x", &none, &err), EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements), cmocka_unit_test(attributes), cmocka_unit_test(malformed)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
