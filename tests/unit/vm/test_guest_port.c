/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_guest_port.c - what a guest may say, in segments of any size, and what it is told
 */
#include "unit.h"

#include "guest_port.h"

static struct guest_input in;
static struct guest_request req;
static struct ff_error why;

static int say(const char *text)
{
    size_t room, n = strlen(text);
    char *at = guest_port_room(&in, &room);

    assert_true(n <= room);
    memcpy(at, text, n);
    return guest_port_take(&in, n, 64, &req, &why);
}

static void test_requests(void **state)
{
    (void)state;
    in = (struct guest_input){0};

    assert_int_equal(say("fork 64 some data, \"quoted\"\nlink\nre"), 1);
    assert_int_equal(req.verb, GUEST_FORK);
    assert_int_equal(req.count, 64);
    assert_string_equal(req.user, "some data, \"quoted\"");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_LINK);
    assert_int_equal(say(""), 0);
    assert_int_equal(say("ady"), 0);
    assert_int_equal(say("\n"), 1);
    assert_int_equal(req.verb, GUEST_READY);
    assert_int_equal(say("fork 1\nexit 255\njoin\njoin 4711.a_b-C\njoined\n"), 1);
    assert_int_equal(req.count, 1);
    assert_string_equal(req.user, "");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_EXIT);
    assert_int_equal(req.code, 255);
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_JOIN);
    assert_string_equal(req.word, "");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_JOIN);
    assert_string_equal(req.word, "4711.a_b-C");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_JOINED);
    assert_int_equal(say(""), 0);
    assert_int_equal(say("visit big-data.1 4711.5\nvisit b\nreturn 1.2\nreturn\n"), 1);
    assert_int_equal(req.verb, GUEST_VISIT);
    assert_string_equal(req.alias, "big-data.1");
    assert_string_equal(req.word, "4711.5");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_VISIT);
    assert_string_equal(req.alias, "b");
    assert_string_equal(req.word, "");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_RETURN);
    assert_string_equal(req.word, "1.2");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_RETURN);
    assert_string_equal(req.word, "");
    assert_int_equal(say("link a-fork.of_some-guest-with-a-name-of-forty-bytes 7\nready f 1\n"), 1);
    assert_int_equal(req.verb, GUEST_LINK);
    assert_string_equal(req.user, "a-fork.of_some-guest-with-a-name-of-forty-bytes 7");
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_READY);
    assert_string_equal(req.user, "f 1");
    assert_int_equal(say("exit 7 f 1\n"), 1);
    assert_int_equal(req.verb, GUEST_EXIT);
    assert_int_equal(req.code, 7);
    assert_string_equal(req.user, "f 1");
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "fork\n",       "fork 0\n",
        "fork 65\n",    "fork -1\n",
        "fork 4x\n",    "fork  4\n",
        "\n",           "fork 99999999999999999999\n",
        "exit\n",       "exit 256\n",
        "exit 0 0\n",   "link up\n",
        "exit 0 f 0\n", "exit 0 f 1 \n",
        "exit f 1\n",   "exit 256 f 1\n",
        "link f 0\n",   "ready f 1 \n",
        "link  1\n",    "ready f x\n",
        "ready \n",     "forks 1\n",
        "join \n",      "join a b\n",
        "joined 1\n",   "join 123456789012345678901234567890123\n",
        "join a/b\n",   "fork 1 a\tb\n",
        "for\x01k 1\n", "fork 1\r\n",
        "visit\n",      "visit \n",
        "visit  a\n",   "visit a/b\n",
        "visit a \n",   "visit a b c\n",
        "visit a=b\n",  "visit 123456789012345678901234567890123\n",
        "return \n",    "return a b\n",
        "visit a 123456789012345678901234567890123\n",
    };
    (void)state;
    in = (struct guest_input){0};

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        why.text[0] = '\0';
        if (say(bad[i]) != -EPROTO)
            fail_msg("not refused: %s", bad[i]);
        assert_memory_equal(why.text, "guest: ", 7);
        assert_int_equal(say("link\n"), 1); /* and goes on */
    }
}

static void test_long_line(void **state)
{
    char *at;
    size_t room;
    (void)state;
    in = (struct guest_input){0};

    at = guest_port_room(&in, &room);
    assert_int_equal(room, GUEST_LINE_MAX);
    memset(at, 'a', room);
    assert_fails(guest_port_take(&in, room, 64, &req, &why), EPROTO);
    assert_non_null(strstr(why.text, "4096"));
    at = guest_port_room(&in, &room);
    assert_true(room > 0);
    memset(at, 'a', room);
    assert_fails(guest_port_take(&in, room, 64, &req, &why), EPROTO);
    assert_fails(say("link\n"), EPROTO); /* the end of it */
    assert_int_equal(say("link\n"), 1);

    /* the longest that there is */
    in = (struct guest_input){0};
    at = guest_port_room(&in, &room);
    memset(at, 'a', room);
    memcpy(at, "fork 2 ", 7);
    at[room - 1] = '\n';
    assert_int_equal(guest_port_take(&in, room, 64, &req, &why), 1);
    assert_int_equal(strlen(req.user), GUEST_LINE_MAX - 8);
}

static void test_unfinished(void **state)
{
    (void)state;
    in = (struct guest_input){0};

    assert_int_equal(say("visit a 1\nreturn 1\nretu"), 1);
    guest_port_drop_unfinished(&in);
    assert_int_equal(say(""), 1);
    assert_int_equal(req.verb, GUEST_RETURN);
    assert_int_equal(say("visit b\n"), 1);
    assert_string_equal(req.alias, "b");
    assert_int_equal(say("visit"), 0);
    guest_port_drop_unfinished(&in);
    guest_port_drop_unfinished(&in);
    assert_int_equal(say("return 2\n"), 1);
    assert_int_equal(req.verb, GUEST_RETURN);
}

static void is(char *got, const char *want)
{
    assert_string_equal(got, want);
    free(got);
}

static void test_answers(void **state)
{
    (void)state;
    is(guest_port_forked("{\n}\n"), "forked\n{\n}\n");
    is(guest_port_failed("no\nroom"), "failed no room\n");
    is(guest_port_failed(""), "failed no reason given\n");
    is(guest_port_failed_word("a1", "no\nroom"), "failed a1 no room\n");
    is(guest_port_failed_word("", "no room"), "failed no room\n");
    is(guest_port_joining(""), "joining\n");
    is(guest_port_joining("a1"), "joining a1\n");
    is(guest_port_exited(3, 0), "exited 3 0\n");
    is(guest_port_joined(), "joined\n");
    is(guest_port_visiting("a1"), "visiting a1\n");
    is(guest_port_visiting(""), "visiting\n");
    is(guest_port_home("a1"), "home a1\n");
}

UNIT_MAIN(cmocka_unit_test(test_requests), cmocka_unit_test(test_refused),
          cmocka_unit_test(test_long_line), cmocka_unit_test(test_unfinished), cmocka_unit_test(test_answers))
