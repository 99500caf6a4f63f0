/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * incoming_stream.h - the stream that a QEMU with -incoming takes, written here
 */
#ifndef FF_VM_ATTACH_INCOMING_STREAM_H
#define FF_VM_ATTACH_INCOMING_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

#define INCOMING_BLOCKS_MAX 512 /* ten times what a guest with all its slots filled has */
#define INCOMING_PAGE_BITS_MIN 10 /* RAM_SAVE_FLAG_* are below */
#define INCOMING_PAGE_BITS_MAX 16

struct incoming_block {   /* a RAMBlock */
    const char *name;     /* idstr; borrowed */
    uint64_t len_bytes;   /* its used length, in pages of the guest */
    const uint8_t *bytes; /* @len_bytes of them, for the stream to bring; NULL: a pager does */
};

struct incoming_stream { /* {0}: empty; @data to be freed. A call that fails leaves it as it was */
    uint8_t *data;
    size_t len, room;
};

/**
 * incoming_stream_begin() - write what may be sent while the guest runs: machine and blocks
 * @machine:   of the source, as -machine names it without an alias: "pc-i440fx-7.2"
 * @page_bits: of the guest's pages, as guest_page.h has it; a QEMU whose pages have another size refuses the stream
 *
 * Return: 0; -EINVAL: a value out of bounds, or two blocks of one name
 */
int incoming_stream_begin(struct incoming_stream *s, const char *machine, unsigned page_bits,
                          const struct incoming_block *b, unsigned n, struct ff_error *err);

/**
 * incoming_stream_end() - write the rest: each page of the blocks that have @bytes; devices
 * @page_bits, @b, @n: as incoming_stream_begin() had them, but for @bytes
 * @state:             what device_state_save() returned
 *
 * Return: 0; -EINVAL as above; -EPROTO: @state is not whole; -ENOTSUP: it is of a form that this
 *         code does not know, or of a machine older than 2.4
 */
int incoming_stream_end(struct incoming_stream *s, unsigned page_bits,
                        const struct incoming_block *b, unsigned n, const uint8_t *state,
                        size_t state_len, struct ff_error *err);

#endif
