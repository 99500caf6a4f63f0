/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qemu_opts.c - read and change one argument of a QEMU option: a=b,c=d or JSON
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      change what must differ in a child's command line and nothing else. The text form
 *              is handled as a sequence of parts between single commas, which are copied as they
 *              are; JSON goes through jansson, which keeps the order of its members.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "qemu_opts.h"
#include "error.h"
#include "strv.h"

static bool is_json(const char *s)
{
    return *s == '{';
}

bool qemu_opts_valid(const char *s)
{
    json_t *o = is_json(s) ? json_loads(s, 0, NULL) : NULL;
    bool ok = !is_json(s) || o;

    json_decref(o);
    return ok;
}

/* --- text --- */

struct part {
    const char *at;
    size_t len, key_len; /* key_len == len: no value */
};

/* The part at *@s, which is moved behind it; false: no more */
static bool next_part(const char **s, struct part *p)
{
    const char *c = *s;

    if (!c)
        return false;
    *p = (struct part){.at = c};
    while (*c && (*c != ',' || c[1] == ','))
        c += *c == ',' ? 2 : 1;
    p->len = (size_t)(c - p->at);
    const char *eq = memchr(p->at, '=', p->len);
    p->key_len = eq ? (size_t)(eq - p->at) : p->len;
    *s = *c ? c + 1 : NULL;
    return true;
}

static bool part_is(const struct part *p, const char *key)
{
    return p->key_len == strlen(key) && !strncmp(p->at, key, p->key_len);
}

static char *unescape(const char *s, size_t len)
{
    char *out = xcalloc(len + 1, 1);
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        out[n++] = s[i];
        if (s[i] == ',')
            i++;
    }
    return out;
}

static char *escape(const char *s)
{
    char *out = xcalloc(2 * strlen(s) + 1, 1);
    size_t n = 0;

    for (; *s; s++) {
        out[n++] = *s;
        if (*s == ',')
            out[n++] = ',';
    }
    return out;
}

static void append(char **out, const char *s, size_t len)
{
    char *more = **out ? xprintf("%s,%.*s", *out, (int)len, s) : xprintf("%.*s", (int)len, s);

    free(*out);
    *out = more;
}

static void append_pair(char **out, const char *key, const char *value)
{
    FF_AUTO_FREE char *v = escape(value);
    FF_AUTO_FREE char *pair = *key ? xprintf("%s=%s", key, v) : xstrdup(v);

    append(out, pair, strlen(pair));
}

/* --- JSON --- */

/* The member that @key names; with @parent the object that holds it, and its last name */
static json_t *member(json_t *o, const char *key, json_t **parent, const char **last)
{
    for (;;) {
        json_t *flat = json_object_get(o, key);
        const char *dot = strchr(key, '.');
        if (flat || !dot) {
            if (parent) {
                *parent = o;
                *last = key;
            }
            return flat;
        }
        FF_AUTO_FREE char *name = xprintf("%.*s", (int)(dot - key), key);
        o = json_object_get(o, name);
        if (!json_is_object(o))
            return NULL;
        key = dot + 1;
    }
}

static char *json_text(const json_t *v)
{
    if (json_is_string(v))
        return xstrdup(json_string_value(v));
    if (json_is_boolean(v))
        return xstrdup(json_is_true(v) ? "on" : "off");
    if (json_is_integer(v))
        return xprintf("%lld", (long long)json_integer_value(v));
    return NULL;
}

/* @value, which is taken over, NULL: delete. The new text */
static char *change_json(const char *s, const char *key, json_t *value)
{
    json_t *o = json_loads(s, 0, NULL), *parent = NULL;
    const char *last = NULL;

    if (!o) {
        json_decref(value);
        return xstrdup(s);
    }
    bool there = member(o, key, &parent, &last);
    if (!value && !there) {
        json_decref(o);
        return xstrdup(s);
    }
    if (value)
        json_object_set_new(parent ? parent : o, parent ? last : key, value);
    else
        json_object_del(parent, last);
    char *out = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return out;
}

/* --- both --- */

char *qemu_opts_get(const char *s, const char *key)
{
    struct part p;
    char *found = NULL;

    if (is_json(s)) {
        json_t *o = json_loads(s, 0, NULL);
        found = o ? json_text(member(o, key, NULL, NULL)) : NULL;
        json_decref(o);
        return found;
    }
    while (next_part(&s, &p)) /* the last one counts */
        if (part_is(&p, key)) {
            free(found);
            found = p.key_len == p.len ? xstrdup("on")
                                       : unescape(p.at + p.key_len + 1, p.len - p.key_len - 1);
        }
    return found;
}

char *qemu_opts_get_first(const char *s, const char *implied)
{
    const char *rest = s;
    struct part p;

    if (!is_json(s) && next_part(&rest, &p) && p.key_len == p.len)
        return unescape(p.at, p.len);
    return qemu_opts_get(s, implied);
}

bool qemu_opts_is(const char *s, const char *key)
{
    FF_AUTO_FREE char *v = qemu_opts_get(s, key);

    return v && (!strcmp(v, "on") || !strcmp(v, "yes") || !strcmp(v, "true") || !strcmp(v, "y"));
}

char *qemu_opts_set(const char *s, const char *key, const char *value)
{
    struct part p;
    bool done = false;

    if (is_json(s))
        return change_json(s, key, json_string(value));
    char *out = xstrdup("");
    while (next_part(&s, &p)) {
        if (!part_is(&p, key))
            append(&out, p.at, p.len);
        else if (!done)
            append_pair(&out, key, value);
        done |= part_is(&p, key);
    }
    if (!done)
        append_pair(&out, key, value);
    return out;
}

char *qemu_opts_set_number(const char *s, const char *key, unsigned value)
{
    FF_AUTO_FREE char *text = xprintf("%u", value);

    return is_json(s) ? change_json(s, key, json_integer(value)) : qemu_opts_set(s, key, text);
}

char *qemu_opts_set_first(const char *s, const char *implied, const char *value)
{
    const char *rest = s;
    struct part p;

    if (is_json(s) || !next_part(&rest, &p) || p.key_len != p.len)
        return qemu_opts_set(s, implied, value);
    char *out = xstrdup("");
    append_pair(&out, "", value);
    while (next_part(&rest, &p))
        append(&out, p.at, p.len);
    return out;
}

char *qemu_opts_drop(const char *s, const char *key)
{
    struct part p;

    if (is_json(s))
        return change_json(s, key, NULL);
    char *out = xstrdup("");
    while (next_part(&s, &p))
        if (!part_is(&p, key))
            append(&out, p.at, p.len);
    return out;
}

char *qemu_opts_drop_below(const char *s, const char *key)
{
    size_t n = strlen(key);
    struct part p;

    if (is_json(s))
        return change_json(s, key, NULL);
    char *out = xstrdup("");
    while (next_part(&s, &p))
        if (p.key_len < n || strncmp(p.at, key, n) || (p.key_len > n && p.at[n] != '.'))
            append(&out, p.at, p.len);
    return out;
}

bool qemu_option_is(const char *word, const char *name)
{
    if (*word++ != '-')
        return false;
    return !strcmp(word + (*word == '-'), name);
}

/* Values keep their types */
static char *only_json(const char *s, const char *implied, const char *const *keys)
{
    json_t *all = json_loads(s, 0, NULL), *few = json_object(), *v;

    if ((v = json_object_get(all, implied)))
        json_object_set(few, implied, v);
    for (; *keys; keys++)
        if ((v = json_object_get(all, *keys)))
            json_object_set(few, *keys, v);
    char *out = json_dumps(few, JSON_COMPACT);
    json_decref(all);
    json_decref(few);
    return out;
}

char *qemu_opts_only(const char *s, const char *implied, const char *const *keys)
{
    if (is_json(s))
        return only_json(s, implied, keys);
    FF_AUTO_FREE char *first = qemu_opts_get_first(s, implied);
    char *out = xstrdup(first ? first : "");
    for (; *keys; keys++) {
        FF_AUTO_FREE char *v = qemu_opts_get(s, *keys);
        if (v) {
            char *more = qemu_opts_set(out, *keys, v);
            free(out);
            out = more;
        }
    }
    return out;
}
