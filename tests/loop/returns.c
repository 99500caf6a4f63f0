/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * returns.c - a guest goes, works elsewhere with what it needs of its memory, and comes back with what it
 *             wrote
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "visits.h"

static void there_and_back(enum memory kind, unsigned each, const char *options)
{
    struct leg out, back;

    visit_go(&out, kind);
    if (each)
        visit_work(each);
    visit_await_present(&out);
    visit_back(&back, &out, options);
    must(!visit_receive(&back, home, false));
    for (unsigned r = 0; r < REGIONS; r++) { /* devices read memory while they are loaded */
        must(visit_holds(home[r].host, version[r][0]));
        must(visit_holds(home[r].host + PAGE, version[r][1]));
    }
    visit_let_run(&back);
    visit_finish(&back, &out);
}

static void anon(void)
{
    there_and_back(MEM_ANON, 10, "");
}

static void anon_all(void)
{
    there_and_back(MEM_ANON, 1, "");
}

static void anon_nothing(void)
{
    there_and_back(MEM_ANON, 0, "");
}

static void anon_thp(void)
{
    there_and_back(MEM_ANON_THP, 10, ",prefill=push");
}

static void by_faults(void)
{
    there_and_back(MEM_ANON, 10, ",prefill=off");
}

static void shared(void)
{
    there_and_back(MEM_MEMFD, 10, "");
}

static void shared_all(void)
{
    there_and_back(MEM_MEMFD, 1, ",landing=continue"); /* it is copied all the same */
}

/* What is discarded there is not missing: the file has it */
static void of_a_file(void)
{
    struct leg out, back;
    struct ff_error err;

    visit_go(&out, MEM_MEMFD_PRIVATE);
    visit_leg_new(&back, away, home, "");
    must(ff_dest_keep(back.dest, out.source, &err) == -ENOTSUP && strstr(err.text, "a private mapping"));
    _exit(0);
}

/* The link of the way back breaks while memory comes */
static void breaks(void)
{
    loop_arm("dest.prefill=fail:5@2-3");
    there_and_back(MEM_ANON, 2, ",reconnect=10,chunk=64K");
}

/* A return that fails before its GO leaves the guest where it is, with all that it may still need; and
 * the next one brings it home */
static void begun_again(void)
{
    struct leg out, back;

    visit_go(&out, MEM_ANON);
    visit_work(10);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    must(!ff_dest_give_up(back.dest));
    ff_dest_cancel(back.dest);
    pthread_join(back.thread, NULL);
    must(back.rc && !back.went);
    visit_leg_free(&back);
    visit_work(9);
    visit_must_hold(away);
    memset(seen, 1, sizeof(seen)); /* all that was read so */
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    visit_let_run(&back);
    visit_finish(&back, &out);
}

static void *accept_main(void *arg)
{
    ff_dest_accept(arg, "test", NULL);
    return NULL;
}

/* @l's source is refused, for a reason that has @why in it; its destination hears on */
static void must_refuse(struct leg *l, const char *why)
{
    pthread_t heard;

    must(!pthread_create(&heard, NULL, accept_main, l->dest));
    must(!pthread_create(&l->thread, NULL, visit_source_main, l));
    pthread_join(l->thread, NULL);
    ff_dest_cancel(l->dest);
    pthread_join(heard, NULL);
    if (!l->rc || l->went || !strstr(l->err.text, why))
        loop_fail(__FILE__, __LINE__, "%d: %s (want: %s)", l->rc, l->err.text, why);
    visit_leg_free(l);
}

/* Nobody else's guest is put over what is kept, and no guest is put where the rest of it is not */
static void others(void)
{
    struct area third[REGIONS];
    struct leg out, other, l;
    struct ff_error err;

    visit_go(&out, MEM_ANON);
    visit_leg_new(&l, away, home, "");
    must_ok(ff_dest_keep(l.dest, out.source, &err), err);
    must_refuse(&l, "is a guest's that is to return");
    visit_leg_new(&l, away, home, "");
    must_ok(ff_source_return(l.source, out.dest, &err), err);
    l.dirty = true;
    must_refuse(&l, "did not go from here");
    for (unsigned r = 0; r < REGIONS; r++)
        area_new(&third[r], MEM_ANON, PAGES * PAGE);
    visit_leg_new(&other, home, third, ",visit=on");
    must(ff_source_return(other.source, other.dest, &err) == -EINVAL);
    must(ff_dest_keep(other.dest, other.source, &err) == -EINVAL);
    must(!visit_receive(&other, third, true)); /* another guest that is alike */
    visit_let_run(&other);
    visit_leg_new(&l, third, home, "");
    must_ok(ff_source_return(l.source, other.dest, &err), err);
    must_ok(ff_dest_keep(l.dest, out.source, &err), err);
    l.dirty = true;
    must_refuse(&l, "did not go from here");
    _exit(0);
}

/* A log may begin with all pages in it: those that never came are not asked for */
static void named_too_much(void)
{
    struct leg out, back;

    visit_go(&out, MEM_ANON);
    visit_work(10);
    memset(log_bits, 0xff, sizeof(log_bits));
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    visit_let_run(&back);
    visit_finish(&back, &out);
}

/* A guest that came to stay: all of its memory may be there, and nobody serves it any more */
static void to_stay(void)
{
    struct leg out, back;
    struct ff_error err;

    visit_guest_new(MEM_ANON);
    visit_leg_new(&out, home, away, ",prefill=off");
    must(!visit_receive(&out, away, true));
    visit_let_run(&out);
    visit_leg_new(&back, away, home, "");
    must(ff_source_return(back.source, out.dest, &err) == -EINVAL && strstr(err.text, "visit=on"));
    must(ff_dest_keep(back.dest, out.source, &err) == -EINVAL && strstr(err.text, "visit=on"));
    _exit(0);
}

/* Who does not say what was written has nothing to send */
static void forgets(void)
{
    struct leg out, back;

    visit_go(&out, MEM_ANON);
    visit_work(10);
    visit_back(&back, &out, "");
    back.dirty = false;
    must(visit_receive(&back, home, false));
    pthread_join(back.thread, NULL);
    must(back.rc == -EINVAL && !back.went);
    visit_must_hold(away);
    _exit(0);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"anon", anon, 60},
        {"anon, all touched", anon_all, 60},
        {"anon, nothing touched", anon_nothing, 60},
        {"anon, huge pages, push", anon_thp, 60},
        {"by faults alone", by_faults, 60},
        {"memfd", shared, 60},
        {"memfd, all touched", shared_all, 60},
        {"private mapping of a file", of_a_file, 60},
        {"the link back breaks", breaks, 60},
        {"begun again", begun_again, 60},
        {"others", others, 60},
        {"more is named than was written", named_too_much, 60},
        {"to stay", to_stay, 60},
        {"nothing is said of what was written", forgets, 60},
    };
    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
