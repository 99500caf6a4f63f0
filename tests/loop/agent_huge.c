/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_huge.c - children on 2 MiB pages: each needs as many free ones as it has memory
 *
 * Adds huge pages to the pool when there are too few and it may, and gives them back.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "family.h"
#include "platform.h"

#define CELLS_PER_PAGE ((2u << 20) / CELL)
#define IMAGE_PAGES 5
#define CHILDREN 3
/* UFFDIO_COPY of a page whose source has to be faulted in takes another one for a moment: mm/hugetlb.c
 * hugetlb_mfill_atomic_pte(). Each of the agent's threads that install may do so */
#define MOMENTARY 2
#define HUGE_PAGES (IMAGE_PAGES * (CHILDREN + 1) + MOMENTARY)

static void setup(void)
{
    image_new(IMAGE_PAGES * CELLS_PER_PAGE);
}

static struct family *huge_family(unsigned n, const char *options)
{
    struct family *f = family_new();

    f->n_children = n;
    f->memory = MEM_HUGETLB;
    f->cells[0] = 4 * CELLS_PER_PAGE;
    f->cells[1] = CELLS_PER_PAGE;
    f->options = options;
    return f;
}

static void run(struct family *f)
{
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

static void prefill(void)
{
    run(huge_family(CHILDREN, NULL));
}

static void faults_alone(void)
{
    struct family *f = huge_family(CHILDREN, "prefill=off");

    run(f);
    must(f->stats.image.faults == IMAGE_PAGES && !f->stats.image.bytes_duplicated);
}

static void lent(void)
{
    struct family *f = huge_family(CHILDREN, NULL);

    f->lend_all = true;
    run(f);
    must(f->stats.bytes_lent == f->stats.image.bytes_total);
}

static void handed_over(void)
{
    struct family *f = huge_family(CHILDREN, NULL);

    f->lend_all = f->hand_over = true;
    run(f);
}

/* Faults of the agent, and of the source, which sends to a group */
static struct family *family_by_multicast(const char *at_agent, const char *at_source)
{
    static char options[200];
    struct family *f = huge_family(CHILDREN, options);
    struct ff_error err;

    snprintf(options, sizeof(options), "key-file=%s,multicast=239.192.7.251:%d", loop_key_file(),
             20000 + getpid() % 20000);
    f->resumes = true;
    f->faults = at_agent;
    for (unsigned i = 0; i < CHILDREN; i++)
        f->child[i].when = WHEN_COMPLETE;
    family_fork(f);
    char text[220];
    snprintf(text, sizeof(text), ",%s", options);
    struct ff_address *a = loop_address(1, text);
    must_ok(ff_group_new(a, 1, &f->group, &err), err);
    ff_address_free(a);
    family_start(f);
    must_ok(ff_failpoints_arm(at_source, &err), err);
    family_source(f, S_DONE);
    must(wait_flag(&f->ended, 20000));
    printf("      %llu of %llu KiB by the group, %llu packets lost: %s\n",
           (unsigned long long)f->stats.bytes_group >> 10,
           (unsigned long long)f->stats.image.bytes_prefill >> 10,
           (unsigned long long)f->stats.image.group_lost, f->stats.no_group);
    return f;
}

static void ends_well(struct family *f)
{
    struct ff_group *group = f->group;

    family_must_succeed(f);
    ff_group_free(group);
    loop_remove_key();
}

/* A page has more than a thousand parts, and lacks one of them if a packet is lost */
static void by_multicast(void)
{
    struct family *f = family_by_multicast("dest.group.packet=fail@1000", "");

    must(f->stats.bytes_group && f->stats.bytes_group < f->stats.image.bytes_prefill);
    ends_well(f);
}

/* Packets come all the time, but no page before 15 s: nobody waits for that */
static void no_page_whole(void)
{
    struct family *f = family_by_multicast(NULL, "source.group.send=delay:80000");

    must(!f->stats.bytes_group && strstr(f->stats.no_group, "no page comes whole"));
    ends_well(f);
}

/* One child more than there are pages for: it alone is refused, before it touches anything */
static void one_too_many(void)
{
    unsigned refused = 0;

    if (pl_number(PL_HUGE_DIR "free_hugepages") - pl_number(PL_HUGE_DIR "resv_hugepages") >=
        IMAGE_PAGES * (CHILDREN + 2))
        loop_skip("there are huge pages enough for %d children", CHILDREN + 1);
    struct family *f = huge_family(CHILDREN + 1, NULL);
    f->n_regions = 1; /* of two each might get one */
    f->cells[0] = IMAGE_PAGES * CELLS_PER_PAGE;
    family_start(f);
    family_source(f, S_DONE);
    for (unsigned i = 0; i <= CHILDREN; i++) {
        struct family_child *k = &f->child[i];
        for (unsigned ms = 0; ms < 20000 && !atomic_load(&k->attached) && !atomic_load(&k->rc);
             ms++)
            usleep(1000);
        if (!atomic_load(&k->rc))
            continue;
        must(atomic_load(&k->rc) == -ENOMEM && strstr(k->error, "HugePages_Free"));
        family_reap(k->pid, 3 << 8);
        k->pid = 0;
        refused++;
    }
    must(refused == 1);
    family_must_succeed(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"prefill", prefill, 30},
        {"faults alone", faults_alone, 30},
        {"lent", lent, 30},
        {"handed over", handed_over, 30},
        {"by multicast", by_multicast, 40},
        {"by multicast, no page whole", no_page_whole, 40},
        {"one too many", one_too_many, 40},
    };

    const char *why = pl_huge_reserve(HUGE_PAGES);
    if (why) {
        pl_huge_restore();
        printf("SKIP: %s\n", why);
        return 77;
    }
    int rc = loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
