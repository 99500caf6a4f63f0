/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_save_image.c - the beginning of a save image, read back as libvirt reads it; what is refused
 */
#include "save_image.h"
#include "unit.h"

#define XML "<domain type='kvm'>\n  <name>web</name>\n</domain>\n"
#define CPU "<cpu mode='custom' match='exact' check='full'/>"

/* As libvirt declares it, on a little-endian host */
struct header {
    char magic[16];
    uint32_t version, data_len, was_running, format, cookie_offset, unused[14];
};

static struct ff_error err;

/* What libvirt takes for the XML and for the cookie: strings to their zero bytes; @rest: what it leaves to QEMU */
static void read_back(const uint8_t *image, size_t len, struct header *h, const char **xml, const char **cookie,
                      size_t *rest)
{
    static const uint32_t zeros[14];

    assert_true(len >= sizeof(*h));
    memcpy(h, image, sizeof(*h));
    assert_memory_equal(h->magic, "LibvirtQemudSave", 16);
    assert_memory_equal(h->unused, zeros, sizeof(zeros));
    assert_true(h->version == 2 && h->format == 0 && h->data_len > 0);
    *xml = (const char *)image + sizeof(*h);
    size_t xml_len = h->cookie_offset ? h->cookie_offset : h->data_len;
    assert_true(xml_len <= h->data_len && len - sizeof(*h) >= h->data_len);
    assert_int_equal((*xml)[xml_len - 1], 0);
    *cookie = xml_len < h->data_len ? *xml + xml_len : NULL;
    if (*cookie)
        assert_int_equal((*cookie)[h->data_len - xml_len - 1], 0);
    *rest = len - sizeof(*h) - h->data_len;
}

static void test_layout(void **unused)
{
    const char *xml, *cookie;
    struct header h;
    uint8_t *image;
    size_t len, rest;

    (void)unused;
    assert_int_equal(sizeof(h), 92);
    assert_ok(save_image_head(XML, NULL, true, &image, &len, &err), err);
    read_back(image, len, &h, &xml, &cookie, &rest);
    assert_string_equal(xml, XML);
    assert_null(cookie);
    assert_int_equal(rest, 0);
    assert_int_equal(h.was_running, 1);
    assert_int_equal(h.cookie_offset, 0);
    free(image);
}

static void test_cookie(void **unused)
{
    const char *xml, *cookie;
    struct header h;
    uint8_t *image;
    size_t len, rest;

    (void)unused;
    assert_ok(save_image_head(XML, CPU, false, &image, &len, &err), err);
    read_back(image, len, &h, &xml, &cookie, &rest);
    assert_string_equal(xml, XML);
    assert_string_equal(cookie, "<cookie>\n" CPU "\n</cookie>\n");
    assert_int_equal(rest, 0);
    assert_int_equal(h.was_running, 0);
    free(image);
}

static void test_refused(void **unused)
{
    char *huge = malloc(SAVE_IMAGE_DATA_MAX + 1);
    uint8_t *image = NULL;
    size_t len;

    (void)unused;
    assert_fails(save_image_head("", NULL, true, &image, &len, &err), EINVAL);
    assert_error(err, EINVAL, "save image", "permitted 1..");
    memset(huge, 'x', SAVE_IMAGE_DATA_MAX);
    huge[SAVE_IMAGE_DATA_MAX] = '\0';
    assert_fails(save_image_head(huge, NULL, true, &image, &len, &err), EINVAL);
    huge[SAVE_IMAGE_DATA_MAX - 1] = '\0';
    assert_fails(save_image_head(huge, CPU, true, &image, &len, &err), EINVAL);
    assert_ok(save_image_head(huge, NULL, true, &image, &len, &err), err);
    free(image);
    free(huge);
}

UNIT_MAIN(cmocka_unit_test(test_layout), cmocka_unit_test(test_cookie), cmocka_unit_test(test_refused))
