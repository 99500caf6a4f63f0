/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unit.h - what the unit tests share: CMocka, errors that must say something, dying children
 */
#ifndef FF_TESTS_UNIT_H
#define FF_TESTS_UNIT_H

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "error.h"

#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* The error is filled with this code, and its text has each of the words given, in any place */
#define assert_error(err, want, ...)                                                        \
    do {                                                                                    \
        static const char *const words_[] = {__VA_ARGS__};                                  \
        if ((err).code != (want))                                                           \
            fail_msg("error %d, want %d: %s", (err).code, (want), (err).text);              \
        for (size_t i_ = 0; i_ < FF_ARRAY_LEN(words_); i_++)                                \
            if (!strstr((err).text, words_[i_]))                                            \
                fail_msg("\"%s\" is not in: %s", words_[i_], (err).text);                   \
    } while (0)

/* A call that must fail with -code; on success the value is shown */
#define assert_fails(call, code)                                                            \
    do {                                                                                    \
        long rc_ = (long)(call);                                                            \
        if (rc_ != -(long)(code))                                                           \
            fail_msg("%s: %ld, want %ld", #call, rc_, -(long)(code));                       \
    } while (0)

/* A call that must return 0; else its error is shown */
#define assert_ok(call, err)                                                                \
    do {                                                                                    \
        long rc_ = (long)(call);                                                            \
        if (rc_ != 0)                                                                       \
            fail_msg("%s: %ld: %s", #call, rc_, (err).text);                                \
    } while (0)

/* The signal that ends a child which runs @fn, or 0 when it returns */
static inline int signal_of(void (*fn)(void *), void *arg)
{
    int status;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        for (int s = 1; s < 32; s++)
            signal(s, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        alarm(20);
        fn(arg);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

#define UNIT_MAIN(...)                                                                      \
    int main(void)                                                                          \
    {                                                                                       \
        const struct CMUnitTest tests_[] = {__VA_ARGS__};                                   \
        return cmocka_run_group_tests(tests_, NULL, NULL) ? 1 : 0;                          \
    }

#endif
