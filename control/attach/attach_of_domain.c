/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_of_domain.c - what one side keeps of a domain, and the QEMU of it, by way of libvirt; see attach_domain.h
 */
#include "attach_domain.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "libvirt.h"

static char *text_copy(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);

    return json_is_string(v) ? xstrdup(json_string_value(v)) : NULL;
}

int attach_domain_new(struct attach *a, const char *line, struct ff_error *err)
{
    FF_AUTO_JSON json_t *o = line ? json_loads(line, 0, NULL) : NULL;
    struct attach_domain *d = xcalloc(1, sizeof(*d));

    *d = (struct attach_domain){.xml = text_copy(o, "xml"),
                                .cpu = text_copy(o, "cpu"),
                                .define = text_copy(o, "define"),
                                .undefine = json_is_true(json_object_get(o, "undefine")),
                                .qemu_fd = -1,
                                .notify = -1,
                                .both = -1,
                                .fifo_fd = -1};
    a->domain = d;
    return d->xml ? 0 : ff_error_set(err, EINVAL, "--domain: want an object with the domain's \"xml\" as the second line of "
                                                  "input");
}

void attach_domain_unlink(struct attach_domain *d)
{
    if (d->fifo)
        unlink(d->fifo);
    free(d->fifo);
    d->fifo = NULL;
}

void attach_domain_free(struct attach *a)
{
    struct attach_domain *d = a->domain;

    if (!d)
        return;
    if (d->has_end_thread)
        pthread_join(d->end_thread, NULL);
    attach_domain_unlink(d);
    if (d->restore)
        libvirt_end(d->restore, 0, NULL, NULL);
    ff_close_fd(&d->qemu_fd);
    ff_close_fd(&d->notify);
    ff_close_fd(&d->both);
    ff_close_fd(&d->fifo_fd);
    attach_owners_free(d);
    rested_free(&d->rested);
    free(d->head);
    free(d->xml);
    free(d->cpu);
    free(d->define);
    free(d);
    a->domain = NULL;
}

/* A command of QMP: see qmp_by() */
static int carry_by_libvirt(void *opaque, const char *line, int fd, char **answer, struct ff_error *err)
{
    const struct attach *a = opaque;

    return libvirt_monitor(a->o->domain, line, fd, answer, err);
}

int attach_domain_connect(struct attach *a, struct ff_error *err)
{
    struct attach_domain *d = a->domain;
    int rc = domain_pid(a->o->domain, &a->pid, err);

    if (rc || a->q)
        return rc;
    d->qemu_fd = (int)syscall(SYS_pidfd_open, a->pid, 0);
    if (d->qemu_fd < 0)
        return ff_error_set(err, errno, "domain %s: its process %d: %s", a->o->domain, (int)a->pid, strerror(errno));
    a->q = qmp_by(carry_by_libvirt, a, a->pid);
    return 0;
}

bool attach_domain_has_ended(const struct attach *a)
{
    struct pollfd ended = {.fd = a->domain->qemu_fd, .events = POLLIN};

    return poll(&ended, 1, 0) > 0;
}
