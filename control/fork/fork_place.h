/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_place.h - which of the hosts get how many children, by the memory that they have
 */
#ifndef FF_CONTROL_FORK_FORK_PLACE_H
#define FF_CONTROL_FORK_FORK_PLACE_H

#include "fork.h"
#include "hostlist.h"

enum placing { PLACE_IN_TURN, PLACE_PACK, PLACE_SPREAD };

struct place_host {
    uint64_t available; /* bytes that nobody uses or was promised */
    unsigned slots;     /* SLOTS_ANY: as many as its memory holds */
    unsigned children;  /* planned */
};

/* What a fork takes of a host with @children: the image once, and what each of them may change */
uint64_t place_bytes(uint64_t image, uint64_t child, unsigned children);

/**
 * place_plan() - into h[].children: @children in all
 * @pack: as few hosts as possible, the ones with most memory; else each goes where most is left
 *
 * Return: those that have a place: fewer than @children when there is not enough memory or slots
 */
unsigned place_plan(struct place_host *h, size_t n, unsigned children, uint64_t image, uint64_t child, bool pack);

/**
 * fork_place() - ask all hosts, plan, and have memory reserved where children are to go
 * @hosts: becomes those with children, with as many slots as they get
 *
 * Return: 0; -ENOSPC: there is not enough room; or why the parent or the hosts could not be asked
 */
int fork_place(const struct fork_options *o, enum placing how, struct hostlist *hosts, struct ff_error *why);

#endif
