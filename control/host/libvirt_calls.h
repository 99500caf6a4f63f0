/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * libvirt_calls.h - the functions of libvirt that Farfork calls, loaded when the first one is wanted
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      no program of ours links to libvirt: a host without domains needs none of it. Types and numbers here are
 *              those of libvirt's public interface, which it never changes; so a build needs no headers of it either.
 * Sources      libvirt-domain.h, libvirt-domain-snapshot.h, libvirt-qemu.h, virterror.h of libvirt 9.0 and 11.10
 */
#ifndef FF_CONTROL_HOST_LIBVIRT_CALLS_H
#define FF_CONTROL_HOST_LIBVIRT_CALLS_H

#include "error.h"

#define LIBVIRT_HERE "qemu:///system"

enum { /* virErrorNumber */
    VIRT_ERR_NO_DOMAIN = 42,
    VIRT_ERR_OPERATION_INVALID = 55, /* the domain is not in a state in which that makes sense */
};

enum { /* flags, each of one call */
    VIRT_XML_SECURE = 1,
    VIRT_XML_INACTIVE = 2,
    VIRT_XML_MIGRATABLE = 8,
    VIRT_SAVE_RUNNING = 2,
    VIRT_SAVE_PAUSED = 4,
    VIRT_UNDEFINE_KEEP_NVRAM = 8,
    VIRT_STATS_BLOCK = 32,
    VIRT_SNAPSHOT_NO_METADATA = 4,
    VIRT_SNAPSHOT_DISK_ONLY = 16,
    VIRT_SNAPSHOT_ATOMIC = 128,
    VIRT_COMMIT_SHALLOW = 1,
    VIRT_COMMIT_ACTIVE = 4,
    VIRT_ABORT_PIVOT = 2,
};

struct virt_connect;
struct virt_domain;
struct virt_snapshot;

struct virt_error {
    int code, domain;
    char *message; /* there is more, which nobody reads here */
};

#define VIRT_PARAM_UINT 2
#define VIRT_PARAM_STRING 7

struct virt_param {
    char field[80];
    int type;
    union {
        unsigned ui;
        unsigned long long ul;
        double d;
        char *s;
    } value;
};

struct virt_stats {
    struct virt_domain *dom;
    struct virt_param *params;
    int nparams;
};

struct virt_block_job {
    int type;
    unsigned long bandwidth;
    unsigned long long at, end; /* it is done when they are equal */
};

/* Each: what libvirt calls vir..., in its order of parameters */
struct libvirt_calls {
    int (*initialize)(void);
    void (*set_error_func)(void *opaque, void (*fn)(void *opaque, struct virt_error *e));
    const struct virt_error *(*get_last_error)(void); /* of this thread */
    struct virt_connect *(*connect_open)(const char *uri);
    int (*connect_close)(struct virt_connect *c); /* gives up one reference */
    int (*connect_ref)(struct virt_connect *c);
    int (*connect_is_alive)(struct virt_connect *c);
    int (*connect_get_lib_version)(struct virt_connect *c, unsigned long *version);
    struct virt_domain *(*domain_lookup)(struct virt_connect *c, const char *name);
    int (*domain_free)(struct virt_domain *d);
    int (*domain_suspend)(struct virt_domain *d);
    int (*domain_resume)(struct virt_domain *d);
    int (*domain_destroy)(struct virt_domain *d);
    int (*domain_undefine)(struct virt_domain *d, unsigned flags);
    int (*domain_is_active)(struct virt_domain *d);
    char *(*domain_xml)(struct virt_domain *d, unsigned flags);
    struct virt_domain *(*domain_define)(struct virt_connect *c, const char *xml);
    int (*domain_restore)(struct virt_connect *c, const char *from, const char *xml, unsigned flags);
    int (*stats)(struct virt_domain **d, unsigned which, struct virt_stats ***out, unsigned flags);
    void (*stats_free)(struct virt_stats **s);
    struct virt_snapshot *(*snapshot)(struct virt_domain *d, const char *xml, unsigned flags);
    int (*snapshot_free)(struct virt_snapshot *s);
    int (*commit)(struct virt_domain *d, const char *disk, const char *base, const char *top, unsigned long bandwidth,
                  unsigned flags);
    int (*job_info)(struct virt_domain *d, const char *disk, struct virt_block_job *job, unsigned flags); /* 0: there is none */
    int (*job_abort)(struct virt_domain *d, const char *disk, unsigned flags);
    int (*monitor)(struct virt_domain *d, const char *line, char **answer, unsigned flags);
    /* NULL: before libvirt 8.2 */
    int (*monitor_with_files)(struct virt_domain *d, const char *line, unsigned n_in, int *in, unsigned *n_out, int **out,
                              char **answer, unsigned flags);
};

/* Loaded, and initialized; the same in every call. NULL: there is no libvirt here, and @err says what to install */
const struct libvirt_calls *libvirt_calls(struct ff_error *err);

/* From here on these, of a test's own; before any other call */
void libvirt_calls_are(const struct libvirt_calls *calls);

#endif
