/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain_xml.c - the XML of a libvirt domain becomes that of a child of its guest
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      tag after tag (xml_scan.h): what stays is copied as it stands, what is the child's is written instead
 * Invariants   What is not known here stays: libvirt knows it, and refuses what two domains cannot have.
 */
#include "domain_xml.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "autojson.h"
#include "xalloc.h"
#include "xml_scan.h"

#define DISK "/domain/devices/disk"

struct writer {
    const struct domain_child *c;
    FILE *f;
    const char *from;    /* not yet copied */
    const char *overlay; /* of the disk whose element it is in; NULL: it stays */
    bool *used;          /* of @c->disks */
};

/* Up to @to as it was; then @text instead of all before @behind */
static void write_instead(struct writer *w, const char *to, const char *behind, const char *text)
{
    fwrite(w->from, 1, (size_t)(to - w->from), w->f);
    fputs(text, w->f);
    w->from = behind;
}

static char *xml_escaped(const char *text)
{
    char *out = xcalloc(6 * strlen(text) + 1, 1), *to = out;

    for (; *text; text++)
        to += strchr("&<>\"'\n", *text) ? sprintf(to, "&#%d;", *text) : sprintf(to, "%c", *text);
    return out;
}

/* As libvirt escapes it */
static bool is_attribute(const struct xml_scan *s, const char *name, const char *want)
{
    static const char *const entity[][2] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}};
    const char *at, *end;
    size_t len;

    if (!xml_scan_attribute(s, name, &at, &len))
        return false;
    for (end = at + len; at < end; want++) {
        size_t took = 0;
        for (size_t i = 0; i < FF_ARRAY_LEN(entity) && !took; i++)
            if (!strncmp(at, entity[i][0], strlen(entity[i][0])))
                took = *want == *entity[i][1] ? strlen(entity[i][0]) : 0;
        if (!took && *at == *want)
            took = 1;
        if (!took || !*want)
            return false;
        at += took;
    }
    return !*want;
}

static void set_attribute(struct writer *w, const struct xml_scan *s, const char *name, const char *text)
{
    FF_AUTO_FREE char *escaped = xml_escaped(text);
    const char *value;
    size_t len;

    if (xml_scan_attribute(s, name, &value, &len))
        write_instead(w, value, value + len, escaped);
}

/* The whole element, of which @s has the beginning: @text instead */
static int replace_element(struct writer *w, struct xml_scan *s, const char *text, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xstrdup(s->path);
    const char *begin = s->begin;
    int rc = 1;

    while (rc > 0 && !(s->closes && !strcmp(s->path, path)))
        rc = xml_scan_next(s, err);
    write_instead(w, begin, s->end, text);
    return rc < 0 ? rc : 0;
}

/* The overlay of a disk, whose <source> names a file or a device */
static const char *find_overlay(struct writer *w, const struct xml_scan *disk, struct ff_error *err)
{
    struct xml_scan s = *disk;

    for (int rc = 1; rc > 0 && !(s.closes && !strcmp(s.path, DISK)); rc = xml_scan_next(&s, err)) {
        const json_t *d;
        size_t i;

        if (strcmp(s.path, DISK "/source") || !s.opens)
            continue;
        json_array_foreach(w->c->disks, i, d) {
            const char *frozen = text_of(d, "frozen"), *empty = text_of(d, "empty"); /* an overlay of it that the parent has */
            if (!is_attribute(&s, "file", frozen) && !is_attribute(&s, "dev", frozen) &&
                !(*empty && is_attribute(&s, "file", empty)))
                continue;
            w->used[i] = true;
            return text_of(d, "overlay");
        }
    }
    return NULL;
}

static int write_disk(struct writer *w, struct xml_scan *s, struct ff_error *err)
{
    if (!strcmp(s->path, DISK)) {
        w->overlay = s->opens ? find_overlay(w, s, err) : NULL;
        if (w->overlay)
            set_attribute(w, s, "type", "file");
        return 0;
    }
    if (!w->overlay || !s->opens)
        return 0;
    if (!strcmp(s->path, DISK "/driver"))
        set_attribute(w, s, "type", "qcow2");
    if (!strcmp(s->path, DISK "/backingStore") || !strcmp(s->path, DISK "/mirror"))
        return replace_element(w, s, "", err);
    if (strcmp(s->path, DISK "/source"))
        return 0;
    FF_AUTO_FREE char *file = xml_escaped(w->overlay), *source = xprintf("<source file='%s'/>", file);
    return replace_element(w, s, source, err);
}

static void write_mac(struct writer *w, const struct xml_scan *s)
{
    const char *value;
    size_t len;

    if (!xml_scan_attribute(s, "address", &value, &len))
        return;
    for (size_t i = 0; i < w->c->macs->n; i++) {
        const char *pair = w->c->macs->v[i], *is = strchr(pair, '=');
        if (is && (size_t)(is - pair) == len && !strncasecmp(pair, value, len)) {
            write_instead(w, value, value + len, is + 1);
            return;
        }
    }
}

/* Of a character device: what its parent has open there */
static void write_path(struct writer *w, const struct xml_scan *s)
{
    FF_AUTO_FREE char *name = xml_escaped(w->c->name), *more = xprintf("-%s", name);
    const char *value;
    size_t len;

    if (xml_scan_attribute(s, "path", &value, &len) && len && strncmp(value, "/dev/", 5))
        write_instead(w, value + len, value + len, more);
}

static bool is_character_source(const char *path)
{
    static const char *const devices[] = {"serial", "parallel", "console", "channel"};

    for (size_t i = 0; i < FF_ARRAY_LEN(devices); i++) {
        FF_AUTO_FREE char *source = xprintf("/domain/devices/%s/source", devices[i]);
        if (!strcmp(path, source))
            return true;
    }
    return false;
}

static int check_ownable(const struct xml_scan *s, struct ff_error *err)
{
    static const char *const shared[][2] = {{"/domain/os/nvram", "an NVRAM file"},
                                            {"/domain/devices/tpm", "a TPM"},
                                            {"/domain/devices/filesystem", "a file system of the host's"},
                                            {"/domain/devices/hostdev", "a device of the host's"}};

    for (size_t i = 0; i < FF_ARRAY_LEN(shared); i++)
        if (!strcmp(s->path, shared[i][0]))
            return ff_error_set(err, ENOTSUP, "the domain has %s, which a child would share with it: fork one without", shared[i][1]);
    return 0;
}

/* The text of an element without others in it */
static int write_element_text(struct writer *w, struct xml_scan *s, const char *text, struct ff_error *err)
{
    FF_AUTO_FREE char *escaped = xml_escaped(text), *name = xstrdup(strrchr(s->path, '/') + 1);
    FF_AUTO_FREE char *whole = xprintf("<%s>%s</%s>", name, escaped, name);

    return replace_element(w, s, whole, err);
}

static int write_tag(struct writer *w, struct xml_scan *s, struct ff_error *err)
{
    int rc = check_ownable(s, err);

    if (rc)
        return rc;
    if (!strncmp(s->path, DISK, strlen(DISK)) && (!s->path[strlen(DISK)] || s->path[strlen(DISK)] == '/'))
        return write_disk(w, s, err);
    if (!s->opens)
        return 0;
    if (!strcmp(s->path, "/domain/name"))
        return write_element_text(w, s, w->c->name, err);
    if (!strcmp(s->path, "/domain/uuid"))
        return write_element_text(w, s, w->c->uuid, err);
    if (!strcmp(s->path, "/domain/devices/interface/mac"))
        write_mac(w, s);
    if (!strcmp(s->path, "/domain/devices/graphics") && xml_scan_attribute(s, "autoport", &(const char *){NULL}, &(size_t){0}))
        set_attribute(w, s, "autoport", "yes");
    if (is_character_source(s->path))
        write_path(w, s);
    return 0;
}

/* Else the child would write to an image of its parent's */
static int check_used(const struct writer *w, struct ff_error *err)
{
    const json_t *d;
    size_t i;

    json_array_foreach(w->c->disks, i, d)
        if (!w->used[i])
            return ff_error_set(err, ENOTSUP, "the domain has the disk %s, and its XML no <source file> or <source dev> of that "
                                "name, in whose place a child could have an overlay", text_of(d, "frozen"));
    return 0;
}

int domain_xml_child(const char *xml, const struct domain_child *c, char **out, struct ff_error *err)
{
    struct xml_scan s = {.at = xml};
    char *text = NULL;
    size_t len = 0;
    FF_AUTO_FREE bool *used = xcalloc(json_array_size(c->disks) + 1, sizeof(*used));
    struct writer w = {.c = c, .f = open_memstream(&text, &len), .from = xml, .used = used};
    int rc = w.f ? 1 : ff_error_set(err, ENOMEM, "domain: out of memory");

    while (rc > 0 && (rc = xml_scan_next(&s, err)) > 0) {
        rc = write_tag(&w, &s, err);
        rc = rc ? rc : 1;
    }
    rc = rc ? rc : check_used(&w, err);
    if (w.f) {
        fputs(w.from, w.f);
        if (fclose(w.f) && !rc)
            rc = ff_error_set(err, ENOMEM, "domain: out of memory");
    }
    if (rc) {
        free(text);
        return rc;
    }
    *out = text;
    return 0;
}
