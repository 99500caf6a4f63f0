/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * return_fails.c - a guest does not return after all: memory at home is what it was, whatever was loaded
 *                  into it, and the guest that works elsewhere gets it from there
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "visits.h"

#define LOADED 5000000u /* what a load writes: this, and the page's number */

static uint32_t at_go[REGIONS][PAGES]; /* version[], as the guest went */

static bool is_logged(unsigned r, unsigned p)
{
    return log_bits[r][p / 64] >> (p % 64) & 1;
}

/* Devices are loaded: one page in @each is written, of every kind that there is; 0: none */
static void load(unsigned each)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = r; p < PAGES && each; p += each)
            visit_fill(home[r].host + p * PAGE, LOADED + p);
}

/* What was not discarded is as it was */
static void must_be_image(void)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p++)
            if (!is_logged(r, p) && !visit_holds(home[r].host + p * PAGE, at_go[r][p]))
                loop_fail(__FILE__, __LINE__, "region %u page %u is not what it was", r, p);
}

/* Nothing lies where nothing lay, unless it was read from elsewhere */
static void must_be_empty(void)
{
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p += 7) {
            uint8_t there = 0;
            must(seen[r][p] || !mincore(home[r].host + p * PAGE, PAGE, &there));
            if (there & 1)
                loop_fail(__FILE__, __LINE__, "region %u page %u was empty", r, p);
        }
}

static void go(struct leg *out, enum memory kind)
{
    visit_go(out, kind);
    memcpy(at_go, version, sizeof(at_go));
    visit_work(10);
    visit_await_present(out);
}

/* The guest works on where it is, with all of its memory, and then it does return */
static void return_after_all(struct leg *out)
{
    struct leg back;

    must_be_image();
    visit_work(9);
    visit_must_hold(away);
    memset(seen, 1, sizeof(seen)); /* all that was read so */
    visit_await_present(out);
    visit_back(&back, out, "");
    must(!visit_receive(&back, home, false));
    visit_let_run(&back);
    visit_finish(&back, out);
}

static void end_back(struct leg *back)
{
    pthread_join(back->thread, NULL);
    must(back->rc);
    visit_leg_free(back);
}

/* The link of the way back breaks while devices are loaded */
static void breaks_in_load(enum memory kind, unsigned each)
{
    struct leg out, back;
    struct ff_error err;

    go(&out, kind);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    load(each);
    ff_dest_pause(back.dest);
    must(ff_dest_ready(back.dest, &err));
    end_back(&back);
    if (kind != MEM_ANON_THP)
        must_be_empty();
    return_after_all(&out);
}

static void *read_main(void *arg)
{
    (void)arg;
    visit_must_hold(away);
    return NULL;
}

/* Somebody reads all of the guest's memory there all the while, as no guest does: he gets what it was, before the
 * first link ends, or once memory is put back */
static void read_meanwhile(void)
{
    pthread_t reader[3];
    struct leg out, back;
    struct ff_error err;

    go(&out, MEM_ANON);
    for (unsigned tries = 0; tries < 5; tries++) {
        if (!tries)
            for (unsigned i = 0; i < FF_ARRAY_LEN(reader); i++)
                must(!pthread_create(&reader[i], NULL, read_main, NULL));
        visit_back(&back, &out, visit_options);
        must(!visit_receive(&back, home, false));
        load(1 + tries);
        ff_dest_pause(back.dest);
        must(ff_dest_ready(back.dest, &err));
        end_back(&back);
        must_be_image();
    }
    for (unsigned i = 0; i < FF_ARRAY_LEN(reader); i++)
        pthread_join(reader[i], NULL);
    if (*visit_options)
        loop_remove_key();
    _exit(0);
}

static void read_with(const char *options)
{
    static char with_key[160];

    snprintf(with_key, sizeof(with_key), ",key-file=%s%s", loop_key_file(), options);
    visit_options = with_key;
    read_meanwhile();
}

static void read_with_key(void)
{
    read_with("");
}

static void anon(void)
{
    breaks_in_load(MEM_ANON, 1);
}

static void anon_some(void)
{
    breaks_in_load(MEM_ANON, 3);
}

static void anon_thp(void)
{
    breaks_in_load(MEM_ANON_THP, 5);
}

static void shared(void)
{
    breaks_in_load(MEM_MEMFD, 1);
}

static void shared_some(void)
{
    breaks_in_load(MEM_MEMFD, 3);
}

static void nothing_loaded(void)
{
    breaks_in_load(MEM_ANON, 0);
}

/* The other side changes its mind when all is loaded */
static void source_leaves(void)
{
    struct leg out, back;
    struct ff_error err;

    go(&out, MEM_MEMFD);
    visit_back(&back, &out, "");
    back.leaves = true;
    must(!visit_receive(&back, home, false));
    load(2);
    must_ok(ff_dest_ready(back.dest, &err), err);
    must(ff_dest_wait_go(back.dest, &err));
    end_back(&back);
    return_after_all(&out);
}

/* GO came, and the guest cannot run here all the same: the other side is told so, and memory is put back
 * before that, for its guest goes on then */
static void refuses_go(void)
{
    struct leg out, back;
    struct ff_error err;

    loop_arm("dest.go=fail@2");
    go(&out, MEM_ANON);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    load(2);
    must_ok(ff_dest_ready(back.dest, &err), err);
    must(ff_dest_wait_go(back.dest, &err));
    must(ff_dest_recover(back.dest, 20000, &err) == -ESTALE);
    must_be_image();
    visit_must_hold(away); /* it is served already */
    memset(seen, 1, sizeof(seen));
    end_back(&back);
    return_after_all(&out);
}

/* Another thread gives it up: who loads does not know yet, waits for nothing, and goes on writing */
static void given_up(void)
{
    struct leg out, back;
    struct ff_error err;

    go(&out, MEM_ANON);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    load(5);
    must(!ff_dest_give_up(back.dest));
    load(3); /* also what is missing: that reads as zeros */
    must(ff_dest_ready(back.dest, &err));
    load(2);
    end_back(&back);
    return_after_all(&out);
}

/* There is no memory for what is put back: who writes waits until there is some, and this return has failed */
static void no_memory(void)
{
    struct leg out, back;
    struct ff_error err;

    loop_arm("dest.undo=fail:12@100-103");
    go(&out, MEM_ANON);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    for (unsigned p = 0; p < PAGES; p += 2) /* what is missing waits for a link that is broken by now */
        if (!is_logged(0, p))
            visit_fill(home[0].host + p * PAGE, LOADED);
    must(ff_dest_ready(back.dest, &err) && strstr(err.text, "no memory"));
    end_back(&back);
    return_after_all(&out);
}

/* Who serves the guest connects to it when memory is put back, and not before; it is told apart from a link
 * that is lost when the guest has returned */
static void held(void)
{
    struct leg out, back;
    struct ff_error err;

    go(&out, MEM_ANON);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    ff_source_interrupt(out.source); /* its owner waits, and may be asked for something else */
    pthread_join(out.thread, NULL);
    must(out.rc);
    must(ff_source_resume(out.source, NULL, 300, &err) == -ETIMEDOUT && strstr(err.text, "on its way back"));
    load(4);
    visit_let_run(&back);
    must(ff_source_resume(out.source, NULL, 10000, &err) == -ECANCELED && strstr(err.text, "has returned"));
    _exit(0);
}

/* The way out does not resume: nobody could come back to a guest that stays away */
static void no_way_back(void)
{
    struct leg out, back;
    struct ff_error err;

    visit_guest_new(MEM_ANON);
    visit_leg_new(&out, home, away, ",visit=on,reconnect=0");
    must(!visit_receive(&out, away, true));
    visit_let_run(&out);
    visit_leg_new(&back, away, home, "");
    must(ff_dest_keep(back.dest, out.source, &err) == -EINVAL && strstr(err.text, "reconnect"));
    _exit(0);
}

/* What was loaded stays when the guest has returned, and it writes at once */
static void loaded_stays(enum memory kind)
{
    struct leg out, back;

    loop_arm("dest.forget=delay:300000");
    go(&out, kind);
    visit_back(&back, &out, "");
    must(!visit_receive(&back, home, false));
    load(5);
    visit_let_run(&back);
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = r; p < PAGES; p += 5)
            version[r][p] = LOADED + p;
    for (unsigned r = 0; r < REGIONS; r++)
        for (unsigned p = 0; p < PAGES; p += 4) {
            uint8_t *page = home[r].host + p * PAGE;
            must(visit_holds(page, version[r][p]));
            version[r][p] = 2 * LOADED + p;
            visit_fill(page, version[r][p]);
        }
    visit_finish(&back, &out);
}

static void anon_stays(void)
{
    loaded_stays(MEM_ANON);
}

static void thp_stays(void)
{
    loaded_stays(MEM_ANON_THP);
}

static void shared_stays(void)
{
    loaded_stays(MEM_MEMFD);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"anon, all is loaded", anon, 60},
        {"anon, some is loaded", anon_some, 60},
        {"anon, huge pages", anon_thp, 60},
        {"memfd, all is loaded", shared, 60},
        {"memfd, some is loaded", shared_some, 60},
        {"read meanwhile", read_meanwhile, 60},
        {"read meanwhile, with a key", read_with_key, 60},
        {"nothing is loaded", nothing_loaded, 60},
        {"the source leaves before GO", source_leaves, 60},
        {"GO is refused", refuses_go, 60},
        {"given up", given_up, 60},
        {"no memory", no_memory, 60},
        {"who serves waits", held, 60},
        {"no way back", no_way_back, 60},
        {"anon, what is loaded stays", anon_stays, 60},
        {"huge pages, what is loaded stays", thp_stays, 60},
        {"memfd, what is loaded stays", shared_stays, 60},
    };
    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
