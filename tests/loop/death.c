/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * death.c - one side's process is killed at each stage; the other one says so and goes on
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(4000);
}

/* In a process of its own: one side's stages, until the fault point kills it */
struct mortal {
    struct move *m;
    const char *faults;
    bool source;
};

static void mortal_main(void *arg)
{
    struct mortal *k = arg;
    struct move *m = k->m;
    struct ff_error err;

    must_ok(ff_failpoints_arm(k->faults, &err), err);
    enum stage first = k->source ? S_CONNECT : D_ACCEPT, end = k->source ? S_END : D_END;
    for (enum stage s = first; s < end; s++)
        if (move_stage(m, s, &err))
            break;
    _exit(3); /* it should not have come here */
}

static int must_die(int pid)
{
    int status;

    must(waitpid(pid, &status, 0) == pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        loop_fail(__FILE__, __LINE__, "the other side was not killed: status 0x%x", status);
    return 0;
}

/* The stages of the side that lives: where it ends, and that it says why */
static enum stage live(struct move *m, enum stage first, enum stage end, struct ff_error *err)
{
    for (enum stage s = first; s < end; s++) {
        err->code = 0;
        int rc = move_stage(m, s, err);
        if (rc) {
            must(err->code == -rc && err->text[0] && rc != -ETIMEDOUT);
            return s;
        }
    }
    return end;
}

/* --- the source dies --- */

static enum stage source_dies(const char *faults, struct move *m, struct ff_error *err)
{
    struct mortal k = {.m = m, .faults = faults, .source = true};

    *m = (struct move){.tcp = true, .options = "prefill=off,timeout=10"};
    move_prepare(m);
    int pid = child_start(mortal_main, &k);
    ff_source_free(m->source); /* the child has it */
    m->source = NULL;
    enum stage ended = live(m, D_ACCEPT, D_END, err);
    must_die(pid);
    return ended;
}

static void source_dies_before_go(void)
{
    static const struct {
        const char *faults;
        enum stage ends;
    } cases[] = {
        {"source.publish=kill", D_START},
        {"source.state=kill", D_STATE},
        {"source.go=kill", D_GO},
        {"control.send=kill@4", D_STATE}, /* HELLO, PUBLISH, KEYS, STATE */
    };
    static struct move m;
    struct ff_error err;

    for (unsigned i = 0; i < FF_ARRAY_LEN(cases); i++) {
        enum stage ended = source_dies(cases[i].faults, &m, &err);
        if (ended != cases[i].ends)
            loop_fail(__FILE__, __LINE__, "%s: ended in %d, want %d (%s)", cases[i].faults, ended,
                      cases[i].ends, err.text);
        must(!m.ran);
        move_free(&m);
    }
}

/* The guest runs on what it has; who touches what is missing waits, and sees no zeros */
static void source_dies_after_go(void)
{
    static struct move m;
    struct ff_error err;
    struct peek missing;
    struct ff_stats st;
    uint64_t cell = 7;

    enum stage ended = source_dies("source.running=kill", &m, &err);
    must(ended == D_DONE || ended == D_RUNNING);
    must(m.ran);
    while (cell_is_zero(cell))
        cell++;
    peek_start(&missing, &m, cell);
    must(peek_blocked(&missing));
    usleep(200000); /* time in which nothing may happen */
    must(peek_blocked(&missing));
    ff_dest_stats(m.dest, &st);
    must(st.bytes_present < st.bytes_total);
    _exit(0);
}

/* --- the destination dies --- */

static void dest_dies(const char *faults, enum stage before, enum stage last)
{
    static struct move m;
    struct mortal k = {.m = &m, .faults = faults};
    struct ff_error err;

    m = (struct move){.tcp = true, .options = "timeout=10"};
    move_prepare(&m);
    int pid = child_start(mortal_main, &k);
    ff_dest_free(m.dest); /* the child has it */
    m.dest = NULL;
    enum stage ended = live(&m, S_CONNECT, S_END, &err);
    must_die(pid);
    if (ended < before || ended > last)
        loop_fail(__FILE__, __LINE__, "%s: source ended in %d, want %d..%d (%s)", faults, ended,
                  before, last, err.text);
    move_free(&m);
}

static void dest_dies_before_go(void)
{
    dest_dies("control.send=kill@1", S_CONNECT, S_CONNECT); /* WELCOME */
    dest_dies("control.send=kill@2", S_WATCHED, S_WATCHED); /* WATCHING */
    dest_dies("dest.accepted=kill", S_CONNECT, S_WATCHED);
    dest_dies("dest.pager=kill", S_WATCHED, S_WATCHED);
    dest_dies("dest.state=kill", S_STATE, S_READY);
    dest_dies("dest.ready=kill", S_READY, S_READY);
}

static void dest_dies_after_go(void)
{
    dest_dies("dest.running=kill", S_RUNNING, S_RUNNING);
    dest_dies("dest.prefill=kill", S_RUNNING, S_DONE);
    dest_dies("dest.install=kill", S_RUNNING, S_DONE);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"source dies before GO", source_dies_before_go, 60},
        {"source dies after GO", source_dies_after_go, 0},
        {"destination dies before GO", dest_dies_before_go, 60},
        {"destination dies after GO", dest_dies_after_go, 60},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
