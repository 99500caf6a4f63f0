/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * taps.c - the taps behind the NICs of one QEMU, for another that takes its place; see taps.h
 */
#include "taps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "cleanup.h"
#include "command_line.h"
#include "inject.h"
#include "outside.h"
#include "pass_files.h"
#include "xalloc.h"

#define INDEX ": index="
#define TAP ",type=tap,"

/* What `info network` says of one tap */
struct named_tap {
    char id[64], ifname[IFNAMSIZ];
    int number; /* -1: QEMU opened it by its name */
};

/* --- which taps --- */

static bool parse_tap(const char *line, struct named_tap *t)
{
    const char *end = strstr(line, INDEX), *is = strstr(line, TAP);

    if (!end || !is)
        return false;
    line += strspn(line, " \\");
    *t = (struct named_tap){.number = -1};
    if (end <= line || (size_t)(end - line) >= sizeof(t->id))
        return false;
    memcpy(t->id, line, (size_t)(end - line));
    return sscanf(is + strlen(TAP), "fd=%d", &t->number) == 1 || sscanf(is + strlen(TAP), "ifname=%15[^,]", t->ifname) == 1;
}

static int list_taps(struct qmp *q, struct named_tap **out, unsigned *n, struct ff_error *err)
{
    FF_AUTO_JSON json_t *text = NULL;
    int rc = qmp_hmp(q, "info network", &text, err);

    *n = 0;
    if (rc)
        return rc;
    FF_AUTO_FREE char *copy = xstrdup(json_string_value(text));
    unsigned lines = 1;
    for (const char *c = copy; *c; c++)
        lines += *c == '\n';
    *out = xcalloc(lines, sizeof(**out));
    char *rest;
    for (char *l = strtok_r(copy, "\r\n", &rest); l; l = strtok_r(NULL, "\r\n", &rest))
        *n += parse_tap(l, &(*out)[*n]);
    return 0;
}

/* The network interface that descriptor @number of @pid is, or "" */
static void interface_of(pid_t pid, int number, char ifname[IFNAMSIZ])
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fdinfo/%d", (int)pid, number);
    FILE *f = fopen(path, "re");
    char line[128];

    *ifname = '\0';
    while (f && !*ifname && fgets(line, sizeof(line), f))
        sscanf(line, "iff:\t%15s", ifname);
    if (f)
        fclose(f);
}

/* -1: none */
static int find_tap_of(pid_t pid, const char *ifname)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fdinfo", (int)pid);
    DIR *d = opendir(path);
    int found = -1;

    for (struct dirent *e; found < 0 && d && (e = readdir(d));) {
        char is[IFNAMSIZ];
        if (*e->d_name == '.')
            continue;
        interface_of(pid, atoi(e->d_name), is);
        if (!strcmp(is, ifname))
            found = atoi(e->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

static int take_tap(pid_t pid, int number, int *fd, struct ff_error *err)
{
    *fd = outside_take_fd(pid, number);
    return *fd >= 0 ? 0 : ff_error_set(err, -*fd, "process %d: take descriptor %d: %s", (int)pid, number, strerror(-*fd));
}

static int check_header(const struct tap_pair *t, struct ff_error *err)
{
    struct ifreq r = {0};

    if (ioctl(t->fd, TUNGETIFF, &r))
        return ff_error_set(err, errno, "network %s: TUNGETIFF: %s", t->id, strerror(errno));
    return r.ifr_flags & IFF_VNET_HDR
               ? 0 : ff_error_set(err, EINVAL, "network %s: its tap has no header before each packet (want vnet_hdr)", t->id);
}

static int pair_tap(pid_t old, const struct named_tap *had, unsigned n_had, pid_t pid, struct tap_pair *t, struct ff_error *err)
{
    const struct named_tap *h = NULL;

    for (unsigned i = 0; i < n_had; i++)
        if (!strcmp(had[i].id, t->id))
            h = &had[i];
    const int number = !h ? -1 : h->number >= 0 ? h->number : find_tap_of(old, h->ifname);
    if (number < 0)
        return ff_error_set(err, ENOENT, "network %s: QEMU (process %d) has no tap of that name", t->id, (int)old);
    int rc = take_tap(old, number, &t->fd, err);
    if (!rc)
        rc = take_tap(pid, t->there, &t->dead, err);
    return rc ? rc : check_header(t, err);
}

int taps_find(struct qmp *old_q, pid_t old, struct qmp *q, pid_t pid, struct tap_pair **out, unsigned *n, struct ff_error *err)
{
    FF_AUTO_FREE struct named_tap *has = NULL, *had = NULL;
    unsigned n_has = 0, n_had = 0;
    int rc = list_taps(q, &has, &n_has, err);

    *n = 0;
    if (!rc)
        rc = list_taps(old_q, &had, &n_had, err);
    *out = xcalloc(n_has + 1, sizeof(**out));
    for (unsigned i = 0; i < n_has && !rc; i++) {
        char ifname[IFNAMSIZ];
        interface_of(pid, has[i].number, ifname);
        if (strcmp(ifname, NET_DEAD_END))
            continue;
        struct tap_pair *t = &(*out)[(*n)++];
        *t = (struct tap_pair){.there = has[i].number, .fd = -1, .dead = -1};
        snprintf(t->id, sizeof(t->id), "%s", has[i].id);
        rc = pair_tap(old, had, n_had, pid, t, err);
    }
    return rc;
}

/* --- over --- */

struct placing {
    const struct tap_pair *t;
    const int *from;
    unsigned n;
};

static int place_taps(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct placing *p = opaque;
    int rc = 0;

    for (unsigned i = 0; i < p->n && !rc; i++) {
        const uint64_t args[INJECT_ARGS] = {(uint64_t)p->from[i], (uint64_t)p->t[i].there, O_CLOEXEC};
        int64_t got = 0;
        rc = inject_call(in, SYS_dup3, args, &got, err);
        if (!rc && got < 0)
            rc = ff_error_set(err, (int)-got, "QEMU: dup3: %s", strerror((int)-got));
    }
    return rc;
}

int taps_pass(pid_t pid, const struct tap_pair *t, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE int *fd = xcalloc(n + 1, sizeof(*fd)), *there = xcalloc(n + 1, sizeof(*there));

    if (!n)
        return 0;
    for (unsigned i = 0; i < n; i++)
        fd[i] = t[i].fd;
    int rc = pass_files(pid, fd, n, there, err);
    if (rc)
        return rc;
    struct placing p = {.t = t, .from = there, .n = n};
    rc = inject_run(pid, 0, place_taps, &p, err);
    pass_files_close(pid, there, n);
    return rc;
}

int taps_settle(struct tap_pair *t, unsigned n, struct ff_error *err)
{
    for (unsigned i = 0; i < n; i++) {
        int wants = 0, has = 0;
        if (ioctl(t[i].dead, TUNGETVNETHDRSZ, &wants) || ioctl(t[i].fd, TUNGETVNETHDRSZ, &has) ||
            (wants != has && ioctl(t[i].fd, TUNSETVNETHDRSZ, &wants)))
            return ff_error_set(err, errno, "network %s: the length of its header: %s", t[i].id, strerror(errno));
        t[i].header = wants != has ? has : 0;
    }
    return 0;
}

void taps_unsettle(struct tap_pair *t, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (t[i].header)
            ioctl(t[i].fd, TUNSETVNETHDRSZ, &t[i].header);
}

void taps_free(struct tap_pair *t, unsigned n)
{
    for (unsigned i = 0; t && i < n; i++) {
        ff_close_fd(&t[i].fd);
        ff_close_fd(&t[i].dead);
    }
    free(t);
}
