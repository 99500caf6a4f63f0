/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_domain_books.c - what becomes of a domain's overlays by what libvirt says of them, with a virsh of the test's own
 */
#include "unit.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "domain_books.h"
#include "strv.h"

#define NOBODY 65534
#define OVERLAY "disk.fork-f-vda.qcow2"

/* Its batch makes the overlay, or not, and lists the disk, or not */
static const char virsh[] = "#!/bin/sh\n"
                            "cd %s\n"
                            "list() { echo ' Type Device Target Source'; echo \" file disk vda $PWD/$1\"; }\n"
                            "case \"$*\" in\n"
                            "*snapshot-create*) cat >/dev/null; echo 'Domain snapshot farfork-f created'\n"
                            "  [ -e refuses ] && { echo 'error: no room' >&2; list disk; } || : >" OVERLAY "\n"
                            "  [ -e refuses ] || [ -e silent ] || list " OVERLAY "\n"
                            "  echo '{\"return\":{\"running\":false}}';;\n"
                            "*domblklist*) list disk;;\n"
                            "*blockcommit*) : >committed;;\n"
                            "esac\n";

static char base[] = "/tmp/ff-books-XXXXXX";

struct said {
    int begin, snapshot, commit;
    struct ff_error why;
};

static char *in_base(const char *name)
{
    return xprintf("%s/%s", base, name);
}

static void write_file(const char *path, const char *text, int mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !close(fd));
}

static bool take(const char *name)
{
    FF_AUTO_FREE char *path = in_base(name);

    return !unlink(path);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(base) || chmod(base, 0755))
        return -1;
    FF_AUTO_FREE char *text = xprintf(virsh, base), *path = in_base("virsh");
    write_file(path, text, 0755);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    take("virsh");
    return rmdir(base);
}

/* Its QEMU is a process of another user */
static pid_t begin_domain(void)
{
    pid_t qemu = fork();
    if (!qemu) {
        alarm(60);
        if (!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY))
            pause();
        _exit(1);
    }
    FF_AUTO_FREE char *number = xprintf("%d\n", (int)qemu), *path = xprintf("%s:%s", base, getenv("PATH"));
    setenv("PATH", path, 1);
    write_file("/run/libvirt/qemu/domain.pid", number, 0644);
    FF_AUTO_FREE char *uid = xprintf("/proc/%d", (int)qemu);
    struct stat st = {0};
    for (int i = 0; i < 2000 && !stat(uid, &st) && st.st_uid != NOBODY; i++)
        usleep(5000);
    return qemu;
}

/* As vmclone does it, in a process of its own: that becomes the domain's user */
static struct said fork_it(void)
{
    FF_AUTO_FREE char *disk = in_base("disk");
    struct said s = {.begin = 0};
    int to[2];

    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        struct domain_books *b = NULL;
        pid_t qemu = begin_domain();
        json_t *images = json_pack("[s]", disk);
        s.begin = domain_books_open("domain", NULL, 10, &b, &s.why);
        if (!s.begin)
            s.begin = domain_books_plan(b, "f", images, true, &s.why);
        if (!s.begin) {
            struct ff_error why;
            s.snapshot = domain_books_snapshot(b, &s.why);
            s.commit = domain_books_commit(b, &why);
        }
        domain_books_close(b);
        kill(qemu, SIGKILL);
        _exit(write(to[1], &s, sizeof(s)) != sizeof(s));
    }
    close(to[1]);
    assert_int_equal(read(to[0], &s, sizeof(s)), sizeof(s));
    close(to[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return s;
}

static void test_overlays(void **state)
{
    static const struct {
        const char *virsh;
        int snapshot;
        const char *said;
        bool commits;
    } cases[] = {{"makes them", 0, "", true},
                 {"refuses", -EREMOTEIO, "no room", false},
                 {"silent", -EBUSY, "unknown", true}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *mode = in_base(cases[i].virsh);
        write_file(mode, "", 0644);
        struct said s = fork_it();
        assert_true(take(cases[i].virsh));
        if (s.begin || s.snapshot != cases[i].snapshot)
            print_error("%s: %s\n", cases[i].virsh, s.why.text);
        assert_int_equal(s.begin, 0);
        assert_int_equal(s.snapshot, cases[i].snapshot);
        assert_true(!s.snapshot || strstr(s.why.text, cases[i].said));
        assert_int_equal(s.commit, 0);
        assert_int_equal(take("committed"), cases[i].commits);
        assert_false(take(OVERLAY)); /* it is removed with that, and never was where libvirt refuses */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlays)};

    /* a /run of its own */
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", "/run", "tmpfs", 0, NULL) || mkdir("/run/libvirt", 0755) || mkdir("/run/libvirt/qemu", 0755)) {
        printf("no mount namespace: needs root\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
