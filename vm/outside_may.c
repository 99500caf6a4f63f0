/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_may.c - may this process look into that one; if not, what forbids it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      The kernel says EPERM, whoever of five forbids it. So ask the kernel first, and only
 *              then look for the reason, to name it with its remedy.
 *
 * Picture      asked:   open maps                                  look
 *                       pidfd_getfd() of a descriptor that no process has: EBADF: permitted: attach
 *                       process_vm_readv() needs the same; a filter of system calls may deny it
 *                       alone, as an agent's does: who reads by it finds out
 *              in turn: seccomp here; yama 3, a MAC policy (root); user; group; capabilities of the
 *              other one; not dumpable; yama 1 or 2; a MAC policy
 *
 * Invariants   Reads alone; nothing of the other process changes. No reason is taken for granted:
 *              a process that may is never refused here.
 * Sources      ptrace(2) "Ptrace access mode checking", pidfd_getfd(2), process_vm_readv(2),
 *              Documentation/admin-guide/LSM/Yama.rst
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "outside_private.h"
#include "xalloc.h"

#define AS_ROOT                                                                             \
    "or run farfork as root, or give it CAP_SYS_PTRACE (setcap cap_sys_ptrace+ep farfork)"

int outside_number(pid_t pid, const char *name)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/status", (int)pid), *line = NULL;
    size_t len = strlen(name), room = 0;
    FILE *f = fopen(path, "re");
    int value = -1;

    while (f && value < 0 && getline(&line, &room, f) > 0)
        if (!strncmp(line, name, len))
            value = atoi(line + len);
    if (f)
        fclose(f);
    return value;
}

/* --- ask the kernel: 0 or -errno --- */

static int try_look(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/maps", (int)pid);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd >= 0 ? 0 : -errno;
}

static int try_take(pid_t pid)
{
    FF_AUTO_CLOSE int process = (int)syscall(SYS_pidfd_open, pid, 0);

    if (process < 0)
        return -errno;
    FF_AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_getfd, process, INT_MAX, 0);
    return fd >= 0 || errno == EBADF ? 0 : -errno;
}

static int try_all(pid_t pid, bool attach, const char **what)
{
    int rc;

    *what = "/proc/PID/maps";
    if ((rc = try_look(pid)) || !attach)
        return rc;
    *what = "pidfd_getfd()";
    return try_take(pid);
}

/* --- what may be the reason --- */

/* A file's text without the end of its line; "": there is none */
static void read_proc_word(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "re");

    out[0] = '\0';
    if (!f)
        return;
    const size_t len = fread(out, 1, room - 1, f);
    out[len] = '\0'; /* a label ends with one of its own, or a newline */
    out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

struct process_status {
    unsigned uid[3], gid[3];
    uint64_t permitted, effective;
    int seccomp, parent;
};

static int read_process_status(const char *proc, const char *who, struct process_status *s)
{
    FF_AUTO_FREE char *path = xprintf("%s/%s/status", proc, who), *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "re");

    *s = (struct process_status){0};
    if (!f)
        return -errno;
    while (getline(&line, &room, f) > 0) {
        sscanf(line, "Uid: %u %u %u", &s->uid[0], &s->uid[1], &s->uid[2]);
        sscanf(line, "Gid: %u %u %u", &s->gid[0], &s->gid[1], &s->gid[2]);
        sscanf(line, "CapPrm: %" SCNx64, &s->permitted);
        sscanf(line, "CapEff: %" SCNx64, &s->effective);
        sscanf(line, "Seccomp: %d", &s->seccomp);
        sscanf(line, "PPid: %d", &s->parent);
    }
    fclose(f);
    return 0;
}

static bool is_my_descendant(const char *proc, int parent)
{
    for (int depth = 0; parent > 1 && depth < 64; depth++) {
        FF_AUTO_FREE char *who = xprintf("%d", parent);
        struct process_status s;

        if (parent == getpid())
            return true;
        if (read_process_status(proc, who, &s))
            return false;
        parent = s.parent;
    }
    return false;
}

int outside_read_facts(const char *proc, pid_t pid, struct outside_facts *f, struct ff_error *err)
{
    FF_AUTO_FREE char *who = xprintf("%d", (int)pid), *file = xprintf("%s/%s/status", proc, who);
    FF_AUTO_FREE char *label = xprintf("%s/%s/attr/current", proc, who);
    FF_AUTO_FREE char *my_label = xprintf("%s/self/attr/current", proc);
    FF_AUTO_FREE char *yama = xprintf("%s/sys/kernel/yama/ptrace_scope", proc);
    struct process_status it, me;
    struct stat st;
    char scope[16];

    *f = (struct outside_facts){.ptrace_scope = -1};
    if (read_process_status(proc, "self", &me))
        return ff_error_set(err, ESRCH, "%s/self/status: open: %s", proc, strerror(errno));
    f->my_uid = me.uid[0], f->my_euid = me.uid[1];
    f->my_gid = me.gid[0], f->my_egid = me.gid[1];
    f->my_permitted = me.permitted, f->my_effective = me.effective;
    f->my_seccomp = me.seccomp;
    read_proc_word(my_label, f->my_label, sizeof(f->my_label));
    read_proc_word(yama, scope, sizeof(scope));
    if (scope[0])
        f->ptrace_scope = atoi(scope);
    if (read_process_status(proc, who, &it)) {
        if (kill(pid, 0) && errno == ESRCH)
            return ff_error_set(err, ESRCH, "process %d: look at it: there is none", (int)pid);
        f->is_hidden = true;
        return 0;
    }
    for (int i = 0; i < 3; i++)
        f->uid[i] = it.uid[i], f->gid[i] = it.gid[i];
    f->permitted = it.permitted;
    f->owner = stat(file, &st) ? it.uid[1] : st.st_uid;
    f->is_ancestor = is_my_descendant(proc, it.parent);
    read_proc_word(label, f->label, sizeof(f->label));
    return 0;
}

/* --- judge --- */

static bool is_confined(const char *label)
{
    return label[0] && strncmp(label, "unconfined", 10) && !strstr(label, ":unconfined_t:");
}

static int refuse_mac(const struct outside_facts *f, pid_t pid, struct ff_error *err)
{
    return ff_error_set(err, EPERM,
                        "process %d: look into it: a security policy forbids it (it is '%s', this "
                        "process '%s'): permit ptrace between the two, for example 'ptrace "
                        "(readby, tracedby) peer=unconfined,' in the QEMU's AppArmor profile, or "
                        "run the QEMU without the policy", (int)pid, f->label, f->my_label);
}

static bool is_mac(const struct outside_facts *f)
{
    return is_confined(f->label) || is_confined(f->my_label);
}

/* For who has CAP_SYS_PTRACE */
static int judge_root(const struct outside_facts *f, pid_t pid, bool attach, struct ff_error *err)
{
    if (attach && f->ptrace_scope == 3)
        return ff_error_set(err, EPERM,
                            "process %d: look into it: kernel.yama.ptrace_scope is 3: nobody may: "
                            "set it to 2 in /etc/sysctl.d and boot again", (int)pid);
    if (is_mac(f))
        return refuse_mac(f, pid, err);
    return ff_error_set(err, EPERM,
                        "process %d: look into it: not permitted, with CAP_SYS_PTRACE too: is it "
                        "in another user namespace? Run farfork in that one, or outside both",
                        (int)pid);
}

static int judge_yama(const struct outside_facts *f, pid_t pid, struct ff_error *err)
{
    if (f->ptrace_scope == 1)
        return ff_error_set(err, EPERM,
                            "process %d: look into it: kernel.yama.ptrace_scope is 1: only who "
                            "started it may: let farfork start the QEMU, or 'sysctl "
                            "kernel.yama.ptrace_scope=0', " AS_ROOT, (int)pid);
    return ff_error_set(err, EPERM,
                        "process %d: look into it: kernel.yama.ptrace_scope is %d: only root may: "
                        "'sysctl kernel.yama.ptrace_scope=0', " AS_ROOT, (int)pid,
                        f->ptrace_scope);
}

/* Whether the three are all @mine */
static bool all_mine(const unsigned id[3], unsigned mine)
{
    return id[0] == mine && id[1] == mine && id[2] == mine;
}

int outside_judge(const struct outside_facts *f, pid_t pid, bool attach, struct ff_error *err)
{
    /* process_vm_readv() and pidfd_getfd() go by the real user, /proc by the effective one */
    const unsigned uid = attach ? f->my_uid : f->my_euid, gid = attach ? f->my_gid : f->my_egid;
    const uint64_t mine = attach ? f->my_permitted : f->my_effective;

    if (f->is_refused_to_self)
        return ff_error_set(err, EPERM,
                            "process %d: look into it: pidfd_getfd() is "
                            "forbidden to this process altogether%s: add CAP_SYS_PTRACE to the "
                            "container (docker run --cap-add SYS_PTRACE), or run farfork outside "
                            "it", (int)pid,
                            f->my_seccomp == 2 ? " (seccomp: a filter, as containers have)" : "");
    if (f->my_effective >> CAP_SYS_PTRACE & 1)
        return judge_root(f, pid, attach, err);
    if (f->is_hidden)
        return ff_error_set(err, EPERM,
                            "process %d: look into it: it is another user's (/proc hides it): run "
                            "farfork as the QEMU's user, " AS_ROOT, (int)pid);
    if (!all_mine(f->uid, uid))
        return ff_error_set(err, EPERM,
                            "process %d: look into it: it is another user's (uid %u %u %u, this "
                            "process %u): run farfork as that user, " AS_ROOT, (int)pid, f->uid[0],
                            f->uid[1], f->uid[2], uid);
    if (!all_mine(f->gid, gid))
        return ff_error_set(err, EPERM,
                            "process %d: look into it: it has another group (gid %u %u %u, this "
                            "process %u): run farfork with that one (sg, newgrp), " AS_ROOT,
                            (int)pid, f->gid[0], f->gid[1], f->gid[2], gid);
    if (f->permitted & ~mine)
        return ff_error_set(err, EPERM,
                            "process %d: look into it: it has capabilities that farfork has not "
                            "(CapPrm %016" PRIx64 ", here %016" PRIx64 "): start the QEMU without "
                            "them, " AS_ROOT, (int)pid, f->permitted, mine);
    if (f->owner != f->uid[1])
        return ff_error_set(err, EPERM,
                            "process %d: look into it: it is not dumpable: it has changed its "
                            "user, or its file has capabilities: start the QEMU as its user from "
                            "the beginning (no -runas), " AS_ROOT, (int)pid);
    if (attach && f->ptrace_scope > 0 && !(f->ptrace_scope == 1 && f->is_ancestor))
        return judge_yama(f, pid, err);
    if (is_mac(f))
        return refuse_mac(f, pid, err);
    return ff_error_set(err, EPERM,
                        "process %d: look into it: the kernel does not permit it and shows no "
                        "reason: a user namespace, or a process that is not dumpable? Run farfork "
                        "where the QEMU was started, " AS_ROOT, (int)pid);
}

int outside_may(pid_t pid, bool attach, struct ff_error *err)
{
    const char *what, *unused;
    struct outside_facts f;
    int rc = try_all(pid, attach, &what);

    if (!rc)
        return 0;
    if (rc == -ENOSYS)
        return ff_error_set(err, ENOSYS,
                            "process %d: %s: this kernel has it not: use Linux 5.6 or later",
                            (int)pid, what);
    if (rc == -ENOENT && !kill(pid, 0)) /* /proc with hidepid */
        rc = -EPERM;
    if (rc != -EPERM && rc != -EACCES && rc != -ENOENT)
        return ff_error_set(err, -rc, "process %d: %s: %s", (int)pid, what, strerror(-rc));
    if ((rc = outside_read_facts("/proc", pid, &f, err)))
        return rc;
    f.is_refused_to_self = try_all(getpid(), attach, &unused) == -EPERM;
    return outside_judge(&f, pid, attach, err);
}

/* --- a process that this one did not start --- */

/* Is looked at: as a QEMU is that was started by its user; until nobody can write to @go */
static _Noreturn void be_stranger(int go)
{
    char c;

    prctl(PR_SET_DUMPABLE, 1);
    _exit(read(go, &c, 1) != 0);
}

/* Looks at its sibling, of which it is no ancestor, and tells */
static _Noreturn void look_at_stranger(pid_t stranger, int tell)
{
    struct ff_error why = {0};

    outside_may(stranger, true, &why);
    _exit(write(tell, &why, sizeof(why)) != sizeof(why));
}

int outside_may_stranger(struct ff_error *err)
{
    struct ff_error why;
    int go[2] = {-1, -1}, told[2] = {-1, -1};
    pid_t stranger = -1, looker = -1;
    ssize_t n = -1;

    if (!pipe2(go, O_CLOEXEC) && !pipe2(told, O_CLOEXEC) && (stranger = fork()) >= 0) {
        if (!stranger) {
            close(go[1]);
            be_stranger(go[0]);
        }
        looker = fork();
        if (!looker) {
            close(go[1]); /* else the stranger would wait for this one too */
            look_at_stranger(stranger, told[1]);
        }
        ff_close_fd(&told[1]);
        if (looker > 0)
            n = read(told[0], &why, sizeof(why));
    }
    const int code = errno;
    for (int i = 0; i < 2; i++) {
        ff_close_fd(&go[i]);
        ff_close_fd(&told[i]);
    }
    if (looker > 0)
        waitpid(looker, NULL, 0);
    if (stranger > 0)
        waitpid(stranger, NULL, 0);
    if (n != sizeof(why))
        return ff_error_set(err, EIO, "process: look into one: none can be started: %s",
                            n >= 0 ? "it ended at once" : strerror(code));
    if (why.code && err)
        *err = why;
    return -why.code;
}
