/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_plugged.c - devices that were plugged into the guest, or removed, since its QEMU started
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      another QEMU is made from the command line of the parent's. Memory (DIMMs) and CPUs
 *              that were plugged later are written there, as QEMU says they are now: their place, and
 *              the options of their memory. Any other device that was plugged or removed is refused,
 *              by its id.
 *              A device that farfork move --plug has put in is as if its command line had it.
 * Limits       a device without an id cannot be told from one of the command line: that the QEMU on
 *              the other host has the same ones is seen there (control/move/move_same.c).
 * Sources      qapi/machine.json: query-memory-devices, query-memdev, query-hotpluggable-cpus;
 *              hw/mem/pc-dimm.c, target/i386/cpu.c: the options of both devices.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "overlay_records.h"
#include "qemu_opts.h"
#include "session.h"

static bool is_device_word(const struct strv *argv, size_t at)
{
    return at && qemu_option_is(argv->v[at - 1], "device");
}

static bool is_on_command_line(const struct strv *argv, const char *option, const char *id)
{
    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *own =
            qemu_option_is(argv->v[i - 1], option) ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (own && !strcmp(own, id))
            return true;
        if (!strcmp(id, "debugcon") && qemu_option_is(argv->v[i - 1], id)) /* QEMU names it */
            return true;
    }
    return false;
}

/* "-@option JSON"; @o is taken over */
static void add_option(struct strv *argv, const char *option, json_t *o)
{
    FF_AUTO_FREE char *text = json_dumps(o, JSON_COMPACT);

    strv_add(argv, "-%s", option);
    strv_add(argv, "%s", text);
    json_decref(o);
}

/* --- memory --- */

static json_t *get_property(struct session *s, const char *path, const char *property)
{
    json_t *value = NULL;

    /* that there is none says the same */
    qmp_command(s->qmp, "qom-get", json_pack("{ss ss}", "path", path, "property", property), &value,
                NULL);
    return value;
}

/* The backend at @path, as object-add had it; what makes pages ready ahead is left out */
static int add_backend(struct session *s, const char *path, struct ff_error *why)
{
    static const char *const same[] = {"size", "share", "merge", "dump", "hugetlb", "hugetlbsize",
                                       "mem-path", "reserve", "seal", "x-use-canonical-path-for-ramblock-id"};
    const char *slash = strrchr(path, '/'), *id = slash ? slash + 1 : path;
    FF_AUTO_JSON json_t *type = get_property(s, path, "type");
    FF_AUTO_JSON json_t *policy = get_property(s, path, "policy");

    if (is_on_command_line(&s->parent_argv, "object", id))
        return 0;
    if (!json_is_string(type))
        return ff_error_set(why, EPROTO, "memory %s: the QEMU here does not say what it is", path);
    json_t *o = json_pack("{sO ss}", "qom-type", type, "id", id);
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *value = get_property(s, path, same[i]);
        if (value && !(json_is_integer(value) && !json_integer_value(value))) /* 0: not set */
            json_object_set(o, same[i], value);
        json_decref(value);
    }
    if (json_is_string(policy) && strcmp(json_string_value(policy), "default")) {
        json_object_set(o, "policy", policy);
        json_object_set_new(o, "host-nodes", get_property(s, path, "host-nodes"));
    }
    add_option(&s->parent_argv, "object", o);
    return 0;
}

/* Of a DIMM without an id, its place says which it is */
static bool has_dimm(const struct strv *argv, const json_t *data)
{
    const char *memdev = text_of(data, "memdev"), *slash = strrchr(memdev, '/');

    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *own = is_device_word(argv, i) ? qemu_opts_get(argv->v[i], "memdev") : NULL;
        if (own && !strcmp(own, slash ? slash + 1 : memdev))
            return true;
    }
    return false;
}

static int add_dimm(struct session *s, const json_t *data, struct ff_error *why)
{
    const char *memdev = text_of(data, "memdev"), *slash = strrchr(memdev, '/');

    if (has_dimm(&s->parent_argv, data) || strv_have(&s->unplugged, text_of(data, "id")))
        return 0;
    int rc = add_backend(s, memdev, why);
    if (rc)
        return rc;
    json_t *o = json_pack("{ss ss sO sO sO}", "driver", "pc-dimm", "memdev",
                          slash ? slash + 1 : memdev, "addr", json_object_get(data, "addr"), "slot",
                          json_object_get(data, "slot"), "node", json_object_get(data, "node"));
    if (!o)
        return ff_error_set(why, EPROTO, "memory %s: the QEMU here does not say where it is", memdev);
    if (*text_of(data, "id"))
        json_object_set(o, "id", json_object_get(data, "id"));
    add_option(&s->parent_argv, "device", o);
    return 0;
}

static int add_dimms(struct session *s, struct ff_error *why)
{
    FF_AUTO_JSON json_t *list = NULL;
    size_t i;
    json_t *d;
    int rc = qmp_command(s->qmp, "query-memory-devices", NULL, &list, why);

    if (rc == -EREMOTEIO) /* a machine without */
        rc = 0;
    json_array_foreach(list, i, d)
        if (!rc && !strcmp(text_of(d, "type"), "dimm"))
            rc = add_dimm(s, json_object_get(d, "data"), why);
    return rc;
}

/* --- CPUs --- */

static bool same_cpu(const char *argument, const char *type, const json_t *props)
{
    FF_AUTO_FREE char *driver = qemu_opts_get_first(argument, "driver");
    const char *key;
    json_t *value;

    if (!driver || strcmp(driver, type))
        return false;
    json_object_foreach((json_t *)props, key, value) {
        FF_AUTO_FREE char *own = qemu_opts_get(argument, key);
        if (!own || strtoll(own, NULL, 0) != json_integer_value(value))
            return false;
    }
    return true;
}

static bool has_cpu(const struct strv *argv, const char *type, const json_t *props)
{
    for (size_t i = 1; i < argv->n; i++)
        if (is_device_word(argv, i) && same_cpu(argv->v[i], type, props))
            return true;
    return false;
}

/* Those that a -device makes are below /machine/peripheral; those of -smp are not */
static void add_plugged_cpu(struct strv *argv, const json_t *cpu)
{
    static const char named[] = "/machine/peripheral/", unnamed[] = "/machine/peripheral-anon/";
    const char *path = text_of(cpu, "qom-path"), *type = text_of(cpu, "type");
    json_t *props = json_deep_copy(json_object_get(cpu, "props"));
    bool has_id = !strncmp(path, named, sizeof(named) - 1);

    json_object_del(props, "node-id"); /* by -numa cpu */
    if ((has_id || !strncmp(path, unnamed, sizeof(unnamed) - 1)) && !has_cpu(argv, type, props)) {
        json_t *o = json_pack("{ss}", "driver", type);
        if (has_id)
            json_object_set_new(o, "id", json_string(path + sizeof(named) - 1));
        json_object_update(o, props);
        add_option(argv, "device", o);
    }
    json_decref(props);
}

static int add_cpus(struct session *s, struct ff_error *why)
{
    FF_AUTO_JSON json_t *list = NULL;
    size_t i;
    json_t *cpu;
    int rc = qmp_command(s->qmp, "query-hotpluggable-cpus", NULL, &list, why);

    if (rc == -EREMOTEIO) /* a machine without */
        rc = 0;
    json_array_foreach(list, i, cpu)
        add_plugged_cpu(&s->parent_argv, cpu);
    return rc;
}

/* --- all others --- */

static int check_peripherals(struct session *s, struct ff_error *why)
{
    const struct strv *argv = &s->parent_argv;
    FF_AUTO_JSON json_t *list = NULL;
    size_t i;
    json_t *o;
    int rc = qmp_command(s->qmp, "qom-list", json_pack("{ss}", "path", "/machine/peripheral"),
                         &list, why);

    if (rc)
        return rc == -EREMOTEIO ? 0 : rc;
    json_array_foreach(list, i, o) {
        const char *id = text_of(o, "name");
        if (strstr(text_of(o, "type"), "child<") && !strv_have(&s->unplugged, id) && !is_on_command_line(argv, "device", id))
            return ff_error_set(
                why, ENOTSUP,
                "device %s was plugged in later, and is not on the command line of its QEMU: "
                "remove it first%s", id, s->kind->by_hand);
    }
    for (i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *id = is_device_word(argv, i) ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (id && !strv_have(&s->unplugged, id) && !json_find(list, "name", id))
            return ff_error_set(
                why, ENOTSUP,
                "device %s was removed, but is still on the command line of its QEMU: plug it in "
                "again%s", id, s->kind->by_hand);
    }
    return 0;
}

void session_recall_plugged(struct session *s)
{
    FF_AUTO_JSON json_t *list = NULL;
    struct overlay_owner owner;
    size_t i;
    json_t *spec;

    if (!overlay_records_owner(s->parent_argv.v, s->parent_pid, &owner))
        return;
    FF_AUTO_FREE char *path = xprintf("%s/%u" PLUGGED_FILE, owner.dir, owner.number);
    FF_AUTO_JSON json_t *known = json_load_file(path, 0, NULL);
    overlay_records_owner_free(&owner);
    if (!known || qmp_command(s->qmp, "qom-list", json_pack("{ss}", "path", "/machine/peripheral"), &list, NULL))
        return;
    json_array_foreach(known, i, spec) {
        const char *text = json_string_value(spec);
        FF_AUTO_FREE char *id = text ? qemu_opts_get(text, "id") : NULL;
        if (!id || !json_find(list, "name", id) || strv_have(&s->unplugged, id) ||
            is_on_command_line(&s->parent_argv, "device", id))
            continue;
        strv_add(&s->parent_argv, "-device");
        strv_add(&s->parent_argv, "%s", text);
    }
}

int session_add_plugged(struct session *s, struct ff_error *why)
{
    session_recall_plugged(s);
    int rc = add_dimms(s, why);

    if (!rc)
        rc = add_cpus(s, why);
    return rc ? rc : check_peripherals(s, why);
}
