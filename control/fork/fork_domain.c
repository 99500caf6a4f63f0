/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_domain.c - children that are domains of libvirt's, as their parent is
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      each child is a transient domain, which libvirt on its host restores (control/attach/child_domain.h): its cgroups,
 *              labels and sandbox are libvirt's own. An agent starts, instead of a QEMU, the program that asks for that.
 * Picture      the parent's XML, as libvirt moves it -> name, UUID, MACs, overlays (vm/domain_xml.c) -> a file of that
 *              program's
 * Limits       a guest hears nothing of its identity over org.farfork.0: that port is libvirt's.
 */
#include <errno.h>

#include "autojson.h"
#include "domain_xml.h"
#include "fork.h"
#include "libvirt.h"
#include "xml_scan.h"

int fork_domain_begin(struct fork *f, const json_t *look, struct ff_error *why)
{
    FF_AUTO_FREE char *xml = NULL, *runs = NULL, *cpu = NULL;
    int rc = libvirt_ask(LIBVIRT_XML_MOVES, f->o->domain, NULL, &xml, why);

    if (!rc)
        rc = libvirt_ask(LIBVIRT_XML, f->o->domain, NULL, &runs, why);
    if (!rc)
        rc = xml_element(runs, "/domain/cpu", &cpu, why);
    if (rc)
        return rc;
    json_decref(f->domain);
    f->domain = json_deep_copy(look);
    if (!json_is_object(f->domain) || json_object_set_new(f->domain, "xml", json_string(xml)) ||
        (cpu && json_object_set_new(f->domain, "cpu", json_string(cpu))))
        return ff_error_set(why, EPROTO, "domain %s: its XML is no UTF-8", f->o->domain);
    return 0;
}

static char *child_xml(const struct fork *f, const struct vm *k, const struct vm_spec *s, const char *name,
                       struct ff_error *why)
{
    FF_AUTO_JSON json_t *summary = identity_summary(f->identity, k->number), *disks = fork_disks_map(f->disks, s);
    struct strv macs = {0};
    char *xml = NULL;

    identity_mac_pairs(f->identity, k->number, &macs);
    const struct domain_child c = {.name = name, .uuid = text_of(summary, "uuid"), .macs = &macs, .disks = disks};
    int rc = domain_xml_child(text_of(f->domain, "xml"), &c, &xml, why);
    strv_free(&macs);
    return rc ? NULL : xml;
}

json_t *fork_domain_spawn(const struct fork *f, const struct vm *k, const struct vm_spec *s, struct ff_error *why)
{
    FF_AUTO_FREE char *name = xprintf("%s-%s-%u", f->o->domain, f->s.o.id, k->number);
    FF_AUTO_FREE char *xml = child_xml(f, k, s, name, why);
    FF_AUTO_FREE char *path = xprintf("%s/%u.domain", s->rundir, k->number), *log = xprintf("%s/%u.log", s->rundir, k->number);
    FF_AUTO_JSON json_t *how = json_deep_copy(f->domain);

    if (!xml)
        return NULL;
    json_object_set_new(how, "xml", json_string(xml));
    json_object_set_new(how, "name", json_string(name));
    json_object_set_new(how, "agent", json_string(f->s.hosts[k->host].socket ? f->s.hosts[k->host].socket : ""));
    json_object_set_new(how, "number", json_integer((int)k->number));
    json_object_set_new(how, "isolated", json_boolean(s->net == NET_ISOLATED || s->net == NET_NONE));
    FF_AUTO_FREE char *text = json_dumps(how, JSON_COMPACT);
    json_t *o = json_pack("{si s[ssss] ss ss sb s[{ss ss}]}", "number", (int)k->number, "argv", f->s.o.agent, "attach", "--child",
                          path, "log", log, "cwd", "/", "term", 1, "private", "path", path, "text", text);
    json_object_set_new(o, "before", fork_disks_before(f->disks, s));
    json_object_set_new(o, "files", fork_disks_files(f->disks, s));
    return o;
}
