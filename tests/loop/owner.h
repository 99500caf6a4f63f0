/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * owner.h - a process whose memory a source in another reads
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      test: source and destination, the image hidden from both
 *                |  process_vm_readv(2)
 *              owner: a child with the image at the same addresses, in memory of the test's kind;
 *                     cells of zeros are holes that it never touches
 */
#ifndef FF_TESTS_LOOP_OWNER_H
#define FF_TESTS_LOOP_OWNER_H

#include "loop.h"

#define OWNER_BAD_CELLS 3u /* at the end of the image, with OWNS_SHORT_FILE: mapped, and SIGBUS */
#define OWNER_LIMIT_S 20u

/* OWNS_IMAGE: as it is, in huge pages, without holes */
enum owns { OWNS_HOLES, OWNS_IMAGE, OWNS_PRIVATE_FILE, OWNS_HUGE, OWNS_SHORT_FILE };

extern struct owner {
    enum owns owns;
    int pid;
    int ready[2], file;
    bool zero_fill; /* as its regions are added */
} owner;

void owner_start(enum owns owns);
void owner_kill(void);
void owner_remap(void); /* in the owner itself: memory of owner.owns instead of the image */

/* KiB that its memory takes, with its file, and its page tables show */
unsigned long long owner_taken(void);

/* This process's kernel is as one before PAGEMAP_SCAN (Linux 6.7) and PROCMAP_QUERY (Linux 6.11) */
void owner_old_kernel(void);

/* For struct move: the region is the owner's */
void owner_add(struct move *m, struct ff_region *r);

#endif
