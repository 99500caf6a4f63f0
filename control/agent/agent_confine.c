/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_confine.c - what neither an agent nor the QEMUs that it starts ever need is taken away
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent hears another host. Whoever takes it over must not get more rights by it
 *              than its user has: no program with setuid or file capabilities gives any
 *              (NO_NEW_PRIVS), and a filter refuses system calls that lead to the kernel or to
 *              other processes. All that it starts inherits both. So the filter names what is
 *              denied, and not what is permitted: that is for QEMU's own -sandbox. keyctl(2) and
 *              bpf(2) are not denied: QEMU has uses for them (secret_keyring, RSS of virtio-net).
 *              Files are AppArmor's: packaging/farfork-agent, by the same rule.
 * Threads      the first one, before there is another, or a process.
 * Failure      a kernel without filters, or a processor whose system calls are not known here:
 *              NO_NEW_PRIVS alone. AppArmor off, or without the profile farfork-agent: the rest.
 * Limits       what a child starts with rights of its own does not work: the bridge helper of an
 *              ordinary user's QEMU. --unconfined is for that. A filter cannot see which flags
 *              clone3(2) is given: a new process may still be in a user namespace of its own.
 * Sources      Documentation/userspace-api/no_new_privs.rst, seccomp_filter.rst
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define OTHER_ABI 0x40000000u /* x32: numbers from there on */
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#define OTHER_ABI 0x80000000u /* there is none */
#endif

static const uint32_t denied[] = {
    /* other processes */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_perf_event_open,
    /* the kernel */
    SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_reboot, SYS_syslog, SYS_acct, SYS_swapon, SYS_swapoff, SYS_settimeofday, SYS_clock_settime,
    /* namespaces and mounts, where an ordinary user becomes root */
    SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_open_tree, SYS_move_mount,
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
};

/* AppArmor's profile packaging/farfork-agent, where it is loaded: not in the way of what follows,
 * which only takes away more */
static void enter_profile(void)
{
    static const char words[] = "changeprofile farfork-agent";
    FF_AUTO_CLOSE int fd = open("/proc/self/attr/apparmor/current", O_WRONLY | O_CLOEXEC);

    (void)!write(fd, words, sizeof(words) - 1);
}

static void install_filter(void)
{
#ifdef ARCH
    const struct sock_filter refuse =
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA));
    struct sock_filter f[2 * FF_ARRAY_LEN(denied) + 7] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        refuse,
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, OTHER_ABI, 0, 1),
        refuse,
    };
    size_t n = 6;

    for (size_t i = 0; i < FF_ARRAY_LEN(denied); i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i], 0, 1);
        f[n++] = refuse;
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = f};
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
#endif
}

void agent_confine(void)
{
    enter_profile();
    if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        install_filter();
}
