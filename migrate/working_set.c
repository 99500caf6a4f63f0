/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * working_set.c - see working_set.h
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bitmap.h"
#include "cleanup.h"
#include "error.h"
#include "working_set.h"

struct ff_working_set *ff_working_set_new(void)
{
    struct ff_working_set *s = calloc(1, sizeof(*s)); /* pages that are not used take no memory */

    if (s)
        pthread_mutex_init(&s->lock, NULL);
    return s;
}

void ff_working_set_free(struct ff_working_set *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void ff_working_set_add(struct ff_working_set *s, struct ff_span span)
{
    pthread_mutex_lock(&s->lock);
    struct ff_span *last = s->n ? &s->span[s->n - 1] : NULL;
    if (last && last->region == span.region && last->first + last->n == span.first)
        last->n += span.n;
    else if (s->n < FF_WORKING_SET_MAX)
        s->span[s->n++] = span;
    pthread_mutex_unlock(&s->lock);
}

/* --- from text --- */

static uint64_t units_of(const struct ff_regions *t, uint32_t region)
{
    return t->r[region].len_bytes / FF_WORKING_SET_UNIT;
}

static uint64_t all_units(const struct ff_regions *t)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < t->n; i++)
        n += units_of(t, i);
    return n;
}

/* The region whose name is @text's first @len bytes; t->n: there is none */
static uint32_t find_region(const struct ff_regions *t, const char *text, size_t len)
{
    uint32_t i = 0;

    while (i < t->n && (strlen(t->r[i].name) != len || memcmp(t->r[i].name, text, len)))
        i++;
    return i;
}

/* One number, hexadecimal: without a sign, space or 0x. False: there is none */
static bool get_hex(const char **at, uint64_t *out)
{
    size_t n = strspn(*at, "0123456789abcdef");

    if (!n || n > 15)
        return false;
    *out = strtoull(*at, NULL, 16);
    *at += n;
    return true;
}

static bool get_span(const char **at, struct ff_span *out)
{
    out->n = 1;
    if (!get_hex(at, &out->first))
        return false;
    if (**at != '+')
        return true;
    ++*at;
    return get_hex(at, &out->n) && out->n;
}

int ff_working_set_read(struct ff_working_set *s, const struct ff_regions *t, const char *text,
                        struct ff_error *err)
{
    uint64_t left = all_units(t);

    for (const char *at = text; *at;) {
        size_t len = strcspn(at, "=;");
        struct ff_span span = {.region = find_region(t, at, len)};
        if (!len || at[len] != '=')
            return ff_error_set(err, EINVAL, "working set: want REGION=SPANS at its byte %zu",
                                (size_t)(at - text));
        at += len;
        do {
            at++;
            if (!get_span(&at, &span) || (*at && *at != ',' && *at != ';'))
                return ff_error_set(err, EINVAL, "working set: no span at its byte %zu",
                                    (size_t)(at - text));
            uint64_t units = span.region < t->n ? units_of(t, span.region) : 0;
            if (span.first < units) {
                span.n = FF_MIN(span.n, units - span.first);
                if (span.n > left) /* who looks at each of them would not come to an end */
                    return ff_error_set(err, EINVAL, "working set: more at its byte %zu than there is",
                                        (size_t)(at - text));
                left -= span.n;
                ff_working_set_add(s, span);
            }
        } while (*at == ',');
        at += *at == ';';
    }
    return 0;
}

/* --- as text --- */

struct writer {
    FILE *out;
    const struct ff_regions *t;
    uint64_t *seen[FF_WIRE_REGIONS_MAX]; /* bitmaps of units */
    uint32_t region; /* of what was written last */
};

static void put_span(struct writer *w, struct ff_span s)
{
    if (w->region != s.region)
        fprintf(w->out, "%s%s=", w->region < w->t->n ? ";" : "", w->t->r[s.region].name);
    else
        fputc(',', w->out);
    w->region = s.region;
    fprintf(w->out, s.n == 1 ? "%llx" : "%llx+%llx", (unsigned long long)s.first,
            (unsigned long long)s.n);
}

/* What of @s was not written before: -ENOMEM */
static int put_new(struct writer *w, struct ff_span s)
{
    uint64_t units = units_of(w->t, s.region), end = FF_MIN(s.first + s.n, units);

    if (strpbrk(w->t->r[s.region].name, "=;"))
        return 0;
    if (!w->seen[s.region] && !(w->seen[s.region] = ff_bitmap_new(units)))
        return -ENOMEM;
    uint64_t *seen = w->seen[s.region];
    for (uint64_t i = s.first; i < end;) {
        uint64_t from = i;
        while (i < end && !ff_bitmap_get(seen, i))
            ff_bitmap_set(seen, i++);
        if (i > from)
            put_span(w, (struct ff_span){s.region, from, i - from});
        else
            i++;
    }
    return 0;
}

static int put_all(struct writer *w, const struct ff_working_set *s)
{
    int rc = 0;

    for (unsigned i = 0; !rc && i < s->n; i++)
        rc = put_new(w, s->span[i]);
    return rc;
}

char *ff_working_set_text(const struct ff_working_set *given, struct ff_working_set *touched,
                          const struct ff_regions *t)
{
    char *text = NULL;
    size_t len;
    struct writer w = {.out = open_memstream(&text, &len), .t = t, .region = t->n};

    if (!w.out)
        return NULL;
    int rc = given ? put_all(&w, given) : 0;
    if (!rc && touched) {
        pthread_mutex_lock(&touched->lock);
        rc = put_all(&w, touched);
        pthread_mutex_unlock(&touched->lock);
    }
    rc = fclose(w.out) || rc || !len;
    for (unsigned i = 0; i < t->n; i++)
        free(w.seen[i]);
    if (rc)
        free(text);
    return rc ? NULL : text;
}
