/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_move_look.c - what the list of a host says of a QEMU there, when the way to its agent is gone
 */
#include <malloc.h>
#include <sys/stat.h>

#include "move.h"
#include "unit.h"

#define LOOKS 20
#define LEAK_BYTES (8u << 10) /* of each; a reader of lines has 64 KiB */

static char program[] = "/tmp/ff-look-XXXXXX";

/* `farfork forks --json` there says that child's state */
static void list_says(const char *state)
{
    FF_AUTO_FREE char *text = xprintf("#!/bin/sh\necho '[{\"id\": \"x\", \"node\": \"h\", \"agent\": 7, \"children\": "
                                      "[{\"number\": 1, \"state\": \"%s\", \"mark\": \"0123\"}]}]'\n", state);
    FILE *f = fopen(program, "we");

    assert_true(f && fputs(text, f) >= 0 && !fclose(f) && !chmod(program, 0700));
}

static void set_up(struct move *m, struct host *h, struct vm *k)
{
    static const struct node node = {.host = (char *)"there"};

    *h = (struct host){.node = &node, .name = (char *)"h", .here = true, .state = HOST_FAILED, .agent_pid = 7};
    *k = (struct vm){0};
    *m = (struct move){.s = {.o = {.agent = program, .id = "x"}, .hosts = h, .n_hosts = 1, .vms = k, .n_vms = 1}};
}

static void looks(void **state)
{
    static const struct {
        const char *state;
        bool never_ran, shut_down;
    } said[] = {{"attached", false, false}, {"ended", false, false}, {"unknown", false, false},
                {"shut-down", false, true}, {"never-ran", true, false}};
    struct host h;
    struct vm k;
    struct move m;

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(said); i++) {
        set_up(&m, &h, &k);
        list_says(said[i].state);
        move_look(&m, true);
        assert_true(k.never_ran == said[i].never_ran && k.shut_down == said[i].shut_down);
        assert_string_equal(k.mark, k.never_ran ? "0123" : "");
        strv_free(&m.s.notes);
    }
}

/* It looks for as long as its source waits for a link */
static void leaves_nothing(void **state)
{
    struct host h;
    struct vm k;
    struct move m;
    size_t before = 0;

    (void)state;
    set_up(&m, &h, &k);
    list_says("attached");
    for (int i = 0; i < LOOKS + 1; i++) {
        move_look(&m, true);
        before = i ? before : mallinfo2().uordblks; /* what the C library keeps is there by then */
    }
    assert_true(mallinfo2().uordblks < before + LOOKS * LEAK_BYTES);
}

static int make_program(void **state)
{
    (void)state;
    return close(mkstemp(program));
}

static int remove_program(void **state)
{
    (void)state;
    return unlink(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(looks), cmocka_unit_test(leaves_nothing)};

    return cmocka_run_group_tests(tests, make_program, remove_program);
}
