/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * config_file.c - what a -readconfig of a running QEMU stands for
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child or the QEMU of a moved guest needs each device of the parent, and disks,
 *              NICs and sockets of its own, wherever the parent has them from. QEMU reads a
 *              section [device "ID"] with lines key = "value" as -device id=ID,key=value in the
 *              place of the -readconfig, so it can stand there.
 * Limits       only sections whose option takes the same keys: others are not looked into, and the
 *              whole file is left. The file must be as it was when QEMU read it; one whose time is
 *              older than the process is taken for that.
 * Sources      QEMU util/qemu-config.c, qemu_config_foreach()
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "config_file.h"
#include "identity.h"
#include "qemu_opts.h"

#define LINE_MAX_BYTES 1024 /* as QEMU has it */
#define TICK_S 0.02 /* a process's start is known to that, and a file's time may be behind */

static bool is_option(const char *group)
{
    static const char *const same[] = {"device", "drive", "chardev", "netdev", "mon", "global",
                                       "object"};

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (!strcmp(group, same[i]))
            return true;
    return false;
}

/* The section so far: -GROUP TEXT */
struct section {
    char group[64];
    char *text;
};

static void add_key(struct section *s, const char *key, const char *value)
{
    FF_AUTO_FREE char *old = s->text ? s->text : xprintf("%s=", key);

    s->text = qemu_opts_set(old, key, value);
}

static void end_section(struct section *s, struct strv *out)
{
    if (s->text) {
        strv_add(out, "-%s", s->group);
        strv_take(out, s->text);
    }
    s->text = NULL;
}

/* [GROUP] or [GROUP "ID"] */
static bool read_head(struct section *s, const char *line)
{
    char id[64];
    int at = 0;

    if (sscanf(line, "[%63s \"%63[^\"]\"]%n", s->group, id, &at) == 2 && at) {
        add_key(s, "id", id);
        return is_option(s->group);
    }
    return sscanf(line, "[%63[^] \"]]%n", s->group, &at) == 1 && at && is_option(s->group);
}

/* key = "value" */
static bool read_key(struct section *s, const char *line)
{
    char key[64];
    int at = 0;

    if (!*s->group || sscanf(line, " %63[^ \t=] = \"%n", key, &at) != 1 || !at)
        return false;
    const char *end = strchr(line + at, '"');
    if (!end)
        return false;
    FF_AUTO_FREE char *value = xprintf("%.*s", (int)(end - line - at), line + at);
    add_key(s, key, value);
    return true;
}

/* False: not all of it is understood. @some: what is not is left out */
static bool read_sections(FILE *f, bool some, struct strv *out)
{
    char line[LINE_MAX_BYTES];
    struct section s = {.group = ""};
    bool ok = true;

    while (ok && fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || !line[strspn(line, " \t\r\n")])
            continue;
        if (line[0] == '[') {
            end_section(&s, out);
            ok = read_head(&s, line);
            if (!ok && some) {
                free(s.text);
                s = (struct section){.group = ""};
                ok = true;
            }
        } else {
            ok = read_key(&s, line) || some;
        }
    }
    if (ok)
        end_section(&s, out);
    free(s.text);
    return ok && !ferror(f);
}

/* Written since the process began to run */
static bool is_younger(FILE *f, double age_s)
{
    struct timespec now;
    struct stat st;

    clock_gettime(CLOCK_REALTIME, &now);
    if (fstat(fileno(f), &st))
        return true;
    return (double)(now.tv_sec - st.st_mtim.tv_sec) +
               (double)(now.tv_nsec - st.st_mtim.tv_nsec) / 1e9 < age_s - TICK_S;
}

/* The options that it stands for; false: they cannot be told */
static bool read_config(const char *path, const char *cwd, double age_s, bool some, struct strv *out)
{
    FF_AUTO_FREE char *absolute = xprintf("%s%s%s", *path == '/' || !cwd ? "" : cwd,
                                          *path == '/' || !cwd ? "" : "/", path);
    FILE *f = identity_is_config(path) ? NULL : fopen(absolute, "re");
    bool ok = f && (some || !is_younger(f, age_s)) && read_sections(f, some, out);

    if (f)
        fclose(f);
    return ok;
}

static void expand_files(struct strv *argv, const char *cwd, double age_s, bool some)
{
    struct strv out = {0};

    for (size_t i = 0; i < argv->n; i++) {
        struct strv options = {0};
        bool is = i + 1 < argv->n && qemu_option_is(argv->v[i], "readconfig");
        if (is && read_config(argv->v[i + 1], cwd, age_s, some, &options)) {
            for (size_t k = 0; k < options.n; k++)
                strv_add(&out, "%s", options.v[k]);
            i++;
        } else {
            strv_add(&out, "%s", argv->v[i]);
        }
        strv_free(&options);
    }
    strv_free(argv);
    *argv = out;
}

void config_file_expand(struct strv *argv, const char *cwd, double age_s)
{
    expand_files(argv, cwd, age_s, false);
}

void config_file_look(struct strv *argv, const char *cwd)
{
    expand_files(argv, cwd, 0, true);
}
