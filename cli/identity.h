/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity.h - what tells the children of a fork apart: names, addresses, ids
 */
#ifndef FF_CLI_IDENTITY_H
#define FF_CLI_IDENTITY_H

#include <jansson.h>
#include <stdbool.h>

#include "util.h"

#define CLONE_FW_CFG "opt/org.farfork/clone"
#define CLONE_FW_CFG_BYTES 4096 /* of parent and child: the guest learns the size at its boot */

struct identity;

/*
 * In the templates, {n} is the child's number, {n+10} that and ten, {id} the fork's id, {name} the
 * parent's -name ("vm" if it has none).
 */
struct identity_input {
    const char *fork_id;
    unsigned count;            /* of children, all hosts */
    const json_t *argv;        /* of the parent */
    const json_t *rx_filters;  /* what query-rx-filter returned, for the MACs; may be NULL */
    const char *hostname;      /* template; NULL: {name}-{n} */
    const char *user;          /* user data, as it is; NULL: none */
    const char *const *ip;     /* templates, NIC by NIC: ADDR/PLEN[,GATEWAY] or "dhcp"; a NULL */
    size_t ips;                /*   or none: the guest keeps its addresses */
};

/**
 * identity_plan() - choose everything for all children, so that none shares any of it
 *
 * Return: 0; -EINVAL: a template, user data that do not fit or with control characters;
 *         -EIO: no random numbers
 */
int identity_plan(const struct identity_input *in, struct identity **out,
                        struct why *why);
void identity_free(struct identity *id);

/* What the parent must have been started with, and was not; one line a point, for a warning.
 * An array of strings, to be released */
json_t *identity_missing(const struct identity *id);

/* The id of the chardev behind the port org.farfork.0; NULL: there is no such port */
const char *identity_channel(const struct identity *id);

/* Change a child's command line in place: vmgenid, MACs, -name, -uuid, -smbios, -fw_cfg */
void identity_child_argv(const struct identity *id, unsigned number, json_t *argv);

/**
 * identity_message() - what farfork-guest reads (docs/guest.md), one key a line
 * @number:  1 ..; 0: the parent's own, for the channel
 * @time_ms: since the epoch, or 0: not said
 *
 * Return: text that ends with "}\n", to be freed
 */
char *identity_message(const struct identity *id, unsigned number, long long time_ms);

/* For the table: {"number", "name", "uuid", "genid", "macs": [...], "hostname"}; to be released */
json_t *identity_summary(const struct identity *id, unsigned number);

#endif
