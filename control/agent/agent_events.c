/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_events.c - what an agent tells who started it, and the state file
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the agent's JSON lines on its stdout, and state.json, which says the same to
 *              `vmclone --list` after the agent has detached.
 * Limits       room for the state is reserved when the agent begins and with each spawn: a full
 *              folder must not keep the state of processes that run from being written.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent_state.h"
#include "autojson.h"
#include "overlay_records.h"
#include "reserve.h"
#include "rundir.h"

#define WRITE_LIMIT_MS 10000
#define STATE_CHILD_BYTES 1024 /* numbers, words and paths of sockets, some paths of files */
#define STATE_SPARE_BYTES 512  /* numbers and words that grow longer */

void agent_send(struct agent *a, json_t *event)
{
    agent_journal(a, event);
    if (!a->detached && jsonl_write_json(STDOUT_FILENO, event, WRITE_LIMIT_MS))
        a->input_ended = true; /* nobody reads */
    json_decref(event);
}

void agent_send_error(struct agent *a, unsigned child, const char *text)
{
    json_t *e = json_pack("{ss ss}", "event", "error", "error", text);

    if (child)
        json_object_set_new(e, "child", json_integer(child));
    agent_send(a, e);
}

void agent_end_by(struct agent *a, int signal)
{
    FF_AUTO_FREE char *why = xprintf("SIG%s ended the agent there", sigabbrev_np(signal));

    if (!a->ending)
        agent_send_error(a, 0, why);
    a->ending = true;
}

void agent_send_image(struct agent *a)
{
    char session[FF_SESSION_TEXT];

    ff_agent_session(a->ff, session);
    agent_send(a, json_pack("{ss ss}", "event", "image", "session", session));
}

json_t *agent_state(const struct agent *a)
{
    static const char *const names[] = {"waiting", "arriving", "complete", "lost", "none"};
    struct timespec t;
    char image_name[FF_SESSION_TEXT] = "";

    if (a->ff)
        ff_agent_image_name(a->ff, image_name);
    clock_gettime(CLOCK_REALTIME, &t);
    return json_pack("{ss ss ss ss ss si sI sI sb so}", "id", a->id, "node", a->node, "parent",
                     a->parent ? a->parent : "", "image",
                     a->paused && a->image == IMAGE ? "paused" : names[a->image], "image_name", image_name, "agent", (int)getpid(),
                     "start", (json_int_t)process_start_time(getpid()), "time",
                     (json_int_t)t.tv_sec, "detached", a->detached, "children",
                     agent_vms_state(&a->vms));
}

int agent_write_state(struct agent *a)
{
    FF_AUTO_JSON json_t *s = a->dir ? agent_state(a) : NULL;

    return s ? rundir_write_state(a->dir, s) : 0;
}

static size_t bytes_of(const json_t *o)
{
    return json_dumpb(o, NULL, 0, JSON_INDENT(1));
}

int agent_reserve_state(struct agent *a, unsigned n, const json_t *spawn, struct ff_error *why)
{
    FF_AUTO_JSON json_t *s = agent_state(a), *more = spawn ? json_copy((json_t *)spawn) : NULL;
    size_t bytes = bytes_of(s) + STATE_SPARE_BYTES + n * STATE_CHILD_BYTES;

    if (more) { /* its paths */
        json_object_del(more, "argv");
        json_object_del(more, "before");
        json_object_del(more, "channel");
        json_object_del(more, "private");
        bytes += bytes_of(more);
    }
    int rc = bytes > a->reserved ? rundir_reserve_state(a->dir, bytes, why) : 0;
    if (!rc && bytes > a->reserved)
        a->reserved = bytes;
    return rc;
}

void agent_leave(struct agent *a)
{
    FF_AUTO_JSON json_t *s = agent_state(a);

    overlay_records_leave(a->base, a->dir, s);
    reserve_drop(a->base, a->id, a->node);
}

void agent_send_child(struct agent *a, const struct agent_vm *vm, const char *what)
{
    agent_send(a, json_pack("{ss si ss si}", "event", "child", "child", (int)vm->number, "what",
                            what, "pid", (int)vm->pid));
    agent_write_state(a);
}

void agent_send_ended(struct agent *a, const struct agent_vm *vm)
{
    FF_AUTO_FREE char *words = vm->code ? agent_vm_last_words(vm) : xstrdup("");
    FF_AUTO_FREE char *mark = vm->never_ran ? rundir_mark(vm->until_go) : NULL;

    agent_send(a, json_pack("{ss si ss si ss si ss sb so ss}", "event", "child", "child",
                            (int)vm->number, "what", "ended", "pid", (int)vm->pid, "how", vm->how,
                            "code", vm->code, "log", words, "never_ran", vm->never_ran,
                            "shut_down",
                            vm->shut_down == LEFT_UNKNOWN ? json_null() : json_boolean(vm->shut_down == LEFT_YES),
                            "mark", mark ? mark : ""));
}

void agent_send_touched(struct agent *a)
{
    char *pages = a->ff ? ff_agent_working_set(a->ff) : NULL;

    if (pages)
        agent_send(a, json_pack("{ss ss}", "event", "touched", "pages", pages));
    free(pages);
}

void agent_send_progress(struct agent *a)
{
    struct ff_agent_stats s;

    if (!a->ff)
        return;
    ff_agent_stats(a->ff, &s);
    a->heard = s.children + s.children_ended;
    json_t *e = json_pack(
        "{ss sI sI sI sI sI sI ss sI sI sI sI sI sI sI si si}", "event", "progress", "total_bytes",
        (json_int_t)s.image.bytes_total, "present_bytes", (json_int_t)s.image.bytes_present,
        "lent_bytes", (json_int_t)s.bytes_lent, "fed_bytes", (json_int_t)s.bytes_fed,
        "same_bytes", (json_int_t)s.bytes_same,
        "multicast_bytes", (json_int_t)s.bytes_group, "no_multicast", s.no_group,
        "pages_by_fault", (json_int_t)s.image.faults,
        "fault_p50_us", (json_int_t)(s.image.fault_p50_ns / 1000), "fault_p99_us",
        (json_int_t)(s.image.fault_p99_ns / 1000), "fault_max_us",
        (json_int_t)(s.image.fault_max_ns / 1000),
        "child_faults", (json_int_t)s.child_faults, "child_faults_waited",
        (json_int_t)s.child_faults_waited, "child_faults_late", (json_int_t)s.child_faults_late,
        "children", (int)s.children, "children_running", (int)s.children_running);
    if (!json_equal(e, a->said)) { /* who waits counts on silence when nothing moves */
        json_decref(a->said);
        a->said = json_incref(e);
        agent_send(a, e);
    } else {
        json_decref(e);
    }
}
