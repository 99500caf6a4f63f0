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
#include "rundir.h"

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

/* Of -name NAME,more or -name guest=NAME */
static char *guest_name(const struct strv *words)
{
    for (size_t i = 1; i + 1 < words->n; i++) {
        const char *name = words->v[i + 1];
        if (strcmp(words->v[i], "-name") && strcmp(words->v[i], "--name"))
            continue;
        name += strncmp(name, "guest=", 6) ? 0 : 6;
        return xprintf("%.*s", (int)strcspn(name, ","), name);
    }
    return xstrdup("");
}

/* A process that runs a QEMU; also one whose program was replaced since */
static void add_guest(json_t *list, pid_t pid)
{
    FF_AUTO_FREE char *exe = xprintf("/proc/%d/exe", (int)pid), *status = xprintf("/proc/%d/status", (int)pid);
    char program[4096];
    struct strv words = {0};
    struct ff_error why;
    ssize_t n = readlink(exe, program, sizeof(program) - 1);

    if (n < 0)
        return;
    program[n] = '\0';
    const char *base = strrchr(program, '/');
    if (!base || strncmp(base + 1, QEMU, strlen(QEMU)))
        return;
    if (!process_argv(pid, &words, &why)) {
        FF_AUTO_FREE char *name = guest_name(&words);
        json_array_append_new(list, json_pack("{si ss ss sI}", "pid", (int)pid, "name", name, "qemu", program,
                                              "resident_bytes",
                                              (json_int_t)(number_of(status, "VmRSS:") << 10)));
    }
    strv_free(&words);
}

static json_t *guests(void)
{
    json_t *list = json_array();
    DIR *d = opendir("/proc");
    const struct dirent *e;

    while (d && (e = readdir(d)))
        if (isdigit((unsigned char)*e->d_name))
            add_guest(list, (pid_t)atoi(e->d_name));
    if (d)
        closedir(d);
    return list;
}

static bool still_runs(const json_t *o, const char *pid)
{
    return process_is((pid_t)json_integer_value(json_object_get(o, pid)),
                      (uint64_t)json_integer_value(json_object_get(o, "start")));
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
    json_t *rdma = json_array(), *forks = json_array();
    struct utsname u = {.nodename = ""};
    double load = 0;

    uname(&u);
    if (getloadavg(&load, 1) < 1)
        load = 0;
    ff_rdma_list(add_rdma, rdma);
    rundir_each(base, NULL, count_fork, forks);
    return json_pack("{ss ss ss sI sf sI sI so sb so so so}", "name", u.nodename, "version", FF_VERSION_STRING,
                     "kernel", u.release, "cpus", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "load", load,
                     "memory_bytes", (json_int_t)(number_of("/proc/meminfo", "MemTotal:") << 10),
                     "available_bytes", (json_int_t)(number_of("/proc/meminfo", "MemAvailable:") << 10),
                     "huge_pages", huge_pages(), "kvm", !access("/dev/kvm", R_OK | W_OK), "rdma", rdma,
                     "guests", guests(), "forks", forks);
}
