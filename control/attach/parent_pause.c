/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent_pause.c - the guest that is forked stands still for a moment: its devices' state, its disks, its memory; see parent.h
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "autojson.h"
#include "device_state.h"
#include "discards.h"
#include "failpoint.h"
#include "guest_page.h"
#include "movable.h"
#include "parent_private.h"
#include "settle.h"

#define MACHINE_END "-machine"
#define SETTLE_MS 5000
#define HOLD_TURN_MS 2
#define ASK_AGAIN_MS 200
#define ANSWER_LIMIT_MS 600000 /* of one whose disk hangs */
#define RUN_STATE "\vglobalstate" /* its section, from the length of its name on */
#define RUN_STATE_BEFORE 12u      /* instance, version, size */
#define RUN_STATE_BYTES 100u

/* --- before --- */

static int ask_status(struct parent *p, char status[32], bool *running, struct ff_error *why)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = qmp_command(p->q, "query-status", NULL, &s, why);

    if (rc)
        return rc;
    snprintf(status, 32, "%s", text_of(s, "status"));
    *running = json_is_true(json_object_get(s, "running"));
    return 0;
}

/* What children compare */
static int ask_config(struct parent *p, struct ff_error *why)
{
    FF_AUTO_JSON json_t *type = NULL, *target = NULL;
    unsigned bits = 0;
    int rc = qmp_command(p->q, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", "type"), &type, why);

    if (!rc)
        rc = qmp_command(p->q, "query-target", NULL, &target, why);
    if (!rc)
        rc = guest_page_bits(p->q, &bits, why);
    if (rc)
        return rc;
    const char *machine = json_is_string(type) ? json_string_value(type) : "";
    const size_t len = strlen(machine), end = strlen(MACHINE_END);
    if (len <= end || strcmp(machine + len - end, MACHINE_END))
        return ff_error_set(why, EPROTO, "QEMU: its machine has the type '%s' (want NAME-machine)", machine);
    free(p->config);
    p->config = xprintf("%.*s, %s, page size %u", (int)(len - end), machine, text_of(target, "arch"), 1u << bits);
    return 0;
}

int parent_look(struct parent *p, struct ff_error *why)
{
    char status[32];
    int rc = outside_may(p->pid, true, why);

    if (!rc)
        rc = ask_status(p, status, &p->was_running, why);
    if (!rc && !p->was_running && strcmp(status, "paused") && strcmp(status, "prelaunch"))
        rc = ff_error_set(why, EINVAL, "cannot export a guest in state '%s'", status);
    if (!rc) /* of its children's QEMUs, which have its devices */
        rc = discards_check(p->q, why);
    return rc ? rc : movable_check(p->q, why);
}

/* Whether a core dump of that QEMU has its guest's memory */
static int ask_dump(struct parent *p, bool *no_dump, struct ff_error *why)
{
    FF_AUTO_JSON json_t *dump = NULL;
    int rc = qmp_command(p->q, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", "dump-guest-core"), &dump, why);

    *no_dump = !json_is_true(dump);
    return rc;
}

/* What is of no matter but for this: a block that is new may have an old one's name and length, at another address, which a QEMU
 * before 8.0 does not tell */
static void note_event(struct parent *p, const json_t *e)
{
    p->unplugged |= !strcmp(text_of(e, "event"), "DEVICE_DELETED");
}

static void take_events_until_now(struct parent *p)
{
    qmp_drain(p->q);
    for (json_t *e; (e = qmp_take_event(p->q)); json_decref(e))
        note_event(p, e);
}

int parent_get_ready(struct parent *p, struct ff_error *why)
{
    bool no_dump = true;

    take_events_until_now(p);
    p->unplugged = false;
    int rc = parent_look(p, why);

    if (!rc)
        rc = ask_dump(p, &no_dump, why);

    if (!rc)
        rc = ask_config(p, why);
    if (!rc)
        rc = outside_list(p->q, &p->blocks, &p->n_blocks, why);
    if (!rc)
        rc = outside_place(p->q, p->pid, p->blocks, p->n_blocks, why);
    if (!rc)
        rc = outside_check_whole(p->pid, p->blocks, p->n_blocks, why);
    return rc ? rc : freeze_new(p->pid, p->blocks, p->n_blocks, no_dump, &p->freeze, why);
}

/* --- the pause --- */

/* Another monitor may have let it run, or reset it, since its state was looked at last */
static int check_untouched(struct parent *p, struct ff_error *why)
{
    static const char *const changes[] = {"RESUME", "RESET", "DEVICE_DELETED"};
    char seen[32] = "";

    qmp_drain(p->q);
    for (json_t *e; (e = qmp_take_event(p->q)); json_decref(e))
        for (size_t i = 0; i < FF_ARRAY_LEN(changes); i++)
            if (!strcmp(text_of(e, "event"), changes[i]))
                snprintf(seen, sizeof(seen), "%s", changes[i]);
    return *seen ? ff_error_set(why, EBUSY, "QEMU: event %s while its state was saved, by another monitor: fork it again",
                                seen) : 0;
}

static int check_parent_blocks(struct parent *p, struct ff_error *why)
{
    FF_AUTO_FREE struct outside_block *now = NULL;
    unsigned n = 0;
    int rc = outside_list(p->q, &now, &n, why);
    bool same = n == p->n_blocks && !p->unplugged;

    for (unsigned i = 0; !rc && same && i < n; i++)
        same = !strcmp(now[i].name, p->blocks[i].name) && now[i].len_bytes == p->blocks[i].len_bytes &&
               (!now[i].hva || now[i].hva == p->blocks[i].hva);
    return rc || same ? rc : ff_error_set(why, EAGAIN, "QEMU: memory was plugged or unplugged in between: try again");
}

/* The command saves "running" of every guest: the children of one that stood still are to stand still */
static int say_paused(struct parent *p, struct ff_error *why)
{
    static const char name[] = RUN_STATE, running[] = "running", paused[RUN_STATE_BYTES] = "paused";
    const size_t head = sizeof(name) - 1 + RUN_STATE_BEFORE;
    uint8_t *at = memmem(p->state, p->state_len, name, sizeof(name) - 1);
    uint8_t *end = p->state + p->state_len;

    if (!at || (size_t)(end - at) < head + RUN_STATE_BYTES || memcmp(at + head, running, sizeof(running)) ||
        memmem(at + 1, (size_t)(end - at) - 1, name, sizeof(name) - 1))
        return ff_error_set(why, EPROTO, "QEMU: the state of its devices does not say whether its guest ran: let the guest "
                            "run (cont), and fork it then");
    memcpy(at + head, paused, sizeof(paused));
    at[head - 1] = (uint8_t)strlen("paused") + 1; /* of a number in 4 bytes */
    return 0;
}

static uint64_t parent_lap(uint64_t *since)
{
    const uint64_t before = *since;

    *since = ff_now_ns();
    return *since - before;
}

static int begin_hold(void *opaque, const struct stat *file, struct ff_error *why)
{
    struct parent *p = opaque;

    return freeze_hold_at(p->freeze, file, why);
}

static int await_hold(void *opaque, struct ff_error *why)
{
    struct parent *p = opaque;

    return freeze_await(p->freeze, HOLD_TURN_MS, why);
}

static int check_nested(const struct parent *p, struct ff_error *why)
{
    return !device_state_is_nested(p->state, p->state_len)
               ? 0 : ff_error_set(why, EAGAIN, "a CPU runs a guest of this guest (nested virtualization), for which KVM may write to "
                                  "memory of the image: try again, or end that guest");
}

/* libvirt's monitor does one command after the other, and says no events */
static int take_domain(struct parent *p, uint64_t *t, struct ff_error *why)
{
    int rc = device_state_save(p->q, false, &p->state, &p->state_len, why);

    p->times.state = parent_lap(t);
    if (!rc)
        rc = rested_await(p->q, p->pid, &p->rested, why);
    if (!rc)
        rc = freeze_hold(p->freeze, why);
    if (!rc)
        rc = check_nested(p, why);
    if (!rc) /* whoever lets it go on meanwhile, also one that stood still before */
        rc = rested_check(p->pid, &p->rested, why);
    if (!rc && ff_failpoint("attach.state"))
        rc = ff_error_set(why, EIO, "attach: injected");
    if (!rc)
        rc = freeze_take(p->freeze, why);
    freeze_go(p->freeze);
    p->times.fork = parent_lap(t);
    return rc;
}

/* From the moment at which the state is whole nobody's input changes it, or memory, until that is frozen */
static int take_all(struct parent *p, struct device_save *save, uint64_t *t, struct ff_error *why)
{
    const struct device_stop stop = {.begin = begin_hold, .await = await_hold, .opaque = p};
    int rc = device_state_save_held(p->q, &stop, save, &p->state, &p->state_len, why);

    p->times.state = parent_lap(t);
    if (!rc && ff_failpoint("attach.state"))
        rc = ff_error_set(why, EIO, "attach: injected");
    if (!rc)
        rc = check_untouched(p, why);
    if (!rc)
        rc = check_nested(p, why);
    if (!rc)
        rc = freeze_take(p->freeze, why);
    freeze_go(p->freeze);
    p->times.fork = parent_lap(t);
    const int answered = device_state_answered(save, rc ? NULL : why);
    return rc ? rc : answered;
}

/* Our `stop` had an effect, or somebody else's came first: then it is not ours to let the guest go on */
static int stop_parent(struct parent *p, struct ff_error *why)
{
    FF_AUTO_JSON json_t *now = NULL;
    bool went_on = false;
    int rc = p->domain ? qmp_command(p->q, "query-status", NULL, &now, why) : 0; /* libvirt passes no events on */
    bool stopped = json_is_true(json_object_get(now, "running"));

    if (!rc)
        rc = qmp_command(p->q, "stop", NULL, NULL, why);

    qmp_drain(p->q);
    for (json_t *e; (e = qmp_take_event(p->q)); json_decref(e)) {
        note_event(p, e);
        stopped |= !strcmp(text_of(e, "event"), "STOP");
        went_on |= stopped && !strcmp(text_of(e, "event"), "RESUME");
    }
    p->was_running &= rc || stopped;
    return rc || !went_on ? rc : ff_error_set(why, EBUSY, "QEMU: another monitor lets the guest go on: fork it again");
}

/* It is stopped */
static int freeze_all(struct parent *p, const json_t *actions, struct device_save *save, uint64_t *t, struct ff_error *why)
{
    int rc = check_parent_blocks(p, why);

    if (!rc && actions) /* what a device has begun is on the disk that is frozen */
        rc = settle_devices(p->q, SETTLE_MS, why);
    p->times.stop = parent_lap(t);
    if (!rc && actions)
        rc = qmp_command(p->q, "transaction", json_pack("{sO}", "actions", actions), NULL, why);
    p->times.actions = parent_lap(t);
    return rc ? rc : p->domain ? take_domain(p, t, why) : take_all(p, save, t, why);
}

/* Another monitor may have moved it away meanwhile: then it runs elsewhere */
static int let_parent_run(struct parent *p, struct ff_error *why)
{
    const uint64_t end = ff_now_ms() + ANSWER_LIMIT_MS;
    char status[32];
    bool running = false;
    int rc;

    /* a QEMU that waits for a disk answers later, and does what it was told before: `stop` */
    while ((rc = ask_status(p, status, &running, why)) == -ETIMEDOUT || rc == -ENODATA) {
        if (ff_now_ms() >= end)
            return rc;
        poll(NULL, 0, ASK_AGAIN_MS);
    }
    if (rc || running)
        return rc;
    if (strcmp(status, "paused") && strcmp(status, "prelaunch"))
        return ff_error_set(why, EBUSY, "it is %s (permitted: paused): another monitor has changed that", status);
    return qmp_command(p->q, "cont", NULL, NULL, why);
}

/* As it was before; @rc of the export */
static int go_on(struct parent *p, int rc, struct ff_error *why)
{
    struct ff_error again = {0};
    int back = p->was_running && (rc || !p->template) ? let_parent_run(p, &again) : 0;

    if (!back)
        return rc;
    return rc ? ff_error_context(why, "the guest stands still, and `cont` failed: %s", again.text)
              : ff_error_set(why, again.code, "the guest stands still: `cont` failed: %s", again.text);
}

int parent_pause(struct parent *p, const json_t *actions, struct ff_error *why)
{
    take_events_until_now(p);
    const uint64_t start = ff_now_ns();
    uint64_t t = start;
    struct device_save save = {0};
    int rc = p->domain ? rested_find(p->q, &p->rested, why) : 0;
    if (!rc && p->was_running)
        rc = stop_parent(p, why);
    if (!rc)
        rc = freeze_all(p, actions, &save, &t, why);
    rc = go_on(p, rc, why);
    p->times.pause = ff_now_ns() - start;
    device_state_over(&save);
    if (!rc && !p->was_running)
        rc = say_paused(p, why);
    if (!rc) /* what another monitor had begun since parent_look(): that takes 3 ms, in which the guest runs already */
        rc = movable_check(p->q, why);
    return rc ? rc : freeze_tidy(p->freeze, why);
}
