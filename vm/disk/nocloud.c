/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * nocloud.c - cloud-init's NoCloud data in an image: another instance's
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child that boots anew reads the data from which its parent was made: cloud-init
 *              would find the instance that it knows, and a network for MACs that the child has not.
 *              So a child gets an image of its own, with its instance-id, host name and MACs.
 * Picture      volume descriptors -> root folder -> "meta-data" -> one extent of whole sectors
 *              (one for ISO 9660 with Rock Ridge, one for Joliet: the extents are the same)
 *
 *              The text of a file is changed where it is, and its length in each root folder. A
 *              file has room up to the end of its last sector.
 * Invariants   1. Nothing is read or written beyond the image, whatever it says.
 *              2. All files fit, or none is changed.
 * Limits       ISO 9660, as cloud-localds, virt-install, Proxmox, lima and Multipass make it; no
 *              vfat. YAML is changed as text: keys at the beginning of a line, or of one level in
 *              braces (JSON). Aliases, merges and values of several lines are not understood.
 * Sources      ECMA-119; Joliet; IEEE P1282 (Rock Ridge); cloud-init, DataSourceNoCloud.py
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nocloud.h"
#include "whole_file.h"

#define SECTOR 2048u
#define FIRST_VOLUME 16u
#define VOLUMES 16u /* an image has two or three */
#define NAME_BYTES 32
#define MAC_CHARS 17u
#define FILE_MAX_BYTES (1u << 20) /* one that is larger stays as it is */

struct iso {
    uint8_t *data;
    size_t len;
    uint32_t root[VOLUMES], root_len[VOLUMES]; /* sector, bytes */
    bool joliet[VOLUMES];
    unsigned n;
    bool labelled; /* "cidata" */
};

struct extent {
    uint32_t sector, len;
    bool found;
};

static uint32_t le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ECMA-119 7.3.3: both byte orders */
static void put_both(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> 8 * i);
        p[7 - i] = p[i];
    }
}

static bool inside(const struct iso *iso, uint32_t sector, uint32_t len)
{
    return (uint64_t)sector * SECTOR + len <= iso->len;
}

/* --- volumes --- */

static bool is_label(const uint8_t *p, bool joliet)
{
    static const char want[] = "cidata";
    size_t step = joliet ? 2 : 1;

    for (size_t i = 0; i < 6; i++)
        if (tolower(p[i * step + step - 1]) != want[i])
            return false;
    return p[6 * step + step - 1] == ' ' || !p[6 * step + step - 1];
}

static void read_volumes(struct iso *iso)
{
    for (uint32_t s = FIRST_VOLUME; s < FIRST_VOLUME + VOLUMES && inside(iso, s, SECTOR); s++) {
        const uint8_t *v = iso->data + (size_t)s * SECTOR;
        bool joliet = v[0] == 2 && v[88] == '%' && v[89] == '/';
        if (memcmp(v + 1, "CD001", 5) || v[0] == 255)
            return;
        if ((v[0] != 1 && !joliet) || (v[128] | v[129] << 8) != SECTOR)
            continue;
        iso->root[iso->n] = le32(v + 156 + 2);
        iso->root_len[iso->n] = le32(v + 156 + 10);
        iso->joliet[iso->n] = joliet;
        iso->labelled |= is_label(v + 40, joliet);
        iso->n += inside(iso, iso->root[iso->n], iso->root_len[iso->n]);
    }
}

/* On failure nothing is to be freed */
static int read_iso(const char *path, struct iso *iso, struct ff_error *why)
{
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st = {0};

    *iso = (struct iso){0};
    if (fd < 0 || fstat(fd, &st) < 0)
        return ff_error_set(why, errno, "nocloud: open %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < (FIRST_VOLUME + 1) * SECTOR ||
        st.st_size > NOCLOUD_MAX_BYTES)
        return ff_error_set(why, EINVAL, "nocloud: %s: no file of 34 KiB to 64 MiB", path);
    iso->len = (size_t)st.st_size;
    iso->data = malloc(iso->len);
    int rc = iso->data ? whole_file_read(fd, iso->data, iso->len) : -ENOMEM;
    if (!rc)
        read_volumes(iso);
    if (rc)
        ff_error_set(why, -rc, "nocloud: read %s: %s", path, strerror(-rc));
    else if (!iso->n || !iso->labelled)
        rc = ff_error_set(why, EINVAL,
                          "nocloud: %s: no ISO 9660 image with the volume label cidata", path);
    if (rc)
        free(iso->data);
    return rc;
}

static int write_iso(const char *path, const struct iso *iso, struct ff_error *why)
{
    FF_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = fd < 0 ? -errno : whole_file_write(fd, iso->data, iso->len);

    if (!rc && fsync(fd) < 0)
        rc = -errno;
    return rc ? ff_error_set(why, -rc, "nocloud: write %s: %s", path, strerror(-rc)) : 0;
}

bool nocloud_is(const char *path)
{
    struct iso iso;
    bool is = !read_iso(path, &iso, NULL);

    if (is)
        free(iso.data);
    return is;
}

/* --- files in the root folder --- */

/* Rock Ridge's NM entry among those behind the name; 0: none */
static size_t rock_ridge_name(const uint8_t *r, size_t from, char *out)
{
    for (size_t at = from; at + 5 <= r[0] && r[at + 2] >= 4 && at + r[at + 2] <= r[0];
         at += r[at + 2]) {
        size_t len = r[at + 2] - 5u;
        if (memcmp(r + at, "NM", 2) || r[at + 2] < 5 || len >= NAME_BYTES)
            continue;
        memcpy(out, r + at + 5, len);
        return len;
    }
    return 0;
}

/* Of a directory record, whole and inside the image */
static void name_of(const uint8_t *r, bool joliet, char out[NAME_BYTES])
{
    size_t len = r[32], n = 0;

    memset(out, 0, NAME_BYTES);
    if (33 + len > r[0])
        return;
    if (!joliet && (n = rock_ridge_name(r, 33 + len + !(len & 1), out)))
        return;
    for (size_t i = 0; i < len && n < NAME_BYTES - 1; i++) {
        int c = r[33 + i];
        if (c == ';')
            break;
        if (c && (joliet || c != '.' || i + 1 < len)) /* UCS-2: the high byte is 0 */
            out[n++] = (char)(joliet ? c : c == '_' ? '-' : tolower(c));
    }
    while (n && out[n - 1] == '.')
        out[--n] = '\0';
}

typedef void visit_fn(uint8_t *record, const char *name, void *opaque);

static void each_file(const struct iso *iso, visit_fn *visit, void *opaque)
{
    char name[NAME_BYTES];

    for (unsigned v = 0; v < iso->n; v++) {
        uint8_t *dir = iso->data + (size_t)iso->root[v] * SECTOR;
        for (size_t at = 0; at + 33 <= iso->root_len[v];) {
            uint8_t *r = dir + at;
            size_t left = SECTOR - at % SECTOR;
            if (r[0] < 33 || r[0] > left || at + r[0] > iso->root_len[v]) {
                at += left; /* records do not cross sectors */
                continue;
            }
            name_of(r, iso->joliet[v], name);
            if (!(r[25] & 2)) /* a folder */
                visit(r, name, opaque);
            at += r[0];
        }
    }
}

struct wanted_file {
    const char *name;
    struct extent e;
};

static void see_file(uint8_t *r, const char *name, void *opaque)
{
    struct wanted_file *w = opaque;

    if (w->e.found || strcmp(name, w->name))
        return;
    w->e = (struct extent){.sector = le32(r + 2), .len = le32(r + 10), .found = true};
}

static void set_length(uint8_t *r, const char *name, void *opaque)
{
    const struct extent *e = opaque;

    (void)name;
    if (le32(r + 2) == e->sector)
        put_both(r + 10, e->len);
}

/* --- text --- */

struct text {
    char *s;
    bool flow; /* {"a": "b"} */
};

static void text_replace(struct text *t, size_t at, size_t len, const char *by)
{
    char *all = xprintf("%.*s%s%s", (int)at, t->s, by, t->s + at + len);

    free(t->s);
    t->s = all;
}

/* The value of a key of the first level: where it is, *@len bytes of it; NULL: no such key */
static char *find_value(const struct text *t, const char *key, size_t *len)
{
    size_t n = strlen(key);

    for (char *p = t->s; (p = strstr(p, key)); p += n) {
        char *before = p, *after = p + n;
        bool quoted = p > t->s && (p[-1] == '"' || p[-1] == '\'') && *after == p[-1];
        before -= quoted;
        after += quoted;
        while (t->flow && before > t->s && isspace((unsigned char)before[-1]))
            before--;
        bool begins = t->flow ? before > t->s && strchr("{,", before[-1])
                              : before == t->s || before[-1] == '\n';
        if (!begins || *after != ':')
            continue;
        after += 1 + strspn(after + 1, " \t");
        if (*after == '"' || *after == '\'') {
            const char *end = strchr(after + 1, *after);
            if (!end)
                return NULL;
            *len = (size_t)(end - after - 1);
            return after + 1;
        }
        *len = strcspn(after, t->flow ? ",}\r\n" : "#\r\n");
        while (*len && isspace((unsigned char)after[*len - 1]))
            --*len;
        return after;
    }
    return NULL;
}

static void set_value(struct text *t, const char *key, const char *value, bool add)
{
    size_t len = 0;
    char *at = value ? find_value(t, key, &len) : NULL;

    if (at) {
        text_replace(t, (size_t)(at - t->s), len, value);
    } else if (value && add) {
        size_t end = strlen(t->s);
        FF_AUTO_FREE char *line =
            t->flow ? xprintf("\"%s\": \"%s\", ", key, value)
                    : xprintf("%s%s: %s\n", end && t->s[end - 1] != '\n' ? "\n" : "", key, value);
        text_replace(t, t->flow ? strcspn(t->s, "{") + 1 : end, 0, line);
    }
}

/* Its domain stays */
static void set_fqdn(struct text *t, const char *hostname)
{
    size_t len = 0;
    char *at = hostname ? find_value(t, "fqdn", &len) : NULL;
    const char *dot = at ? memchr(at, '.', len) : NULL;

    if (at)
        text_replace(t, (size_t)(at - t->s), dot ? (size_t)(dot - at) : len, hostname);
}

static void set_macs(struct text *t, const struct strv *macs)
{
    size_t len = strlen(t->s);

    for (char *p = t->s; p + MAC_CHARS <= t->s + len; p++)
        for (size_t i = 0; i < macs->n; i++)
            if (!strncasecmp(p, macs->v[i], MAC_CHARS)) {
                memcpy(p, macs->v[i] + MAC_CHARS + 1, MAC_CHARS);
                break;
            }
}

static char *meta_data(const char *old, const struct nocloud *n)
{
    struct text t = {.s = xstrdup(old), .flow = old[strspn(old, " \t\r\n")] == '{'};

    set_value(&t, "instance-id", n->instance_id, true);
    set_value(&t, "local-hostname", n->hostname, false);
    set_macs(&t, &n->macs);
    return t.s;
}

static char *network_config(const char *old, const struct nocloud *n)
{
    struct text t = {.s = xstrdup(old)};

    set_macs(&t, &n->macs);
    return t.s;
}

static char *user_data(const char *old, const struct nocloud *n)
{
    struct text t = {.s = xstrdup(old)};

    if (!strncmp(old, "#cloud-config", 13) && strchr("\r\n \t", old[13])) { /* no archive of several */
        set_value(&t, "hostname", n->hostname, false);
        set_fqdn(&t, n->hostname);
    }
    return t.s;
}

/* --- all of it --- */

static const struct subject {
    const char *file;
    char *(*change)(const char *old, const struct nocloud *n);
} subjects[] = {{"meta-data", meta_data}, {"network-config", network_config},
                {"user-data", user_data}};
#define SUBJECTS (sizeof(subjects) / sizeof(subjects[0]))

/* *@out: its text from now on; NULL: it stays */
static int plan_file(const struct iso *iso, const struct subject *f, const struct nocloud *n,
                     struct extent *e, char **out, struct ff_error *why)
{
    struct wanted_file w = {.name = f->file};

    each_file(iso, see_file, &w);
    *e = w.e;
    if (!w.e.found || w.e.len > FILE_MAX_BYTES || !inside(iso, w.e.sector, w.e.len))
        return 0;
    FF_AUTO_FREE char *old =
        xprintf("%.*s", (int)w.e.len, (const char *)iso->data + (size_t)w.e.sector * SECTOR);
    if (strlen(old) != w.e.len) /* zeros in it: compressed, perhaps */
        return 0;
    FF_AUTO_FREE char *fresh = f->change(old, n);
    size_t len = strlen(fresh), room = (w.e.len + SECTOR - 1) / SECTOR * SECTOR;
    if (!strcmp(old, fresh))
        return 0;
    if (len > room || !inside(iso, w.e.sector, (uint32_t)room))
        return ff_error_set(why, ENOSPC, "nocloud: %s has %zu bytes then (room for %zu)", f->file,
                            len, room);
    e->len = (uint32_t)len;
    *out = fresh;
    fresh = NULL;
    return 0;
}

static void write_file(const struct iso *iso, struct extent *e, const char *text)
{
    uint8_t *at = iso->data + (size_t)e->sector * SECTOR;
    size_t room = (e->len + SECTOR - 1) / SECTOR * SECTOR;

    memcpy(at, text, e->len);
    memset(at + e->len, 0, room - e->len);
    each_file(iso, set_length, e);
}

/* "address:" or "addresses:", not "macaddress:" nor "mac_address:" */
static bool gives_addresses(const struct iso *iso)
{
    struct wanted_file w = {.name = "network-config"};

    each_file(iso, see_file, &w);
    if (!w.e.found || w.e.len > FILE_MAX_BYTES || !inside(iso, w.e.sector, w.e.len))
        return false;
    FF_AUTO_FREE char *text =
        xprintf("%.*s", (int)w.e.len, (const char *)iso->data + (size_t)w.e.sector * SECTOR);
    for (char *p = text; (p = strstr(p, "address")); p++) {
        bool begins = p == text || (!isalnum((unsigned char)p[-1]) && !strchr("_-", p[-1]));
        if (begins && (!strncmp(p + 7, "es", 2) || strchr(":\"'", p[7])))
            return true;
    }
    return false;
}

int nocloud_change(const char *path, const struct nocloud *n, bool try, bool *addresses,
                   struct ff_error *why)
{
    struct extent e[SUBJECTS];
    char *text[SUBJECTS] = {NULL};
    struct iso iso;
    int rc = nocloud_check(n, why);

    if (!rc)
        rc = read_iso(path, &iso, why);
    if (rc)
        return rc;
    for (size_t i = 0; i < SUBJECTS && !rc; i++)
        rc = plan_file(&iso, &subjects[i], n, &e[i], &text[i], why);
    for (size_t i = 0; i < SUBJECTS; i++) {
        if (!rc && text[i])
            write_file(&iso, &e[i], text[i]);
        free(text[i]);
    }
    if (addresses)
        *addresses = !rc && gives_addresses(&iso);
    if (!rc && !try)
        rc = write_iso(path, &iso, why);
    free(iso.data);
    return rc;
}

static bool is_plain_word(const char *s)
{
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
            return false;
    return *s;
}

/* "OLD=NEW" */
static bool is_mac_pair(const char *s)
{
    for (size_t i = 0; i < 2 * MAC_CHARS + 1; i++) {
        size_t k = i % (MAC_CHARS + 1);
        bool ok = i == MAC_CHARS ? s[i] == '='
                  : k % 3 == 2   ? s[i] == ':'
                                 : isxdigit((unsigned char)s[i]);
        if (!ok)
            return false;
    }
    return !s[2 * MAC_CHARS + 1];
}

int nocloud_check(const struct nocloud *n, struct ff_error *why)
{
    const char *words[] = {n->instance_id, n->hostname};

    for (size_t i = 0; i < 2; i++)
        if (words[i] && !is_plain_word(words[i]))
            return ff_error_set(why, EINVAL,
                                "nocloud: \"%s\": want letters, digits, '.', '_', '-'", words[i]);
    for (size_t i = 0; i < n->macs.n; i++)
        if (!is_mac_pair(n->macs.v[i]))
            return ff_error_set(why, EINVAL, "nocloud: \"%s\": want OLD=NEW, as "
                                "52:54:00:00:00:01=52:54:00:00:00:02", n->macs.v[i]);
    return 0;
}
