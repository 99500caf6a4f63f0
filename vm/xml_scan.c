/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xml_scan.c - the tags of an XML text as libvirt prints one, each with its path
 */
#include "xml_scan.h"

#include <errno.h>
#include <string.h>

#include "xalloc.h"

#define SPACE " \t\r\n"
#define NAME_ENDS SPACE "/>"

static int malformed(const struct xml_scan *s, struct ff_error *err)
{
    return ff_error_set(err, EPROTO, "XML: in %s: it is not well-formed, or too deep (permitted: a path of %u bytes)",
                        *s->path ? s->path : "the text", XML_PATH_MAX);
}

/* Behind its '>', which no quotes have; NULL: none */
static const char *tag_end(const char *at)
{
    char quote = '\0';

    for (; *at; at++)
        if (quote)
            quote = *at == quote ? '\0' : quote;
        else if (*at == '\'' || *at == '"')
            quote = *at;
        else if (*at == '>')
            return at + 1;
    return NULL;
}

/* Behind what is no tag; @at if it is one; NULL: it has no end */
static const char *skip_other(const char *at)
{
    static const char *const other[][2] = {{"<!--", "-->"}, {"<![CDATA[", "]]>"}, {"<?", "?>"}};

    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        if (strncmp(at, other[i][0], strlen(other[i][0])))
            continue;
        const char *end = strstr(at + strlen(other[i][0]), other[i][1]);
        return end ? end + strlen(other[i][1]) : NULL;
    }
    return at;
}

static bool enter(struct xml_scan *s, const char *name, size_t len)
{
    size_t used = strlen(s->path);

    if (!len || used + len + 2 > sizeof(s->path))
        return false;
    s->path[used] = '/';
    memcpy(s->path + used + 1, name, len);
    s->path[used + 1 + len] = '\0';
    return true;
}

int xml_scan_next(struct xml_scan *s, struct ff_error *err)
{
    if (s->drops)
        *strrchr(s->path, '/') = '\0';
    s->drops = false;
    for (const char *next; (s->at = strchr(s->at, '<')) && (next = skip_other(s->at)) != s->at; s->at = next)
        if (!next)
            return malformed(s, err);
    if (!s->at) {
        s->at = "";
        return *s->path ? malformed(s, err) : 0;
    }
    s->begin = s->at;
    s->at = s->end = tag_end(s->begin);
    if (!s->end) {
        s->at = "";
        return malformed(s, err);
    }
    s->opens = s->begin[1] != '/';
    const char *name = s->begin + 1 + !s->opens;
    size_t len = strcspn(name, NAME_ENDS);
    s->closes = !s->opens || s->end[-2] == '/';
    s->drops = s->closes;
    if (s->opens)
        return enter(s, name, len) ? 1 : malformed(s, err);
    const char *last = strrchr(s->path, '/');
    return last && strlen(last + 1) == len && !strncmp(last + 1, name, len) ? 1 : malformed(s, err);
}

bool xml_scan_attribute(const struct xml_scan *s, const char *name, const char **value, size_t *len)
{
    const char *at = s->begin + 1 + strcspn(s->begin + 1, NAME_ENDS);

    for (;;) {
        at += strspn(at, SPACE);
        size_t n = strcspn(at, "=" NAME_ENDS);
        if (!n || at >= s->end)
            return false;
        const char *from = at + n + strspn(at + n, SPACE "=");
        if (*from != '\'' && *from != '"')
            return false;
        const char *to = strchr(from + 1, *from);
        if (!to)
            return false;
        if (strlen(name) == n && !strncmp(at, name, n)) {
            *value = from + 1;
            *len = (size_t)(to - from - 1);
            return true;
        }
        at = to + 1;
    }
}

int xml_element(const char *xml, const char *path, char **out, struct ff_error *err)
{
    struct xml_scan s = {.at = xml};
    const char *begin = NULL;
    int rc;

    *out = NULL;
    while ((rc = xml_scan_next(&s, err)) > 0) {
        if (strcmp(s.path, path))
            continue;
        if (s.opens)
            begin = s.begin;
        if (s.closes) {
            *out = xprintf("%.*s", (int)(s.end - begin), begin);
            return 0;
        }
    }
    return rc;
}
