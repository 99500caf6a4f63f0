/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity_private.h - what the files of identity share
 */
#ifndef FF_VM_IDENTITY_PRIVATE_H
#define FF_VM_IDENTITY_PRIVATE_H

#include "identity.h"
#include "guest_port.h"

#define UUID_TEXT 37
#define MAC_TEXT 18
#define SEED_BYTES 32

struct nic {
    char old_mac[MAC_TEXT], first_mac[MAC_TEXT]; /* now, and when its QEMU started */
    char *ip; /* template, or NULL */
};

struct child {
    char uuid[UUID_TEXT], genid[UUID_TEXT], boot_id[UUID_TEXT], machine_id[UUID_TEXT];
    char seed[2 * SEED_BYTES + 1];
    char (*mac)[MAC_TEXT]; /* NIC by NIC */
    char *hostname;
};

struct identity {
    char *fork_id, *name, *host_template, *user, *channel;
    unsigned count; /* planned */
    unsigned said;  /* so many they are, as messages say */
    struct nic *nic;
    size_t nics, room;
    struct child *child; /* count of them, number 1 first */
    bool has_genid, has_fw_cfg;
    long long fw_cfg_bytes; /* of the parent's placeholder; -1: not known */
};

/* identity_message.c: @template with {n}, {id} and so on replaced; @out: to be freed. -EINVAL */
int identity_expand(const struct identity *id, const char *template, unsigned number, char **out,
                    struct ff_error *why);
/* @number 0: the parent's, without secrets. -EINVAL: longer than CLONE_FW_CFG_BYTES */
int identity_write(const struct identity *id, unsigned number, long long time_ms, bool secrets,
                   char **out, struct ff_error *why);

/* The child's message, its secrets only with @secrets; to be freed */
char *identity_padded(const struct identity *id, unsigned number, bool secrets);

const char *identity_word(const json_t *argv, size_t at); /* "" where there is none */
bool identity_is_fw_cfg(const json_t *argv, size_t at);
bool identity_is_genid(const json_t *argv, size_t at);
void identity_set_file(json_t *argv, size_t at, const char *path); /* of a fw_cfg entry */
void identity_drop_genid(json_t *argv, size_t at);
char *identity_message_path(unsigned number, const char *rundir);

void identity_read_argv(struct identity *id, const struct identity_input *in);
bool identity_mac_known(const struct identity *id, const char *mac); /* of the parent */

#endif
