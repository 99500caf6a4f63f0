/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * images.c - names of images, their chains, and overlays upon them
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the backing chain of an image as its headers have it, which is what a child opens.
 *              QEMU in the parent may have been told otherwise; then it is refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "disks_private.h"
#include "qcow2_header.h"

bool image_has_protocol(const char *name)
{
    const char *colon = strchr(name, ':'), *slash = strchr(name, '/');

    return colon && (!slash || colon < slash);
}

/* QEMU names the default port, and an IPv6 address without brackets, which it does not take */
static char *nbd_url(const char *name)
{
    const char *at = name + strlen("nbd://"), *path = at + strcspn(at, "/");
    FF_AUTO_FREE char *host = xprintf("%.*s", (int)(path - at), at);
    char *port = strrchr(host, ':');
    bool bare = port && port != strchr(host, ':') && *host != '[';

    if (port && strchr(port, ']'))
        port = NULL;
    if (port)
        *port++ = '\0';
    if (!port || !strcmp(port, NBD_PORT))
        port = "";
    return xprintf("nbd://%s%s%s%s%s%s", bare ? "[" : "", host, bare ? "]" : "", *port ? ":" : "",
                   port, path);
}

char *image_absolute(const char *cwd, const char *name)
{
    if (!strncmp(name, "nbd://", 6))
        return nbd_url(name);
    if (!strncmp(name, "file:", 5))
        name += 5;
    if (*name == '/' || image_has_protocol(name))
        return xstrdup(name);
    while (!strncmp(name, "./", 2))
        name += 2;
    return xprintf("%s/%s", cwd, name);
}

const json_t *image_backing(const json_t *image)
{
    return json_object_get(image, "backing-image");
}

const char *image_format(const char *driver)
{
    return !strcmp(driver, "file") || !strcmp(driver, "host_device") ? "raw" : driver;
}

bool image_same_file(const char *cwd, const char *a, const char *b)
{
    FF_AUTO_FREE char *x = image_absolute(cwd, a), *y = image_absolute(cwd, b);

    if (!strcmp(x, y))
        return true;
    FF_AUTO_FREE char *real_x = realpath(x, NULL), *real_y = realpath(y, NULL);
    return real_x && real_y && !strcmp(real_x, real_y);
}

/* A child has what the header says, or what the file looks like; the parent may have been told */
static int check_backing_format(const char *cwd, const char *name, const json_t *image,
                                struct ff_error *why)
{
    const json_t *next = image_backing(image);
    const char *header = text_of(image, "backing-filename-format"),
               *has = image_format(text_of(next, "format"));
    FF_AUTO_FREE char *path = image_absolute(cwd, text_of(next, "filename"));

    if (!*header && !strcmp(has, "raw") && qcow2_is(path))
        header = "qcow2";
    if (!*header || !*has || !strcmp(header, has))
        return 0;
    return ff_error_set(
        why, ENOTSUP,
        "disk %s: %s: the parent opened its backing file %s as %s, but its header names the "
        "format %s; make them agree, with the parent stopped: qemu-img rebase -u -b %s -F %s %s",
        name, text_of(image, "filename"), text_of(next, "filename"), has, header,
        text_of(next, "filename"), has, text_of(image, "filename"));
}

int image_check_chain(const char *cwd, const char *name, const json_t *image, struct ff_error *why)
{
    for (; image; image = image_backing(image)) {
        const json_t *next = image_backing(image);
        const char *file = text_of(image, "filename"),
                   *header = text_of(image, "full-backing-filename");

        if (!*header)
            header = text_of(image, "backing-filename");
        if (json_is_true(json_object_get(image, "encrypted")))
            return ff_error_set(why, ENOTSUP,
                                "disk %s: %s is encrypted: its key would be missing where it is "
                                "opened anew",
                                name, file);
        if (!next && !*header)
            continue;
        if (!next)
            return ff_error_set(why, ENOTSUP,
                          "disk %s: %s: the parent runs without the backing file %s that its "
                          "header names; write the header anew: qemu-img rebase -u -b ''",
                          name, file, header);
        if (!*header || !image_same_file(cwd, header, text_of(next, "filename")))
            return ff_error_set(why, ENOTSUP,
                          "disk %s: %s: its header names backing file \"%s\", the parent has "
                          "\"%s\" there; make them agree: qemu-img rebase -u -b FILE -F FORMAT",
                          name, file, header, text_of(next, "filename"));
        int rc = check_backing_format(cwd, name, image, why);
        if (rc)
            return rc;
    }
    return 0;
}

json_t *disk_create_overlay(const char *backing, const char *format, const char *file,
                            json_int_t size)
{
    FF_AUTO_FREE char *bytes = xprintf("%lld", (long long)size);

    return json_pack("{s:[s,s,s,s,s,s,s,s,s,s,s,s]}", "argv", "qemu-img", "create", "-q", "-u",
                     "-f", "qcow2", "-F", format, "-b", backing, file, bytes);
}

static json_t *cache_of(const struct disk *disk)
{
    return json_pack("{s:b,s:b}", "direct", disk->direct, "no-flush", disk->no_flush);
}

json_t *disk_overlay_node(const struct disk *disk, const char *node, const char *file)
{
    json_t *protocol =
        json_pack("{s:s,s:s,s:o}", "driver", "file", "filename", file, "cache", cache_of(disk));
    json_t *j =
        json_pack("{s:s,s:s,s:s,s:o,s:o}", "driver", "qcow2", "node-name", node, "detect-zeroes",
                  disk->detect_zeroes, "cache", cache_of(disk), "file", protocol);

    if (!disk->writable)
        json_object_set_new(j, "read-only", json_true());
    if (disk->aio)
        json_object_set_new(protocol, "aio", json_string(disk->aio));
    if (disk->discard) {
        json_object_set_new(protocol, "discard", json_string(disk->discard));
        json_object_set_new(j, "discard", json_string(disk->discard));
    }
    return j;
}
