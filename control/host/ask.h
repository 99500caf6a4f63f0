/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ask.h - one command of farfork's on many hosts at once, and what each answers
 */
#ifndef FF_CONTROL_HOST_ASK_H
#define FF_CONTROL_HOST_ASK_H

#include <jansson.h>

#include "spawn.h"
#include "strv.h"

/* @entry: {"host", "launcher": "" for this host, "agent": the program there, "rundir": "" its default}. @ours: the caller's */
struct asked {
    json_t *entry, *ours;
    struct spawn run;
    bool over;
    int code;            /* its exit code; -1: none came */
    char *line;          /* the last one that it printed */
    struct ff_error why; /* it could not be started, or was not over in time; code 0 and "": neither */
};

/* Each takes three descriptors: as many as this user may have */
void asked_prepare(void);

/* One that is to be asked. @entry is taken over */
struct asked asked_new(json_t *entry);

/* Run the program there with @words and --json. What fails is in @a */
void asked_start(struct asked *a, char *const *words);

/* Until all have answered; @limit_ms 0: no limit. Those that have not are ended */
void asked_read(struct asked *a, size_t n, uint64_t limit_ms);

/* What it said, as JSON; NULL: it said nothing of the kind, and asked_why() says why */
json_t *asked_answer(struct asked *a);
char *asked_why(const struct asked *a);
void asked_free(struct asked *a, size_t n); /* and @a itself */

#endif
