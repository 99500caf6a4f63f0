/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * save_image.c - the beginning of a file that `virsh restore` takes; see save_image.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "save_image.h"
#include "xalloc.h"

#define MAGIC "LibvirtQemudSave"
#define MAGIC_LEN (sizeof(MAGIC) - 1)
#define HEAD_LEN 92u
#define VERSION 2u
#define FORMAT_RAW 0u

static void put_le32(uint8_t **at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        *(*at)++ = (uint8_t)(value >> 8 * i);
}

int save_image_head(const char *xml, const char *cpu, bool running, uint8_t **out, size_t *len_bytes,
                    struct ff_error *err)
{
    FF_AUTO_FREE char *cookie = cpu ? xprintf("<cookie>\n%s\n</cookie>\n", cpu) : NULL;
    const size_t xml_len = strlen(xml) + 1, cookie_len = cookie ? strlen(cookie) + 1 : 0;

    if (xml_len == 1 || xml_len + cookie_len > SAVE_IMAGE_DATA_MAX)
        return ff_error_set(err, EINVAL, "save image: write XML: %zu bytes (permitted 1..%u)", xml_len - 1 + cookie_len,
                            SAVE_IMAGE_DATA_MAX - 1);
    uint8_t *image = calloc(1, HEAD_LEN + xml_len + cookie_len), *at = image + MAGIC_LEN;
    if (!image)
        return ff_error_set(err, ENOMEM, "save image: out of memory");
    memcpy(image, MAGIC, MAGIC_LEN);
    put_le32(&at, VERSION);
    put_le32(&at, (uint32_t)(xml_len + cookie_len));
    put_le32(&at, running);
    put_le32(&at, FORMAT_RAW);
    put_le32(&at, cookie ? (uint32_t)xml_len : 0);
    memcpy(image + HEAD_LEN, xml, xml_len);
    if (cookie)
        memcpy(image + HEAD_LEN + xml_len, cookie, cookie_len);
    *len_bytes = HEAD_LEN + xml_len + cookie_len;
    *out = image;
    return 0;
}
