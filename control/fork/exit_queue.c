/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * exit_queue.c - which children of a guest's forks have ended, and what `join` says about them
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      bookkeeping alone; serve.c hears of ends, and sends lines.
 * Invariants   1. What was said is said again to who asks next, until the guest has said that it
 *                 heard all of it: one that gave up, or was killed, takes nothing with it.
 *              2. A fork is over when each number has one code; then nothing in it changes.
 * Limits       EXIT_QUEUE_MAX forks; 8 bytes for each of their children.
 */
#include <stdlib.h>
#include <string.h>

#include "guest_port.h"
#include "exit_queue.h"
#include "error.h"
#include "strv.h"

static struct exit_queue_fork *queued_fork(struct exit_queue *j, unsigned fork)
{
    for (size_t i = 0; i < j->n; i++)
        if (j->v[i].fork == fork)
            return &j->v[i];
    return NULL;
}

static void forget_forks(struct exit_queue *j, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i++)
        free(j->v[i].ends);
    j->n -= n;
    if (j->n > from)
        memmove(j->v + from, j->v + from + n, (j->n - from) * sizeof(*j->v));
}

bool exit_queue_room(struct exit_queue *j)
{
    for (size_t i = 0; j->n == EXIT_QUEUE_MAX && i < j->n; i++)
        if (j->v[i].n == j->v[i].count)
            forget_forks(j, i, 1);
    return j->n < EXIT_QUEUE_MAX;
}

unsigned exit_queue_alive(const struct exit_queue *j)
{
    unsigned n = 0;

    for (size_t i = 0; i < j->n; i++)
        n += j->v[i].count - j->v[i].n;
    return n;
}

void exit_queue_add(struct exit_queue *j, unsigned fork, unsigned count)
{
    if (!j->v)
        j->v = xcalloc(EXIT_QUEUE_MAX, sizeof(*j->v));
    j->v[j->n++] = (struct exit_queue_fork){
        .fork = fork, .count = count, .ends = xcalloc(count, sizeof(struct exit_queue_end))};
}

static void set_ended(struct exit_queue_fork *f, unsigned number, int code)
{
    for (unsigned i = 0; i < f->n; i++)
        if (f->ends[i].number == number)
            return;
    f->ends[f->n++] = (struct exit_queue_end){number, code};
}

void exit_queue_ended(struct exit_queue *j, unsigned fork, unsigned number, int code)
{
    struct exit_queue_fork *f = queued_fork(j, fork);

    if (f && number >= 1 && number <= f->count)
        set_ended(f, number, code);
}

void exit_queue_over(struct exit_queue *j, unsigned fork)
{
    struct exit_queue_fork *f = queued_fork(j, fork);

    for (unsigned k = 1; f && f->n < f->count; k++)
        set_ended(f, k, EXIT_QUEUE_NO_CODE);
}

void exit_queue_cancel(struct exit_queue *j)
{
    free(j->first);
    j->first = NULL;
    j->asked = j->told = false;
}

void exit_queue_ask(struct exit_queue *j, const char *word)
{
    exit_queue_cancel(j);
    j->first = guest_port_joining(word);
    j->asked = true;
    j->at_fork = 0;
    j->at_end = 0;
}

char *exit_queue_next(struct exit_queue *j)
{
    char *line = j->first;

    if (!j->asked || j->told)
        return NULL;
    if (line) {
        j->first = NULL;
        return line;
    }
    while (j->at_fork < j->n && j->at_end == j->v[j->at_fork].count) {
        j->at_fork++;
        j->at_end = 0;
    }
    if (j->at_fork == j->n) {
        j->told = true;
        return guest_port_joined();
    }
    const struct exit_queue_fork *f = &j->v[j->at_fork];
    if (j->at_end == f->n)
        return NULL;
    const struct exit_queue_end *e = &f->ends[j->at_end++];
    return guest_port_exited(e->number, e->code);
}

void exit_queue_acknowledged(struct exit_queue *j)
{
    if (!j->told)
        return;
    forget_forks(j, 0, j->at_fork);
    exit_queue_cancel(j);
}

void exit_queue_free(struct exit_queue *j)
{
    exit_queue_cancel(j);
    if (j->n)
        forget_forks(j, 0, j->n);
    free(j->v);
    *j = (struct exit_queue){0};
}
