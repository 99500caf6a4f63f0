/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_session_key.c - a key is made anew each time, and given to an agent that may have ended
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "qmp_secret.h"
#include "session.h"
#include "unit.h"

static void test_given(void **state)
{
    struct node node = {.host = "h1"};
    struct session s = {.key = NULL}, other = {.key = NULL};
    struct host h = {.node = &node};
    struct ff_error why;
    char got[128] = "";
    int fd[2];
    (void)state;

    assert_true(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    assert_ok(session_make_key(&s, &why), why);
    assert_ok(session_make_key(&other, &why), why);
    assert_int_equal(strlen(s.key), KEY_TEXT_LEN);
    assert_string_not_equal(s.key, other.key);
    assert_false(pipe(fd));
    h.run.in = fd[1];
    assert_ok(session_send_key(&s, &h, &why), why);
    assert_true(read(fd[0], got, sizeof(got) - 1) > 0);
    assert_non_null(strstr(got, s.key));
    close(fd[0]);
    /* what ended it is said by whoever reads its last words, not here */
    assert_ok(session_send_key(&s, &h, &why), why);
    assert_int_equal(h.run.in, -1);
    key_text_free(s.key);
    key_text_free(other.key);
}

UNIT_MAIN(cmocka_unit_test(test_given))
