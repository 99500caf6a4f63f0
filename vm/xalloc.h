/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xalloc.h - memory, lists of words and reasons, for the programs
 */
#ifndef FF_CLI_UTIL_H
#define FF_CLI_UTIL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRINTF(a, b) __attribute__((format(printf, a, b)))

/* These end the program when memory is exhausted; xprintf() is asprintf() */
void *xcalloc(size_t n, size_t size);
char *xstrdup(const char *s);
char *xprintf(const char *fmt, ...) PRINTF(1, 2);

/* Why something cannot be: one line that says what to do next */
struct why {
    char text[768];
};

/* Write the reason; returns -@code */
int refuse(struct why *w, int code, const char *fmt, ...) PRINTF(3, 4);

/* A list of strings, NULL at its end; {0} is an empty one */
struct words {
    char **v;
    size_t n, room;
};

void words_take(struct words *w, char *s); /* owns @s from now on */
void words_add(struct words *w, const char *fmt, ...) PRINTF(2, 3);
bool words_have(const struct words *w, const char *s);
void words_free(struct words *w);

/* What was printed has to get there: @code, or @failed where it is 0 and the output could not be written,
 * which is said */
int output_code(const char *program, int code, int failed);

/* Milliseconds of a clock that only goes forward */
uint64_t now_ms(void);
double now_exact_ms(void);

void free_text(char **p);
#define AUTO_FREE __attribute__((cleanup(free_text)))

#endif
