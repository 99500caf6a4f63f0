/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_session_plan.c - which child goes where; what agents say, and what it means
 */
#include "unit.h"

#include "autojson.h"
#include "session.h"

static struct ff_error why;

/* The hosts of children 1, 2, ..., by number */
static char *planned(unsigned n, const char *const *specs, struct session *s)
{
    static char text[200];
    size_t at = 0;

    *s = (struct session){.o.n = n};
    for (; *specs; specs++)
        if (hostlist_add(&s->hostlist, *specs, &why))
            fail_msg("%s", why.text);
    text[0] = '\0';
    if (session_plan(s, &why))
        return NULL;
    for (size_t k = 0; k < s->n_vms; k++) {
        assert_int_equal(s->vms[k].number, k + 1);
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%zu", s->vms[k].host);
    }
    return text;
}

#define SPECS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_round_robin(void **state)
{
    const struct {
        unsigned n;
        const char *const *specs;
        const char *want;
        size_t hosts;
    } cases[] = {
        {5, SPECS("a", "b"), "01010", 2},
        {2, SPECS("a", "b", "c"), "01", 2},
        {6, SPECS("a:1", "b:3", "c"), "012121", 3},
        {4, SPECS("a:2", "b:2"), "0101", 2},
        {3, SPECS("a"), "000", 1},
        {5, SPECS("a:2", "b:2"), NULL, 0},
    };
    struct session s;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        const char *got = planned(cases[i].n, cases[i].specs, &s);
        if (!cases[i].want)
            assert_null(got);
        else
            assert_string_equal(got, cases[i].want);
        assert_int_equal(s.n_hosts, cases[i].hosts);
        session_free(&s);
    }
    assert_non_null(strstr(why.text, "room for 4"));
}

/* Children that were started ahead, two on each host at most, are those of a fork with fewer */
static void test_trim(void **state)
{
    struct session few, kept;
    (void)state;

    for (unsigned n = 1; n <= 5; n++) {
        FF_AUTO_FREE char *want = xstrdup(planned(n, SPECS("a:1", "b:3", "c"), &few));
        const char *all = planned(5, SPECS("a:1", "b:2", "c:2"), &kept);
        session_trim(&kept, n);
        assert_int_equal(kept.n_vms, n);
        assert_int_equal(kept.o.n, n);
        assert_int_equal(kept.n_hosts, few.n_hosts);
        assert_int_equal(kept.n_hosts + kept.n_spare, 3);
        assert_memory_equal(all, want, n);
        session_free(&few);
        session_free(&kept);
    }
}

/* Two agents on one file system: their run directories must not be the same */
static void test_names(void **state)
{
    struct session s;
    (void)state;

    planned(3, SPECS("root@n1", "root-n1", "root_n1"), &s);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(s.hosts[i].name, s.hosts[k].name);
    session_free(&s);
}

static void hear(struct session *s, size_t host, const char *text)
{
    json_t *e = json_loads(text, 0, NULL);

    assert_non_null(e);
    session_on_agent_event(s, &s->hosts[host], e);
    json_decref(e);
}

#define CHILD(n, what) "{\"event\":\"child\",\"child\":" #n ",\"what\":\"" what "\",\"pid\":7}"

static void test_children(void **state)
{
    struct session s;
    (void)state;

    planned(4, SPECS("a", "b"), &s);
    hear(&s, 0, "{\"event\":\"listening\",\"port\":9,\"rundir\":\"/r\",\"socket\":\"/r/s\"}");
    assert_int_equal(s.hosts[0].state, HOST_LISTENING);
    assert_int_equal(s.hosts[0].port, 9);
    hear(&s, 0, CHILD(1, "running"));
    assert_int_equal(s.vms[0].state, VM_RUNNING);
    hear(&s, 0, CHILD(1, "complete"));
    assert_int_equal(s.vms[0].state, VM_COMPLETE);
    /* the other way round: it is not up before it runs */
    hear(&s, 0, CHILD(3, "attached"));
    hear(&s, 0, CHILD(3, "complete"));
    assert_int_equal(s.vms[2].state, VM_ATTACHED);
    assert_false(vm_runs(&s.vms[2]));
    hear(&s, 0, CHILD(3, "running"));
    assert_int_equal(s.vms[2].state, VM_COMPLETE);
    /* what an agent says of children that are not its own, or of none, is nothing */
    hear(&s, 0, CHILD(2, "running"));
    assert_int_equal(s.vms[1].state, VM_WAITING);
    hear(&s, 0, CHILD(99, "running"));
    hear(&s, 0, "{\"event\":\"child\"}");
    hear(&s, 0, "{\"event\":7}");
    hear(&s, 0, "{}");
    /* ended: well, once it ran; a failure before that */
    hear(&s, 0, "{\"event\":\"child\",\"child\":1,\"what\":\"ended\",\"code\":0,"
                "\"how\":\"exit code 0\"}");
    assert_int_equal(s.vms[0].state, VM_ENDED);
    hear(&s, 1, "{\"event\":\"child\",\"child\":2,\"what\":\"ended\",\"code\":0,"
                "\"how\":\"exit code 0\",\"log\":\"one\\ntwo\"}");
    assert_int_equal(s.vms[1].state, VM_FAILED);
    assert_string_equal(s.vms[1].error, "it ended while waiting: exit code 0: two");
    /* a host is lost: its children that were not complete are, the first reason stays */
    hear(&s, 1, "{\"event\":\"lost\",\"error\":\"gone\"}");
    assert_int_equal(s.hosts[1].state, HOST_FAILED);
    assert_int_equal(s.vms[3].state, VM_FAILED);
    assert_non_null(strstr(s.vms[3].error, "host b: "));
    assert_non_null(strstr(s.vms[1].error, "two"));
    hear(&s, 0, "{\"event\":\"error\",\"error\":\"no\"}");
    assert_int_equal(s.vms[2].state, VM_COMPLETE);
    session_free(&s);
}

UNIT_MAIN(cmocka_unit_test(test_round_robin), cmocka_unit_test(test_trim),
          cmocka_unit_test(test_names),
          cmocka_unit_test(test_children))
