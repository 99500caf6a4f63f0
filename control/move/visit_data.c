/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_data.c - what a guest reads where it visits: files and devices there, as disks that it may not write
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      plug     blockdev-add, read-only; device_add virtio-blk-pci, where there is room for one
 *              unplug   device_del; wait until the guest has let it go; blockdev-del
 * Invariants   the guest comes home without them: nothing of a device goes along that the QEMU here has not.
 * Failure      one that the guest does not let go: it stays there, with what it still has. A return that fails after
 *              all were let go: they are plugged in again, where the guest works on (visit.c).
 * Limits       QEMU's bus has no room by itself where only ports take devices (q35): then the first port that is
 *              empty is taken. A guest without a driver for virtio sees nothing, and lets nothing go.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "visit.h"

#define LOOK_MS 50
#define AGAIN_MS 5000 /* a guest that was busy may have missed the request */
#define CLOSE_MS 3000 /* a disk that answers late */
#define PERIPHERAL "/machine/peripheral"

/* --- what a user says --- */

/* [FORMAT:]PATH */
static int data_parse_one(struct visit_data *d, const char *spec, size_t number, struct ff_error *why)
{
    size_t len = strcspn(spec, ":/");
    bool has_format = len && spec[len] == ':' && spec[len + 1] == '/';

    *d = (struct visit_data){.spec = spec, .format = has_format ? xprintf("%.*s", (int)len, spec) : xstrdup("raw"),
                             .path = xstrdup(has_format ? spec + len + 1 : spec),
                             .id = xprintf("visit-data%zu", number)};
    return *d->path == '/' ? 0
                           : ff_error_set(why, EINVAL, "--data %s: want [FORMAT:]PATH, the path absolute", spec);
}

int visit_data_parse(struct visit *v, struct ff_error *why)
{
    const struct strv *specs = v->o.data;
    int rc = 0;

    v->data = specs && specs->n ? xcalloc(specs->n, sizeof(*v->data)) : NULL;
    for (size_t i = 0; v->data && !rc && i < specs->n; i++)
        rc = data_parse_one(&v->data[v->n_data++], specs->v[i], i + 1, why);
    return rc;
}

void visit_data_free(struct visit *v)
{
    for (size_t i = 0; i < v->n_data; i++) {
        free(v->data[i].format);
        free(v->data[i].path);
        free(v->data[i].id);
    }
    free(v->data);
}

/* --- in --- */

/* The first bridge, or port, of that list that has a name and nothing behind it; NULL: none */
static const char *empty_bridge(const json_t *devices)
{
    const char *found = NULL;
    size_t i;
    json_t *d;

    json_array_foreach(devices, i, d) {
        const json_t *bridge = json_object_get(d, "pci_bridge"), *behind = json_object_get(bridge, "devices");
        if (bridge && *text_of(d, "qdev_id") && !json_array_size(behind))
            return text_of(d, "qdev_id");
        if ((found = empty_bridge(behind)))
            return found;
    }
    return NULL;
}

/* -ENOSPC: there is none */
static int data_find_port(struct move *m, char **out, struct ff_error *why)
{
    FF_AUTO_JSON json_t *buses = NULL;
    const char *found = NULL;
    size_t i;
    json_t *bus;
    int rc = move_ask(m, "query-pci", NULL, &buses, why);

    json_array_foreach(buses, i, bus)
        if (!found)
            found = empty_bridge(json_object_get(bus, "devices"));
    if (!rc && !found)
        return ff_error_set(why, ENOSPC, "the guest has no empty port (pcie-root-port with an id) to plug it into");
    *out = rc ? NULL : xstrdup(found);
    return rc;
}

static int data_add_device(struct move *m, const struct visit_data *d, const char *bus, struct ff_error *why)
{
    json_t *o = json_pack("{ss ss ss ss}", "driver", "virtio-blk-pci", "id", d->id, "drive", d->id, "serial", d->id);

    if (bus)
        json_object_set_new(o, "bus", json_string(bus));
    return move_ask_long(m, "device_add", o, NULL, why);
}

static int open_image(struct move *m, struct visit_data *d, struct ff_error *why)
{
    json_t *file = json_pack("{ss ss}", "driver", "file", "filename", d->path);
    FF_AUTO_JSON json_t *o = json_pack("{ss ss sb so}", "driver", d->format, "node-name", d->id, "read-only", true,
                                       "file", file);
    int rc = move_ask_long(m, "blockdev-add", json_incref(o), NULL, why);

    if (rc != -EREMOTEIO)
        return rc;
    /* QEMU has another driver for a block device, which refuses files */
    FF_AUTO_FREE char *refused = xstrdup(why->text);
    json_object_set_new(json_object_get(o, "file"), "driver", json_string("host_device"));
    rc = move_ask_long(m, "blockdev-add", json_incref(o), NULL, why);
    return rc == -EREMOTEIO ? ff_error_context(why, "%s; as a block device", refused) : rc;
}

static int data_plug_one(struct move *m, struct visit_data *d, struct ff_error *why)
{
    FF_AUTO_FREE char *port = NULL;
    int rc = d->node ? 0 : open_image(m, d, why); /* it has been there */

    d->node = rc != -EREMOTEIO; /* what was not answered in time may happen yet */
    if (rc)
        return ff_error_context(why, "--data %s", d->spec);
    rc = data_add_device(m, d, NULL, why);
    if (rc == -EREMOTEIO) { /* that bus takes none, perhaps */
        FF_AUTO_FREE char *refused = xstrdup(why->text);
        rc = data_find_port(m, &port, why);
        rc = rc ? rc : data_add_device(m, d, port, why);
        if (rc)
            ff_error_context(why, "%s; behind a port", refused);
    }
    d->plugged = rc != -EREMOTEIO && rc != -ENOSPC;
    return rc ? ff_error_context(why, "--data %s", d->spec) : 0;
}

int visit_data_plug(struct move *m, struct ff_error *why)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < m->visit->n_data; i++)
        if (!m->visit->data[i].plugged)
            rc = data_plug_one(m, &m->visit->data[i], why);
    return rc;
}

/* --- out --- */

/* 1: the QEMU there has it; 0: it has not; or why it does not say */
static int has_device_there(struct move *m, const char *id, struct ff_error *why)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = move_ask(m, "qom-list", json_pack("{ss}", "path", PERIPHERAL), &list, why);

    return rc ? rc : !!json_find(list, "name", id);
}

/* A second request while the first one is under way is refused: that says nothing */
static int ask_to_let_go(struct move *m, const struct visit_data *d, struct ff_error *why)
{
    int rc = move_ask(m, "device_del", json_pack("{ss}", "id", d->id), NULL, why);

    return rc == -EREMOTEIO || rc == -ENODATA ? 0 : rc;
}

static int take_out(struct move *m, struct visit_data *d, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m), again = 0;
    int rc;

    while ((rc = has_device_there(m, d->id, why)) > 0) {
        if (ff_now_ms() >= end || m->s.interrupted)
            return ff_error_set(why, m->s.interrupted ? ECANCELED : ETIMEDOUT, "the guest has not let it go%s",
                                m->s.interrupted ? "" : " in time: unmount it");
        if (ff_now_ms() >= again) {
            rc = ask_to_let_go(m, d, why);
            again = ff_now_ms() + AGAIN_MS;
        }
        if (rc < 0)
            return rc;
        session_turn(&m->s, LOOK_MS);
    }
    d->plugged = rc < 0;
    return rc;
}

/* Also where nobody says so */
static bool may_be_open(struct move *m, const struct visit_data *d)
{
    FF_AUTO_JSON json_t *nodes = NULL;
    struct ff_error ignored;

    return move_ask(m, "query-named-block-nodes", NULL, &nodes, &ignored) || json_find(nodes, "node-name", d->id);
}

/* Its last requests are under way for a moment. One that somebody else there uses is in nobody's way */
static int close_image(struct move *m, struct visit_data *d, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + CLOSE_MS;
    int rc;
    bool not_done;

    while ((not_done = (rc = move_ask(m, "blockdev-del", json_pack("{ss}", "node-name", d->id), NULL, why)) == -EREMOTEIO ||
                       rc == -ENODATA) &&
           may_be_open(m, d) && ff_now_ms() < end && !m->s.interrupted)
        session_turn(&m->s, LOOK_MS);
    d->node = rc && (!not_done || may_be_open(m, d));
    if (not_done && d->node && !d->said)
        session_note(&m->s, "--data %s: it is open there still: %s", d->spec, why->text);
    d->said |= not_done;
    return not_done ? 0 : rc;
}

int visit_data_unplug(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    int rc = 0;

    for (size_t i = 0; !rc && i < v->n_data; i++) {
        struct visit_data *d = &v->data[i];
        if (d->plugged)
            rc = take_out(m, d, why);
        if (!rc && d->node)
            rc = close_image(m, d, why);
        if (rc)
            ff_error_context(why, "--data %s", d->spec);
    }
    return rc;
}
