/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_preflight.c - what a fork needs of a host: folders, files, descriptors, the children's
 * program
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "autojson.h"
#include "folder.h"
#include "preflight.h"

static char dir[] = "/tmp/ff-preflight-XXXXXX";
static struct ff_error why;

static void refused(int rc, int code, const char *text)
{
    assert_int_equal(rc, -code);
    if (!strstr(why.text, text))
        fail_msg("\"%s\" is not in: %s", text, why.text);
}

static int check(json_t *want)
{
    FF_AUTO_JSON json_t *w = want;

    assert_non_null(w);
    return preflight_check(w, &why);
}

static void test_folder(void **state)
{
    FF_AUTO_FREE char *file = xprintf("%s/file", dir);
    (void)state;

    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(folder_has_room(dir, 0, "scratch folder", "--scratch", &why), 0);
    refused(folder_has_room("/nonexistent", 0, "scratch folder", "--scratch", &why), ENOENT,
            "scratch folder /nonexistent: No such file or directory");
    refused(folder_has_room(file, 0, "folder of x", "--overlays", &why), ENOTDIR, "(--overlays)");
    refused(folder_has_room(dir, UINT64_MAX, "scratch folder", "--scratch", &why), ENOSPC,
            "no space left");
    assert_int_equal(check(json_pack("{ss si s[s]}", "folder", dir, "bytes", 1, "files",
                                     "/nonexistent")), 0);
    refused(check(json_pack("{s[ss]}", "files", "/nonexistent", file)), EEXIST, "the file exists");
    assert_int_equal(check(json_pack("{ss}", "cwd", dir)), 0);
    refused(check(json_pack("{ss}", "cwd", "/nonexistent")), ENOENT, "the folder /nonexistent");
}

/* With limits of its own: in a process of its own; -errno, or how many may be open then */
static int limited(unsigned soft, unsigned hard, unsigned need)
{
    int status;
    pid_t pid = fork();

    if (!pid) {
        struct rlimit lim = {.rlim_cur = soft, .rlim_max = hard};
        FF_AUTO_JSON json_t *want = json_pack("{si}", "descriptors", (int)need);
        setrlimit(RLIMIT_NOFILE, &lim);
        if (preflight_check(want, &why))
            _exit(strstr(why.text, "ulimit") ? 255 : 254);
        getrlimit(RLIMIT_NOFILE, &lim);
        _exit((int)lim.rlim_cur);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_descriptors(void **state)
{
    (void)state;
    assert_int_equal(limited(100, 200, 50), 100); /* enough */
    assert_int_equal(limited(100, 200, 150), 150);
    assert_int_equal(limited(100, 120, 150), 255);
}

static char *script(const char *name, const char *text)
{
    char *path = xprintf("%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0700);

    dprintf(fd, "#!/bin/sh\n%s\n", text);
    close(fd);
    return path;
}

static void test_program(void **state)
{
    FF_AUTO_FREE char *killed = script("killed", "kill -9 $$");
    FF_AUTO_FREE char *says = script("says", "echo too bad >&2; exit 3");
    FF_AUTO_FREE char *qemu = script("qemu", "echo '{\"QMP\": {}}'; read a; echo '{\"return\": {}}'");
    const struct {
        const char *program;
        int code;
        const char *text;
    } bad[] = {
        {"/nonexistent/qemu", ENOEXEC, "/nonexistent/qemu: No such file"},
        {"/bin/false", ENOEXEC, "exit code 1"},
        {"/bin/true", ENOTSUP, "it is no QEMU"},
        {killed, ENOEXEC, "SIGKILL"},
        {says, ENOEXEC, "exit code 3: too bad"},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        refused(check(json_pack("{s[ss]}", "program", bad[i].program, "x")), bad[i].code,
                bad[i].text);
    assert_int_equal(check(json_pack("{s[s]}", "program", qemu)), 0);
}

/* Of a machine whose CPU has these in leaf 1, EDX; its QEMU answers each other question by false */
static int processor(unsigned has, unsigned parents, const char *flag)
{
    static const char word[] = "{s:i,s:s,s:I}";
    FF_AUTO_FREE char *script = xprintf(
        "while read -r line; do case $line in *feature-words*) echo '{\"return\": [{\"cpuid-input-eax\": 1, "
        "\"cpuid-register\": \"EDX\", \"features\": %u}]}' ;; *aes*) echo '{\"return\": false, "
        "\"id\": \"aes\"}' ;; *quit*) exit ;; esac; done", has);
    json_t *w = json_pack(word, "cpuid-input-eax", 1, "cpuid-register", "EDX", "features",
                          (json_int_t)parents);
    json_t *p = json_pack("{s[sss] ss s[o]}", "program", "/bin/sh", "-c", script, "cpu", "/cpu",
                          "words", w);

    if (flag)
        json_object_set_new(p, "flags", json_pack("[s]", flag));
    return check(json_pack("{so}", "processor", p));
}

static void test_processor(void **state)
{
    (void)state;
    assert_int_equal(processor(7, 5, NULL), 0);
    assert_int_equal(processor(7, 5 | 1 << 28, NULL), 0); /* follows from threads */
    assert_int_equal(processor(5, 7, NULL), -EXDEV); /* which, is asked then */
    refused(processor(5, 7, "aes"), ENOTSUP, "does not give it: aes;");
    refused(processor(5, 7, "pni"), ENOTSUP, "does not name them");
}

static int make_dir(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN); /* as an agent does */
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    FF_AUTO_FREE char *command = xprintf("rm -r '%s'", dir);
    (void)state;
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_processor),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
