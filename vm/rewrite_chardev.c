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
    return qemu_opts_is(opts, "server");
}

/* Nobody is there yet to connect: it does not wait for that */
static char *no_wait(const char *opts)
{
    FF_AUTO_FREE char *legacy = qemu_opts_get(opts, "nowait");

    return legacy ? xstrdup(opts) : qemu_opts_set(opts, "wait", "off");
}

/* "unix:PATH,..." that listens: with the child's path; NULL: it does not listen */
static char *own_socket(struct rewrite *r, const char *spec)
{
    if (!starts(spec, "unix:") || !listens(spec))
        return NULL;
    size_t len = strcspn(spec + 5, ",");
    FF_AUTO_FREE char *old = xprintf("%.*s", (int)len, spec + 5), *path = rewrite_path(r, old);
    FF_AUTO_FREE char *rest = no_wait(spec + 5 + len + 1); /* there is one: it listens */
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
    FF_AUTO_FREE char *own = r->own ? xprintf("%sqmp", r->own) : NULL;
    FF_AUTO_FREE char *agents = r->own ? xprintf("%sbeside", r->own) : NULL; /* command_line_monitor() */

    return is_socket(value, r->s->replaced) || is_socket(value, own) || is_socket(value, agents);
}

int rewrite_monitor(struct rewrite *r, const char *option, const char *value)
{
    if (is_replaced(r, value))
        return 0;
    FF_AUTO_FREE char *own = own_socket(r, value);

    if (own)
        rewrite_emit(r, option, own);
    else if (starts(value, "chardev:"))
        rewrite_emit(r, option, value);
    else if (!strcmp(option, "monitor"))
        rewrite_emit(r, option, "none");
    return 0;
}

int rewrite_serial(struct rewrite *r, const char *option, const char *value)
{
    static const char *const shared[] = {"null", "none", "vc", "pty", "msmouse", "testdev", NULL};
    const char *spec = starts(value, "mon:") ? value + 4 : value;
    FF_AUTO_FREE char *own = own_socket(r, spec);

    r->has_serial |= !strcmp(option, "serial");
    if (own) {
        rewrite_emit(r, option, own);
    } else if (starts(spec, "file:") || !strcmp(spec, "stdio")) {
        FF_AUTO_FREE char *path = rewrite_path(r, starts(spec, "file:") ? spec + 5 : option);
        FF_AUTO_FREE char *file = xprintf("file:%s", path);
        rewrite_emit(r, option, file);
    } else if (is_one_of(spec, shared) || starts(spec, "vc:") || starts(spec, "chardev:")) {
        rewrite_emit(r, option, spec);
    } else {
        rewrite_note(r, "-%s %s: not connected %s", option, value, rewrite_where(r));
        rewrite_emit(r, option, "null");
    }
    return 0;
}

/* The same device with nobody behind it */
static void cut_off(struct rewrite *r, const char *option, const char *value)
{
    static const char *const kept[] = {"id", "mux", NULL};
    FF_AUTO_FREE char *few = qemu_opts_only(value, "backend", kept);
    FF_AUTO_FREE char *null = qemu_opts_set_first(few, "backend", "null");
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id");

    rewrite_note(r, "chardev %s: not connected %s", id ? id : "without id", rewrite_where(r));
    rewrite_emit(r, option, null);
}

/* The way to an swtpm, which has its place there */
static bool is_tpm(const struct rewrite *r, const char *value)
{
    FF_AUTO_FREE char *id = qemu_opts_get(value, "id");

    for (char *const *w = r->parent; r->s->tpm && id && w[0] && w[1]; w++) {
        FF_AUTO_FREE char *own =
            qemu_option_is(w[0], "tpmdev") ? qemu_opts_get(w[1], "chardev") : NULL;
        if (own && !strcmp(own, id))
            return true;
    }
    return false;
}

int rewrite_chardev(struct rewrite *r, const char *option, const char *value)
{
    static const char *const shared[] = {"null", "vc", "pty", "ringbuf", "memory", "msmouse", "mux",
                                         "wctablet", "testdev", "hub", "spicevmc", "spiceport",
                                         "qemu-vdagent", "dbus", NULL};
    FF_AUTO_FREE char *backend = qemu_opts_get_first(value, "backend");
    FF_AUTO_FREE char *path = qemu_opts_get(value, "path");
    const char *b = backend ? backend : "";

    if (path && is_tpm(r, value)) {
        FF_AUTO_FREE char *there = qemu_opts_set(value, "path", r->s->tpm);
        rewrite_emit(r, option, there);
    } else if (path && !strcmp(b, "file")) { /* its own: option_files_own() */
        FF_AUTO_FREE char *without = qemu_opts_drop(value, "input-path");
        rewrite_emit(r, option, without);
    } else if (path && !strcmp(b, "socket") && listens(value)) {
        FF_AUTO_FREE char *own = rewrite_path(r, path), *with = qemu_opts_set(value, "path", own);
        FF_AUTO_FREE char *without = no_wait(with);
        rewrite_emit(r, option, without);
    } else if (!strcmp(b, "stdio")) {
        static const char *const kept[] = {"id", "mux", "logfile", "logappend", NULL};
        FF_AUTO_FREE char *few = qemu_opts_only(value, "backend", kept);
        FF_AUTO_FREE char *file = qemu_opts_set_first(few, "backend", "file");
        FF_AUTO_FREE char *id = qemu_opts_get(value, "id"),
                          *own = rewrite_path(r, id ? id : "stdio");
        FF_AUTO_FREE char *with = qemu_opts_set(file, "path", own);
        rewrite_emit(r, option, with);
    } else if (is_one_of(b, shared)) {
        rewrite_emit(r, option, value);
    } else {
        cut_off(r, option, value);
    }
    return 0;
}
