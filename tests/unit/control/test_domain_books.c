/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_domain_books.c - what becomes of a domain's overlays by what libvirt says of them, with one of the test's own
 */
#include "fake_libvirt.h"
#include "unit.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "domain_books.h"
#include "libvirt_calls.h"
#include "xalloc.h"

#define OVERLAY "disk.fork-f-vda.qcow2"

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

/* --- libvirt: its snapshot makes the overlay, or not; then it lists the disk, or not --- */

static bool is_mode(const char *name)
{
    FF_AUTO_FREE char *path = in_base(name);

    return !access(path, F_OK);
}

static bool snapped; /* in the process that asks libvirt */

static const struct virt_error *fake_error(void)
{
    static const struct virt_error no_room = {.code = 1, .message = (char *)"no room"};

    return &no_room;
}

static struct virt_domain *fake_lookup(struct virt_connect *c, const char *name)
{
    (void)c;
    return (void *)(uintptr_t)name;
}

static int fake_domain(struct virt_domain *d)
{
    return !d;
}

static int fake_monitor(struct virt_domain *d, const char *line, char **answer, unsigned flags)
{
    (void)flags;
    (void)line;
    *answer = xprintf("{\"return\":{\"running\":false}}");
    return !d;
}

static int fake_stats(struct virt_domain **d, unsigned which, struct virt_stats ***out, unsigned flags)
{
    static struct virt_param p[] = {{"block.0.name", VIRT_PARAM_STRING, {.s = "vda"}}, {"block.0.path", VIRT_PARAM_STRING, {0}}};
    static struct virt_stats s = {.params = p, .nparams = 2}, *list[] = {&s, NULL};

    (void)which;
    (void)flags;
    p[1].value.s = in_base(snapped && !is_mode("refuses") ? OVERLAY : "disk");
    s.nparams = snapped && is_mode("silent") ? 0 : 2;
    *out = list;
    return d[0] ? 1 : -1;
}

static void fake_stats_free(struct virt_stats **s)
{
    free(s[0]->params[1].value.s);
}

static struct virt_snapshot *fake_snapshot(struct virt_domain *d, const char *xml, unsigned flags)
{
    FF_AUTO_FREE char *overlay = in_base(OVERLAY);

    assert_true(strstr(xml, OVERLAY) && flags == (VIRT_SNAPSHOT_DISK_ONLY | VIRT_SNAPSHOT_NO_METADATA | VIRT_SNAPSHOT_ATOMIC));
    snapped = true;
    if (is_mode("refuses"))
        return NULL;
    write_file(overlay, "", 0644);
    return (void *)d;
}

static int fake_snapshot_free(struct virt_snapshot *s)
{
    return !s;
}

static int fake_commit(struct virt_domain *d, const char *disk, const char *from, const char *top, unsigned long bandwidth,
                       unsigned flags)
{
    FF_AUTO_FREE char *committed = in_base("committed");

    assert_true(d && !strcmp(disk, "vda") && !from && !top && !bandwidth && flags == (VIRT_COMMIT_SHALLOW | VIRT_COMMIT_ACTIVE));
    write_file(committed, "", 0644);
    return 0;
}

static int fake_job_info(struct virt_domain *d, const char *disk, struct virt_block_job *job, unsigned flags)
{
    static int turns;

    (void)disk;
    (void)flags;
    *job = (struct virt_block_job){.at = (unsigned)FF_MIN(turns, 2), .end = 2};
    turns++;
    return d != NULL;
}

static int fake_abort(struct virt_domain *d, const char *disk, unsigned flags)
{
    static int tries;

    (void)disk;
    return d && flags == VIRT_ABORT_PIVOT && tries++ ? 0 : -1; /* not ready at first */
}

static const struct libvirt_calls calls = {.get_last_error = fake_error, .connect_open = fake_open, .connect_close = fake_fine,
                                           .connect_ref = fake_fine, .connect_is_alive = fake_is_alive,
                                           .domain_lookup = fake_lookup, .domain_free = fake_domain,
                                           .domain_resume = fake_domain, .monitor = fake_monitor, .stats = fake_stats,
                                           .stats_free = fake_stats_free, .snapshot = fake_snapshot,
                                           .snapshot_free = fake_snapshot_free, .commit = fake_commit,
                                           .job_info = fake_job_info, .job_abort = fake_abort};

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(base) || chmod(base, 0755))
        return -1;
    FF_AUTO_FREE char *disk = in_base("disk");
    write_file(disk, "", 0644);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    take("disk");
    return rmdir(base);
}

/* Its QEMU */
static pid_t begin_domain(void)
{
    pid_t qemu = fork();
    if (!qemu) {
        alarm(60);
        pause();
        _exit(1);
    }
    FF_AUTO_FREE char *number = xprintf("%d\n", (int)qemu);
    write_file("/run/libvirt/qemu/domain.pid", number, 0644);
    return qemu;
}

/* In a process of its own: its keeper ends with it */
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
        const char *mode;
        int snapshot;
        const char *said;
        int commit;
        bool commits, stay; /* the overlays, where it is not known whether they are the disks */
    } cases[] = {{"makes them", 0, "", 0, true, false},
                 {"refuses", -EREMOTEIO, "no room", 0, false, false},
                 {"silent", -EBUSY, "unknown", -EBUSY, false, true}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *mode = in_base(cases[i].mode);
        write_file(mode, "", 0644);
        struct said s = fork_it();
        assert_true(take(cases[i].mode));
        if (s.begin || s.snapshot != cases[i].snapshot)
            print_error("%s: %s\n", cases[i].mode, s.why.text);
        assert_int_equal(s.begin, 0);
        assert_int_equal(s.snapshot, cases[i].snapshot);
        assert_true(!s.snapshot || strstr(s.why.text, cases[i].said));
        assert_int_equal(s.commit, cases[i].commit);
        assert_int_equal(take("committed"), cases[i].commits);
        assert_int_equal(take(OVERLAY), cases[i].stay); /* it is removed with that, and never was where libvirt refuses */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlays)};

    libvirt_calls_are(&calls);
    /* a /run of its own */
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", "/run", "tmpfs", 0, NULL) || mkdir("/run/libvirt", 0755) || mkdir("/run/libvirt/qemu", 0755)) {
        printf("no mount namespace: needs root\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
