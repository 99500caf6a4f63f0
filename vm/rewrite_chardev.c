/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite_chardev.c - a child's monitors, serial lines and character devices
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what listens at a path, or writes to a file, does so at a path of the child's own;
 *              what is connected to somebody, or to a terminal, port or device of the host, is
 *              not connected in a child: its other end knows one guest. The device that the
 *              guest sees stays in every case.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rewrite.h"
#include "qemu_opts.h"

static bool starts(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

static bool is_one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list))
            return true;
    return false;
}

static bool listens(const char *opts)
{
    return opts_is(opts, "server");
}

/* Nobody is there yet to connect: it does not wait for that */
static char *no_wait(const char *opts)
{
    AUTO_FREE char *legacy = opts_get(opts, "nowait");

    return legacy ? xstrdup(opts) : opts_set(opts, "wait", "off");
}

/* "unix:PATH,..." that listens: with the child's path; NULL: it does not listen */
static char *own_socket(struct rewrite *r, const char *spec)
{
    if (!starts(spec, "unix:") || !listens(spec))
        return NULL;
    size_t len = strcspn(spec + 5, ",");
    AUTO_FREE char *old = xprintf("%.*s", (int)len, spec + 5), *path = child_path(r, old);
    AUTO_FREE char *rest = no_wait(spec + 5 + len + 1); /* there is one: it listens */
    return xprintf("unix:%s,%s", path, rest);
}

static bool is_socket(const char *value, const char *path)
{
    return path && starts(value, "unix:") && strlen(path) == strcspn(value + 5, ",") &&
           starts(value + 5, path);
}

/* "unix:PATH,...": a socket that this one's own stands for; moves and forks would pile them up */
static bool is_replaced(const struct rewrite *r, const char *value)
{
    AUTO_FREE char *own = r->own ? xprintf("%sqmp", r->own) : NULL;

    return is_socket(value, r->s->replaced) || is_socket(value, own);
}

int rewrite_monitor(struct rewrite *r, const char *option, const char *value)
{
    if (is_replaced(r, value))
        return 0;
    AUTO_FREE char *own = own_socket(r, value);

    if (own)
        emit(r, option, own);
    else if (starts(value, "chardev:"))
        emit(r, option, value);
    else if (!strcmp(option, "monitor"))
        emit(r, option, "none");
    return 0;
}

int rewrite_serial(struct rewrite *r, const char *option, const char *value)
{
    static const char *const shared[] = {"null", "none", "vc", "pty", "msmouse", "testdev", NULL};
    const char *spec = starts(value, "mon:") ? value + 4 : value;
    AUTO_FREE char *own = own_socket(r, spec);

    r->has_serial |= !strcmp(option, "serial");
    if (own) {
        emit(r, option, own);
    } else if (starts(spec, "file:") || !strcmp(spec, "stdio")) {
        AUTO_FREE char *path = child_path(r, starts(spec, "file:") ? spec + 5 : option);
        AUTO_FREE char *file = xprintf("file:%s", path);
        emit(r, option, file);
    } else if (is_one_of(spec, shared) || starts(spec, "vc:") || starts(spec, "chardev:")) {
        emit(r, option, spec);
    } else {
        note(r, "-%s %s: not connected %s", option, value, where(r));
        emit(r, option, "null");
    }
    return 0;
}

/* The same device with nobody behind it */
static void cut_off(struct rewrite *r, const char *option, const char *value)
{
    static const char *const kept[] = {"id", "mux", NULL};
    AUTO_FREE char *few = opts_only(value, "backend", kept);
    AUTO_FREE char *null = opts_set_first(few, "backend", "null");
    AUTO_FREE char *id = opts_get(value, "id");

    note(r, "chardev %s: not connected %s", id ? id : "without id", where(r));
    emit(r, option, null);
}

int rewrite_chardev(struct rewrite *r, const char *option, const char *value)
{
    static const char *const shared[] = {"null", "vc", "pty", "ringbuf", "memory", "msmouse", "mux",
                                         "wctablet", "testdev", "hub", "spicevmc", "spiceport",
                                         "qemu-vdagent", "dbus", NULL};
    AUTO_FREE char *backend = opts_get_first(value, "backend");
    AUTO_FREE char *path = opts_get(value, "path"), *log = opts_get(value, "logfile");
    AUTO_FREE char *own_log = log ? child_path(r, log) : NULL;
    AUTO_FREE char *v = log ? opts_set(value, "logfile", own_log) : xstrdup(value);
    const char *b = backend ? backend : "";

    if (path && (!strcmp(b, "file") || (!strcmp(b, "socket") && listens(value)))) {
        AUTO_FREE char *own = child_path(r, path), *with = opts_set(v, "path", own);
        AUTO_FREE char *without =
            !strcmp(b, "file") ? opts_drop(with, "input-path") : no_wait(with);
        emit(r, option, without);
    } else if (!strcmp(b, "stdio")) {
        static const char *const kept[] = {"id", "mux", "logfile", "logappend", NULL};
        AUTO_FREE char *few = opts_only(v, "backend", kept);
        AUTO_FREE char *file = opts_set_first(few, "backend", "file");
        AUTO_FREE char *id = opts_get(value, "id"), *own = child_path(r, id ? id : "stdio");
        AUTO_FREE char *with = opts_set(file, "path", own);
        emit(r, option, with);
    } else if (is_one_of(b, shared)) {
        emit(r, option, v);
    } else {
        cut_off(r, option, v);
    }
    return 0;
}
