/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * host_checks.c - what this host can do, what it cannot, and why: for `farfork doctor`
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cleanup.h"
#include "devices.h"
#include "farfork-probe.h"
#include "kernel_checks.h"
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
            errno == ENOENT
                ? "load kvm_intel or kvm_amd, or enable nesting; guests run under TCG, slowly"
                : "add this user to the group kvm");
        return;
    }
    int version = ioctl(fd, KVM_GET_API_VERSION, 0);
    FF_AUTO_CLOSE int vm = ioctl(fd, KVM_CREATE_VM, 0);
    if (vm < 0)
        say(r, "kvm", FF_CHECK_NO, "/dev/kvm opens but makes no machine: %s", strerror(errno));
    else
        say(r, "kvm", FF_CHECK_OK, "/dev/kvm, API version %d, makes a machine", version);
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
        say(r, "userfaultfd features",
            strstr(names, "minor-shmem") ? FF_CHECK_OK : FF_CHECK_LIMITED, "%s%s", names,
            strstr(names, "minor-shmem") ? "" : "; no minor faults, so no landing=continue");
}

static void report_lack(void *opaque, const char *what, const char *since, const char *cost)
{
    char subject[64];

    snprintf(subject, sizeof(subject), "kernel: %s", what);
    say(opaque, subject, FF_CHECK_LIMITED, "not here, Linux %s has it: %s", since, cost);
}

/* What it lacks costs speed or comfort, never bytes */
static void check_kernel(const struct report *r)
{
    struct utsname u;
    unsigned n = ff_kernel_lacks(report_lack, (void *)r);

    if (!uname(&u))
        say(r, "kernel", n ? FF_CHECK_LIMITED : FF_CHECK_OK, n ? "%s: lacks %u of what moves and "
            "forks use, see above: they do without" : "%s: has all that moves and forks use", u.release, n);
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

/* --- RDMA --- */

/* "4096 bytes", "8 MiB": the largest unit that divides it, or what a device without a limit says */
static const char *size_text(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned u = 0;

    if (bytes >= UINT64_MAX >> 1)
        return "any size";
    for (; u + 1 < FF_ARRAY_LEN(units) && bytes >= 1024; u++)
        bytes >>= 10; /* rounded down: 2^32 - 1 bytes are 3 GiB and more */
    snprintf(out, 32, "%llu %s", (unsigned long long)bytes, units[u]);
    return out;
}

static void report_port(void *opaque, const struct ff_device_port *p)
{
    const struct report *r = opaque;
    char subject[80], msg[32], mr[32];

    snprintf(subject, sizeof(subject), "rdma %s:%u", p->device, p->port);
    if (!p->port) {
        say(r, subject, FF_CHECK_LIMITED, "%s", p->trouble);
        return;
    }
    say(r, subject, *p->trouble ? FF_CHECK_LIMITED : FF_CHECK_OK,
        "%s, %s, transport %s, firmware %s, active MTU %u, messages to %s, registrations to %s, "
        "on-demand paging: %s%s%s", p->state, p->link_layer, p->transport,
        *p->firmware ? p->firmware : "unknown", p->active_mtu_bytes,
        size_text(msg, p->max_msg_bytes), size_text(mr, p->max_mr_bytes),
        p->odp_rc_read ? "RC READ"
        : p->odp       ? "not for RC READ"
                       : "no",
        *p->trouble ? "; " : "", p->trouble);
    for (unsigned i = 0; i < p->n_gids; i++) {
        const struct ff_device_gid *g = &p->gid[i];
        snprintf(subject, sizeof(subject), "rdma %s:%u gid %u", p->device, p->port, g->index);
        say(r, subject, g->elsewhere ? FF_CHECK_LIMITED : FF_CHECK_OK, "%s %s%s%s%s", g->type,
            g->gid, *g->netdev ? " on " : "", g->netdev,
            g->elsewhere ? "; not in this network namespace" : "");
    }
    if (!p->n_gids)
        say(r, subject, FF_CHECK_LIMITED,
            "no GID: the port has no address yet: set its network interface up, or start a subnet "
            "manager (InfiniBand)");
}

/* Names in @path into @out, blanks between: how many */
static unsigned list_names(const char *path, const char *prefix, char *out, size_t len)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    unsigned n = 0;

    *out = '\0';
    while (dir && (e = readdir(dir))) {
        if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, strlen(prefix)))
            continue;
        n++;
        if (strlen(out) + strlen(e->d_name) + 2 < len)
            strcat(strcat(out, *out ? " " : ""), e->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static void no_port(void *opaque, const struct ff_device_port *p)
{
    (void)opaque;
    (void)p;
}

/* One line about all of it: what is there, or the first thing that is missing */
static void check_rdma(const struct report *r)
{
    static const char tcp[] = "moves go over TCP";
    char list[512], nodes[512];
    unsigned in_kernel = list_names("/sys/class/infiniband", "", list, sizeof(list));
    unsigned in_dev = list_names("/dev/infiniband", "uverbs", nodes, sizeof(nodes));

    if (!in_kernel) {
        say(r, "rdma devices", FF_CHECK_LIMITED, "none%s; %s",
            access("/sys/class/infiniband_verbs", F_OK)
                ? ": the kernel module ib_uverbs is not loaded (modprobe -a ib_uverbs rdma_ucm, "
                  "package rdma-core), or this host has no card"
                : ": no card has its driver loaded",
            tcp);
        return;
    }
    if (!in_dev)
        say(r, "rdma devices", FF_CHECK_LIMITED,
            "%s, but no /dev/infiniband/uverbs*: modprobe ib_uverbs, or give it to this container; "
            "%s", list, tcp);
    else if (access("/dev/infiniband/rdma_cm", R_OK | W_OK))
        say(r, "rdma devices", FF_CHECK_LIMITED, "%s, but /dev/infiniband/rdma_cm: %s; %s; %s",
            list, strerror(errno),
            errno == ENOENT ? "modprobe rdma_ucm (package rdma-core loads it at boot)"
                            : "give this user access to it", tcp);
    else if (ff_devices_list(no_port, NULL) <= 0)
        say(r, "rdma devices", FF_CHECK_LIMITED,
            "%s, but libibverbs knows none of them: install its driver (package "
            "ibverbs-providers); %s", list, tcp);
    else
        say(r, "rdma devices", FF_CHECK_OK,
            "%s; moves go over RDMA when the other host has it too, else over TCP", list);
    ff_devices_list(report_port, (void *)r);
}

struct lister {
    void (*fn)(void *opaque, const struct ff_rdma_port *port);
    void *opaque;
};

static void list_port(void *opaque, const struct ff_device_port *d)
{
    const struct lister *to = opaque;
    struct ff_rdma_gid gids[FF_DEVICE_GIDS];

    for (unsigned i = 0; i < d->n_gids; i++)
        gids[i] = (struct ff_rdma_gid){.index = d->gid[i].index,
                                       .gid = d->gid[i].gid,
                                       .type = d->gid[i].type,
                                       .netdev = d->gid[i].netdev,
                                       .elsewhere = d->gid[i].elsewhere};
    struct ff_rdma_port p = {
        .device = d->device,
        .firmware = d->firmware,
        .port = d->port,
        .state = d->state,
        .link_layer = d->link_layer,
        .transport = d->transport,
        .active_mtu_bytes = d->active_mtu_bytes,
        .max_msg_bytes = d->max_msg_bytes,
        .max_mr_bytes = d->max_mr_bytes,
        .odp = d->odp,
        .odp_rc_read = d->odp_rc_read,
        .n_gids = d->n_gids,
        .gids = gids,
        .trouble = d->trouble,
    };
    to->fn(to->opaque, &p);
}

int ff_rdma_list(void (*fn)(void *opaque, const struct ff_rdma_port *port), void *opaque)
{
    struct lister to = {fn, opaque};

    return ff_devices_list(list_port, &to);
}

/* Whether this process may pin more than its limit (capabilities(7)) */
static bool may_lock_any(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    unsigned long long caps = 0;
    char line[128];

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "CapEff: %llx", &caps) == 1)
            break;
    if (f)
        fclose(f);
    return caps >> CAP_IPC_LOCK & 1;
}

static void check_memlock(const struct report *r)
{
    struct rlimit lim;
    char kib[48] = "unlimited";

    if (getrlimit(RLIMIT_MEMLOCK, &lim) < 0)
        return;
    if (lim.rlim_cur != RLIM_INFINITY)
        snprintf(kib, sizeof(kib), "%llu KiB", (unsigned long long)lim.rlim_cur >> 10);
    if (lim.rlim_cur == RLIM_INFINITY || may_lock_any())
        say(r, "memlock limit", FF_CHECK_OK, "%s%s", kib,
            may_lock_any() ? ", and CAP_IPC_LOCK: it does not count for this user" : "");
    else
        say(r, "memlock limit", FF_CHECK_LIMITED,
            "%s, no CAP_IPC_LOCK: enough for TCP; RDMA pins guest memory: raise it to the guest's "
            "memory and 64 MiB with ulimit -l, limits.conf or LimitMEMLOCK=", kib);
}

void ff_host_check(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                              const char *why),
                   void *opaque)
{
    struct report r = {.fn = fn, .opaque = opaque};

    check_kvm(&r);
    check_uffd(&r);
    check_kernel(&r);
    check_hugepages(&r);
    check_rdma(&r);
    check_memlock(&r);
}
