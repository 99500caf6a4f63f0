/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * option_files.c - options of QEMU that name files: those that it writes, those with relative names
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      give each new QEMU its own output files, in its run directory. If it opened the first
 *              QEMU's, it would truncate them, also for a move that fails later. One table lists
 *              every option that names an output file.
 *              Images, sockets and terminals are not in it: vm/disk/, rewrite_chardev.c,
 *              rewrite_net.c.
 *              A QEMU whose folder is gone can be started elsewhere only if no option has a
 *              relative name.
 * Limits       relative names are found only under listed options and keys. A firmware name without
 *              a folder (-bios qboot.rom) is assumed to be in QEMU's own.
 * Sources      QEMU 10.0 and 10.2, every open() with O_TRUNC or O_CREAT and every fopen() that an
 *              option can reach: net/dump.c, audio/wavaudio.c, trace/control.c, util/log.c,
 *              hw/usb/bus.c, hw/uefi/var-service-json.c, chardev/char.c, char-file.c, char-pty.c,
 *              replay/replay.c, system/vl.c, contrib/plugins.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "option_files.h"
#include "qemu_opts.h"
#include "rewrite.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static const struct written {
    const char *option, *implied; /* the key of its first part; NULL: the argument is the name */
    const char *type;             /* that part begins so; NULL: whatever it is */
    const char *key;              /* where the name is */
    const char *unsaid;           /* what QEMU takes where there is none; NULL: no file */
    bool note;                    /* nobody expects it to go elsewhere */
    bool moves;                   /* a part of the guest, as an image is: the same after a move */
} written[] = {
    {"D", .key = "-D"},
    {"qtest-log", .key = "-qtest-log"},
    {"pidfile", .key = "-pidfile"},
    {"chardev", "backend", .key = "logfile"},
    {"chardev", "backend", "file", .key = "path"},
    {"chardev", "backend", "pty", .key = "path"}, /* a link to it */
    {"trace", "enable", .key = "file", .note = true},
    {"object", "qom-type", "filter-dump", .key = "file", .note = true},
    {"audiodev", "driver", "wav", "path", "qemu.wav", .note = true},
    {"audio", "driver", "wav", "path", "qemu.wav", .note = true},
    {"device", "driver", .key = "pcap", .note = true}, /* of USB */
    {"device", "driver", "uefi-vars", .key = "jsonfile", .note = true, .moves = true},
};

static bool is_of_type(const struct written *w, const char *value)
{
    FF_AUTO_FREE char *type = w->type ? qemu_opts_get_first(value, w->implied) : NULL;

    return !w->type || (type && !strncmp(type, w->type, strlen(w->type)));
}

static char *own_file(struct rewrite *r, const struct written *w, const char *value,
                      const char *name)
{
    FF_AUTO_FREE char *own = rewrite_path(r, name);
    const char *slash = strrchr(own, '/'), *dot = slash ? strchr(slash, '.') : NULL;

    if (w->note && r->s->incoming)
        rewrite_note(r,
                     "-%s %s: the QEMU there writes %s in its run directory, and leaves %s alone",
                     w->option, value, slash ? slash + 1 : own, name);
    else if (w->note)
        rewrite_note(r, "-%s %s: children write N%s in their run directories, and leave %s alone",
                     w->option, value, dot ? dot : ".file", name);
    return w->implied ? qemu_opts_set(value, w->key, own) : xstrdup(own);
}

char *option_files_own(struct rewrite *r, const char *option, const char *value)
{
    char *out = xstrdup(value);

    for (const struct written *w = written; w < written + N(written); w++) {
        if (strcmp(option, w->option) || (w->moves && r->s->incoming) || !is_of_type(w, out))
            continue;
        FF_AUTO_FREE char *named = w->implied ? qemu_opts_get(out, w->key) : xstrdup(out);
        const char *name = named ? named : w->unsaid;
        if (!name)
            continue;
        char *own = own_file(r, w, out, name);
        free(out);
        out = own;
    }
    return out;
}

/* --- names elsewhere, and files that nobody can have twice --- */

static bool is_written_key(const char *option, const char *key)
{
    for (const struct written *w = written; w < written + N(written); w++)
        if (w->implied && (!option || !strcmp(option, w->option)) && !strcmp(key, w->key))
            return true;
    return false;
}

/* GROUP.ID.KEY=VALUE */
int option_files_set(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *text = xstrdup(value);
    char *rest = text, *group = strsep(&rest, "."), *id = strsep(&rest, "."),
         *key = strsep(&rest, "=");

    if (id && key && is_written_key(group, key))
        return ff_error_set(
            r->why, ENOTSUP,
            "the parent's -%s %s: two QEMUs cannot write one file: start the parent "
            "with %s= in its -%s %s instead",
            option, value, key, group, id);
    rewrite_emit(r, option, value);
    return 0;
}

/* DRIVER.KEY=VALUE, or driver=,property=,value= */
int option_files_global(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *text = xstrdup(value), *property = qemu_opts_get(value, "property");
    char *rest = text, *driver = strsep(&rest, "."), *key = strsep(&rest, "=");

    key = property ? property : driver ? key : NULL;
    if (key && is_written_key("device", key))
        return ff_error_set(
            r->why, ENOTSUP,
            "the parent's -%s %s: two QEMUs cannot write one file: start the parent "
            "with %s= in the -device instead",
            option, value, key);
    rewrite_emit(r, option, value);
    return 0;
}

int option_files_icount(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *rr = qemu_opts_get(value, "rr");

    if (rr)
        return ff_error_set(r->why, ENOTSUP,
                            "the parent's -%s %s: its rrfile is the record of one QEMU from its "
                            "start on: start the parent without rr=",
                            option, value);
    rewrite_emit(r, option, value);
    return 0;
}

/* What its arguments name only it knows. The guest does not see it */
int option_files_plugin(struct rewrite *r, const char *option, const char *value)
{
    rewrite_note(r, "-%s %s: not loaded %s: it may write to files of the parent's", option, value,
                 rewrite_where(r));
    return 0;
}

/* --- relative names --- */

/* The whole argument is a name */
static const char *const names[] = {"bios",       "kernel", "initrd",     "dtb",     "shim",
                                    "option-rom", "L",      "fda",        "fdb",     "hda",
                                    "hdb",        "hdc",    "hdd",        "cdrom",   "sd",
                                    "mtdblock",   "pflash", "readconfig", "mem-path"};
/* Keys with a name, whichever option has them, also below others ("file.filename") */
static const char *const keys[] = {
    "file",       "filename",     "path",         "mem-path", "events",      "script",
    "downscript", "helper",       "dir",          "rootdir",  "romfile",     "splash",
    "smb",        "tftp",         "socket",       "sdrfile",  "frudatafile", "jsonfile",
    "chroot",     "dh-cert-file", "session-file", "acpitable"};
/* None of theirs is opened by a second QEMU, or none is a name */
static const char *const others[] = {"append",     "chardev", "name",     "plugin",  "qmp",
                                     "qmp-pretty", "monitor", "mon",      "serial",  "parallel",
                                     "debugcon",   "display", "vnc",      "spice",   "incoming",
                                     "trace",      "audio",   "audiodev", "pidfile", "D"};

static bool is_among(const char *word, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(word, list[i]))
            return true;
    return false;
}

/* Also looked for in QEMU's folders of firmware */
static const char *const firmware[] = {"bios", "option-rom", "romfile", "splash"};

/* "nbd://host", "json:{}", "fat:dir" are not */
static bool is_relative(const char *key, const char *name)
{
    if (!strchr(name, '/') && is_among(key, firmware, N(firmware)))
        return false;
    size_t word = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+_-");

    return *name && *name != '/' && name[word] != ':' && strcmp(name, "no") && strcmp(name, "none");
}

/* @node: file= is the name of a node */
static bool is_relative_at(const char *key, const char *name, bool node)
{
    const char *dot = strrchr(key, '.'), *last = dot ? dot + 1 : key;

    return is_among(last, keys, N(keys)) && !(node && !strcmp(last, "file")) &&
           is_relative(last, name);
}

static bool any_in_json(const json_t *o, bool node)
{
    const char *key;
    json_t *v;
    size_t i;

    json_array_foreach(o, i, v) if (any_in_json(v, node)) return true;
    json_object_foreach((json_t *)o, key,
                        v) if (json_is_string(v) ? is_relative_at(key, json_string_value(v), node)
                                                 : any_in_json(v, node)) return true;
    return false;
}

static bool any_in_text(const char *value, bool node)
{
    for (const char *part = value; part;) {
        const char *comma = strchr(part, ','), *eq = strchr(part, '=');
        if (eq && (!comma || eq < comma)) {
            FF_AUTO_FREE char *key = xprintf("%.*s", (int)(eq - part), part);
            FF_AUTO_FREE char *name = xprintf("%.*s", (int)strcspn(eq + 1, ","), eq + 1);
            if (is_relative_at(key, name, node))
                return true;
        }
        part = comma ? comma + 1 : NULL;
    }
    return false;
}

bool option_files_relative(const char *option, const char *value)
{
    if (is_among(option, others, N(others)))
        return false;
    if (is_among(option, names, N(names)))
        return is_relative(option, value);
    bool node = !strcmp(option, "blockdev");
    json_t *o = *value == '{' ? json_loads(value, 0, NULL) : NULL;
    bool any = o ? any_in_json(o, node) : any_in_text(value, node);

    json_decref(o);
    return any;
}
