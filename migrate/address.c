/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * address.c - "HOST:PORT[,option=value...]" or "unix[,...]" taken apart
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "address.h"
#include "cleanup.h"
#include "error.h"
#include "farfork-return.h"
#include "key.h"

/* 15 s: several lost packets and a retransmission timeout of seconds pass; a dead peer is
 * noticed before an operator gives up. Chunks of 2 MiB: few enough requests to keep a link busy,
 * little enough that the landing buffers of a window stay in the cache's reach. 300 s for another
 * link: a switch restarts, or an operator moves a cable. A lease of 30 s: shorter outages do not
 * stop the guest. */
static const struct ff_address defaults = {
    .timeout_ms = 15000,
    .pause_ms = 45000,
    .reconnect_ms = 300000,
    .lease_ms = 30000,
    .chunk_bytes = 2u << 20,
    .qps = 1,
    .landing = FF_LANDING_AUTO,
    .prefill = FF_PREFILL_AUTO,
    .prealloc = true,
};

#define BUDGET_MAX (1ul << 44) /* more than a guest has */
#define DEVICE_NAME_MAX 63 /* IBV_SYSFS_NAME_MAX without its end */
#define DEVICE_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

static int get_number(const char *name, const char *text, unsigned long min, unsigned long max,
                      unsigned long unit, unsigned long *out, struct ff_error *err)
{
    char *end;

    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    bool fits = !errno && v <= max; /* asked before a suffix makes it wrap */
    if (unit > 1 && (*end == 'K' || *end == 'k'))
        v <<= 10, end++;
    else if (unit > 1 && (*end == 'M' || *end == 'm'))
        v <<= 20, end++;
    if (!isdigit((unsigned char)*text) || *end || !fits || v < min || v > max)
        return ff_error_set(err, EINVAL, "address: %s=%s: want a number, %lu..%lu%s", name, text,
                            min, max, unit > 1 ? " bytes (suffix K or M)" : "");
    *out = v;
    return 0;
}

static int get_switch(const char *name, const char *value, bool *out, struct ff_error *err)
{
    unsigned long v;

    int rc = get_number(name, value, 0, 1, 1, &v, err);
    if (!rc)
        *out = v;
    return rc;
}

/* @k instead of the key that @a has */
static void use_key(struct ff_address *a, struct ff_key *k)
{
    ff_key_unref(a->key);
    a->key = k;
}

static int check_takes_key(const struct ff_address *a, struct ff_error *err)
{
    return a->passed ? ff_error_set(err, EINVAL, "address: unix with a key: there is no address, "
                                    "and no stranger: an agent's socket passes connections of this "
                                    "host") : 0;
}

static int load_key(struct ff_address *a, const char *path, struct ff_error *err)
{
    struct ff_key *k;
    int rc = check_takes_key(a, err);

    if (!rc)
        rc = ff_key_load(path, &k, err);
    if (!rc)
        use_key(a, k);
    return rc;
}

/* "NAME" or "NAME:PORT" */
static int set_device(struct ff_address *a, const char *value, struct ff_error *err)
{
    const char *colon = strchr(value, ':');
    size_t len = colon ? (size_t)(colon - value) : strlen(value);
    unsigned long port;

    if (!len || len > DEVICE_NAME_MAX || strspn(value, DEVICE_CHARS) < len)
        return ff_error_set(err, EINVAL,
                            "address: device=%s: want NAME or NAME:PORT, as rdma link shows them",
                            value);
    if (colon) {
        int rc = get_number("device=NAME:PORT", colon + 1, 1, 255, 1, &port, err);
        if (rc)
            return rc;
    }
    snprintf(a->device, sizeof(a->device), "%s", value);
    return 0;
}

/* "NUMBER" for all, or "FAULT:PREFILL" */
static int set_tos(struct ff_address *a, const char *value, struct ff_error *err)
{
    const char *colon = strchr(value, ':');
    char first[16];
    unsigned long fault, prefill;

    snprintf(first, sizeof(first), "%.*s", colon ? (int)(colon - value) : -1, value);
    int rc = get_number("tos", first, 0, 255, 1, &fault, err);
    if (!rc)
        rc = get_number("tos", colon ? colon + 1 : first, 0, 255, 1, &prefill, err);
    if (!rc)
        a->tos = (struct ff_tos){.set = true, .of = {[FF_QUEUE_FAULT] = (uint8_t)fault,
                                                     [FF_QUEUE_PREFILL] = (uint8_t)prefill}};
    return rc;
}

static int set_until_go(struct ff_address *a, const char *value, struct ff_error *err)
{
    if (!*value || strlen(value) >= sizeof(a->until_go))
        return ff_error_set(err, EINVAL, "address: until-go=%s: want the path of a file, of at "
                            "most %zu bytes", value, sizeof(a->until_go) - 1);
    snprintf(a->until_go, sizeof(a->until_go), "%s", value);
    return 0;
}

/* After GO a guest whose link is not followed by another is lost with it: be patient with a host
 * that stalls */
#define GO_PATIENCE 8

/* The number of @value among @words, which ends with NULL */
static int get_word(const char *name, const char *value, const char *const *words, unsigned *out,
                    struct ff_error *err)
{
    char all[80] = "";

    for (unsigned i = 0; words[i]; i++) {
        if (!strcmp(value, words[i])) {
            *out = i;
            return 0;
        }
        size_t used = strlen(all);
        snprintf(all + used, sizeof(all) - used, "%s%s", !i ? "" : words[i + 1] ? ", " : " or ",
                 words[i]);
    }
    return ff_error_set(err, EINVAL, "address: %s=%s: want %s", name, value, all);
}

static int set_path(char *to, size_t size, const char *name, const char *value,
                    struct ff_error *err)
{
    if (*value != '/' || strlen(value) >= size)
        return ff_error_set(err, EINVAL, "address: %s=%s: want an absolute path (at most %zu bytes)",
                            name, value, size - 1);
    snprintf(to, size, "%s", value);
    return 0;
}

/* -ENOENT: @name is none of these */
static int set_fallback(struct ff_address *a, const char *name, const char *value,
                        struct ff_error *err)
{
    static const char *const fallbacks[] = {"off", "go", NULL};
    static const char *const outputs[] = {"pass", "hold", NULL};
    unsigned long v;
    unsigned w;
    int rc;

    if (!strcmp(name, "fence"))
        return set_path(a->fence, sizeof(a->fence), name, value, err);
    if (!strcmp(name, "record"))
        return set_path(a->record, sizeof(a->record), name, value, err);
    if (!strcmp(name, "fallback")) {
        rc = get_word(name, value, fallbacks, &w, err);
        if (!rc)
            a->fallback = w;
        a->gives_up = !rc && !w;
        return rc;
    }
    if (!strcmp(name, "output")) {
        rc = get_word(name, value, outputs, &w, err);
        if (!rc)
            a->holds_output = w;
        return rc;
    }
    if (strcmp(name, "lease"))
        return -ENOENT;
    rc = get_number(name, value, 1, 3600, 1, &v, err);
    if (!rc)
        a->lease_ms = (int)v * 1000;
    return rc;
}

/* Without a fence the destination may run when the source does */
static int check_fallback(const struct ff_address *a, struct ff_error *err)
{
    if (a->fallback && (!*a->fence || !*a->record))
        return ff_error_set(err, EINVAL,
                            "address: fallback=go: want fence=PROGRAM, which ends the destination, "
                            "and record=FILE on a disk that outlives this host's restart");
    if (!a->fallback && (*a->fence || *a->record))
        return ff_error_set(err, EINVAL, "address: fence= and record= are for fallback=go");
    if (!a->fallback && a->holds_output)
        return ff_error_set(err, EINVAL, "address: output=hold is for fallback=go: any other source "
                            "never takes back what its guest has sent");
    return 0;
}

/* What has not been touched stays where the guest goes back to */
static int settle_visit(struct ff_address *a, struct ff_error *err)
{
    bool is_off = a->chose_prefill && a->prefill == FF_PREFILL_OFF;

    if (a->budget_bytes && (!a->visit || is_off))
        return ff_error_set(err, EINVAL, "address: budget= is for visit=on, with prefill: any other guest gets "
                            "all of its memory, or what it touches");
    if (a->visit && a->chose_prefill && !is_off && !a->budget_bytes)
        return ff_error_set(err, EINVAL, "address: visit=on: want budget=SIZE, or prefill=off, or none: a guest "
                            "that is to return gets what it touches");
    if (a->visit && a->precopy)
        return ff_error_set(err, EINVAL, "address: visit=on with precopy=1: a guest that is to return gets "
                            "what it touches");
    if (a->visit && !a->budget_bytes)
        a->prefill = FF_PREFILL_OFF;
    return 0;
}

static int set_option(struct ff_address *a, const char *name, const char *value,
                      struct ff_error *err)
{
    /* in the order of their enums */
    static const char *const links[] = {"auto", "tcp", "verbs", NULL};
    static const char *const landings[] = {"auto", "copy", "continue", "move", NULL};
    static const char *const prefills[] = {"off", "pull", "push", "auto", NULL};
    static const char *const odps[] = {"auto", "on", "off", NULL};
    static const char *const switches[] = {"off", "on", NULL};
    unsigned long v;
    unsigned w;
    int rc = 0;

    if (!strcmp(name, "link")) {
        rc = get_word(name, value, links, &w, err);
        if (!rc)
            a->link = (enum ff_link_kind)w;
    } else if (!strcmp(name, "device")) {
        rc = set_device(a, value, err);
    } else if (!strcmp(name, "qps")) {
        rc = get_number(name, value, 1, 8, 1, &v, err);
        if (!rc)
            a->qps = (unsigned)v;
    } else if (!strcmp(name, "tos")) {
        rc = set_tos(a, value, err);
    } else if (!strcmp(name, "timeout")) {
        rc = get_number(name, value, 1, 3600, 1, &v, err);
        if (!rc)
            a->timeout_ms = (int)v * 1000;
    } else if (!strcmp(name, "reconnect")) {
        rc = get_number(name, value, 0, 86400, 1, &v, err);
        if (!rc)
            a->reconnect_ms = (int)v * 1000;
    } else if (!strcmp(name, "chunk")) {
        rc = get_number(name, value, 4096, 4u << 20, 1024, &v, err);
        if (!rc && (v & (v - 1)))
            rc = ff_error_set(err, EINVAL, "address: chunk=%s: want a power of two", value);
        if (!rc)
            a->chunk_bytes = (uint32_t)v;
    } else if (!strcmp(name, "window")) {
        rc = get_number(name, value, 1, 32, 1, &v, err);
        if (!rc)
            a->window = (unsigned)v;
    } else if (!strcmp(name, "landing")) {
        rc = get_word(name, value, landings, &w, err);
        if (!rc)
            a->landing = (enum ff_landing_choice)w;
    } else if (!strcmp(name, "prefill")) {
        rc = get_word(name, value, prefills, &w, err);
        if (!rc)
            a->prefill = (enum ff_prefill_mode)w;
        a->chose_prefill = true;
    } else if (!strcmp(name, "odp")) {
        rc = get_word(name, value, odps, &w, err);
        if (!rc)
            a->odp = (enum ff_odp_choice)w;
    } else if (!strcmp(name, "precopy")) {
        rc = get_switch(name, value, &a->precopy, err);
    } else if (!strcmp(name, "visit")) {
        rc = get_word(name, value, switches, &w, err);
        if (!rc)
            a->visit = w;
    } else if (!strcmp(name, "budget")) {
        rc = get_number(name, value, 4096, BUDGET_MAX, 1024, &v, err);
        if (!rc)
            a->budget_bytes = v;
    } else if (!strcmp(name, "prealloc")) {
        rc = get_switch(name, value, &a->prealloc, err);
    } else if (!strcmp(name, "until-go")) {
        rc = set_until_go(a, value, err);
    } else if (!strcmp(name, "key-file")) {
        rc = load_key(a, value, err);
    } else if (!strcmp(name, "insecure")) {
        rc = get_word(name, value, switches, &w, err);
        if (!rc)
            a->insecure = w;
    } else if (!strcmp(name, "verify")) {
        rc = get_word(name, value, switches, &w, err);
        if (!rc)
            a->verify = w;
    } else if (!strcmp(name, "multicast")) {
        rc = ff_group_at_parse(value, &a->group, err);
    } else if ((rc = set_fallback(a, name, value, err)) == -ENOENT) {
        rc = ff_error_set(err, EINVAL,
                          "address: no such option: %s (there are link, device, qps, tos, timeout, "
                          "reconnect, chunk, window, landing, prefill, odp, precopy, visit, "
                          "budget, prealloc, key-file, insecure, verify, until-go, multicast, "
                          "fallback, lease, fence, record, output)",
                          name);
    }
    return rc;
}

static int set_options(struct ff_address *a, char *text, struct ff_error *err)
{
    char *save = NULL;

    for (char *o = strtok_r(text, ",", &save); o; o = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(o, '=');
        if (!eq)
            return ff_error_set(err, EINVAL, "address: option \"%s\": want option=value", o);
        *eq = '\0';
        int rc = set_option(a, o, eq + 1, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int set_host_port(struct ff_address *a, char *text, struct ff_error *err)
{
    char *colon = strrchr(text, ':'), *host = text;
    unsigned long port;

    a->passed = !strcmp(text, "unix");
    if (a->passed)
        return 0;
    if (!colon)
        return ff_error_set(err, EINVAL, "address: \"%s\": want HOST:PORT, or unix", text);
    *colon = '\0';
    size_t len = strlen(host);
    if (*host == '[' && len > 2 && host[len - 1] == ']') {
        host[len - 1] = '\0';
        host++;
    } else if (strpbrk(host, "[]:")) {
        return ff_error_set(err, EINVAL,
                            "address: host \"%s\": write an IPv6 address in brackets, [::1]:PORT",
                            host);
    }
    if (strlen(host) >= sizeof(a->host))
        return ff_error_set(err, EINVAL, "address: host of %zu bytes (at most %zu)", strlen(host),
                            sizeof(a->host) - 1);
    int rc = get_number("PORT", colon + 1, 0, 65535, 1, &port, err);
    if (rc)
        return rc;
    snprintf(a->host, sizeof(a->host), "%s", host);
    snprintf(a->port, sizeof(a->port), "%lu", port);
    return 0;
}

int ff_address_parse(const char *text, struct ff_address **out, struct ff_error *err)
{
    FF_AUTO_FREE char *copy = strdup(text);
    FF_AUTO_FREE struct ff_address *a = malloc(sizeof(*a));
    if (!copy || !a)
        return ff_error_set(err, ENOMEM, "address: out of memory");
    *a = defaults;

    char *comma = strchr(copy, ',');
    if (comma)
        *comma = '\0';
    int rc = set_host_port(a, copy, err);
    if (!rc && comma)
        rc = set_options(a, comma + 1, err);
    if (!rc)
        rc = check_fallback(a, err);
    if (!rc)
        rc = settle_visit(a, err);
    if (rc) {
        use_key(a, NULL);
        return rc;
    }
    a->go_timeout_ms = a->timeout_ms * GO_PATIENCE;
    a->verify &= !a->passed; /* nobody is between */
    *out = a;
    a = NULL;
    return 0;
}

int ff_address_resolve(struct ff_address *a, struct ff_error *err)
{
    struct ff_link_params p = {.host = a->host, .port = a->port};

    a->peers.n = 0;
    return a->passed ? 0 : ff_peers_find(&p, &a->peers, err);
}

int ff_address_set_key(struct ff_address *a, const char *text, size_t len, struct ff_error *err)
{
    struct ff_key *k;
    int rc = check_takes_key(a, err);

    if (!rc)
        rc = ff_key_parse(text, len, &k, err);
    if (!rc)
        use_key(a, k);
    return rc;
}

int ff_address_set_psk(struct ff_address *a, const char *path, const char *user,
                       struct ff_error *err)
{
    struct ff_key *k;
    int rc = check_takes_key(a, err);

    if (!rc && a->key)
        rc = ff_error_set(err, EINVAL, "address: a key and TLS-PSK credentials: want one of them");
    if (!rc)
        rc = ff_key_load_psk(path, user, &k, err);
    if (!rc)
        use_key(a, k);
    return rc;
}

int ff_address_set_x509(struct ff_address *a, const struct ff_x509 *x, struct ff_error *err)
{
    struct ff_key *k;
    int rc = check_takes_key(a, err);

    if (!rc && a->key)
        rc = ff_error_set(err, EINVAL, "address: a key and certificates: want one of them");
    if (!rc)
        rc = ff_key_load_certs(x->dir, x->hostname, x->password, x->incoming, &k, err);
    if (!rc)
        use_key(a, k);
    return rc;
}

bool ff_address_has_key(const struct ff_address *a)
{
    return a->key;
}

struct ff_address ff_address_copy(const struct ff_address *a)
{
    struct ff_address out = *a;

    ff_key_ref(out.key);
    return out;
}

void ff_address_drop(struct ff_address *a)
{
    use_key(a, NULL);
}

int ff_address_reconnect_ms(const struct ff_address *a)
{
    return a->reconnect_ms;
}

bool ff_address_precopy(const struct ff_address *a)
{
    return a->precopy;
}

bool ff_address_fallback(const struct ff_address *a)
{
    return a->fallback;
}

bool ff_address_visit(const struct ff_address *a)
{
    return a->visit;
}

void ff_address_free(struct ff_address *a)
{
    if (a)
        ff_address_drop(a);
    free(a);
}
