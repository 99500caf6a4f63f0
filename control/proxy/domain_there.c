/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain_there.c - the destination's proxy of a domain: a QEMU that answers libvirt alone; see
 * domain.h
 */
#include "domain.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "autojson.h"
#include "spawn.h"
#include "versions.h"

#define SYSCTL "/proc/sys/vm/unprivileged_userfaultfd"
#define PREPARED_LIMIT_MS 10000
#define VERSION_LIMIT_MS 10000

/* libvirt's QEMU is no root: without it there is no post-copy */
static int check_sysctl(struct ff_error *err)
{
    FILE *f = fopen(SYSCTL, "re");
    int value = 1;

    if (f && fscanf(f, "%d", &value) != 1)
        value = 1;
    if (f)
        fclose(f);
    return value ? 0
                 : ff_error_set(err, EPERM,
                                "libvirt's QEMU may have no post-copy on the destination: "
                                "vm.unprivileged_userfaultfd is 0 (sysctl "
                                "vm.unprivileged_userfaultfd=1)");
}

static void take_version(void *opaque, const char *line)
{
    int *n = opaque;

    if (!n[0])
        sscanf(line, "QEMU emulator version %d.%d.%d", &n[0], &n[1], &n[2]);
}

static int check_version_there(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_FREE char *exe = xprintf("/proc/%d/exe", (int)p->pid);
    char *argv[] = {exe, "--version", NULL};
    struct proxy_version ignored;
    struct spawn r;
    int n[3] = {0};
    int rc = spawn_start(&r, argv, NULL, err);

    if (!rc)
        spawn_read_lines(&r, VERSION_LIMIT_MS, take_version, n);
    spawn_end(&r, 0);
    spawn_free(&r);
    if (rc)
        return rc;
    FF_AUTO_JSON json_t *answer =
        json_pack("{s:{s:i,s:i,s:i}}", "qemu", "major", n[0], "minor", n[1], "micro", n[2]);
    return proxy_version_check(answer, "destination", p->o->untested, &ignored, err);
}

/* The source is here, so libvirt has started the QEMU */
static int find_memory(void *opaque, const struct ff_region *r, unsigned n, struct ff_error *err)
{
    struct proxy *p = opaque;
    int rc = domain_pid(p->o->domain, &p->pid, err);

    if (!rc)
        rc = outside_may(p->pid, true, err);
    if (!rc)
        rc = check_version_there(p, err);
    p->blocks = xcalloc(FF_MAX(n, 1u), sizeof(*p->blocks));
    for (unsigned i = 0; !rc && i < n; i++) {
        struct outside_block *b = &p->blocks[i];

        snprintf(b->name, sizeof(b->name), "%s", r[i].name);
        b->len_bytes = r[i].len_bytes;
        b->psize = r[i].psize;
        rc = outside_locate(p->pid, b, err);
        if (!rc)
            rc = proxy_add_dest_region(p, b, err);
    }
    p->n_blocks = rc ? 0 : n;
    return rc;
}

int domain_await(struct proxy *p, struct ff_error *err)
{
    pid_t pid;

    if (!domain_pid(p->o->domain, &pid, NULL))
        return ff_error_set(err, EEXIST,
                            "domain %s: it runs at the destination already, as "
                            "process %d",
                            p->o->domain, (int)pid);
    ff_dest_on_table(p->dest, find_memory, p);
    return check_sysctl(err);
}

int domain_wait_prepared(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + PREPARED_LIMIT_MS;
    int rc;

    while ((rc = outside_prepared(p->pid, p->blocks, p->n_blocks, err)) == -EAGAIN &&
           ff_now_ms() < end) {
        rc = proxy_check(p, err);
        if (rc)
            return rc;
        poll(NULL, 0, 1);
    }
    return rc;
}
