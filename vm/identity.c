/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity.c - what tells the children of a fork apart: names, addresses, ids
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      choose for every child all that no two machines may share, change its command
 *              line accordingly, and write the message from which farfork-guest does the same
 *              inside (docs/guest.md). It talks to nobody.
 * Picture      command line    vmgenid guid, -uuid, -smbios uuid, -name, mac= of each NIC
 *              message         the new MACs again: a NIC's MAC is part of the device state and
 *                              comes with it; host name, machine-id, boot_id, seed, addresses
 * Invariants   1. Ids are random; MACs of one fork are compared with each other and with the
 *                 parent's.
 *              2. A message of at most CLONE_FW_CFG_BYTES, whatever the child: checked when
 *                 planning, while the parent still runs.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "identity_private.h"
#include "autojson.h"

#define HOSTNAME_MAX 64 /* Linux */
#define LATEST_MS 9999999999999 /* the longest time there is: all others fit */

static int random_hex(char *out, size_t bytes, struct ff_error *why)
{
    unsigned char raw[64];

    if (getentropy(raw, bytes) < 0)
        return ff_error_set(why, EIO, "identity: read random numbers: %s", strerror(errno));
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
    return 0;
}

/* RFC 4122, version 4 */
static int random_uuid(char *out, struct ff_error *why)
{
    char hex[33];
    int rc = random_hex(hex, 16, why);

    if (rc)
        return rc;
    hex[12] = '4';
    hex[16] = "89ab"[hex[16] & 3];
    snprintf(out, UUID_TEXT, "%.8s-%.4s-%.4s-%.4s-%s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    return 0;
}

static bool mac_taken(const struct identity *id, const char *mac)
{
    if (identity_mac_known(id, mac))
        return true;
    for (unsigned k = 0; k < id->count && id->child[k].mac; k++)
        for (size_t i = 0; i < id->nics; i++)
            if (id->child[k].mac[i] != mac && !strcmp(id->child[k].mac[i], mac))
                return true;
    return false;
}

/* Locally administered, as QEMU's own; four random bytes, so that forks that know nothing of
 * each other do not meet */
static int random_mac(const struct identity *id, char *out, struct ff_error *why)
{
    char hex[9];

    do {
        int rc = random_hex(hex, 4, why);
        if (rc)
            return rc;
        snprintf(out, MAC_TEXT, "52:54:%.2s:%.2s:%.2s:%.2s", hex, hex + 2, hex + 4, hex + 6);
    } while (mac_taken(id, out));
    return 0;
}

static int make_hostname(const struct identity *id, unsigned number, char **out,
                         struct ff_error *why)
{
    int rc = identity_expand(id, id->host_template, number, out, why);

    if (rc)
        return rc;
    for (char *p = *out; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.')
            *p = '-';
    if (strlen(*out) <= HOSTNAME_MAX && **out && **out != '-' && **out != '.')
        return 0;
    return ff_error_set(why, EINVAL,
                  "identity: host name \"%s\": want 1..%d letters and digits, the "
                  "first no dash (--hostname)",
                  *out, HOSTNAME_MAX);
}

/* --- planning --- */

static int plan_child(struct identity *id, unsigned number, struct ff_error *why)
{
    struct child *c = &id->child[number - 1];
    FF_AUTO_FREE char *message = NULL;
    int rc;

    c->mac = xcalloc(id->nics, sizeof(*c->mac));
    if ((rc = random_uuid(c->uuid, why)) || (rc = random_uuid(c->genid, why)) ||
        (rc = random_uuid(c->boot_id, why)) || (rc = random_hex(c->machine_id, 16, why)) ||
        (rc = random_hex(c->seed, SEED_BYTES, why)))
        return rc;
    for (size_t i = 0; i < id->nics; i++)
        if ((rc = random_mac(id, c->mac[i], why)))
            return rc;
    if ((rc = make_hostname(id, number, &c->hostname, why)))
        return rc;
    return identity_write(id, number, LATEST_MS, true, &message, why);
}

static int check_user(const char *user, struct ff_error *why)
{
    for (const char *p = user; *p; p++)
        if (iscntrl((unsigned char)*p))
            return ff_error_set(why, EINVAL,
                          "identity: user data: control character %#x at byte %zu: "
                          "encode it (base64)",
                          (unsigned)*p, (size_t)(p - user));
    FF_AUTO_JSON json_t *j = json_string(user);
    return j ? 0 : ff_error_set(why, EINVAL, "identity: user data: not UTF-8: encode it (base64)");
}

int identity_plan(const struct identity_input *in, struct identity **out, struct ff_error *why)
{
    struct identity *id = xcalloc(1, sizeof(*id));
    int rc = check_user(in->user ? in->user : "", why);

    id->fork_id = xstrdup(in->fork_id);
    id->count = id->said = in->count;
    id->user = xstrdup(in->user ? in->user : "");
    id->host_template = xstrdup(in->hostname ? in->hostname : "{name}-{n}");
    id->child = xcalloc(in->count, sizeof(*id->child));
    identity_read_argv(id, in);
    if (!rc && in->ips > id->nics)
        rc =
            ff_error_set(why, EINVAL, "identity: addresses for %zu NICs, the parent has %zu (--ip)",
                         in->ips, id->nics);
    for (unsigned k = 1; !rc && k <= in->count; k++)
        rc = plan_child(id, k, why);
    if (rc < 0)
        identity_free(id);
    else
        *out = id;
    return rc;
}

void identity_free(struct identity *id)
{
    if (!id)
        return;
    for (unsigned k = 0; k < id->count; k++) {
        free(id->child[k].mac);
        free(id->child[k].hostname);
    }
    for (size_t i = 0; i < id->nics; i++)
        free(id->nic[i].ip);
    free(id->child);
    free(id->nic);
    free(id->channel);
    free(id->host_template);
    free(id->user);
    free(id->name);
    free(id->fork_id);
    free(id);
}

static bool same_nics(const struct identity *id, const struct identity *now)
{
    bool same = id->nics == now->nics;

    for (size_t i = 0; same && i < id->nics; i++)
        same = !strcmp(id->nic[i].old_mac, now->nic[i].old_mac);
    return same;
}

int identity_again(struct identity *id, const struct identity_input *in, struct ff_error *why)
{
    const char *user = in->user ? in->user : "";
    struct identity now = {.count = 0};
    int rc = check_user(user, why);

    identity_read_argv(&now, in);
    if (!rc && !same_nics(id, &now))
        rc = ff_error_set(why, ESTALE, "the parent's NICs have other MACs");
    for (size_t i = 0; i < now.nics; i++)
        free(now.nic[i].ip);
    free(now.nic);
    free(now.name);
    free(now.channel);
    if (!rc && id->has_fw_cfg && (in->count != id->said || strcmp(user, id->user)))
        rc = ff_error_set(why, EBUSY,
                          "their -fw_cfg " CLONE_FW_CFG " says %u children, and its user data",
                          id->said);
    if (rc)
        return rc;
    free(id->user);
    id->user = xstrdup(user);
    id->said = in->count;
    for (unsigned k = 1; !rc && k <= in->count; k++) {
        FF_AUTO_FREE char *message = NULL;
        rc = identity_write(id, k, LATEST_MS, true, &message, why);
    }
    return rc;
}

const char *identity_channel(const struct identity *id)
{
    return id->channel;
}

void identity_mac_pairs(const struct identity *id, unsigned number, struct strv *out)
{
    for (size_t i = 0; i < id->nics; i++)
        strv_add(out, "%s=%s", id->nic[i].old_mac, id->child[number - 1].mac[i]);
}

json_t *identity_missing(const struct identity *id)
{
    json_t *list = json_array();

    if (!id->has_genid)
        json_array_append_new(
            list, json_string(
                      "no -device vmgenid: the kernels of children do not learn of the fork: for a "
                      "while they draw the same random numbers"));
    if (id->has_fw_cfg && id->fw_cfg_bytes >= 0 && id->fw_cfg_bytes != CLONE_FW_CFG_BYTES) {
        FF_AUTO_FREE char *s = xprintf("-fw_cfg " CLONE_FW_CFG " has %lld bytes (want %d): the "
                                    "guest's driver would not read all of it",
                                    id->fw_cfg_bytes, CLONE_FW_CFG_BYTES);
        json_array_append_new(list, json_string(s));
    }
    if (!id->has_fw_cfg && !id->channel)
        json_array_append_new(list, json_string("neither -fw_cfg name=" CLONE_FW_CFG
                                                " nor a virtserialport named " GUEST_CHANNEL
                                                ": farfork-guest cannot learn of the fork"));
    return list;
}

json_t *identity_summary(const struct identity *id, unsigned number)
{
    const struct child *c = &id->child[number - 1];
    json_t *macs = json_array();

    for (size_t i = 0; i < id->nics; i++)
        json_array_append_new(macs, json_string(c->mac[i]));
    return json_pack("{s:i,s:s,s:s,s:s,s:o}", "number", (int)number, "hostname", c->hostname,
                     "uuid", c->uuid, "genid", c->genid, "macs", macs);
}
