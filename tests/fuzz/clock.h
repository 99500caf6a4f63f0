/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clock.h - time that passes when a fuzzer's input says so
 */
#ifndef FF_TESTS_FUZZ_CLOCK_H
#define FF_TESTS_FUZZ_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

/* The library's clocks are so far ahead of the host's. It is 0 between two inputs: libFuzzer has
 * the same clocks */
extern _Atomic uint64_t later_ns;

#endif
