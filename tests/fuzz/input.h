/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * input.h - a fuzzer's input, taken byte by byte
 */
#ifndef FF_TESTS_FUZZ_INPUT_H
#define FF_TESTS_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct input {
    const uint8_t *p;
    size_t left;
};

/* 0 where there is none */
static inline uint8_t get(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->p++;
}

static inline uint32_t get4(struct input *in)
{
    uint32_t v = get(in);

    for (unsigned i = 0; i < 3; i++)
        v = v << 8 | get(in);
    return v;
}

static inline void must(bool fine)
{
    if (!fine)
        abort();
}

#endif
