/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * error.h - an error that gathers context on its way up
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      internal calls return 0 or -errno and fill a trailing
 *              struct ff_error; whoever passes it on may put context in front:
 *              "migrate to b:4444: hello: region pc.ram: length differs (...)".
 * Invariants   1. An error is filled on failure and untouched on success.
 *              2. The first cause stays at the end of the text: only the text in
 *                 front grows. A text that does not fit loses its end, not its start,
 *                 and is cut between two characters of UTF-8.
 *              3. Every function here takes a NULL error.
 *              4. Whoever it comes from, a terminal obeys no byte of it (printable.h).
 */
#ifndef FF_BASE_ERROR_H
#define FF_BASE_ERROR_H

struct ff_error {
    int code;       /* errno value, positive; 0: no error */
    char text[764]; /* one line without a newline */
};

/**
 * ff_error_set() - fill an error
 * @err:  may be NULL
 * @code: errno value, positive
 * @fmt:  "subsystem: verb object: reason (values)"
 *
 * Return: -@code, so that a caller can return it at once
 */
int ff_error_set(struct ff_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/**
 * ff_error_context() - put "context: " in front of an error that is being passed on
 * @err: filled; where it may be NULL, and who calls is told the code: ff_error_pass()
 *
 * Return: -code of the error (-EIO for NULL)
 */
int ff_error_context(struct ff_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/**
 * ff_error_pass() - put "context: " in front of what failed with @rc
 * @err: may be NULL, and knows no code then; else filled
 *
 * Return: @rc
 */
int ff_error_pass(struct ff_error *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
