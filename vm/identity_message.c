/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity_message.c - what a child is told of itself
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      write the message that farfork-guest reads (docs/guest.md). It is JSON with one
 *              member a line, so that a shell can take it apart.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "identity_private.h"

int identity_expand(const struct identity *id, const char *template, unsigned number, char **out,
                    struct ff_error *why)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    const char *p = template;

    if (!f)
        abort();
    while (*p) {
        unsigned add = 0;
        int used = 0;
        if (*p != '{') {
            fputc(*p++, f);
        } else if (!strncmp(p, "{n}", 3)) {
            fprintf(f, "%u", number);
            p += 3;
        } else if (sscanf(p, "{n+%u}%n", &add, &used) == 1 && used) {
            fprintf(f, "%u", number + add);
            p += used;
        } else if (!strncmp(p, "{id}", 4)) {
            fputs(id->fork_id, f);
            p += 4;
        } else if (!strncmp(p, "{name}", 6)) {
            fputs(id->name, f);
            p += 6;
        } else {
            fclose(f);
            free(text);
            return ff_error_set(why, EINVAL,
                          "identity: template \"%s\": at \"%s\" (permitted: {n}, "
                          "{n+NUMBER}, {id}, {name})",
                          template, p);
        }
    }
    fclose(f);
    *out = text;
    return 0;
}

/* "ADDR/PLEN,GATEWAY" in place: *@gateway is "" or the part behind the comma */
static int split_address(char *ip, const char **gateway, struct ff_error *why)
{
    char *comma = strchr(ip, ','), address[64];
    unsigned char raw[16];

    *gateway = "";
    if (!strcmp(ip, "dhcp"))
        return 0;
    if (comma) {
        *comma = '\0';
        *gateway = comma + 1;
    }
    snprintf(address, sizeof(address), "%s", ip);
    char *slash = strchr(address, '/'), *end = NULL;
    long plen = slash ? strtol(slash + 1, &end, 10) : -1;
    if (slash)
        *slash = '\0';
    int family = strchr(address, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, address, raw) != 1 || plen < 0 || plen > (family == AF_INET ? 32 : 128) ||
        *end || (comma && inet_pton(family, *gateway, raw) != 1))
        return ff_error_set(why, EINVAL,
                      "identity: address \"%s\"%s%s: want ADDRESS/LENGTH, "
                      "ADDRESS/LENGTH,GATEWAY or dhcp (--ip)",
                      ip, comma ? "," : "", *gateway);
    return 0;
}

/* --- the message --- */

static void put_line(FILE *f, const char *key, const char *value)
{
    FF_AUTO_JSON json_t *j = json_string(value);
    FF_AUTO_FREE char *s = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;

    fprintf(f, "\"%s\": %s,\n", key, s ? s : "\"\"");
}

static int put_nics(const struct identity *id, unsigned number, FILE *f, struct ff_error *why)
{
    fputs("\"nics\": [\n", f);
    for (size_t i = 0; number && i < id->nics; i++) {
        FF_AUTO_FREE char *ip = NULL;
        const char *gateway = "";
        int rc = id->nic[i].ip ? identity_expand(id, id->nic[i].ip, number, &ip, why) : 0;
        if (!rc && ip)
            rc = split_address(ip, &gateway, why);
        if (rc)
            return rc;
        fprintf(f, "{\"mac_old\": \"%s\", \"mac_new\": \"%s\", \"ip\": \"%s\", \"gw\": \"%s\"}%s\n",
                id->nic[i].old_mac, id->child[number - 1].mac[i], ip ? ip : "", gateway,
                i + 1 < id->nics ? "," : "");
    }
    fputs("]\n", f);
    return 0;
}

int identity_write(const struct identity *id, unsigned number, long long time_ms, bool secrets,
                         char **out, struct ff_error *why)
{
    static const struct child parent;
    const struct child *c = number ? &id->child[number - 1] : &parent;
    size_t len;
    FILE *f = open_memstream(out, &len);

    if (!f)
        abort();
    fprintf(f, "{\n\"farfork\": 1,\n");
    put_line(f, "fork", id->fork_id);
    fprintf(f, "\"number\": %u,\n\"count\": %u,\n\"time\": %lld.%03lld,\n", number, id->said,
            time_ms / 1000, time_ms % 1000);
    put_line(f, "hostname", c->hostname ? c->hostname : "");
    put_line(f, "machine_id", c->machine_id);
    put_line(f, "boot_id", secrets ? c->boot_id : "");
    put_line(f, "seed", secrets ? c->seed : "");
    put_line(f, "user", id->user);
    int rc = put_nics(id, number, f, why);
    fputs("}\n", f);
    fclose(f);
    if (!rc && len > CLONE_FW_CFG_BYTES)
        rc = ff_error_set(why, EINVAL,
                    "identity: the message for child %u has %zu bytes (permitted: "
                    "%d): shorten the user data",
                    number, len, CLONE_FW_CFG_BYTES);
    return rc;
}

char *identity_message(const struct identity *id, unsigned number, long long time_ms)
{
    char *out = NULL;

    identity_write(id, number, time_ms, true, &out, NULL); /* refusals: those of the plan */
    return out;
}

char *identity_padded(const struct identity *id, unsigned number, bool secrets)
{
    FF_AUTO_FREE char *message = NULL;

    identity_write(id, number, 0, secrets, &message, NULL);
    return xprintf("%-*s", CLONE_FW_CFG_BYTES, message);
}

char *identity_message_path(unsigned number, const char *rundir)
{
    return xprintf("%s/%u.message", rundir, number);
}
