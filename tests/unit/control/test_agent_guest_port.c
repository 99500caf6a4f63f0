/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_agent_guest_port.c - what an agent asks QEMUs and guests, in a loop in which nothing may
 * wait
 *
 * The test plays QEMU and the guest in the very thread that calls: whoever waits for them waits for
 * ever, or gives up before they have said a word.
 */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "agent.h"
#include "agent_guest_port.h"

static char dir[] = "/tmp/farfork-unit-XXXXXX", qmp_path[64], port_path[64];

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(a.sun_path, path);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, 1));
    return fd;
}

static int set_up(void **state)
{
    (void)state;
    alarm(60);
    assert_non_null(mkdtemp(dir));
    snprintf(qmp_path, sizeof(qmp_path), "%s/qmp", dir);
    snprintf(port_path, sizeof(port_path), "%s/port", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(qmp_path);
    unlink(port_path);
    assert_int_equal(rmdir(dir), 0);
    strcpy(dir, "/tmp/farfork-unit-XXXXXX");
    return 0;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* What was said by now has @word */
static void must_hear(int fd, const char *word)
{
    char text[2000] = "";

    assert_true(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
    if (!strstr(text, word))
        fail_msg("\"%s\" is not in: %s", word, text);
}

static struct channel *open_channel(int port, int *guest, bool ready)
{
    json_t *o = json_pack("{ss ss s[s s]}", "path", port_path, "message",
                          "{\"fork\": \"f\", \"number\": 1, \"nics\": [{\"mac_old\": \"52:54:00:00:00:0a\"}]}\n",
                          "links", "net0", "net1");
    struct channel *c = agent_port_new(o);
    struct ff_error why;
    int code;

    json_decref(o);
    assert_int_equal(agent_port_open(c, &why), 0);
    *guest = accept(port, NULL, NULL);
    must_hear(*guest, "forked");
    assert_false(agent_port_raise_links(c, qmp_path)); /* it did not ask */
    say(*guest, "link f 2\nlink g 1\nready f 0\nready g 1\nexit 3 g 1\n"); /* nor did these: others said so */
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_NOTHING);
    assert_false(agent_port_raise_links(c, qmp_path));
    say(*guest, ready ? "ready f 1\n" : "link f 1\n");
    assert_int_equal(agent_port_on_input(c, &code), ready ? CHANNEL_READY : CHANNEL_NOTHING);
    return c;
}

/* What the agent does with this MAC of the guest's NIC */
static void show_mac(struct channel *c, int qmp, const char *mac, const char *vlan)
{
    char text[200];

    assert_false(agent_port_raise_links(c, qmp_path));
    int q = accept(qmp, NULL, NULL);
    say(q, "{\"QMP\": {}}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "qmp_capabilities");
    say(q, "{\"return\": {}, \"id\": 0}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "query-rx-filter");
    snprintf(text, sizeof(text), "{\"return\": [{\"name\": \"n\", \"main-mac\": \"%s\", "
             "\"unicast-table\": [0, \"%s\"]}]}\n", mac, vlan);
    say(q, text);
    close(q);
}

/* A NIC has the parent's address, whatever the guest says: its link stays down until it has not */
static void links_of_a_parents_address(void **state)
{
    int qmp = listen_at(qmp_path), port = listen_at(port_path), guest;
    struct channel *c = open_channel(port, &guest, false);
    (void)state;

    for (int i = 0; i < 3; i++) {
        show_mac(c, qmp, i ? "52:54:00:00:00:0b" : "52:54:00:00:00:0A",
                 i == 1 ? "52:54:00:00:00:0A" : "52:54:00:00:00:0a");
        assert_true(agent_port_raise_links(c, qmp_path)); /* later */
        assert_int_equal(agent_port_qmp_fd(c), -1);
    }
    show_mac(c, qmp, "52:54:00:00:00:0b", "52:54:00:00:00:0c");
    assert_false(agent_port_raise_links(c, qmp_path));
    assert_true(agent_port_qmp_fd(c) >= 0);
    int q = accept(qmp, NULL, NULL);
    say(q, "{\"QMP\": {}}\n{\"return\": {}, \"id\": 0}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "net0");
    agent_port_free(c);
    close(q);
    close(qmp);
    close(port);
    close(guest);
}

/* Somebody else is at the child's only monitor: QEMU does not greet yet */
static void links_behind_another(void **state)
{
    int qmp = listen_at(qmp_path), port = listen_at(port_path), guest;
    struct channel *c = open_channel(port, &guest, false);
    (void)state;

    assert_false(agent_port_raise_links(c, qmp_path));
    assert_true(agent_port_qmp_fd(c) >= 0);
    assert_false(agent_port_raise_links(c, qmp_path));
    int q = accept(qmp, NULL, NULL); /* the other has left */
    say(q, "{\"QMP\": {}}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "qmp_capabilities");
    say(q, "{\"return\": {}, \"id\": 0}\n{\"event\": \"STOP\"}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "query-rx-filter");
    say(q, "{\"error\": {\"desc\": \"unknown\"}}\n"); /* then the guest's word counts */
    assert_false(agent_port_raise_links(c, qmp_path));
    close(q);
    q = accept(qmp, NULL, NULL);
    say(q, "{\"QMP\": {}}\n{\"return\": {}, \"id\": 0}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "net0");
    say(q, "{\"error\": {\"desc\": \"no such link\"}}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "net1");
    say(q, "{\"return\": ");
    assert_false(agent_port_raise_links(c, qmp_path));
    assert_true(agent_port_qmp_fd(c) >= 0);
    say(q, "{}}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    assert_int_equal(agent_port_qmp_fd(c), -1); /* done, and it has left the monitor to others */
    agent_port_free(c);
    close(q);
    close(qmp);
    close(port);
    close(guest);
}

/* It ends before it has answered: tried again. Here "ready" is all that was heard */
static void links_of_one_that_ends(void **state)
{
    int qmp = listen_at(qmp_path), port = listen_at(port_path), guest;
    struct channel *c = open_channel(port, &guest, true);
    (void)state;

    assert_false(agent_port_raise_links(c, qmp_path));
    close(accept(qmp, NULL, NULL));
    assert_true(agent_port_raise_links(c, qmp_path));
    assert_int_equal(agent_port_qmp_fd(c), -1);
    assert_false(agent_port_raise_links(c, qmp_path));
    int q = accept(qmp, NULL, NULL);
    say(q, "{\"QMP\": {}}\n");
    assert_false(agent_port_raise_links(c, qmp_path));
    must_hear(q, "qmp_capabilities");
    agent_port_free(c);
    close(q);
    close(qmp);
    close(port);
    close(guest);
}

/* A guest that visits this host: what is said to it, and its wish to go home */
static void visitor(void **state)
{
    int port = listen_at(port_path), code = -1;
    struct channel *c = agent_port_visit(port_path);
    struct ff_error why;
    (void)state;

    assert_int_equal(agent_port_fd(c), -1);
    assert_int_equal(agent_port_tell(c, "visiting a.1\n", &why), 0);
    int guest = accept(port, NULL, NULL);
    must_hear(guest, "visiting a.1");
    say(guest, "link\nready f 1\nexit 3\n"); /* of the child that it is at home: nothing to this agent */
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_NOTHING);
    assert_int_equal(code, -1);
    say(guest, "visit b w.2\nfork 1\njoin w.3\n");
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_NOTHING);
    char text[1000] = "";
    assert_true(recv(guest, text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
    assert_non_null(strstr(text, "failed w.2 this machine visits a host already"));
    assert_non_null(strstr(text, "failed this machine"));
    assert_non_null(strstr(text, "failed w.3 this machine"));
    say(guest, "return w.4\n");
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_RETURN);
    assert_string_equal(agent_port_word(c), "w.4");
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_NOTHING);
    assert_int_equal(agent_port_tell(c, "failed w.4 no\n", &why), 0); /* by the same connection */
    must_hear(guest, "failed w.4 no");
    close(guest);
    assert_int_equal(agent_port_on_input(c, &code), CHANNEL_NOTHING);
    assert_int_equal(agent_port_fd(c), -1);
    close(port);
    unlink(port_path);
    assert_fails(agent_port_tell(c, "visiting\n", &why), ENOENT);
    agent_port_free(c);
}

/* What a QEMU that waits for its guest says; late: its agent hears it when it may be true no
 * more */
static int say_setup(struct agent_vms *k, int qmp, bool late)
{
    int q = accept(qmp, NULL, NULL);

    say(q, "{\"QMP\": {}}\n");
    assert_null(agent_vms_answer(k));
    say(q, "{\"return\": {}, \"id\": 0}\n");
    assert_null(agent_vms_answer(k));
    must_hear(q, "query-migrate");
    say(q, "{\"return\": {\"status\": \"setup\"}, \"id\": 1}\n");
    if (late)
        poll(NULL, 0, 200);
    assert_null(agent_vms_answer(k));
    return q;
}

static const char *comes_at; /* its source or its guest comes as it is signalled: the file of until-go */
static bool runs;            /* its guest: the file goes then */
static int signals_sent;

static void come(void)
{
    int fd = runs ? unlink(comes_at) : open(comes_at, O_WRONLY | O_TRUNC | O_CLOEXEC);

    if (!runs)
        assert_true(write(fd, "0123456789abcdef\n", 17) == 17 && !close(fd));
}

/* Instead of the C library's */
int kill(pid_t pid, int number)
{
    if (comes_at)
        come();
    signals_sent++;
    return (int)syscall(SYS_kill, pid, number);
}

static void used_between(void)
{
    FF_AUTO_FREE char *mark = xprintf("%s/mark", dir);
    struct agent_vm vm = {.number = 3, .qmp = qmp_path, .state = AGENT_VM_ATTACHED, .until_go = mark, .pid = fork()};
    struct agent_vms k = {.v = &vm, .n = 1};
    siginfo_t info = {0};

    while (!vm.pid) {
        alarm(60);
        pause();
    }
    int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), qmp = listen_at(qmp_path);
    close(fd);
    agent_vms_end_unused(&k);
    assert_null(agent_vms_answer(&k));
    comes_at = mark;
    signals_sent = 0;
    while (agent_vms_poll(&k, NULL)) { /* again, where the test itself was late */
        assert_null(agent_vms_answer(&k));
        close(say_setup(&k, qmp, false));
    }
    comes_at = NULL;
    assert_true(signals_sent);
    assert_int_equal(waitid(P_PID, (id_t)vm.pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT), 0);
    assert_int_equal(info.si_pid, 0);
    agent_vms_drop_questions(&k);
    agent_vm_kill(&vm);
    assert_int_equal(waitpid(vm.pid, NULL, 0), vm.pid);
    close(qmp);
    unlink(qmp_path);
    unlink(mark);
}

/* A source or a guest comes to it between its answer and its end: it stays, and runs */
static void used_at_last(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        runs = i;
        used_between();
    }
}

/* One that nobody uses ends, when that is so now */
static void unused(void **state)
{
    struct agent_vm vm = {.number = 3, .qmp = qmp_path, .state = AGENT_VM_ATTACHED, .pid = fork()};
    struct agent_vms k = {.v = &vm, .n = 1};
    siginfo_t info = {0};
    int tries = 0;
    (void)state;

    while (!vm.pid) {
        alarm(60);
        pause();
    }
    int qmp = listen_at(qmp_path);
    agent_vms_end_unused(&k);
    assert_null(agent_vms_answer(&k));
    close(say_setup(&k, qmp, true));
    assert_int_equal(waitid(P_PID, (id_t)vm.pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    assert_int_equal(info.si_pid, 0);
    assert_int_equal(agent_vms_poll(&k, NULL), 1); /* it is asked again */
    for (; agent_vms_poll(&k, NULL); tries++) { /* on a busy machine the test itself may be late */
        assert_null(agent_vms_answer(&k));
        close(say_setup(&k, qmp, false));
    }
    assert_int_equal(waitpid(vm.pid, NULL, 0), vm.pid);
    assert_true(tries > 0);
    close(qmp);
}

static json_t *ask(struct agent_vms *k, const char *execute, int child)
{
    json_t *o = json_pack("{si ss si}", "child", child, "execute", execute, "id", 7);
    json_t *e = agent_vms_qmp(k, o);

    json_decref(o);
    return e;
}

static void questions(void **state)
{
    struct agent_vm vm = {.number = 3, .qmp = qmp_path, .state = AGENT_VM_STARTED};
    struct agent_vms k = {.v = &vm, .n = 1};
    int qmp = listen_at(qmp_path);
    struct pollfd p[1];
    json_t *e;
    (void)state;

    e = ask(&k, "query-status", 4);
    assert_non_null(json_object_get(e, "error"));
    json_decref(e);
    assert_null(ask(&k, "query-status", 3));
    assert_null(agent_vms_answer(&k));
    assert_int_equal(agent_vms_poll(&k, p), 1);
    assert_true(p[0].fd >= 0);
    int q = accept(qmp, NULL, NULL);
    say(q, "{\"QMP\": {}}\n");
    assert_null(agent_vms_answer(&k));
    say(q, "{\"return\": {}}\n");
    assert_null(agent_vms_answer(&k));
    must_hear(q, "query-status");
    say(q, "{\"return\": {\"status\": \"running\"}}\n");
    e = agent_vms_answer(&k);
    assert_int_equal(json_integer_value(json_object_get(e, "id")), 7);
    assert_string_equal(json_string_value(json_object_get(json_object_get(e, "return"), "status")),
                        "running");
    json_decref(e);
    close(q);
    assert_null(ask(&k, "query-status", 3)); /* nothing was asked, when it ends now */
    assert_null(agent_vms_answer(&k));
    close(accept(qmp, NULL, NULL));
    e = agent_vms_answer(&k);
    assert_true(json_is_true(json_object_get(e, "again")) && json_object_get(e, "error"));
    json_decref(e);
    assert_int_equal(agent_vms_poll(&k, NULL), 0);
    assert_null(ask(&k, "query-status", 3));
    agent_vms_drop_questions(&k);
    close(qmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(links_of_a_parents_address, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_behind_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_of_one_that_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(visitor, set_up, tear_down),
        cmocka_unit_test_setup_teardown(questions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(used_at_last, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
