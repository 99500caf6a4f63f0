/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent_private.h - between parent*.c
 */
#ifndef FF_CONTROL_ATTACH_PARENT_PRIVATE_H
#define FF_CONTROL_ATTACH_PARENT_PRIVATE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cleanup.h"
#include "farfork-clone.h"
#include "farfork-elsewhere.h"
#include "freeze.h"
#include "outside.h"
#include "qmp.h"
#include "rested.h"
#include "xalloc.h"

struct parent_target {
    struct parent *p;
    char *uri, *socket;  /* socket: of an agent here; or NULL */
    bool passed;         /* the link is made by the socket, too */
    struct ff_address *address;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    struct ff_source *source;
    struct ff_group *group; /* many get the image at once; or NULL */
    const char *status;   /* as query-x-farfork-exports has it */
    uint64_t transferred;
    char session[FF_SESSION_TEXT];
    struct ff_error why;
    bool canceled;
};

struct parent_times { /* ns, of the pause */
    uint64_t pause, stop, actions, state, fork;
};

struct parent {
    const char *path;     /* of the QEMU's monitor */
    const char *domain;   /* instead: it is libvirt's */
    struct rested rested; /* ... whose monitor says no events */
    struct qmp *q;        /* NULL: not connected */
    pid_t pid;
    char *key;            /* of key_text_new(); NULL: none */
    /* the export */
    char *id;
    bool template, was_running;
    bool unplugged; /* a device was, since its blocks were looked for */
    struct outside_block *blocks;
    unsigned n_blocks;
    struct freeze *freeze;
    char *config;
    uint8_t *state;
    size_t state_len;
    struct parent_times times;
    struct ff_region *region; /* of each block; host: here, or in the process that has the copy */
    bool *is_there;           /* ... the latter */
    bool any_there;
    struct ff_group *group;
    struct parent_target *target;
    unsigned n_targets;
    _Atomic unsigned n_done;
    _Atomic bool exported;
};

/* --- parent_domain.c --- */

int parent_reach_domain(struct parent *p, struct ff_error *why); /* p->q, by way of libvirt */
/* What a child has to know that cannot ask its own QEMU */
int parent_describe(struct parent *p, json_t **out, struct ff_error *why);

/* --- parent_pause.c --- */

int parent_look(struct parent *p, struct ff_error *why); /* whether it can be forked, as far as that is to be seen */
int parent_get_ready(struct parent *p, struct ff_error *why);
/* (2) to (4). @actions: of a transaction; NULL: none */
int parent_pause(struct parent *p, const json_t *actions, struct ff_error *why);

/* --- parent_serve.c --- */

int parent_take_targets(struct parent *p, const json_t *targets, struct ff_error *why);
/* Regions, and a thread for each target. After an error nothing runs */
int parent_serve(struct parent *p, struct ff_error *why);
uint64_t parent_lent_bytes(const struct parent *p);
json_t *parent_targets_info(struct parent *p);
void parent_cancel(struct parent *p);
void parent_free_targets(struct parent *p);

#endif
