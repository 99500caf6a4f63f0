/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * virsh.c - run virsh at this host's libvirt, and find the QEMU of a domain
 */
#include "virsh.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define RUN_FOLDER "/run/libvirt/qemu"
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

int virsh_monitor(const char *domain, const char *line, int fd, char **answer, struct ff_error *err)
{
    /* this one virsh inherits; so does what another thread starts meanwhile, which does no harm */
    FF_AUTO_CLOSE int its = fd < 0 ? -1 : fcntl(fd, F_DUPFD, 3);
    struct strv w = {0};

    if (fd >= 0 && its < 0)
        return ff_error_set(err, errno, "virsh: duplicate a descriptor: %s", strerror(errno));

    strv_add(&w, "qemu-monitor-command");
    strv_add(&w, "--domain");
    strv_add(&w, "%s", domain);
    if (its >= 0) {
        strv_add(&w, "--pass-fds");
        strv_add(&w, "%d", its);
    }
    strv_add(&w, "--cmd");
    strv_add(&w, "%s", line);
    int rc = virsh_run(&w, answer, err);
    strv_free(&w);
    return rc;
}

char *domain_pid_file(const char *name)
{
    return xprintf(RUN_FOLDER "/%s.pid", name);
}

/* virsh looks for an id and for a UUID first */
static bool is_name(const char *name)
{
    size_t len = strlen(name);
    bool digits = strspn(name, "0123456789") == len;
    bool uuid = strspn(name, "0123456789abcdefABCDEF-") == len && (len == 32 || len == 36);

    return len && !digits && !uuid && !strchr(name, '/');
}

int domain_pid(const char *name, pid_t *pid, struct ff_error *err)
{
    if (!is_name(name))
        return ff_error_set(err, EINVAL,
                            "domain %s: want its name, not an id or a UUID (virsh takes a name that "
                            "looks like one for one: virsh domrename)", name);
    FF_AUTO_FREE char *path = domain_pid_file(name);
    FILE *f = fopen(path, "re");
    int number = 0;

    if (f && fscanf(f, "%d", &number) != 1)
        number = 0;
    if (f)
        fclose(f);
    if (number <= 0 || kill(number, 0))
        return ff_error_set(err, ESRCH,
                            "domain %s: it does not run here (%s): see virsh list --all, and run "
                            "farfork as root",
                            name, number > 0 ? strerror(errno) : path);
    *pid = number;
    return 0;
}
