/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_ps.c - which processes of those that a state file names are ended with the fork
 */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "ps.h"
#include "rundir.h"

#define RUNS "exec sh -c 'read x; :' " /* until this test has ended */

static char base[] = "/tmp/ff-ps-XXXXXX";
static struct ff_error why;
static int input[2]; /* of those that are started */

static int make_base(void **state)
{
    (void)state;
    return mkdtemp(base) && !pipe2(input, O_CLOEXEC) ? 0 : -1;
}

static int remove_base(void **state)
{
    (void)state;
    return rmdir(base); /* fails if a test left something behind */
}

static char *in_base(const char *name)
{
    return xprintf("%s/%s", base, name);
}

/* @path and what is above it, below base */
static void make_folders(const char *path)
{
    FF_AUTO_FREE char *p = xstrdup(path);

    for (char *slash = p + strlen(base); (slash = strchr(slash + !!*slash, '/'));) {
        *slash = '\0';
        mkdir(p, 0700);
        *slash = '/';
    }
    assert_true(!mkdir(p, 0700) || errno == EEXIST);
}

static void remove_folders(const char *path)
{
    FF_AUTO_FREE char *p = xstrdup(path);

    for (; strlen(p) > strlen(base); *strrchr(p, '/') = '\0')
        assert_int_equal(rmdir(p), 0);
}

static void *stay(void *arg)
{
    pause();
    return arg;
}

/* As a process is that is being killed: it has no memory any more, and is there */
static void leave_a_thread(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, stay, NULL);
    syscall(SYS_exit, 0);
}

/* It runs what it is to run, by `exec`; NULL: it has no command line any more */
static pid_t start(const char *line)
{
    pid_t pid = fork();

    if (!pid) {
        alarm(60);
        dup2(input[0], 0);
        close(input[1]);
        if (!line)
            leave_a_thread();
        execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    FF_AUTO_FREE char *words = xprintf("/proc/%d/cmdline", (int)pid);
    for (int n = 0; n < 500; n++) {
        char text[256] = "";
        FILE *f = fopen(words, "re");
        if (f && (fread(text, 1, sizeof(text) - 1, f) ? line && memcmp(text, "sh\0-c\0exec", 10) &&
                                                            !strstr(text, "test_ps") : !line))
            n = 500;
        if (f)
            fclose(f);
        poll(NULL, 0, 10);
    }
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* The fork's state, in @in/f/n */
static char *write_state(const char *in, pid_t agent, bool detached, pid_t child)
{
    char *dir = NULL;

    make_folders(in);
    assert_int_equal(rundir_make(in, "f", "n", &dir, &why), 0);
    json_t *s = json_pack("{ss si sI sb s[{si si sI}]}", "id", "f", "agent", (int)agent, "start",
                          (json_int_t)process_start_time(agent), "detached", detached, "children", "number", 1,
                          "pid", (int)child, "start", (json_int_t)process_start_time(child));
    assert_int_equal(rundir_write_state(dir, s), 0);
    json_decref(s);
    return dir;
}

/* --kill by @of, the run directories, ends a child that was started by @line; its state is in @in */
static void check_child(const char *words, const char *in, const char *of, const char *line, bool ends)
{
    pid_t pid = start(line);
    FF_AUTO_FREE char *dir = write_state(in, 0, true, pid);
    int code = ps_end(of, "f", 0, true, 5000, false), status;
    bool ended = waitpid(pid, &status, WNOHANG) == pid;

    if (ended != ends)
        print_error("%s\n", words);
    assert_int_equal(ended, ends);
    assert_int_equal(code, ends ? 0 : 1);
    if (!ended)
        end(pid);
    rundir_remove(dir);
}

/* A state file that a confined child has written may name any process: one that has nothing of that fork on its
 * command line is not ended. A link to another folder is no run directory */
static void test_others(void **state)
{
    static const struct { const char *words, *line; bool ends; } cases[] = {
        {"sleep 100", "exec sleep 100", false}, {"child", RUNS "unix:%s/f/n/1.qmp,server=on", true},
        {"folder alike", RUNS "unix:/other%s/f/n/1.qmp", false},
        {"a folder in the folder's place", RUNS "unix:%s/a:/f/n/1.qmp", false},
        {"agent", RUNS "--id f --node n", true},
        {"another agent", RUNS "--id f --node m", false},
        {"it was killed, and has not ended yet: no command line", NULL, true}};
    FF_AUTO_FREE char *elsewhere = in_base("elsewhere"), *folder = in_base("elsewhere/f");
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *line = cases[i].line ? xprintf(cases[i].line, base) : NULL;
        check_child(cases[i].words, base, base, line, cases[i].ends);
    }
    FF_AUTO_FREE char *dir = write_state(base, 0, true, 0), *fork_folder = in_base("f");
    make_folders(elsewhere);
    assert_int_equal(rename(fork_folder, folder), 0);
    assert_int_equal(symlink(folder, fork_folder), 0);
    assert_int_equal(ps_end(base, "f", 0, true, 5000, false), 3); /* there is none */
    unlink(fork_folder);
    assert_int_equal(rename(folder, fork_folder), 0);
    rmdir(elsewhere);
    rundir_remove(dir);
}

/* Its path has what ends an option's name, and its own end twice */
static void test_paths(void **state)
{
    static const char *const folders[] = {"a:b", "a=/b:/c", "f/n/x"};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(folders); i++) {
        FF_AUTO_FREE char *of = in_base(folders[i]), *line = xprintf(RUNS "unix:%s/f/n/1.qmp,server=on", of);
        check_child(folders[i], of, of, line, true);
        remove_folders(of);
    }
}

/* The run directory has gone, as logind removes it with the session; its state is where it lasts */
static void test_lasting(void **state)
{
    FF_AUTO_FREE char *of = in_base("gone"), *lasting = in_base("lasting");
    FF_AUTO_FREE char *own = xprintf(RUNS "unix:%s/f/n/1.qmp,server=on", of);
    FF_AUTO_FREE char *other = xprintf(RUNS "unix:%s/g/n/1.qmp,server=on", of);
    FF_AUTO_FREE char *in_state = xprintf(RUNS "unix:%s/f/n/1.qmp,server=on", lasting);
    (void)state;

    setenv("FARFORK_STATEDIR", lasting, 1);
    check_child("of the folder that is gone", lasting, of, own, true);
    check_child("of where its state is", lasting, of, in_state, true);
    check_child("of another folder that is gone", lasting, of, other, false);
    unsetenv("FARFORK_STATEDIR");
    remove_folders(lasting);
}

/* A child that its command line does not tell: an agent that is the fork's own knows it, and ends it. A detached one
 * would leave it, and nobody else would look after it */
static void test_by_agent(void **state)
{
    (void)state;
    for (int detached = 0; detached < 2; detached++) {
        pid_t child = start("exec sleep 100");
        FF_AUTO_FREE char *line = xprintf("exec sh -c 'trap \"kill -9 %d; exit 0\" TERM; echo >%s/ready; "
                                          "while :; do sleep 0.01; done' sh --id f --node n", (int)child, base);
        FF_AUTO_FREE char *ready = in_base("ready");
        pid_t agent = start(line);
        for (int i = 0; access(ready, F_OK) && i < 500; i++)
            poll(NULL, 0, 10);
        unlink(ready);
        FF_AUTO_FREE char *dir = write_state(base, agent, detached, child);
        uint64_t begin_ms = ff_now_ms();
        assert_int_equal(ps_end(base, "f", 0, true, 20000, false), detached);
        assert_true(ff_now_ms() < begin_ms + 10000); /* it waits for nothing */
        assert_int_equal(waitpid(child, NULL, WNOHANG), detached ? 0 : child);
        assert_int_equal(waitpid(agent, NULL, WNOHANG), detached ? 0 : agent);
        assert_int_equal(access(dir, F_OK), detached ? 0 : -1);
        if (detached) {
            end(child);
            end(agent);
            rundir_remove(dir);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others), cmocka_unit_test(test_paths),
                                       cmocka_unit_test(test_lasting), cmocka_unit_test(test_by_agent)};

    return cmocka_run_group_tests(tests, make_base, remove_base);
}
