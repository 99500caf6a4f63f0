/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * doctor_host.c - farfork doctor: what an installation puts on a host, and whether it is there
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      files of packaging/ that a host needs: each has a line, with what to do where it is
 *              missing. None of them is NO: guests move without, by root, over TCP, on a host
 *              without a firewall.
 * Limits       what root alone may read is unknown for others, and the line says so.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "farfork-probe.h"
#include "scope.h"
#include "spawn.h"

#define RULE "60-farfork.rules"
#define APPARMOR "/sys/kernel/security/apparmor/profiles"
#define PROFILE "farfork-agent"
#define PORT "4457" /* of `farfork doctor --serve`: both examples open it */
#define NFT_LIMIT_MS 5000

struct subject {
    void (*fn)(void *opaque, const char *subject, enum ff_check result, const char *why);
    void *opaque;
    const char *name;
};

FF_PRINTF(3, 4)
static void say_of(const struct subject *s, enum ff_check result, const char *fmt, ...)
{
    char why[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    s->fn(s->opaque, s->name, result, why);
}

/* A line in which @is finds what it looks for */
static bool has_line(const char *path, bool (*is)(const char *line))
{
    FF_AUTO_FREE char *line = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0;
    bool found = false;

    while (f && !found && getline(&line, &room, f) >= 0)
        found = is(line);
    if (f)
        fclose(f);
    return found;
}

static bool has_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *e;
    bool any = false;

    while (dir && !any && (e = readdir(dir)))
        any = e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return any;
}

/* --- userfaultfd for users other than root --- */

static const char *find_rule(void)
{
    static const char *const paths[] = {
        "/etc/udev/rules.d/" RULE, "/run/udev/rules.d/" RULE, "/usr/local/lib/udev/rules.d/" RULE,
        "/usr/lib/udev/rules.d/" RULE, "/lib/udev/rules.d/" RULE};

    for (size_t i = 0; i < FF_ARRAY_LEN(paths); i++)
        if (!access(paths[i], F_OK))
            return paths[i];
    return NULL;
}

static void check_rule(const struct subject *s)
{
    const char *rule = find_rule();
    struct stat st;

    if (stat("/dev/userfaultfd", &st)) {
        say_of(s, FF_CHECK_LIMITED, "/dev/userfaultfd: %s; Linux has it from 6.1 on; see sysctl",
               strerror(errno));
        return;
    }
    const struct group *g = getgrgid(st.st_gid);
    const unsigned mode = st.st_mode & 07777;
    if ((mode & 06) == 06 || ((mode & 060) == 060 && st.st_gid))
        say_of(s, FF_CHECK_OK, "/dev/userfaultfd: group %s, mode %04o", g ? g->gr_name : "unknown",
               mode);
    else if (rule)
        say_of(s, FF_CHECK_LIMITED,
               "%s is there and not in force: /dev/userfaultfd has mode %04o: udevadm control "
               "--reload; udevadm trigger --name-match=userfaultfd", rule, mode);
    else
        say_of(s, FF_CHECK_LIMITED,
               "root alone opens /dev/userfaultfd (mode %04o), and there is no " RULE
               ": install package farfork, or put packaging/" RULE " into /etc/udev/rules.d", mode);
}

static void check_permission(const struct subject *s)
{
    static const char path[] = "/proc/sys/vm/unprivileged_userfaultfd";
    FILE *f = fopen(path, "re");
    int value = 1; /* a kernel without it permits it */

    if (f && fscanf(f, "%d", &value) != 1)
        value = 1;
    if (f)
        fclose(f);
    if (value)
        say_of(s, FF_CHECK_OK, "vm.unprivileged_userfaultfd=%d: every user has userfaultfd", value);
    else if (!access("/dev/userfaultfd", F_OK))
        say_of(s, FF_CHECK_OK,
               "vm.unprivileged_userfaultfd=0: enough, but for libvirt's domains that come "
               "(60-farfork-userfaultfd.conf of the examples)");
    else
        say_of(s, FF_CHECK_LIMITED,
               "vm.unprivileged_userfaultfd=0 and no /dev/userfaultfd: root alone can take guests: "
               "put 60-farfork-userfaultfd.conf of the examples into /etc/sysctl.d; sysctl --system");
}

/* --- memlock --- */

static bool is_memlock(const char *line)
{
    line += strspn(line, " \t");
    return *line != '#' && strstr(line, "memlock");
}

static void check_limits(const struct subject *s)
{
    const bool rdma = has_entries("/sys/class/infiniband");
    glob_t files = {0};
    const char *found = NULL;

    glob("/etc/security/limits.d/*.conf", 0, NULL, &files);
    glob("/etc/security/limits.conf", GLOB_APPEND, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc && !found; i++)
        if (has_line(files.gl_pathv[i], is_memlock))
            found = files.gl_pathv[i];
    if (found)
        say_of(s, FF_CHECK_OK, "%s, for logins; see memlock limit", found);
    else if (rdma)
        say_of(s, FF_CHECK_LIMITED,
               "no memlock in /etc/security/limits.d: RDMA pins guest memory: install package "
               "farfork-rdma, or put packaging/farfork-rdma.conf there, and log in again");
    else
        say_of(s, FF_CHECK_OK, "none, and no RDMA device that needs it");
    globfree(&files);
}

/* --- firewall --- */

struct rules {
    bool input, refuses, ours;
};

static void take_rule(void *opaque, const char *line)
{
    struct rules *r = opaque;

    r->input |= strstr(line, "hook input") != NULL;
    r->refuses |= strstr(line, "drop") || strstr(line, "reject");
    r->ours |= strstr(line, PORT) != NULL;
}

/* iptables of today, and firewalld, have their rules where nft lists them */
static void check_firewall(const struct subject *s)
{
    char *argv[] = {"nft", "list", "ruleset", NULL};
    struct rules r = {0};
    struct spawn p;
    int status;

    if (geteuid()) {
        say_of(s, FF_CHECK_UNKNOWN, "root may list its rules");
        return;
    }
    int rc = spawn_start(&p, argv, NULL, NULL);
    bool ended = !rc && spawn_read_lines(&p, NFT_LIMIT_MS, take_rule, &r) &&
                 spawn_ended(&p, NFT_LIMIT_MS, &status) && !status;
    if (!ended)
        say_of(s, FF_CHECK_UNKNOWN, "nft list ruleset: %s",
               !rc && p.first ? p.first : "it does not run; package nftables has it");
    else if (!r.input || !r.refuses)
        say_of(s, FF_CHECK_OK, "none: no rule refuses what comes to this host");
    else if (r.ours)
        say_of(s, FF_CHECK_OK, "its rules name port " PORT);
    else
        say_of(s, FF_CHECK_LIMITED,
               "its rules do not name port " PORT ": other hosts' guests may not get here: "
               "firewall-cmd --zone=ZONE --add-service=farfork, or farfork.nft of the examples");
    spawn_end(&p, 0);
    spawn_free(&p);
}

/* --- AppArmor --- */

static bool is_profile(const char *line)
{
    return !strncmp(line, PROFILE " ", sizeof(PROFILE));
}

static bool is_yes(const char *line)
{
    return *line == 'Y';
}

static void check_apparmor(const struct subject *s)
{
    static const char file[] = "/etc/apparmor.d/" PROFILE;
    const bool there = !access(file, F_OK);

    if (!has_line("/sys/module/apparmor/parameters/enabled", is_yes))
        say_of(s, FF_CHECK_OK, "not enabled in this kernel");
    else if (has_line(APPARMOR, is_profile))
        say_of(s, FF_CHECK_OK, "profile " PROFILE " is loaded: agents and their QEMUs run in it");
    else if (!there)
        say_of(s, FF_CHECK_LIMITED,
               "no %s: agents have their filter of system calls alone: install package farfork, "
               "or put packaging/" PROFILE " there, and load it: apparmor_parser -r %s", file, file);
    else if (geteuid())
        say_of(s, FF_CHECK_UNKNOWN, "%s is there; root may see whether it is loaded", file);
    else
        say_of(s, FF_CHECK_LIMITED, "%s is there, and not loaded: apparmor_parser -r %s", file,
               file);
}

/* --- systemd --- */

static void check_systemd(const struct subject *s)
{
    struct ff_error why;
    int rc = scope_try(&why);

    if (rc && rc != -ENOENT)
        say_of(s, FF_CHECK_LIMITED, "agents stay with who starts them: %s%s", why.text,
               rc == -EIO && !geteuid() ? " (packages systemd, dbus)" : "");
    else
        say_of(s, FF_CHECK_OK, "%s", rc ? why.text : "agents have scopes in farfork.slice");
}

void doctor_host(void (*fn)(void *opaque, const char *subject, enum ff_check result,
                            const char *why),
                 void *opaque)
{
    static const struct {
        const char *name;
        void (*check)(const struct subject *s);
    } all[] = {{"udev rule", check_rule},        {"sysctl", check_permission},
               {"limits.d", check_limits},       {"firewall", check_firewall},
               {"apparmor", check_apparmor},
               {"systemd", check_systemd}};

    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++)
        all[i].check(&(struct subject){fn, opaque, all[i].name});
}
