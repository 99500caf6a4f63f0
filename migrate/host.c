/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * host.c - what this host can do, what it cannot, and why: for `farfork doctor`
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "farfork.h"
#include "link.h"
#include "uffd.h"

struct report {
    void (*fn)(void *opaque, const char *subject, enum ff_check result, const char *why);
    void *opaque;
};

__attribute__((format(printf, 4, 5))) static void say(const struct report *r, const char *subject,
                                                      enum ff_check result, const char *fmt, ...)
{
    char why[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    r->fn(r->opaque, subject, result, why);
}

/* First line of a file of the kernel, or NULL */
static const char *read_line(char *out, size_t len, const char *path)
{
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, len - 1);

    if (n <= 0)
        return NULL;
    out[n] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return out;
}

static void check_kvm(const struct report *r)
{
    FF_AUTO_CLOSE int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        say(r, "kvm", FF_CHECK_NO, "/dev/kvm: %s; %s", strerror(errno),
            errno == ENOENT ? "load kvm_intel or kvm_amd, or enable nesting; guests run under TCG, slowly"
                            : "add this user to the group kvm");
        return;
    }
    int version = ioctl(fd, KVM_GET_API_VERSION, 0);
    FF_AUTO_CLOSE int vm = ioctl(fd, KVM_CREATE_VM, 0);
    if (vm < 0)
        say(r, "kvm", FF_CHECK_NO, "/dev/kvm opens but makes no machine: %s", strerror(errno));
    else
        say(r, "kvm", FF_CHECK_OK, "/dev/kvm, API version %d, a machine can be made", version);
}

static void check_uffd(const struct report *r)
{
    struct ff_uffd_probe p;
    char names[512];

    ff_uffd_probe(&p);
    ff_uffd_feature_names(p.features, names, sizeof(names));
    if (p.dev_errno && p.syscall_errno)
        say(r, "userfaultfd", FF_CHECK_NO,
            "/dev/userfaultfd: %s; system call: %s; give this user access to /dev/userfaultfd, or "
            "CAP_SYS_PTRACE, or set sysctl vm.unprivileged_userfaultfd=1 (now %d)",
            strerror(p.dev_errno), strerror(p.syscall_errno), p.unprivileged);
    else
        say(r, "userfaultfd", FF_CHECK_OK, "by %s%s%s; vm.unprivileged_userfaultfd=%d",
            p.dev_errno ? "" : "/dev/userfaultfd", !p.dev_errno && !p.syscall_errno ? " and " : "",
            p.syscall_errno ? "" : "the system call", p.unprivileged);
    if (p.features)
        say(r, "userfaultfd features", strstr(names, "minor-shmem") ? FF_CHECK_OK : FF_CHECK_LIMITED,
            "%s%s", names,
            strstr(names, "minor-shmem") ? "" : "; no minor faults: landing=continue is not to be had");
}

static void check_hugepages(const struct report *r)
{
    char total[32] = "0", left[32] = "0", thp[64] = "absent";

    read_line(total, sizeof(total), "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    read_line(left, sizeof(left), "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    read_line(thp, sizeof(thp), "/sys/kernel/mm/transparent_hugepage/enabled");
    say(r, "huge pages", atol(total) ? FF_CHECK_OK : FF_CHECK_LIMITED,
        "2 MiB: %s reserved, %s free%s; transparent: %s", total, left,
        atol(total) ? "" : " (reserve some with sysctl vm.nr_hugepages=N for hugetlb guests)", thp);
}

static void check_rdma(const struct report *r)
{
    char list[512] = "";
    DIR *dir = opendir("/sys/class/infiniband");
    struct dirent *e;

    while (dir && (e = readdir(dir)))
        if (e->d_name[0] != '.' && strlen(list) + strlen(e->d_name) + 2 < sizeof(list))
            strcat(strcat(list, *list ? " " : ""), e->d_name);
    if (dir)
        closedir(dir);
    if (*list)
        say(r, "rdma devices", FF_CHECK_LIMITED,
            "%s; moves go over TCP unless link=verbs (experimental) is asked for", list);
    else
        say(r, "rdma devices", FF_CHECK_LIMITED, "none; moves go over TCP");
}

static void check_memlock(const struct report *r)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_MEMLOCK, &lim) < 0)
        return;
    if (lim.rlim_cur == RLIM_INFINITY)
        say(r, "memlock limit", FF_CHECK_OK, "unlimited");
    else
        say(r, "memlock limit", FF_CHECK_LIMITED,
            "%llu KiB: enough for TCP; RDMA will have to pin guest memory: raise it with ulimit -l, "
            "limits.conf or LimitMEMLOCK=", (unsigned long long)lim.rlim_cur >> 10);
}

static void check_io_uring(const struct report *r)
{
    char line[32];
    const char *disabled = read_line(line, sizeof(line), "/proc/sys/kernel/io_uring_disabled");
    int rc = ff_tcp_probe();

    if (rc)
        say(r, "io_uring", FF_CHECK_NO,
            "%s (kernel.io_uring_disabled=%s); the TCP link needs it: set that sysctl to 0, and let "
            "the container's seccomp profile allow it", strerror(-rc), disabled ? disabled : "absent");
    else
        say(r, "io_uring", FF_CHECK_OK, "works (kernel.io_uring_disabled=%s)",
            disabled ? disabled : "absent");
}

void ff_host_check(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                              const char *why),
                   void *opaque)
{
    struct report r = {.fn = fn, .opaque = opaque};

    check_kvm(&r);
    check_uffd(&r);
    check_hugepages(&r);
    check_io_uring(&r);
    check_rdma(&r);
    check_memlock(&r);
}
