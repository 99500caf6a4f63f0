/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * libvirt.h - ask this host's libvirt, over one connection that is kept, and find the QEMU of a domain
 */
/**
 * DOC: Theory of Operation
 *
 * Threads      each question runs in a thread of its own, so that a libvirtd that does not answer holds up nobody for
 *              longer than a limit. Whoever asks waits for that thread, or goes on meanwhile (libvirt_begin()).
 * Ownership    one connection a process, made by the first question. One that has broken (libvirtd was started again) is made anew
 *              by the next one. After fork(2) only the side that asks afterwards has one.
 * Failure      a question that was under way when its connection broke is not asked again: nobody knows what became of it.
 */
#ifndef FF_CONTROL_HOST_LIBVIRT_H
#define FF_CONTROL_HOST_LIBVIRT_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

enum libvirt_op {         /* text                          answer */
    LIBVIRT_SUSPEND,
    LIBVIRT_RESUME,
    LIBVIRT_DESTROY,
    LIBVIRT_UNDEFINE,     /* its NVRAM stays */
    LIBVIRT_IS_ACTIVE,    /* -ESRCH: it does not run, or there is none */
    LIBVIRT_XML,          /*                               XML of the domain that runs */
    LIBVIRT_XML_MOVES,    /*                               the same, as another libvirt takes it; with secrets */
    LIBVIRT_XML_DEFINED,  /*                               likewise, of the definition */
    LIBVIRT_DEFINE,       /* XML; no domain is named */
    LIBVIRT_RESTORE,      /* path; no domain is named: it is paused then */
    LIBVIRT_DISKS,        /*                               an array of {"target", "source"}, JSON; of files and block devices */
    LIBVIRT_SNAPSHOT,     /* XML: overlays, without metadata; all of them or none */
    LIBVIRT_COMMIT,       /* target of a disk: its overlay into what it stands on, which is its image again then */
    LIBVIRT_MONITOR,      /* a line of QMP                 the line that answers */
};

struct libvirt_call;

/**
 * libvirt_begin() - ask a question, and go on
 * @domain: its name; NULL where none is named
 * @text:   as above; NULL: none
 * @fd:     LIBVIRT_MONITOR: to be passed with it, duplicated here; -1: none
 *
 * Return: 0; -ENOENT: no libvirt here; -errno: it was not asked
 */
int libvirt_begin(enum libvirt_op op, const char *domain, const char *text, int fd, struct libvirt_call **out,
                  struct ff_error *err);

/* Readable: it has been answered */
int libvirt_call_fd(const struct libvirt_call *c);

/**
 * libvirt_end() - wait for the answer, at most @limit_ms, and free the call
 * @answer: to be freed; may be NULL
 *
 * Return: 0; -ESRCH: there is no such domain; -EALREADY: it is not in a state for that: it runs already, or does not run;
 *         -EREMOTEIO: refused otherwise, in libvirt's words; -EOPNOTSUPP: libvirt is too old; -ECONNREFUSED: libvirtd does
 *         not answer; -EPIPE: the connection broke meanwhile, and nobody knows what became of it; -ETIMEDOUT: likewise
 */
int libvirt_end(struct libvirt_call *c, int limit_ms, char **answer, struct ff_error *err);

/* Both; within a minute */
int libvirt_ask(enum libvirt_op op, const char *domain, const char *text, char **answer, struct ff_error *err);

/* LIBVIRT_MONITOR, with @fd, -1: none. As qmp_by() wants it: -ENODATA: libvirt has no answer of QEMU's */
int libvirt_monitor(const char *domain, const char *line, int fd, char **answer, struct ff_error *err);

/* Of a domain that this host's libvirt runs. -ESRCH: it does not */
int domain_pid(const char *name, pid_t *pid, struct ff_error *err);

/* The file that says so: there for as long as the domain runs. To be freed */
char *domain_pid_file(const char *name);

#endif
