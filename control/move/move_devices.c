/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_devices.c - devices that stay here: taken out before the switch, and others plugged in there
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a passthrough device, or the primary one of a failover pair, has state in hardware that nobody can
 *              move. The guest gives it up while it runs, and may get another one where it runs next.
 * Picture      plan      the devices of --unplug, and primaries of failover pairs, which are as if both options
 *                        named them: the QEMU there is started without. (It would plug a primary in by itself,
 *                        while it loads the state of a port that has none: Linux does not see it then.)
 *              unplug    device_del of each, once the QEMU there listens; wait until the guest has let it go
 *              migrate
 *              plug      device_add of each SPEC there, once the guest runs there
 * Failure      one that the guest does not let go in time, or a move that fails later: the guest is here, and what
 *              was taken out is plugged in again, as its command line had it. Where the guest is found to be neither
 *              here nor there, a note says what it is without.
 *              What was plugged in is written down there: for the next move it is on the command line.
 * Limits       QEMU cannot withdraw a request to unplug: a guest may answer it after we have gone on.
 * Sources      qapi/qdev.json: device_del, DEVICE_UNPLUG_GUEST_ERROR
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "move.h"
#include "qemu_opts.h"

#define LOOK_MS 50
#define PERIPHERAL "/machine/peripheral"

struct move_device {
    char *id;
    char *spec;   /* on the command line; NULL: it was plugged later */
    json_t *images; /* that its disks have */
    bool asked, out; /* the guest is to let it go; it has */
};

/* The word of -device with that id; 0: there is none */
static size_t device_word(const struct strv *argv, const char *id)
{
    for (size_t i = 2; i < argv->n; i++) {
        FF_AUTO_FREE char *own = qemu_option_is(argv->v[i - 1], "device") ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (own && !strcmp(own, id))
            return i;
    }
    return 0;
}

typedef int ask_fn(struct move *m, const char *execute, json_t *arguments, json_t **answer, struct ff_error *why);

/* The QEMU here */
static int ask_here(struct move *m, const char *execute, json_t *arguments, json_t **answer, struct ff_error *why)
{
    return qmp_command(m->s.qmp, execute, arguments, answer, why);
}

/* 1: it has it; 0: it has not; or why that QEMU does not say. Without an id, that of none: how many there are */
static int have_device(struct move *m, ask_fn *ask, const char *id, struct ff_error *why)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = ask(m, "qom-list", json_pack("{ss}", "path", id ? PERIPHERAL : PERIPHERAL "-anon"), &list, why);

    return rc ? rc : id ? !!json_find(list, "name", id) : (int)json_array_size(list);
}

static int has_device(struct move *m, const char *id, struct ff_error *why)
{
    return have_device(m, ask_here, id, why);
}

static void add_device(struct move *m, const char *id, const char *spec)
{
    m->devices = realloc(m->devices, (m->n_devices + 1) * sizeof(*m->devices));
    if (!m->devices)
        abort();
    m->devices[m->n_devices++] =
        (struct move_device){.id = xstrdup(id), .spec = spec ? xstrdup(spec) : NULL};
}

static void leave_out(struct move *m, const char *id, bool plugged)
{
    struct strv *argv = &m->s.parent_argv;
    size_t at = device_word(argv, id);

    if (strv_have(&m->s.unplugged, id))
        return;
    if (plugged)
        add_device(m, id, at ? argv->v[at] : NULL);
    strv_add(&m->s.unplugged, "%s", id);
    if (at) {
        strv_drop(argv, at);
        strv_drop(argv, at - 1);
    }
}

/* The id of the device that has that disk; to be freed */
static char *owner_of(const json_t *entry)
{
    static const char peripheral[] = "/machine/peripheral/";
    const char *qdev = text_of(entry, "qdev");

    if (!strncmp(qdev, peripheral, sizeof(peripheral) - 1))
        qdev += sizeof(peripheral) - 1;
    return xprintf("%.*s", (int)strcspn(qdev, "/"), qdev);
}

json_t *move_images(const struct move *m, const json_t *block, const char *only)
{
    json_t *images = json_array(), *entry;
    size_t i;

    json_array_foreach(block, i, entry) {
        FF_AUTO_FREE char *id = owner_of(entry);
        if (only ? strcmp(id, only) != 0 : strv_have(&m->s.unplugged, id))
            continue;
        const json_t *image = json_object_get(json_object_get(entry, "inserted"), "image");
        json_array_append_new(images,
                              json_pack("[s,s,s]", text_of(entry, "device"), text_of(entry, "qdev"),
                                        text_of(image, "filename")));
    }
    return images;
}

static int device_images(struct move *m, const char *id, json_t **images, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL;
    int rc = qmp_command(m->s.qmp, "query-block", NULL, &block, why);

    *images = rc ? NULL : move_images(m, block, id);
    return rc;
}

/* QEMU deletes a -drive with its device */
static int check_images(const json_t *images, const char *id, struct ff_error *why)
{
    size_t i;
    json_t *one;

    json_array_foreach(images, i, one)
        if (*json_string_value(json_array_get(one, 0)))
            return ff_error_set(why, ENOTSUP, "--unplug %s: its disk is a -drive, and could not be plugged in again: "
                                "start its QEMU with a -blockdev instead", id);
    return 0;
}

static int plan_one(struct move *m, const char *id, struct ff_error *why)
{
    FF_AUTO_JSON json_t *images = NULL;
    int rc = has_device(m, id, why);

    if (rc > 0 && (rc = device_images(m, id, &images, why)) == 0)
        rc = check_images(images, id, why) ? -ENOTSUP : 1;
    if (!rc && !device_word(&m->s.parent_argv, id))
        return ff_error_set(why, ENOENT, "--unplug %s: this guest has no device of that id", id);
    if (rc >= 0)
        leave_out(m, id, rc > 0); /* 0: an earlier try has taken it out */
    return rc < 0 ? rc : 0;
}

/* There the guest gets the same one, whether it has it here now or not */
static int plan_primaries(struct move *m, struct ff_error *why)
{
    const struct strv *argv = &m->s.parent_argv;

    for (size_t i = 2; i < argv->n; i++) {
        bool is = qemu_option_is(argv->v[i - 1], "device");
        FF_AUTO_FREE char *pair = is ? qemu_opts_get(argv->v[i], "failover_pair_id") : NULL;
        FF_AUTO_FREE char *id = pair ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (!pair)
            continue;
        if (!id)
            return ff_error_set(why, EINVAL, "-device %s: of a failover pair, and without an id", argv->v[i]);
        int rc = has_device(m, id, why);
        if (rc < 0)
            return rc;
        strv_add(&m->plug, "%s", argv->v[i]);
        leave_out(m, id, rc);
        i -= 2; /* its two words */
    }
    return 0;
}

int move_devices_plan(struct move *m, struct ff_error *why)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < m->unplug->n; i++)
        rc = plan_one(m, m->unplug->v[i], why);
    if (!rc)
        rc = plan_primaries(m, why);
    if (!rc && m->n_devices && !m->was_running)
        rc = ff_error_set(why, EINVAL, "device %s: this guest is paused, and lets nothing go: let it run",
                          m->devices[0].id);
    return rc;
}

/* What QEMU says against it */
static int unplug_error(const struct session *s, const char *id, struct ff_error *why)
{
    const json_t *data = json_object_get(s->unplug_error, "data");

    if (strcmp(text_of(data, "device"), id))
        return 0;
    return ff_error_set(why, EPERM, "device %s: the guest refuses to let it go; it was not moved", id);
}

/* Nobody forks this guest meanwhile: the QEMU there was started with the images that there were */
static int check_same_images(struct move *m, const struct move_device *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *now = NULL;
    int rc = device_images(m, d->id, &now, why);

    return rc || json_equal(now, d->images) || !json_array_size(now)
               ? rc
               : ff_error_set(why, EAGAIN, "the image of device %s has changed meanwhile, perhaps by a fork: move it again",
                              d->id);
}

static int wait_until_out(struct move *m, struct move_device *d, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    int rc;

    while ((rc = has_device(m, d->id, why)) > 0) {
        if ((rc = check_same_images(m, d, why)))
            return rc;
        if ((rc = unplug_error(&m->s, d->id, why)))
            return rc;
        if (ff_now_ms() >= end)
            return ff_error_set(why, ETIMEDOUT, "device %s: the guest has not let it go within %u s; it was not moved, "
                                "and may still let the device go: look at it", d->id, m->s.o.timeout_s);
        session_turn(&m->s, LOOK_MS);
        if (m->s.interrupted)
            return ff_error_set(why, ECANCELED, "interrupted");
        if ((rc = move_check_there(m, why)))
            return rc;
    }
    d->out = !rc;
    return rc;
}

int move_devices_unplug(struct move *m, struct ff_error *why)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < m->n_devices; i++) {
        struct move_device *d = &m->devices[i];
        rc = device_images(m, d->id, &d->images, why);
        d->asked = !rc;
        if (!rc)
            rc = qmp_command(m->s.qmp, "device_del", json_pack("{ss}", "id", d->id), NULL, why);
        if (rc)
            ff_error_context(why, "device_del %s", d->id);
        else
            rc = wait_until_out(m, d, why);
    }
    return rc;
}

/* A SPEC as -device has it is what the command of the human monitor takes, which has no code for a failure: where that
 * says anything, QEMU is asked whether it has the device, or one more without an id. A primary that QEMU plugs in later
 * by itself cannot be looked for: any answer is a complaint then. -EREMOTEIO: this QEMU has had no such device so far */
static int device_add(struct move *m, ask_fn *ask, const char *spec, struct ff_error *why)
{
    FF_AUTO_JSON json_t *answer = NULL;
    json_t *o = *spec == '{' ? json_loads(spec, 0, NULL) : NULL;

    if (o)
        return ask(m, "device_add", o, NULL, why);
    FF_AUTO_FREE char *id = qemu_opts_get(spec, "id");
    int before = have_device(m, ask, id, why);
    if (before < 0 && before != -EREMOTEIO)
        return before;
    if (id && before > 0)
        return ff_error_set(why, EEXIST, "there is a device of that id already");
    o = json_pack("{so}", "command-line", json_sprintf("device_add %s", spec));
    int rc = ask(m, "human-monitor-command", o, &answer, why);
    const char *text = json_string_value(answer);
    if (rc || !text || !*text)
        return rc;
    int has = have_device(m, ask, id, why);
    if (has < 0 && has != -EREMOTEIO)
        return has;
    return FF_MAX(has, 0) > FF_MAX(before, 0)
               ? 0 : ff_error_set(why, EINVAL, "%.*s", (int)strcspn(text, "\r\n"), text);
}

void move_devices_back(struct move *m)
{
    for (size_t i = 0; i < m->n_devices; i++) {
        struct move_device *d = &m->devices[i];
        struct ff_error why;
        d->out |= d->asked && m->s.qmp && !has_device(m, d->id, &why); /* later than it was waited for */
        if (!d->out)
            continue;
        int rc = d->spec && m->s.qmp ? device_add(m, ask_here, d->spec, &why)
                 : ff_error_set(&why, EINVAL, d->spec ? "its QEMU does not answer" : "it is not on the command line");
        d->out = rc != 0;
        if (rc)
            session_note(&m->s, "device %s was taken out, and is not in again: %s: plug it in by device_add", d->id,
                     why.text);
    }
}

/* The QEMU there. Its socket has another client for a while: the process beside it ends */
static int ask_when_free(struct move *m, const char *execute, json_t *arguments, json_t **answer, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    FF_AUTO_JSON json_t *own = arguments;
    int rc;

    while ((rc = move_ask_long(m, execute, json_incref(own), answer, why)) == -EAGAIN && ff_now_ms() < end &&
           !m->s.interrupted)
        session_turn(&m->s, LOOK_MS);
    return rc;
}

void move_devices_plug(struct move *m)
{
    json_t *done = json_array();

    if (m->plugged) {
        json_decref(done);
        return;
    }
    m->plugged = true;
    for (size_t i = 0; i < m->plug.n; i++) {
        struct ff_error why;
        int rc = device_add(m, ask_when_free, m->plug.v[i], &why);
        if (rc)
            session_note(&m->s, "--plug %s: %s: plug it in there by device_add, at %s", m->plug.v[i], why.text,
                     move_child(m)->qmp);
        else
            json_array_append_new(done, json_string(m->plug.v[i]));
    }
    m->n_plugged = json_array_size(done);
    if (m->n_plugged)
        host_send(move_host(m), json_pack("{s{si sO}}", "plugged", "child", 1, "devices", done));
    json_decref(done);
}

size_t move_devices_out(const struct move *m)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n_devices; i++)
        n += m->devices[i].out;
    return n;
}

void move_devices_say(struct move *m)
{
    if (m->plugged)
        return;
    for (size_t i = 0; i < m->n_devices; i++)
        if (m->devices[i].out)
            session_note(&m->s, "device %s was taken out: where the guest is, it is without", m->devices[i].id);
    for (size_t i = 0; i < m->plug.n; i++)
        session_note(&m->s, "--plug %s: it was not plugged in", m->plug.v[i]);
}

void move_devices_free(struct move *m)
{
    for (size_t i = 0; i < m->n_devices; i++) {
        free(m->devices[i].id);
        free(m->devices[i].spec);
        json_decref(m->devices[i].images);
    }
    free(m->devices);
    strv_free(&m->plug);
}
