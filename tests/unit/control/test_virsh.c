/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_virsh.c - a command to a domain's monitor, with a descriptor, by a virsh of the test's own
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "virsh.h"

/* It writes to the descriptor that --pass-fds names, as a QEMU would */
static const char virsh[] = "#!/bin/sh\n"
                            "while [ $# -gt 0 ]; do\n"
                            "  case $1 in\n"
                            "  --pass-fds) fd=$2; shift;;\n"
                            "  --cmd) line=$2; shift;;\n"
                            "  esac\n"
                            "  shift\n"
                            "done\n"
                            "[ -z \"$fd\" ] || printf passed >/proc/self/fd/$fd || exit 1\n"
                            "printf '{\"return\":%s}\\n' \"$line\"\n";

static char base[] = "/tmp/ff-virsh-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(base))
        return -1;
    FF_AUTO_FREE char *file = xprintf("%s/virsh", base), *path = xprintf("%s:%s", base, getenv("PATH"));
    FILE *f = fopen(file, "we");
    int rc = f ? fputs(virsh, f) : -1;

    if (!f || fclose(f) || rc < 0 || chmod(file, 0755))
        return -1;
    return setenv("PATH", path, 1);
}

static int tear_down(void **state)
{
    FF_AUTO_FREE char *file = xprintf("%s/virsh", base);

    (void)state;
    return unlink(file) || rmdir(base);
}

static void monitor(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("passed", MFD_CLOEXEC);
    FF_AUTO_FREE char *plain = NULL, *with = NULL;
    struct ff_error err;
    char got[8] = "";

    (void)state;
    assert_ok(virsh_monitor("web", "{}", -1, &plain, &err), err);
    assert_string_equal(plain, "{\"return\":{}}");
    assert_ok(virsh_monitor("web", "{}", fd, &with, &err), err);
    assert_string_equal(with, plain);
    assert_int_equal(pread(fd, got, sizeof(got), 0), 6);
    assert_string_equal(got, "passed");
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(monitor)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
