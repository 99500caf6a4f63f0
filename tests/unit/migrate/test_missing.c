/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_missing.c - pages that are not here, in words: however many, and whatever their names are
 */
#include "unit.h"

#include "missing.h"

static struct ff_pager p;
static char name[FF_WIRE_NAME_MAX + 1];

static void regions_are(unsigned n, uint64_t pages, bool here)
{
    p.n_regions = n;
    for (unsigned i = 0; i < n; i++) {
        p.region[i].name = name;
        p.region[i].range.psize = 4096;
        assert_int_equal(ff_claims_init(&p.region[i].claims, pages), 0);
        if (here)
            ff_claims_present(&p.region[i].claims);
    }
}

static void must_say(const char *want)
{
    char text[FF_MISSING_TEXT];

    ff_missing_text(&p, text);
    assert_string_equal(text, want);
    for (unsigned i = 0; i < p.n_regions; i++)
        ff_claims_free(&p.region[i].claims);
}

static void lack(unsigned region, uint64_t from, uint64_t to)
{
    for (uint64_t page = from; page < to; page++)
        p.region[region].claims.state[page] = page % 2 ? FF_CLAIM_INFLIGHT : FF_CLAIM_MISSING;
}

static void test_text(void **state)
{
    (void)state;
    strcpy(name, "pc.ram");
    regions_are(2, 10, true);
    must_say("0 pages (0 KiB)");
    regions_are(1, 10, false);
    must_say("10 pages (40 KiB): pc.ram 0x0-0x9fff");
    regions_are(1, 10, false);
    for (uint64_t page = 0; page < 10; page += 3)
        assert_true(ff_claim_take(&p.region[0].claims, page));
    ff_claim_done(&p.region[0].claims, 0);
    ff_claim_hole(&p.region[0].claims, 3, 1);
    ff_claim_poisoned(&p.region[0].claims, 6);
    must_say("7 pages (28 KiB): pc.ram 0x1000-0x2fff, pc.ram 0x4000-0x5fff, pc.ram 0x7000-0x9fff");
    regions_are(2, 100, true);
    lack(0, 1, 4);
    lack(0, 99, 100);
    lack(1, 0, 1);
    lack(1, 2, 3);
    lack(1, 50, 60);
    must_say("16 pages (64 KiB): pc.ram 0x1000-0x3fff, pc.ram 0x63000-0x63fff, pc.ram 0x0-0xfff "
             "and 2 ranges more");
}

/* What is longest still fits, and ends as it should */
static void test_long(void **state)
{
    char text[FF_MISSING_TEXT];
    (void)state;

    memset(name, 'x', FF_WIRE_NAME_MAX);
    regions_are(4, 1u << 20, false);
    for (unsigned i = 0; i < 4; i++)
        p.region[i].range.psize = 1u << 30;
    ff_missing_text(&p, text);
    assert_non_null(strstr(text, " and 1 ranges more"));
    for (unsigned i = 0; i < 4; i++)
        ff_claims_free(&p.region[i].claims);
}

UNIT_MAIN(cmocka_unit_test(test_text), cmocka_unit_test(test_long))
