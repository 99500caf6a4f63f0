/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clock.h - time that passes when a fuzzer's input says so
 */
#ifndef FF_TESTS_FUZZ_CLOCK_H
#define FF_TESTS_FUZZ_CLOCK_H

#include <stdint.h>
#include <time.h>

/* From now on @clock is so much further ahead of the host's, and a timer of it that has been set
 * comes so much earlier */
void clock_advance(clockid_t clock, uint64_t ns);

/* Between two inputs: libFuzzer has the same clocks */
void clock_reset(void);

#endif
