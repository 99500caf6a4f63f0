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
        bool never_ran, shut_down, end_unclear;
    } said[] = {{"attached", false, false, false}, {"ended", false, false, false}, {"unknown", false, false, true},
                {"shut-down", false, true, false}, {"never-ran", true, false, false}};
    struct host h;
    struct vm k;
    struct move m;

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(said); i++) {
        set_up(&m, &h, &k);
        list_says(said[i].state);
        move_look(&m, true);
        assert_true(k.never_ran == said[i].never_ran && k.shut_down == said[i].shut_down &&
                    k.end_unclear == said[i].end_unclear);
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

static int asked;

static int refuses(void *opaque, const char *line, int fd, char **answer, struct ff_error *err)
{
    (void)fd;
    (void)opaque;
    (void)line;
    (void)answer;
    asked++;
    return ff_error_set(err, EPIPE, "it has ended");
}

/* Whether its guest had shut itself down cannot be read there: the guest as it went is not taken back for that */
static void not_taken_back(void **state)
{
    struct host h;
    struct vm k;
    struct move m;

    (void)state;
    for (int unclear = 0; unclear <= 1; unclear++) {
        set_up(&m, &h, &k);
        h.state = HOST_COMPLETE;
        h.address = (char *)"127.0.0.1";
        m.back.go = true;
        k.state = VM_FAILED;
        k.end_unclear = unclear;
        m.s.qmp = qmp_by(refuses, NULL, 0);
        asked = 0;
        assert_false(move_take_back(&m));
        assert_int_equal(asked, !unclear);
        qmp_free(m.s.qmp);
        strv_free(&m.s.notes);
    }
}

/* Without take-back, a QEMU of before says by taking-back alone that it failed: false for a while */
static void taking_back_failed(void **state)
{
    static const struct {
        const char *info;
        bool failed, later;
    } said[] = {{"{'x-rdma-postcopy': {'take-back': 'waiting'}}", false, false},
                {"{'x-rdma-postcopy': {'take-back': 'fence-failed'}}", true, true},
                {"{'x-rdma-postcopy': {'take-back': 'of a later one'}}", true, true},
                {"{'x-rdma-postcopy': {'taking-back': true}}", false, false},
                {"{'x-rdma-postcopy': {'taking-back': false}}", false, true},
                {"{'x-rdma-postcopy': {}}", false, false}, {"{}", false, false}};
    struct host h;
    struct vm k;
    struct move m;

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(said); i++) {
        FF_AUTO_FREE char *text = xstrdup(said[i].info);
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        json_t *info = json_loads(text, 0, NULL);
        set_up(&m, &h, &k);
        assert_int_equal(move_take_back_failed(&m, info), said[i].failed);
        if (m.not_taking_ms)
            m.not_taking_ms -= 60000;
        assert_int_equal(move_take_back_failed(&m, info), said[i].later);
        h.address = (char *)"127.0.0.1";
        h.state = i % 2 ? HOST_FAILED : HOST_COMPLETE;
        k.state = VM_FAILED;
        move_end_not_taken_back(&m, info); /* whatever it says but that it has given up, the guest may be there */
        assert_int_equal(m.outcome, MOVE_UNCLEAR);
        json_decref(info);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(looks), cmocka_unit_test(leaves_nothing),
                                       cmocka_unit_test(not_taken_back), cmocka_unit_test(taking_back_failed)};

    return cmocka_run_group_tests(tests, make_program, remove_program);
}
