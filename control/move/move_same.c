/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_same.c - is the machine there the one that the guest has here?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      both QEMUs have one command line, and may be different machines all the same: the
 *              processor of the other host lacks something (QEMU warns, and starts); a CPU, or a
 *              device without an id, was plugged in or removed here. A guest would find out when it
 *              uses what is no longer there, or QEMU when it loads the state. So the one here is asked
 *              when it is looked at first, and the one there once it runs, before anything is sent.
 * Limits       flags of CPUID alone, of the first CPU: all of a guest have the same. A QEMU that does
 *              not answer a question is not compared in that.
 * Sources      qapi/machine.json: query-hotpluggable-cpus; target/i386/cpu.c: feature-words, and a
 *              boolean property for each flag.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "move.h"
#include "preflight.h"

#define FLAGS_BYTES 400 /* of their names in a message */

static json_t *property(const char *path, const char *name)
{
    return json_pack("{ss ss}", "path", path, "property", name);
}

/* The answer as @key of what is known of the machine here; that it refuses is no answer */
static int note_answer(struct move *m, const char *key, const char *execute, json_t *arguments,
                       struct ff_error *why)
{
    json_t *answer = NULL;
    int rc = qmp_command(m->s.qmp, execute, arguments, &answer, why);

    if (!rc)
        json_object_set_new(m->machine, key, answer);
    return rc == -EREMOTEIO ? 0 : rc;
}

static const char *first_cpu(const json_t *cpus)
{
    return text_of(json_array_get(cpus, 0), "qom-path");
}

int move_note_machine(struct move *m, struct ff_error *why)
{
    m->machine = json_object();
    int rc = note_answer(m, "plugs", "query-hotpluggable-cpus", NULL, why);
    if (!rc)
        rc = note_answer(m, "unnamed", "qom-list",
                         json_pack("{ss}", "path", "/machine/peripheral-anon"), why);
    if (!rc)
        rc = note_answer(m, "cpus", "query-cpus-fast", NULL, why);
    const char *path = first_cpu(json_object_get(m->machine, "cpus"));
    if (!rc && *path)
        rc = note_answer(m, "flags", "qom-get", property(path, "feature-words"), why);
    return rc;
}

/* What the one there answers, where the one here did. Otherwise, or if it refuses, *@out stays NULL */
static int ask_likewise(struct move *m, const char *key, const char *execute, json_t *arguments,
                        json_t **out, struct ff_error *why)
{
    if (!json_object_get(m->machine, key)) {
        json_decref(arguments);
        return 0;
    }
    int rc = move_ask(m, execute, arguments, out, why);
    return rc == -EREMOTEIO ? 0 : rc;
}

/* --- CPUs that may be plugged --- */

static bool is_plugged(const json_t *list, const json_t *props)
{
    size_t i;
    json_t *cpu;

    json_array_foreach(list, i, cpu)
        if (json_equal(json_object_get(cpu, "props"), props))
            return *text_of(cpu, "qom-path");
    return false;
}

static int check_cpus(struct move *m, struct ff_error *why)
{
    const json_t *here = json_object_get(m->machine, "plugs");
    FF_AUTO_JSON json_t *there = NULL;
    size_t i;
    json_t *cpu;
    int rc = ask_likewise(m, "plugs", "query-hotpluggable-cpus", NULL, &there, why);

    if (rc || !json_is_array(there))
        return rc;
    json_array_foreach(here, i, cpu) {
        const json_t *props = json_object_get(cpu, "props");
        bool plugged = *text_of(cpu, "qom-path");
        if (plugged == is_plugged(there, props))
            continue;
        FF_AUTO_FREE char *which = json_dumps(props, JSON_COMPACT);
        return ff_error_set(why, ENOTSUP,
                            "CPU %s %s: %s, or move this guest by hand, see "
                            "farfork-rdma-postcopy(7)",
                            which,
                            plugged ? "is not in the QEMU there"
                                    : "was unplugged, but its QEMU started with it, and so does the "
                                      "one there",
                            plugged ? "unplug it" : "plug it in again");
    }
    return 0;
}

/* --- devices without an id --- */

static size_t count_type(const json_t *list, const char *type)
{
    size_t i, n = 0;
    json_t *o;

    json_array_foreach(list, i, o)
        n += !strcmp(text_of(o, "type"), type);
    return n;
}

static int check_unnamed(struct move *m, struct ff_error *why)
{
    const json_t *here = json_object_get(m->machine, "unnamed");
    FF_AUTO_JSON json_t *there = NULL;
    size_t i;
    json_t *o;
    int rc = ask_likewise(m, "unnamed", "qom-list",
                          json_pack("{ss}", "path", "/machine/peripheral-anon"), &there, why);

    if (rc || !json_is_array(there))
        return rc;
    for (int back = 0; back <= 1; back++) {
        const json_t *one = back ? there : here, *other = back ? here : there;
        json_array_foreach(one, i, o) {
            const char *type = text_of(o, "type");
            int len = (int)strcspn(type, "<") + 1;
            if (strncmp(type, "child<", 6) || count_type(one, type) <= count_type(other, type))
                continue;
            return ff_error_set(why, ENOTSUP, "a device %.*s without an id was %s",
                                (int)strcspn(type + len, ">"), type + len,
                                back ? "removed, but is still on the command line of its QEMU: plug "
                                       "one in again, or move this guest by hand, see "
                                       "farfork-rdma-postcopy(7)"
                                     : "plugged in later, and is not on the command line of its "
                                       "QEMU: move this guest by hand, see "
                                       "farfork-rdma-postcopy(7)");
        }
    }
    return 0;
}

/* --- flags --- */

/* The names of those that are set here and not there, with a space in front of each */
static void name_missing(struct move *m, const char *here, const char *there,
                         char text[FLAGS_BYTES])
{
    FF_AUTO_JSON json_t *list = NULL;
    struct ff_error why;
    size_t i, at = 0;
    json_t *o;

    *text = '\0';
    qmp_command(m->s.qmp, "qom-list", json_pack("{ss}", "path", here), &list, &why);
    json_array_foreach(list, i, o) {
        const char *name = text_of(o, "name");
        FF_AUTO_JSON json_t *a = NULL, *b = NULL;
        if (strcmp(text_of(o, "type"), "bool") || strchr(name, '_') || /* another name of one */
            qmp_command(m->s.qmp, "qom-get", property(here, name), &a, &why) || !json_is_true(a) ||
            move_ask(m, "qom-get", property(there, name), &b, &why) || !json_is_false(b))
            continue;
        int n = snprintf(text + at, FLAGS_BYTES - at, " %s", name);
        if (n < 0 || (size_t)n >= FLAGS_BYTES - at) {
            memcpy(text + FLAGS_BYTES - 5, " ...", 5);
            return;
        }
        at += (size_t)n;
    }
}

static int check_flags(struct move *m, struct ff_error *why)
{
    const char *here = first_cpu(json_object_get(m->machine, "cpus"));
    FF_AUTO_JSON json_t *cpus = NULL, *flags = NULL;
    char names[FLAGS_BYTES];
    int rc = ask_likewise(m, "flags", "query-cpus-fast", NULL, &cpus, why);
    const char *there = first_cpu(cpus);

    if (!rc && *there)
        rc = ask_likewise(m, "flags", "qom-get", property(there, "feature-words"), &flags, why);
    if (rc || !json_is_array(flags) || !processor_lacks_any(json_object_get(m->machine, "flags"), flags))
        return rc;
    name_missing(m, here, there, names);
    return ff_error_set(
        why, ENOTSUP,
        "the guest's CPU has flags here that %s does not give it:%s; start the guest with a CPU "
        "model that both hosts have (-cpu; not host or max), or without these flags (-cpu "
        "MODEL,FLAG=off)",
        move_host(m)->node->host, *names ? names : " (QEMU does not name them)");
}

int move_check_same(struct move *m, struct ff_error *why)
{
    int rc = check_cpus(m, why);

    if (!rc)
        rc = check_unnamed(m, why);
    return rc ? rc : check_flags(m, why);
}
