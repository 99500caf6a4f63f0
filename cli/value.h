/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * value.h - parse option values; report a bad one in one line
 */
#ifndef FF_CLI_VALUE_H
#define FF_CLI_VALUE_H

#include <getopt.h>
#include <stdbool.h>

/* @value, of option @o, is not among what is permitted: prints one line, returns EXIT_USAGE */
int value_bad(const char *command, const struct option *o, const char *value, const char *permitted);

/* A number from @min to @max into *@out; false: it is none, which it has printed */
bool value_number(const char *command, const struct option *o, const char *value, unsigned min, unsigned max,
                  unsigned *out);

/* The place of @value among @words ("go|off"), from 0 on; -1: it is none of them, which it has printed */
int value_word(const char *command, const struct option *o, const char *value, const char *words);

/* getopt_long() has printed which option it does not know: where to read on; returns EXIT_USAGE */
int value_unknown(const char *command);

#endif
