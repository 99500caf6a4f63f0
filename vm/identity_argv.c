/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity_argv.c - identity on a command line: what the parent has, what a child gets
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find NICs, vmgenid, fw_cfg entry, channel and name among the parent's options, and
 *              change them for a child where they are.
 * Sources      QEMU net/net.c: MACs of NICs without mac= are 52:54:00:12:34:56 and upwards, of
 *              -nic and -net before those of -device.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "autojson.h"
#include "identity_private.h"
#include "qemu_opts.h"

const char *identity_word(const json_t *argv, size_t at)
{
    const char *s = json_string_value(json_array_get(argv, at));

    return s ? s : "";
}

static bool is_nic(const char *driver)
{
    static const char *const prefixes[] = {"virtio-net", "e1000", "rtl8139", "vmxnet3",
                                           "igb",        "pcnet", "ne2k_",   "i8255",
                                           "tulip",      "usb-net"};

    if (driver && !strcmp(driver, "i82801")) /* i82801b11-bridge is none */
        return true;
    for (size_t i = 0; driver && i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (!strncmp(driver, prefixes[i], strlen(prefixes[i])))
            return true;
    return false;
}

/* The option before @at makes a NIC: the key of its MAC. @devices: -device, else the older ones */
static const char *mac_key(const json_t *argv, size_t at, bool devices)
{
    const char *option = at ? identity_word(argv, at - 1) : "";

    if (devices && qemu_option_is(option, "device")) {
        FF_AUTO_FREE char *driver = qemu_opts_get_first(identity_word(argv, at), "driver");
        return is_nic(driver) ? "mac" : NULL;
    }
    if (!devices && qemu_option_is(option, "nic"))
        return strcmp(identity_word(argv, at), "none") ? "mac" : NULL;
    if (!devices && qemu_option_is(option, "net")) {
        FF_AUTO_FREE char *type = qemu_opts_get_first(identity_word(argv, at), "type");
        return type && !strcmp(type, "nic") ? "macaddr" : NULL;
    }
    return NULL;
}

bool identity_mac_known(const struct identity *id, const char *mac)
{
    for (size_t i = 0; i < id->nics; i++)
        if (!strcmp(id->nic[i].old_mac, mac) || !strcmp(id->nic[i].first_mac, mac))
            return true;
    return false;
}

static void copy_mac(char to[static MAC_TEXT], const char *mac)
{
    snprintf(to, MAC_TEXT, "%s", mac);
    for (char *p = to; *p; p++)
        *p = *p == '-' ? ':' : (char)tolower((unsigned char)*p);
}

static void add_nic(struct identity *id, const struct identity_input *in, const char *argument,
                    const char *key)
{
    FF_AUTO_FREE char *name = qemu_opts_get(argument, "id"), *given = qemu_opts_get(argument, key);
    const json_t *filter = name ? json_find(in->rx_filters, "name", name) : NULL;
    const char *mac = json_string_value(json_object_get(filter, "main-mac"));
    struct nic *nic;

    if (id->nics == id->room) {
        id->room = 2 * id->room + 4;
        id->nic = xrealloc(id->nic, id->room * sizeof(*id->nic));
    }
    nic = &id->nic[id->nics];
    if (given) {
        copy_mac(nic->first_mac, given);
    } else { /* the first that is free */
        unsigned last = 0x56;
        do
            snprintf(nic->first_mac, MAC_TEXT, "52:54:00:12:34:%02x", last++);
        while (last <= 0xff && identity_mac_known(id, nic->first_mac));
    }
    copy_mac(nic->old_mac, mac ? mac : nic->first_mac);
    nic->ip = id->nics < in->ips && in->ip[id->nics] ? xstrdup(in->ip[id->nics]) : NULL;
    id->nics++;
}

bool identity_is_fw_cfg(const json_t *argv, size_t at)
{
    FF_AUTO_FREE char *name = at && qemu_option_is(identity_word(argv, at - 1), "fw_cfg")
                               ? qemu_opts_get_first(identity_word(argv, at), "name")
                               : NULL;

    return name && !strcmp(name, CLONE_FW_CFG);
}

bool identity_is_genid(const json_t *argv, size_t at)
{
    FF_AUTO_FREE char *driver = at && qemu_option_is(identity_word(argv, at - 1), "device")
                                 ? qemu_opts_get_first(identity_word(argv, at), "driver")
                                 : NULL;

    return driver && !strcmp(driver, "vmgenid");
}

static void see_fw_cfg(struct identity *id, const char *argument)
{
    FF_AUTO_FREE char *string = qemu_opts_get(argument, "string"),
                      *file = qemu_opts_get(argument, "file");
    struct stat st;

    id->has_fw_cfg = true;
    id->fw_cfg_bytes = string ? (long long)strlen(string) : -1;
    if (file && *file == '/' && !stat(file, &st))
        id->fw_cfg_bytes = st.st_size;
}

static void see_device(struct identity *id, const char *argument)
{
    FF_AUTO_FREE char *name = qemu_opts_get(argument, "name");

    if (name && !strcmp(name, GUEST_CHANNEL) && !id->channel)
        id->channel = qemu_opts_get(argument, "chardev");
}

void identity_read_argv(struct identity *id, const struct identity_input *in)
{
    size_t n = json_array_size(in->argv);

    for (int devices = 0; devices <= 1; devices++) {
        for (size_t i = 1; i < n; i++) {
            const char *key = mac_key(in->argv, i, devices);
            if (key)
                add_nic(id, in, identity_word(in->argv, i), key);
        }
    }
    for (size_t i = 1; i < n; i++) {
        if (qemu_option_is(identity_word(in->argv, i - 1), "device"))
            see_device(id, identity_word(in->argv, i));
        id->has_genid |= identity_is_genid(in->argv, i);
        if (identity_is_fw_cfg(in->argv, i))
            see_fw_cfg(id, identity_word(in->argv, i));
        if (qemu_option_is(identity_word(in->argv, i - 1), "name")) {
            free(id->name);
            id->name = qemu_opts_get_first(identity_word(in->argv, i), "guest");
        }
    }
    if (!id->name)
        id->name = xstrdup("vm");
}

/* --- a child's command line --- */

static void set_key(json_t *argv, size_t at, const char *key, const char *value)
{
    FF_AUTO_FREE char *text = qemu_opts_set(identity_word(argv, at), key, value);

    json_array_set_new(argv, at, json_string(text));
}

static void set_name(const struct identity *id, unsigned number, json_t *argv, size_t at)
{
    FF_AUTO_FREE char *name = xprintf("%s-%u", id->name, number);
    FF_AUTO_FREE char *text = qemu_opts_set_first(identity_word(argv, at), "guest", name);

    json_array_set_new(argv, at, json_string(text));
}

void identity_set_file(json_t *argv, size_t at, const char *path)
{
    FF_AUTO_FREE char *bare = qemu_opts_drop(identity_word(argv, at), "string");

    json_array_set_new(argv, at, json_string(bare));
    set_key(argv, at, "file", path);
}

void identity_drop_genid(json_t *argv, size_t at)
{
    FF_AUTO_FREE char *bare = qemu_opts_drop(identity_word(argv, at), "guid");

    json_array_set_new(argv, at, json_string(bare));
}

/* The PCIe serial number of such a NIC is the MAC that it began with, and a state with another one does not load: it begins
 * with its parent's, as its guest does */
static bool has_serial(const json_t *argv, size_t at)
{
    static const char *const models[] = {"e1000e", "vmxnet3", "igb"};
    const char *option = identity_word(argv, at - 1), *value = identity_word(argv, at);
    FF_AUTO_FREE char *model = qemu_option_is(option, "device") ? qemu_opts_get_first(value, "driver")
                                                                : qemu_opts_get(value, "model");

    for (size_t i = 0; model && i < sizeof(models) / sizeof(models[0]); i++)
        if (!strcmp(model, models[i]))
            return true;
    return false;
}

void identity_child_argv(const struct identity *id, unsigned number, const char *rundir,
                         json_t *argv)
{
    const struct child *c = &id->child[number - 1];
    FF_AUTO_FREE char *path = identity_message_path(number, rundir);
    size_t n = json_array_size(argv), nic = 0;

    for (int devices = 0; devices <= 1; devices++) { /* in the order of identity_read_argv() */
        for (size_t i = 1; i < n; i++) {
            const char *key = mac_key(argv, i, devices);
            if (!key || nic == id->nics)
                continue;
            set_key(argv, i, key, has_serial(argv, i) ? id->nic[nic].first_mac : c->mac[nic]);
            nic++;
        }
    }
    for (size_t i = 1; i < n; i++) {
        const char *option = identity_word(argv, i - 1);
        if (qemu_option_is(option, "name")) {
            set_name(id, number, argv, i);
        } else if (qemu_option_is(option, "uuid")) {
            json_array_set_new(argv, i, json_string(c->uuid));
        } else if (qemu_option_is(option, "smbios")) {
            FF_AUTO_FREE char *old = qemu_opts_get(identity_word(argv, i), "uuid");
            if (old)
                set_key(argv, i, "uuid", c->uuid);
        } else if (identity_is_fw_cfg(argv, i)) {
            identity_set_file(argv, i, path);
        } else if (identity_is_genid(argv, i)) {
            identity_drop_genid(argv, i);
        }
    }
}
