/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_process_limits.c - what a process was given that this one has not
 */
#include "unit.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process_limits.h"

/* One that has done @change() to itself; it ends with this one */
static pid_t start(int (*change)(void))
{
    int fd[2];
    char c;

    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[0]);
        if (!change || !change())
            write(fd[1], "x", 1) == 1 ? pause() : 0;
        _exit(1);
    }
    close(fd[1]);
    ssize_t n = read(fd[0], &c, 1);
    close(fd[0]);
    if (n == 1)
        return pid;
    waitpid(pid, NULL, 0);
    return 0;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int be_nice(void)
{
    return setpriority(PRIO_PROCESS, 0, 7);
}

static int be_killed_first(void)
{
    FILE *f = fopen("/proc/self/oom_score_adj", "we");

    return !f || fprintf(f, "789") < 0 || fclose(f);
}

static int be_limited(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_FSIZE, &r))
        return -1;
    r.rlim_cur = 12345678;
    return setrlimit(RLIMIT_FSIZE, &r);
}

static int be_batch(void)
{
    struct sched_param p = {0};

    return sched_setscheduler(0, SCHED_BATCH, &p);
}

static void test_process(void **state)
{
    static const struct {
        int (*change)(void);
        const char *want;
    } cases[] = {{NULL, NULL},
                 {be_nice, "nice 7"},
                 {be_killed_first, "oom_score_adj 789"},
                 {be_limited, "limit of file size 12345678"},
                 {be_batch, "scheduling policy batch"}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        struct strv out = {0};
        pid_t pid = start(cases[i].change), threads[] = {pid, 0};
        assert_true(pid > 0);
        process_limits_of(pid, threads, "/nonexistent", &out);
        end(pid);
        if (out.n != (cases[i].want != NULL) || (out.n && strcmp(out.v[0], cases[i].want)))
            fail_msg("%zu: %zu words: %s", i, out.n, out.n ? out.v[0] : "");
        strv_free(&out);
    }
}

static int on_one_cpu(void)
{
    cpu_set_t set;
    int last = CPU_SETSIZE;

    if (sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) < 2)
        return -1;
    while (!CPU_ISSET(--last, &set))
        ;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    return sched_setaffinity(0, sizeof(set), &set);
}

static void test_affinity(void **state)
{
    pid_t pid = start(on_one_cpu);
    struct strv out = {0};
    (void)state;

    if (!pid)
        skip(); /* one CPU */
    process_limits_of(pid, NULL, "/nonexistent", &out);
    end(pid);
    assert_int_equal(out.n, 1);
    assert_int_equal(strncmp(out.v[0], "CPU affinity ", 13), 0);
    strv_free(&out);
}

/* What is not there is unknown, not the same */
static void test_unknown(void **state)
{
    struct strv out = {0};
    pid_t pid = start(NULL);
    (void)state;

    end(pid);
    process_limits_of(pid, NULL, "/nonexistent", &out);
    assert_true(strv_have(&out, "unknown scheduling"));
    assert_true(strv_have(&out, "unknown limits"));
    assert_true(strv_have(&out, "unknown oom_score_adj"));
    strv_free(&out);
}

static void put(const char *folder, const char *file, const char *text)
{
    FF_AUTO_FREE char *path = xprintf("%s/%s", folder, file);
    FILE *f = fopen(path, "we");

    assert_true(f && fprintf(f, "%s\n", text) > 0 && !fclose(f));
}

/* Version 1: a folder for each controller */
static void must_read_old(const char *top)
{
    FF_AUTO_FREE char *cpu = xprintf("%s/cpu", top), *memory = xprintf("%s/memory", top),
                      *vm = xprintf("%s/memory/vm", top);
    struct strv out = {0};

    assert_true(!mkdir(cpu, 0700) && !mkdir(memory, 0700) && !mkdir(vm, 0700));
    put(cpu, "cpu.shares", "512");
    put(vm, "memory.limit_in_bytes", "9223372036854771712");
    process_limits_of_group("cpu", "", "", top, &out); /* the root one is no group of its own */
    process_limits_of_group("memory", "/vm", "", top, &out);
    process_limits_of_group("memory", "/vm", "/vm", top, &out);
    process_limits_of_group("pids", "/vm", "", top, &out);
    assert_int_equal(out.n, 0);
    put(vm, "memory.limit_in_bytes", "536870912");
    process_limits_of_group("memory", "/vm", "/elsewhere", top, &out);
    assert_int_equal(out.n, 1);
    assert_string_equal(out.v[0], "memory.limit_in_bytes 536870912");
    strv_free(&out);
}

/* /s has one child, /s/vm, and we are in /s/own */
static void test_groups(void **state)
{
    char top[] = "/tmp/groups-XXXXXX";
    struct strv out = {0};
    (void)state;

    assert_non_null(mkdtemp(top));
    FF_AUTO_FREE char *s = xprintf("%s/s", top), *vm = xprintf("%s/s/vm", top);
    assert_true(!mkdir(s, 0700) && !mkdir(vm, 0700));
    put(s, "memory.max", "1000");
    put(vm, "memory.max", "max");
    put(vm, "cpu.max", "20000 100000");
    put(vm, "cpu.weight", "100");
    put(vm, "cpuset.cpus", "");
    process_limits_of_group("", "/s/vm", "/s/own", top, &out); /* /s limits both */
    assert_int_equal(out.n, 1);
    assert_string_equal(out.v[0], "cpu.max 20000 100000");
    process_limits_of_group("", "/s/vm", "/s/vm", top, &out);
    process_limits_of_group("", "", "/s/vm", top, &out);
    assert_int_equal(out.n, 1);
    process_limits_of_group("", "/s/vm", "", top, &out);
    assert_int_equal(out.n, 2);
    assert_string_equal(out.v[1], "memory.max 1000");
    strv_free(&out);
    must_read_old(top);
    FF_AUTO_FREE char *command = xprintf("rm -r '%s'", top);
    assert_int_equal(system(command), 0);
}

#define PIDS "/sys/fs/cgroup/pids"

/* A process in a group of version 1, where this host has such */
static void test_old(void **state)
{
    struct strv out = {0};
    (void)state;

    FF_AUTO_FREE char *group = xprintf(PIDS "/farfork-test-%d", (int)getpid());
    if (access(PIDS "/cgroup.procs", F_OK) || mkdir(group, 0700))
        skip(); /* cgroup version 2 alone, or no permission */
    pid_t pid = start(NULL);
    FF_AUTO_FREE char *text = xprintf("%d", (int)pid);
    put(group, "pids.max", "77");
    put(group, "cgroup.procs", text);
    process_limits_of(pid, NULL, "/sys/fs/cgroup", &out);
    end(pid);
    rmdir(group);
    assert_int_equal(out.n, 1);
    assert_string_equal(out.v[0], "pids.max 77");
    strv_free(&out);
}

UNIT_MAIN(cmocka_unit_test(test_groups), cmocka_unit_test(test_process),
          cmocka_unit_test(test_affinity), cmocka_unit_test(test_unknown), cmocka_unit_test(test_old))
