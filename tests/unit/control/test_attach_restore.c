/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_attach_restore.c - what a restore of the test's own reads from the FIFO: of libvirt 9, which opens it once, of 11.2,
 * which opens it twice, and of one that refuses
 */
#include "fake_libvirt.h"
#include "unit.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "attach_domain.h"
#include "libvirt_calls.h"

#define XML "<domain><name>web</name></domain>"
#define HEAD_LEN (92 + sizeof(XML))
#define HEAD_LEN_TEXT "126"
#define GIVEN "{\"xml\":\"" XML "\"}"

/* It is libvirtd, and then QEMU: the last one to open it. That reads the head, has a pid file, and reads on */
static const char libvirtd[] = "#!/bin/sh\n"
                            "cd %s\n"
                            "fifo=$1\n"
                            "[ -e refuses ] && exit 1\n"
                            "[ -e twice ] && head -c " HEAD_LEN_TEXT " <$fifo >head.1\n"
                            "exec 4<$fifo\n"
                            "dd bs=1 count=" HEAD_LEN_TEXT " <&4 >head 2>/dev/null\n"
                            "sleep 60 & qemu=$!\n"
                            "echo $qemu >/run/libvirt/qemu/web.pid\n"
                            "dd bs=1 count=8 <&4 >begin 2>/dev/null\n"
                            "wait $qemu\n";

static char base[] = "/tmp/ff-restore-XXXXXX";

static char *in_base(const char *name)
{
    return xprintf("%s/%s", base, name);
}

static void write_file(const char *name, const char *text, int mode)
{
    FF_AUTO_FREE char *path = in_base(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !close(fd));
}

static size_t read_file(const char *name, char *to, size_t room)
{
    FF_AUTO_FREE char *path = in_base(name);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(to, 1, room, f) : 0;

    if (f)
        fclose(f);
    unlink(path);
    return n;
}

/* --- the libvirt that asks it to --- */

static const struct virt_error *fake_error(void)
{
    static const struct virt_error refuses = {.code = 1, .message = (char *)"no such disk"};

    return &refuses;
}

static int fake_version(struct virt_connect *c, unsigned long *version)
{
    *version = 9000000;
    return !c;
}

static int fake_restore(struct virt_connect *c, const char *from, const char *xml, unsigned flags)
{
    FF_AUTO_FREE char *command = xprintf("exec %s/libvirtd %s", base, from);

    assert_true(c && !xml && flags == VIRT_SAVE_PAUSED);
    return system(command) ? -1 : 0;
}

static const struct libvirt_calls calls = {.get_last_error = fake_error,
                                           .connect_open = fake_open,
                                           .connect_close = fake_fine,
                                           .connect_ref = fake_fine,
                                           .connect_is_alive = fake_is_alive,
                                           .connect_get_lib_version = fake_version,
                                           .domain_restore = fake_restore};

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(base))
        return -1;
    FF_AUTO_FREE char *text = xprintf(libvirtd, base);
    write_file("libvirtd", text, 0755);
    return 0;
}

static int tear_down(void **state)
{
    char ignored[1];

    (void)state;
    read_file("libvirtd", ignored, 1);
    return rmdir(base);
}

static int begin(struct ff_error *err)
{
    static const struct attach_options o = {.domain = "web", .json = true};
    static struct attach a;

    a = (struct attach){.o = &o, .side = "destination", .sock = -1, .stop_fd = eventfd(0, EFD_CLOEXEC)};
    pthread_mutex_init(&a.lock, NULL);
    pthread_mutex_init(&a.qmp_lock, NULL);
    int rc = attach_domain_new(&a, GIVEN, err);
    if (!rc)
        rc = attach_restore_begin(&a, err);
    attach_restore_drop(&a);
    unlink("/run/libvirt/qemu/web.pid");
    qmp_free(a.q);
    attach_domain_free(&a);
    close(a.stop_fd);
    return rc;
}

static void check_head(const char *name)
{
    char head[4096];

    assert_int_equal(read_file(name, head, sizeof(head)), HEAD_LEN);
    assert_memory_equal(head, "LibvirtQemudSave\2\0\0\0", 20);
    assert_memory_equal(head + 92, XML, sizeof(XML));
}

static void check_whole(void)
{
    char eight[16];

    check_head("head");
    assert_int_equal(read_file("begin", eight, sizeof(eight)), 8);
    assert_memory_equal(eight, "QEVM\0\0\0\3", 8);
}

static void opened(void **state)
{
    struct ff_error err;
    char ignored[1];

    (void)state;
    assert_int_equal(HEAD_LEN, atoi(HEAD_LEN_TEXT));
    assert_ok(begin(&err), err);
    check_whole();
    write_file("twice", "", 0600);
    assert_ok(begin(&err), err);
    check_head("head.1");
    check_whole();
    read_file("twice", ignored, 1);
}

static void refused(void **state)
{
    struct ff_error err;
    char ignored[1];

    (void)state;
    write_file("refuses", "", 0600);
    assert_fails(begin(&err), EREMOTEIO);
    assert_error(err, EREMOTEIO, "restore", "no such disk");
    read_file("refuses", ignored, 1);
}

static bool permits_watching(void)
{
    int fd = open("/run/one", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    return fd >= 0 && write(fd, "1\n", 2) == 2 && !close(fd) &&
           !mount("/run/one", "/proc/sys/vm/unprivileged_userfaultfd", NULL, MS_BIND, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(opened), cmocka_unit_test(refused)};

    libvirt_calls_are(&calls);
    /* folders of libvirt's, and a kernel that permits it to watch memory, in this process's eyes alone */
    if (geteuid() || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/run", "tmpfs", 0, NULL) || mkdir("/run/libvirt", 0755) || mkdir("/run/libvirt/qemu", 0755) ||
        mount("none", "/var/lib", "tmpfs", 0, NULL) || mkdir("/var/lib/libvirt", 0755) ||
        mkdir("/var/lib/libvirt/qemu", 0755) || !permits_watching()) {
        printf("SKIP: no mount namespace of its own: run it as root\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
