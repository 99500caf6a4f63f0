/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * host_facts.c - what this host has for guests, and which are here; see host_facts.h
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "autojson.h"
#include "farfork-probe.h"
#include "host_facts.h"
#include "process_argv.h"
#include "qemu_opts.h"
#include "reserve.h"
#include "rundir.h"
#include "spawn.h"

#define HUGE_DIR "/sys/kernel/mm/hugepages"
#define QEMU "qemu-system-"

/* --- what the kernel says --- */

/* The number behind @key in one of the lines of @path, or at its beginning; 0: there is none */
static uint64_t number_of(const char *path, const char *key)
{
    FF_AUTO_FREE char *line = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0, len = strlen(key);
    uint64_t value = 0;

    while (f && getline(&line, &room, f) > 0)
        if (!strncmp(line, key, len)) {
            value = strtoull(line + len, NULL, 10);
            break;
        }
    if (f)
        fclose(f);
    return value;
}

static json_t *huge_pages(void)
{
    json_t *list = json_array();
    DIR *d = opendir(HUGE_DIR);
    const struct dirent *e;
    unsigned long kib;

    while (d && (e = readdir(d))) {
        if (sscanf(e->d_name, "hugepages-%lukB", &kib) != 1)
            continue;
        FF_AUTO_FREE char *all = xprintf(HUGE_DIR "/%s/nr_hugepages", e->d_name);
        FF_AUTO_FREE char *left = xprintf(HUGE_DIR "/%s/free_hugepages", e->d_name);
        json_array_append_new(list, json_pack("{sI sI sI}", "size_bytes", (json_int_t)kib << 10, "total",
                                              (json_int_t)number_of(all, ""), "free",
                                              (json_int_t)number_of(left, "")));
    }
    if (d)
        closedir(d);
    return list;
}

static void add_rdma(void *opaque, const struct ff_rdma_port *p)
{
    if (p->port && !*p->trouble)
        json_array_append_new(opaque, json_sprintf("%s:%u", p->device, p->port));
}

/* --- who is here --- */

static char *guest_name(const struct strv *words)
{
    for (size_t i = 1; i + 1 < words->n; i++)
        if (qemu_option_is(words->v[i], "name")) {
            char *name = qemu_opts_get_first(words->v[i + 1], "guest");
            return name ? name : xstrdup("");
        }
    return xstrdup("");
}

/* Whatever its file is called: it has a machine of KVM's */
static bool has_kvm_machine(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    const struct dirent *e;
    char to[64];
    bool has = false;

    while (d && !has && (e = readdir(d))) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);
        to[n > 0 ? n : 0] = '\0';
        has = !strcmp(to, "anon_inode:kvm-vm");
    }
    if (d)
        closedir(d);
    return has;
}

/* Debian's, Red Hat's, and one that is wrapped */
static bool is_qemu(pid_t pid, const char *program)
{
    const char *base = strrchr(program, '/');

    base = base ? base + 1 : program;
    return strstr(base, QEMU) || !strncmp(base, "qemu-kvm", 8) || !strcmp(base, "kvm") || has_kvm_machine(pid);
}

enum role { NO_QEMU, GUEST, HOLDER, IMAGE };

/* parent.c: a `farfork attach --parent` that has the memory of a fork; @words: its own */
static bool is_holder(const char *comm, const struct strv *words)
{
    return !strcmp(comm, HOLDER_COMM "\n") && words->n > 2 && !strcmp(words->v[1], "attach") && !strcmp(words->v[2], "--parent");
}

static enum role role_of(pid_t pid, const char *program, const struct strv *words)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "re");
    char comm[32] = "";
    bool read = f && fgets(comm, sizeof(comm), f);

    if (f)
        fclose(f);
    if (read && is_holder(comm, words))
        return HOLDER;
    if (!read || words->n < 2 || !is_qemu(pid, program) || !strncmp(comm, "cleanup/", 8) ||
        !strcmp(comm, "farfork-frozen\n")) /* -run-with async-teardown=on; freeze.c: a copy, which never runs */
        return NO_QEMU;
    return !strcmp(comm, "farfork-image\n") ? IMAGE : GUEST;
}

/* Whose rights it has, as "Uid:" says: another user's, if any of them is */
static json_int_t user_of(const char *status)
{
    FF_AUTO_FREE char *line = NULL;
    FILE *f = fopen(status, "re");
    unsigned uid[4], own = geteuid();
    json_int_t user = -1;
    size_t room = 0;

    while (f && user < 0 && getline(&line, &room, f) > 0)
        if (sscanf(line, "Uid: %u %u %u %u", &uid[0], &uid[1], &uid[2], &uid[3]) == 4) {
            user = own;
            for (int i = 0; i < 4; i++)
                user = uid[i] != own ? uid[i] : user;
        }
    if (f)
        fclose(f);
    return user;
}

static void add_process(json_t *guests, json_t *holders, pid_t pid)
{
    FF_AUTO_FREE char *exe = xprintf("/proc/%d/exe", (int)pid), *status = xprintf("/proc/%d/status", (int)pid);
    char program[4096];
    struct strv words = {0};
    struct ff_error why;
    ssize_t n = readlink(exe, program, sizeof(program) - 1);

    program[n > 0 ? n : 0] = '\0';
    enum role role = n > 0 && !process_argv(pid, &words, &why) ? role_of(pid, program, &words) : NO_QEMU;
    FF_AUTO_FREE char *name = guest_name(&words);
    FF_AUTO_FREE char *job = role == NO_QEMU ? NULL : process_job(pid);
    json_int_t resident = (json_int_t)(number_of(status, "VmRSS:") << 10);
    if (role == GUEST)
        json_array_append_new(guests, json_pack("{si so so so sI sI}", "pid", (int)pid, "name", json_lossy(name),
                                                "job", json_lossy(job), "qemu", json_lossy(program),
                                                "resident_bytes", resident, "uid", user_of(status)));
    else if (role != NO_QEMU)
        json_array_append_new(holders, json_pack("{si so so ss sI sI}", "pid", (int)pid, "name", json_lossy(name),
                                                  "job", json_lossy(job), "of", role == HOLDER ? "fork" : "guest elsewhere",
                                                  "resident_bytes", resident, "uid", user_of(status)));
    strv_free(&words);
}

static void look_at_processes(json_t *guests, json_t *holders)
{
    DIR *d = opendir("/proc");
    const struct dirent *e;

    while (d && (e = readdir(d)))
        if (isdigit((unsigned char)*e->d_name))
            add_process(guests, holders, (pid_t)atoi(e->d_name));
    if (d)
        closedir(d);
}

/* A namespace of host names is a host of its own, as a container's */
char *host_identity(void)
{
    FF_AUTO_FREE char *line = NULL;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t room = 0;
    char uts[64];
    ssize_t n = readlink("/proc/self/ns/uts", uts, sizeof(uts) - 1);

    uts[n > 0 ? n : 0] = '\0';
    if (!f || getline(&line, &room, f) <= 0) {
        free(line);
        line = xstrdup("?");
    }
    if (f)
        fclose(f);
    return xprintf("%.*s %s", (int)strcspn(line, "\n"), line, uts);
}

/* --- QEMUs --- */

#define VERSION_MS 5000

static void note_version(void *opaque, const char *line)
{
    static const char says[] = "QEMU emulator version ";
    json_t *o = opaque;

    if (!strncmp(line, says, sizeof(says) - 1))
        json_object_set_new(o, "version", json_stringn(line + sizeof(says) - 1,
                                                       strcspn(line + sizeof(says) - 1, " (")));
}

static void add_qemu(json_t *list, char *program)
{
    char *argv[] = {program, "--version", NULL};
    FF_AUTO_JSON json_t *o = json_pack("{so}", "program", json_lossy(program));
    struct ff_error why;
    struct spawn r;

    if (access(program, X_OK) || spawn_start(&r, argv, NULL, &why))
        return;
    spawn_read_lines(&r, VERSION_MS, note_version, o);
    spawn_end(&r, VERSION_MS);
    spawn_free(&r);
    if (json_object_get(o, "version"))
        json_array_append(list, o);
}

json_t *host_qemus(const char *agent)
{
    const char *slash = strrchr(agent, '/');
    int len = slash ? (int)(slash - agent) : 0;
    FF_AUTO_FREE char *beside = xprintf("%.*s/" QEMU "x86_64", len, agent);
    FF_AUTO_FREE char *packaged = xprintf("%.*s/../lib/farfork/bin/" QEMU "x86_64", len, agent);
    json_t *list = json_array();

    if (strcmp(beside, "/usr/bin/" QEMU "x86_64"))
        add_qemu(list, beside);
    add_qemu(list, packaged);
    add_qemu(list, "/usr/bin/" QEMU "x86_64");
    return list;
}

static bool still_runs(const json_t *o, const char *pid)
{
    return rundir_look(o, pid) != PROCESS_GONE;
}

static void count_fork(void *opaque, const char *dir, json_t *s)
{
    json_t *k;
    size_t i;
    int children = 0;

    (void)dir;
    json_array_foreach(json_object_get(s, "children"), i, k)
        children += still_runs(k, "pid");
    if (children || still_runs(s, "agent"))
        json_array_append_new(opaque, json_pack("{ss ss ss si}", "id", text_of(s, "id"), "parent",
                                                text_of(s, "parent"), "image", text_of(s, "image"), "children",
                                                children));
}

json_t *host_facts(const char *base)
{
    json_t *rdma = json_array(), *forks = json_array(), *guests = json_array(), *holders = json_array();
    FF_AUTO_FREE char *same = host_identity();
    struct utsname u = {.nodename = ""};
    double load = 0;

    uname(&u);
    if (getloadavg(&load, 1) < 1)
        load = 0;
    ff_rdma_list(add_rdma, rdma);
    rundir_each(base, NULL, count_fork, forks);
    look_at_processes(guests, holders);
    return json_pack("{ss ss ss ss sI sf sI sI sI so sb so so so so}", "name", u.nodename, "identity", same,
                     "version", FF_VERSION_STRING, "kernel", u.release, "cpus", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "load", load,
                     "memory_bytes", (json_int_t)(number_of("/proc/meminfo", "MemTotal:") << 10),
                     "available_bytes", (json_int_t)(number_of("/proc/meminfo", "MemAvailable:") << 10),
                     "reserved_bytes", (json_int_t)reserve_left(base), "huge_pages", huge_pages(),
                     "kvm", !access("/dev/kvm", R_OK | W_OK), "rdma", rdma, "guests", guests, "holders", holders, "forks", forks);
}
