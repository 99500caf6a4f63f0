/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_starter.c - who acts on the end of a process: its unit, a parent that waits; not a shell at its prompt
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "rundir.h"
#include "spawn.h"
#include "starter.h"
#include "unit.h"

#define LIMIT_MS 20000

static void keep_pid(void *opaque, const char *line)
{
    *(pid_t *)opaque = (pid_t)atoi(line);
}

/* @script's output is a process number alone; it goes on */
static pid_t start(struct spawn *r, const char *script)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    struct ff_error why;
    pid_t pid = 0;

    assert_false(spawn_start(r, argv, NULL, &why));
    while (!pid)
        spawn_read_lines(r, 50, keep_pid, &pid);
    return pid;
}

static void test_parents(void **state)
{
    struct starter s;
    struct spawn r;

    (void)state;
    starter_find(getpid(), &s); /* its parent is an ancestor of this program */
    assert_null(s.who);
    starter_free(&s);
    pid_t pid = start(&r, "sleep 100 & echo $!; wait");
    starter_find(pid, &s);
    assert_null(s.unit);
    assert_non_null(strstr(s.who, "sh"));
    starter_free(&s);
    starter_find(r.pid, &s); /* of ours */
    assert_null(s.who);
    starter_free(&s);
    starter_find(0, &s);
    assert_non_null(s.who);
    starter_free(&s);
    kill(pid, SIGKILL);
    spawn_end(&r, 0);
    spawn_free(&r);
}

/* A terminal of its own, and there a shell with a job behind, then one in front */
static void test_prompt(void **state)
{
    int pty = posix_openpt(O_RDWR | O_NOCTTY);
    char script[256];
    struct starter s;
    struct spawn r;

    (void)state;
    if (pty < 0 || grantpt(pty) || unlockpt(pty))
        skip();
    char name[] = "/tmp/starter-XXXXXX";
    close(mkstemp(name));
    snprintf(script, sizeof(script),
             "exec setsid -w sh -c 'exec bash --norc -i < %s > %s 2>&1'", ptsname(pty), ptsname(pty));
    char *argv[] = {"sh", "-c", script, NULL};
    struct ff_error why;
    assert_false(spawn_start(&r, argv, NULL, &why));
    for (int front = 0; front < 2; front++) {
        char pids[32] = "", typed[128];
        snprintf(typed, sizeof(typed), front ? "sh -c 'echo $$ > %s; exec sleep 100'\n" : "sleep 100 & echo $! > %s\n",
                 name);
        assert_int_equal(write(pty, typed, strlen(typed)), strlen(typed));
        bool seen = false;
        for (int waited = 0; !seen && waited < LIMIT_MS; waited += 10) {
            int fd = open(name, O_RDONLY);
            ssize_t n = fd < 0 ? 0 : read(fd, pids, sizeof(pids) - 1);
            if (fd >= 0)
                close(fd);
            pids[n > 0 ? n : 0] = '\0';
            starter_find((pid_t)atoi(pids), &s);
            seen = strchr(pids, '\n') && front == (s.who != NULL); /* the prompt comes a moment later */
            starter_free(&s);
            poll(NULL, 0, 10);
        }
        if (!seen)
            fail_msg("job %s %s: it is said that its shell %s", pids, front ? "in front" : "behind",
                     front ? "waits for nobody" : "waits");
        kill((pid_t)atoi(pids), SIGKILL);
        assert_int_equal(truncate(name, 0), 0);
    }
    unlink(name);
    spawn_end(&r, 0);
    spawn_free(&r);
    close(pty);
}

/* A systemctl of our own says what it is told to, for vm.service alone */
static void test_units(void **state)
{
    static const struct {
        const char *groups, *said;
        bool restarts;
        const char *who;
    } cases[] = {
        {"0::/system.slice/vm.service\n", "MainPID=77\nRestart=always\n", true, NULL},
        {"0::/system.slice/vm.service\n", "MainPID=77\nRestart=on-failure\n", true, NULL},
        {"0::/system.slice/vm.service\n", "MainPID=0\nRestart=always\n", true, NULL},
        {"0::/system.slice/vm.service\n", "MainPID=77\nRestart=no\n", false, NULL},
        {"0::/system.slice/vm.service\n", "MainPID=78\nRestart=always\n", false, NULL},
        {"0::/system.slice/vm.service\n", "MainPID=77\nRestart=no\nExecStopPost={ path=/bin/rm ; }\n", false,
         "ExecStopPost"},
        {"0::/system.slice/vm.service\n", "", false, "does not answer"},
        {"0::/system.slice/other.service\n", "MainPID=77\nRestart=always\n", false, "other.service"},
        {"0::/system.slice/vm.service/qemu\n", "MainPID=77\nRestart=always\n", true, NULL},
        {"0::/system.slice/vm.service/a.scope\n", "MainPID=77\nRestart=always\n", false, NULL},
        {"0::/user.slice/user-7.slice/user@7.service/app.slice/vm.service\n", "MainPID=77\nRestart=always\n", true,
         NULL},
        {"0::/user.slice/user-7.slice/user@7.service/init.scope\n", "MainPID=77\nRestart=always\n", false, NULL},
        {"9:name=systemd:/system.slice/vm.service\n8:pids:/\n0::/\n", "MainPID=77\nRestart=always\n", true, NULL},
        {"8:pids:/system.slice/vm.service\n0::/\n", "MainPID=77\nRestart=always\n", false, NULL},
        {"0::/user.slice/user-0.slice/session-3.scope\n", "MainPID=77\nRestart=always\n", false, NULL},
    };
    char dir[] = "/tmp/starter-XXXXXX", path[64], was[4096];

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(was, sizeof(was), "%s", getenv("PATH"));
    snprintf(path, sizeof(path), "%s/systemctl", dir);
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "#!/bin/sh\nfor w; do :; done\n[ \"$w\" = vm.service ] || exit 1\ncat << 'END'\n%sEND\n", cases[i].said);
        fclose(f);
        chmod(path, 0700);
        char with[5000];
        snprintf(with, sizeof(with), "%s:%s", dir, was);
        setenv("PATH", with, 1);
        struct starter s = {0};
        starter_find_unit(cases[i].groups, 77, &s);
        setenv("PATH", was, 1);
        if (cases[i].restarts != (s.unit && !strcmp(s.unit, "vm.service")) || !cases[i].who != !s.who ||
            (s.who && !strstr(s.who, cases[i].who)))
            fail_msg("case %zu: unit %s, who %s", i, s.unit ? s.unit : "none", s.who ? s.who : "nobody");
        starter_free(&s);
    }
    unlink(path);
    rmdir(dir);
}

UNIT_MAIN(cmocka_unit_test(test_parents), cmocka_unit_test(test_prompt), cmocka_unit_test(test_units))
