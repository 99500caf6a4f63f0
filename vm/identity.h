/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity.h - what tells the children of a fork apart: names, addresses, ids
 */
#ifndef FF_VM_IDENTITY_H
#define FF_VM_IDENTITY_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"
#include "strv.h"

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
                        struct ff_error *why);
void identity_free(struct identity *id);

/**
 * identity_again() - children that were started by this plan are @count of a fork, not all of them
 * @in: what identity_plan() would be given now
 *
 * Return: 0: messages from here on say so; -ESTALE: the parent's NICs are others by now; -EBUSY:
 *         they have their message already, with other words (-fw_cfg); -EINVAL: user data
 */
int identity_again(struct identity *id, const struct identity_input *in, struct ff_error *why);

/* What the parent must have been started with, and was not; one line a point, for a warning.
 * An array of strings, to be released */
json_t *identity_missing(const struct identity *id);

/* "OLD=NEW" for the MAC of each NIC */
void identity_mac_pairs(const struct identity *id, unsigned number, struct strv *out);

/* The id of the chardev behind the port org.farfork.0; NULL: there is no such port */
const char *identity_channel(const struct identity *id);

/* Change a child's command line in place: MACs, -name, -uuid, -smbios; of vmgenid and -fw_cfg,
 * which have secrets in them, only that they are in the files of identity_files() in @rundir */
void identity_child_argv(const struct identity *id, unsigned number, const char *rundir,
                         json_t *argv);

/**
 * identity_message() - what farfork-guest reads (docs/guest.md), one key a line
 * @number:  1 ..; 0: the parent's own, for the channel
 * @time_ms: since the epoch, or 0: not said
 *
 * Return: text that ends with "}\n", to be freed
 */
char *identity_message(const struct identity *id, unsigned number, long long time_ms);

/**
 * identity_files() - what a child's QEMU reads when it starts, and others must not: for the agent
 *
 * Return: an array of {"path", "text", "after"}, to be released. Once QEMU has read it a file is
 *         removed, or has the text @after: the message without its secrets, which a guest finds
 *         again when it boots anew, there or where it is moved to
 */
json_t *identity_files(const struct identity *id, unsigned number, const char *rundir);

/* For QEMU's -readconfig; NULL: the child has no such file. To be freed */
char *identity_config(const struct identity *id, unsigned number, const char *rundir);

/**
 * identity_move_argv() - take from a guest's command line what must not be on that of its next QEMU
 * @argv:  an array of strings, changed in place
 * @genid: its generation ID now; NULL: it has none
 *
 * Return: the files for it, as identity_files(), of which the first is that for -readconfig if
 * there
 *         is a @genid
 */
json_t *identity_move_argv(json_t *argv, const char *genid, const char *rundir);
bool identity_has_genid(const json_t *argv);

/* Whether it is a file for -readconfig that this made: it is not there any more */
bool identity_is_config(const char *path);

/* For the table: {"number", "name", "uuid", "genid", "macs": [...], "hostname"}; to be released */
json_t *identity_summary(const struct identity *id, unsigned number);

#endif
