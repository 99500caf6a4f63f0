/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_move_devices.c - whether a device was plugged in there, by what its QEMU has, and not by what it says
 */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "move.h"

/* What the QEMU there has before and after, and says */
struct there {
    const char *spec, *path;
    bool none, adds; /* no such folder of devices so far; the device comes to be there */
    const char *text;
    bool plugged;
};

static struct host host;
static struct vm vms[2];
static struct move m;

static const char *answer_to(const struct there *t, const char *line, bool *added)
{
    FF_AUTO_FREE char *path = xprintf("\"path\":\"%s\"", t->path);
    static char text[512];

    if (strstr(line, "human-monitor-command")) {
        *added = t->adds;
        snprintf(text, sizeof(text), "\"return\":\"%s\"", t->text);
    } else if (!strstr(line, path)) {
        snprintf(text, sizeof(text), "\"error\":\"not asked for that\"");
    } else if (t->none && !*added) {
        snprintf(text, sizeof(text), "\"error\":\"no such folder\"");
    } else {
        snprintf(text, sizeof(text), "\"return\":[{\"name\":\"type\",\"type\":\"string\"}%s]",
                 *added ? ",{\"name\":\"new\",\"type\":\"child<x>\"}" : "");
    }
    return text;
}

/* The agent there, a line at a time */
static _Noreturn void agent_main(const struct there *t, int in, int out)
{
    FILE *f = fdopen(in, "re");
    bool added = false;
    char line[1024];
    const char *id;

    alarm(60);
    while (f && fgets(line, sizeof(line), f))
        if ((id = strstr(line, "\"id\":")))
            dprintf(out, "{\"event\":\"qmp\",\"child\":1,\"id\":%d,%s}\n", atoi(id + 5), answer_to(t, line, &added));
    _exit(0);
}

static pid_t begin(const struct there *t)
{
    static const struct node node = {.host = (char *)"there"};
    int to[2], from[2];

    assert_true(!pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC));
    pid_t pid = fork();
    if (!pid) {
        close(to[1]);
        agent_main(t, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    host = (struct host){.node = &node, .state = HOST_COMPLETE, .keyed = true, .run = SPAWN_NONE};
    host.run.in = to[1];
    host.run.out = from[0];
    fcntl(host.run.out, F_SETFL, O_NONBLOCK);
    vms[0] = vms[1] = (struct vm){.state = VM_STARTED};
    m = (struct move){.s = {.o = {.timeout_s = 20, .quiet = true}, .hosts = &host, .n_hosts = 1, .vms = vms, .n_vms = 2,
                            .signals = -1}};
    strv_add(&m.plug, "%s", t->spec);
    return pid;
}

static void end(pid_t pid)
{
    close(host.run.in);
    host.run.in = -1;
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    spawn_free(&host.run);
    json_decref(m.s.answer);
    strv_free(&m.plug);
    strv_free(&m.s.notes);
}

static void test_plugged(void **state)
{
    static const char anon[] = "/machine/peripheral-anon", named[] = "/machine/peripheral";
    static const struct there cases[] = {
        {"nic", anon, false, true, "", true},
        {"nic", anon, false, true, "warning: no romfile", true},
        {"nic", anon, true, true, "warning: no romfile", true},
        {"nic", anon, false, false, "Error: no bus", false},
        {"nic", anon, true, false, "Error: no bus", false},
        {"nic,id=new", named, false, true, "warning: no romfile", true},
        {"nic,id=new", named, false, false, "Error: no bus", false},
        {"nic,id=new,failover_pair_id=p", named, false, false, "", true}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        pid_t pid = begin(&cases[i]);
        move_devices_plug(&m);
        if (m.n_plugged != cases[i].plugged)
            print_error("%zu: %s, '%s': %s\n", i, cases[i].spec, cases[i].text, m.s.notes.n ? m.s.notes.v[0] : "");
        assert_int_equal(m.n_plugged, cases[i].plugged);
        assert_true(cases[i].plugged || (m.s.notes.n && strstr(m.s.notes.v[0], "no bus")));
        end(pid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plugged)};

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
