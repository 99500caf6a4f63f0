/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fallback.h - moves with fallback=go: a fence, a record, and a guest that beats while its lease lets it
 */
#ifndef FF_TESTS_FALLBACK_H
#define FF_TESTS_FALLBACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct move;

/* What the processes of both sides see */
struct leased {
    atomic_bool runs;        /* the guest may */
    atomic_uint stops, goes; /* that fn() of ff_dest_on_lease() was called */
    atomic_ulong beat_ns;    /* when the guest last ran */
    atomic_ulong slow_ms;    /* fn() takes so long */
};
extern struct leased *leased;

extern char record[64], fence[64], fenced[64], options[256];

void fallback_setup(void);

void write_file(const char *path, const char *text, int mode);
bool file_says(const char *path, const char *text);
bool is_there(const char *path);

/* A fence that ends with @code */
void make_fence(int code);

/* A folder with a fence; nothing has run yet. The options of a move: @more begins with a comma */
const char *set_out(int lease_s, const char *more);
void remove_files(void);

uint64_t image_sum(void);

/* The destination stops its guest when it is told to; a thread is the guest, that never ends */
void hears_leases(struct move *m);
void guest_start(void);

/* Signals end system calls of this process */
void interrupt_often(bool often);

/* It must succeed; nobody runs the guest there, and the image is still @sum */
void take_back(struct move *m, uint64_t sum);

#endif
