/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_journal.c - an agent's events for the journal, and its scope
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what an agent tells who started it goes into this host's journal, too, and goes on
 *              doing so when it has detached. Its QEMUs have their logs in the run directory; the
 *              last lines of one that failed are in the line about its end.
 *              And where an agent is put before it starts anything: control/host/scope.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent_state.h"
#include "journal.h"

static void journal_note(const struct agent *a, int priority, const struct journal_about *about,
                         const char *text)
{
    const struct journal j = {.socket = JOURNAL_SOCKET, .fork = a->id, .host = a->node};

    if (about->child)
        journal_send(&j, priority, about, "%s on %s: child %u %s", a->id, a->node, about->child,
                     text);
    else
        journal_send(&j, priority, about, "%s on %s: %s", a->id, a->node, text);
}

static const char *event_word(const json_t *event, const char *key)
{
    const char *s = json_string_value(json_object_get(event, key));

    return s ? s : "";
}

void agent_journal(const struct agent *a, const json_t *event)
{
    static const struct {
        const char *event;
        int priority;
        const char *text;
    } said[] = {{"listening", JOURNAL_INFO, "an agent is here"},
                {"image", JOURNAL_INFO, "the device state is here"},
                {"complete", JOURNAL_INFO, "all memory is here"},
                {"keep", JOURNAL_INFO, "a guest may come"},
                {"paused", JOURNAL_WARNING, "the link is broken: "},
                {"resumed", JOURNAL_NOTICE, "there is a link again"},
                {"lost", JOURNAL_ERROR, "the image is lost: "},
                {"error", JOURNAL_ERROR, "failed: "},
                {"detached", JOURNAL_INFO, "the agent is alone"},
                {"end", JOURNAL_INFO, "the agent ends"}};
    const char *name = event_word(event, "event");
    struct journal_about about = {
        .event = name,
        .child = (unsigned)json_integer_value(json_object_get(event, "child")),
        .pid = (pid_t)json_integer_value(json_object_get(event, "pid"))};

    for (size_t i = 0; i < FF_ARRAY_LEN(said); i++)
        if (!strcmp(name, said[i].event)) {
            FF_AUTO_FREE char *text = xprintf("%s%s", said[i].text, event_word(event, "error"));
            journal_note(a, said[i].priority, &about, text);
        }
    if (strcmp(name, "child"))
        return;
    about.event = event_word(event, "what");
    const bool ended = !strcmp(about.event, "ended");
    const bool well = !json_integer_value(json_object_get(event, "code"));
    const char *log = event_word(event, "log");
    FF_AUTO_FREE char *text = xprintf("%s%s%s%s%s", about.event, ended ? ": " : "",
                                      event_word(event, "how"), *log ? ": " : "", log);
    journal_note(a, ended && !well ? JOURNAL_WARNING : JOURNAL_INFO, &about, text);
}

/* --- its scope --- */

int agent_take_scope(const struct agent *a, unsigned child, pid_t pid, struct ff_error *why)
{
    const struct journal_about about = {.event = "scope", .child = child};
    int rc = scope_take(a->id, a->node, child, pid, why);

    if (rc && rc != -ENOENT && rc != -EPERM)
        journal_note(a, JOURNAL_WARNING, &about, why->text);
    return rc;
}

int agent_begin_scope(const struct agent *a, struct ff_error *why)
{
    int rc = scope_stays(a->scope) ? 0 : agent_take_scope(a, 0, getpid(), why);

    if (!rc || a->scope == SCOPE_AUTO)
        return 0;
    return ff_error_context(why, "agent (--scope none does without it)");
}
