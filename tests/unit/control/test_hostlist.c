/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_hostlist.c - hosts from arguments, files and batch systems; who gets how many children
 */
#include "unit.h"

#include "launcher.h"
#include "hostlist.h"

static struct hostlist l;
static struct ff_error why;

/* "host=address:slots ..." of what is in the list now, and empty it */
static char *taken(void)
{
    static char text[2000];
    size_t n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < l.n; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s=%s:%u", i ? " " : "", l.v[i].host,
                              l.v[i].address, l.v[i].slots);
    hostlist_free(&l);
    return text;
}

static void test_specs(void **state)
{
    static const char *const specs[] = {"node1", "root@node2:3", "n3=10.0.0.3:2", "[fd08::2]:4",
                                        "node1:5", "n6=[fe80::1%eth0]", "root@node2:1"};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(specs); i++)
        if (hostlist_add(&l, specs[i], &why))
            fail_msg("%s: %s", specs[i], why.text);
    assert_string_equal(taken(), "node1=node1:0 root@node2=node2:4 n3=10.0.0.3:2 "
                                 "[fd08::2]=fd08::2:4 n6=fe80::1%eth0:0");
}

static void test_bad_specs(void **state)
{
    static const char *const bad[] = {"", ":3", "-oProxyCommand=x", "node1:0", "node1:x", "n;rm",
                                      "node1:", "n=", "n=-x", "a b", "n1:100001", "$(x)"};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        why.text[0] = '\0';
        if (hostlist_add(&l, bad[i], &why) != -EINVAL ||
            !strstr(why.text, "HOST[=ADDRESS][:SLOTS]"))
            fail_msg("\"%s\" is accepted, or refused by: %s", bad[i], why.text);
    }
    assert_int_equal(l.n, 0);
}

static void test_slurm(void **state)
{
    static const struct {
        const char *list, *want;
    } good[] = {
        {"n1", "n1=n1:0"},
        {"n[1-3]", "n1=n1:0 n2=n2:0 n3=n3:0"},
        {"n[08-10,3],login", "n08=n08:0 n09=n09:0 n10=n10:0 n3=n3:0 login=login:0"},
        {"r[1-2]n[0-1]-ib", "r1n0-ib=r1n0-ib:0 r1n1-ib=r1n1-ib:0 r2n0-ib=r2n0-ib:0 "
                            "r2n1-ib=r2n1-ib:0"},
        {"a,b,a", "a=a:0 b=b:0"},
    };
    static const char *const bad[] = {"", "n[1-", "n[]", "n[3-1]", "n[1-3", "n[a-b]", "a,,b", "a,",
                                      "n[1-99999]", "n]1["};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        if (hostlist_add_slurm(&l, good[i].list, &why))
            fail_msg("%s: %s", good[i].list, why.text);
        assert_string_equal(taken(), good[i].want);
    }
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        if (hostlist_add_slurm(&l, bad[i], &why) != -EINVAL)
            fail_msg("\"%s\" is accepted: %s", bad[i], taken());
        hostlist_free(&l);
    }
}

static void test_files(void **state)
{
    char path[] = "/tmp/ff-nodes-XXXXXX";
    int fd = mkstemp(path);
    (void)state;

    assert_true(fd >= 0);
    assert_int_equal(dprintf(fd, "# job\nn1\nn1 n2 # two\n\nn1:3\n"), 27);
    close(fd);
    assert_int_equal(hostlist_read_file(&l, path, true, &why), 0);
    assert_string_equal(taken(), "n1=n1:5 n2=n2:1");
    assert_int_equal(hostlist_read_file(&l, path, false, &why), 0);
    assert_string_equal(taken(), "n1=n1:0 n2=n2:0");

    unsetenv("SLURM_JOB_NODELIST");
    setenv("PBS_NODEFILE", path, 1);
    assert_int_equal(hostlist_from_environment(&l, &why), 0);
    assert_string_equal(taken(), "n1=n1:5 n2=n2:1");
    setenv("SLURM_JOB_NODELIST", "s[1-2]", 1);
    assert_int_equal(hostlist_from_environment(&l, &why), 0);
    assert_string_equal(taken(), "s1=s1:0 s2=s2:0");
    unsetenv("SLURM_JOB_NODELIST");
    unsetenv("PBS_NODEFILE");
    assert_int_equal(hostlist_from_environment(&l, &why), 0);
    assert_true(hostlist_is_here(&l.v[0]));
    hostlist_free(&l);

    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(hostlist_read_file(&l, path, false, &why), -EINVAL);
    unlink(path);
    assert_int_equal(hostlist_read_file(&l, path, false, &why), -ENOENT);
}

/* --- launchers --- */

static char *output_of(const char *line)
{
    static char text[1000];
    FILE *f = popen(line, "r");

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    pclose(f);
    return text;
}

static void test_quoting(void **state)
{
    char *argv[] = {"printf", "%s|", "plain", "two words", "it's", "$HOME `x` \\", "", "a;b", NULL};
    const char *want = "plain|two words|it's|$HOME `x` \\||a;b|";
    (void)state;

    FF_AUTO_FREE char *once = shell_join(argv);
    assert_string_equal(output_of(once), want);
    FF_AUTO_FREE char *line = launcher_line("env HOST={host} {cmd}", "h1", argv);
    assert_string_equal(output_of(line), want);
    /* what ssh does: join its arguments, and give them to a shell */
    FF_AUTO_FREE char *ssh = launcher_line("ssh -x {host} {cmd}", "root@h1", argv);
    assert_int_equal(strncmp(ssh, "ssh -x root@h1 ", 15), 0);
    FF_AUTO_FREE char *there = xprintf("f() { sh -c \"$*\"; }; f %s", ssh + 15);
    assert_string_equal(output_of(there), want);
    FF_AUTO_FREE char *path = launcher_line("/usr/bin/ssh {host} {cmd}", "h", argv);
    assert_non_null(strstr(path, ssh + 15));
}

static void test_launcher_check(void **state)
{
    (void)state;
    assert_int_equal(launcher_check("ssh {host} {cmd}", &why), 0);
    assert_int_equal(launcher_check("ssh {host}", &why), -EINVAL);
    assert_int_equal(launcher_check("{cmd}", &why), -EINVAL);
    assert_non_null(strstr(why.text, "{host} and {cmd}"));
}

/* In a job of Slurm's, in its prolog, and in a step of its own, with which all ends that it starts */
static void test_slurm_launcher(void **state)
{
    static const char *const names[] = {"SLURM_JOB_ID", "SLURM_SCRIPT_CONTEXT", "SLURM_STEP_ID", "SLURM_JOB_NODELIST"};

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    assert_string_equal(launcher_default(), LAUNCHER_DEFAULT);
    setenv("SLURM_JOB_ID", "7;ls", 1);
    assert_string_equal(launcher_default(), LAUNCHER_DEFAULT);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_JOB_NODELIST", "n[1-2]", 1);
    assert_non_null(strstr(launcher_default(), "srun --jobid=7 "));
    assert_int_equal(launcher_check(launcher_default(), &why), 0);
    assert_true(launcher_ends_all(launcher_default()));
    setenv("SLURM_SCRIPT_CONTEXT", "prolog_task", 1); /* TaskProlog leaves it to the job's tasks */
    assert_non_null(strstr(launcher_default(), "srun --jobid=7 "));
    assert_int_equal(hostlist_from_environment(&l, &why), 0);
    assert_string_equal(taken(), "n1=n1:0 n2=n2:0");
    assert_true(launcher_ends_all("srun {host} {cmd}") && launcher_ends_all("/usr/bin/srun -n1 {host} {cmd}"));
    assert_false(launcher_ends_all(LAUNCHER_DEFAULT) || launcher_ends_all("srun2 {host} {cmd}"));
    assert_int_equal(launcher_check_step(&why), 0);
    setenv("SLURM_STEP_ID", "4294967290", 1); /* an interactive shell */
    assert_int_equal(launcher_check_step(&why), 0);
    setenv("SLURM_STEP_ID", "3", 1);
    assert_int_equal(launcher_check_step(&why), -EPERM);
    setenv("SLURM_SCRIPT_CONTEXT", "prolog_slurmd", 1);
    assert_string_equal(launcher_default(), LAUNCHER_DEFAULT);
    assert_int_equal(hostlist_from_environment(&l, &why), 0);
    assert_string_equal(taken(), "localhost=localhost:0");
    for (size_t i = 0; i < FF_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
}

UNIT_MAIN(cmocka_unit_test(test_specs), cmocka_unit_test(test_bad_specs),
          cmocka_unit_test(test_slurm), cmocka_unit_test(test_files),
          cmocka_unit_test(test_slurm_launcher),
          cmocka_unit_test(test_quoting), cmocka_unit_test(test_launcher_check))
