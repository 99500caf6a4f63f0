/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * virsh.c - run virsh at this host's libvirt
 */
#include "virsh.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "libvirt_calls.h"

#define VIRSH_LIMIT_MS 60000 /* libvirt's own, for the lock of a domain, is 30 s */

void virsh_begin(struct strv *words)
{
    strv_add(words, "virsh");
    strv_add(words, "-q");
    strv_add(words, "-c");
    strv_add(words, LIBVIRT_HERE);
}

static void add_line(void *opaque, const char *line)
{
    char **text = opaque, *more;

    if (!*line)
        return;
    more = xprintf("%s%s%s", *text ? *text : "", *text ? "\n" : "", line);
    free(*text);
    *text = more;
}

int virsh_failed(const struct spawn *r, const char *command, int status, struct ff_error *err)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return ff_error_set(err, ENOENT, "virsh: it does not run (%s): install libvirt-clients",
                            r->first ? r->first : "no message");
    return ff_error_set(err, EREMOTEIO, "virsh %s: %s", command,
                        r->first ? r->first : "it failed without a message");
}

int virsh_end(struct spawn *r, const char *command, char **out, struct ff_error *err)
{
    int status = 0, rc = 0;

    if (!spawn_read_lines(r, VIRSH_LIMIT_MS, add_line, out) ||
        !spawn_ended(r, SPAWN_ENDS_MS, &status))
        rc = ff_error_set(err, ETIMEDOUT, "virsh %s: no end within %d s", command,
                          VIRSH_LIMIT_MS / 1000);
    else if (status)
        rc = virsh_failed(r, command, status, err);
    spawn_end(r, 0);
    return rc;
}

int virsh_run(const struct strv *words, char **out, struct ff_error *err)
{
    FF_AUTO_FREE char *text = NULL;
    struct strv w = {0};
    struct spawn r;

    virsh_begin(&w);
    for (size_t i = 0; i < words->n; i++)
        strv_add(&w, "%s", words->v[i]);
    int rc = spawn_start(&r, w.v, NULL, err);
    if (!rc)
        rc = virsh_end(&r, words->v[0], &text, err);
    spawn_free(&r);
    strv_free(&w);
    if (!rc && out) {
        *out = text ? text : xstrdup("");
        text = NULL;
    }
    return rc;
}
