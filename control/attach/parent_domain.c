/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent_domain.c - the guest that is forked is a domain of libvirt's: its monitor, and what its children have to know
 */
#include <errno.h>

#include "autojson.h"
#include "guest_page.h"
#include "libvirt.h"
#include "machine.h"
#include "parent_private.h"
#include "watch_files.h"

static int carry_for_parent(void *opaque, const char *line, int fd, char **answer, struct ff_error *err)
{
    const struct parent *p = opaque;

    return libvirt_monitor(p->domain, line, fd, answer, err);
}

int parent_reach_domain(struct parent *p, struct ff_error *why)
{
    int rc = p->q ? 0 : domain_pid(p->domain, &p->pid, why);

    if (!rc && !p->q)
        p->q = qmp_by(carry_for_parent, p, p->pid);
    return rc;
}

static int ask_flag(struct parent *p, const char *property, bool *is, struct ff_error *why)
{
    FF_AUTO_JSON json_t *v = NULL;
    int rc = qmp_command(p->q, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", property), &v, why);

    *is = json_is_true(v);
    return rc;
}

static json_t *blocks_info(const struct outside_block *b, unsigned n)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{ss sI si}", "name", b[i].name, "length", (json_int_t)b[i].len_bytes,
                                              "page-size", (int)b[i].psize));
    return list;
}

int parent_describe(struct parent *p, json_t **out, struct ff_error *why)
{
    FF_AUTO_FREE char *machine = NULL, *config = NULL;
    FF_AUTO_FREE struct outside_block *b = NULL;
    bool dumps = false, merges = false;
    unsigned bits = 0, n = 0;
    int rc = guest_page_bits(p->q, &bits, why);

    if (!rc)
        rc = machine_name(p->q, &machine, why);
    if (!rc)
        rc = machine_config(p->q, machine, bits, &config, why);
    if (!rc)
        rc = ask_flag(p, "dump-guest-core", &dumps, why);
    if (!rc)
        rc = ask_flag(p, "mem-merge", &merges, why);
    if (!rc)
        rc = outside_list(p->q, &b, &n, why);
    if (!rc)
        *out = json_pack("{ss ss si si so}", "machine", machine, "config", config, "page-bits", (int)bits, "advice",
                         (dumps ? 0 : WATCH_NO_DUMP) | (merges ? WATCH_MERGE : 0), "blocks", blocks_info(b, n));
    return rc;
}
