/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * failpoint.c - named points at which a test can make things go wrong
 */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"

/* Every point in the library. The unit test compares this list with the sources. */
const char *const ff_failpoints[] = {
    "source.publish", "source.state",   "source.go",       "source.running",
    "source.precopy",    "source.lend",    "source.free",    "dest.precopy",
    "dest.accepted",  "dest.pager",     "dest.state",      "dest.ready",
    "dest.running",   "dest.fault",     "dest.install",    "dest.prefill",
    "tcp.serve.fault", "tcp.serve.prefill", "tcp.recv.short", "tcp.send.short", "tcp.tls.rekey",
    "tcp.seal.gcm",   "link.look_up",  "loop.read",      "control.send",   "child.loaded",
    "agent.say",      "dest.prefill.start", "dest.feed.look", "dest.beat",    "source.welcomed",
    "source.resume",  "dest.resume",    "source.gone",     "source.done",
    "dest.ear",       "dest.go",        "dest.run",        "uffd.poison",
    "source.record",  "source.fence",   "dest.lease",      "dest.withdrawn",
    "source.register",   "dest.mark",      "dest.unmark",    "dest.shut-down", "dest.sign",
    "evacuate.still",
    "visit.sent",     "visit.look",      "visit.home",
    "attach.state", "attach.room", "attach.replaced", "inject.mask", "freeze.copy", "relay.image", "relay.image.some",    "feed.pushed", "dest.feed.has",  "dest.feed.new", "attach.rest",
    "books.snapshot", "books.resume",
    "feed.full", "dest.around",
    "source.group.send", "dest.group.packet", "dest.undo",        "dest.forget",
};
const unsigned ff_failpoints_n = FF_ARRAY_LEN(ff_failpoints);

enum action { ACT_DELAY = 1, ACT_FAIL, ACT_KILL };

struct point {
    char name[32];
    enum action action;
    unsigned long arg, from, to; /* delay in us or errno; active for hits from..to */
    atomic_ulong hits;
};

static struct point points[16];
static unsigned n_points;
bool ff_failpoints_armed;

static bool is_known(const char *name)
{
    for (unsigned i = 0; i < ff_failpoints_n; i++)
        if (!strcmp(name, ff_failpoints[i]))
            return true;
    return false;
}

/* @text is a number and nothing else, at least @min */
static bool parse_count(const char *text, unsigned long min, unsigned long *out)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    *out = strtoul(text, &end, 10);
    return !*end && *out >= min;
}

static int parse_action(char *text, struct point *p, struct ff_error *err)
{
    char *colon = strchr(text, ':');
    const char *arg = colon ? colon + 1 : NULL;
    size_t len = colon ? (size_t)(colon - text) : strlen(text);

    if (len == 5 && !strncmp(text, "delay", len) && arg && parse_count(arg, 0, &p->arg)) {
        p->action = ACT_DELAY;
    } else if (len == 4 && !strncmp(text, "fail", len) && (!arg || parse_count(arg, 1, &p->arg))) {
        p->action = ACT_FAIL;
        p->arg = arg ? p->arg : EIO;
    } else if (!strcmp(text, "kill")) {
        p->action = ACT_KILL;
    } else {
        return ff_error_set(err, EINVAL,
                            "faults: action \"%s\": want delay:USEC, fail[:ERRNO] or kill", text);
    }
    return 0;
}

static int parse_one(char *text, struct point *p, struct ff_error *err)
{
    char *eq = strchr(text, '='), *at = strchr(text, '@');
    if (!eq || (at && at < eq))
        return ff_error_set(err, EINVAL, "faults: parse \"%s\": want NAME=ACTION[@N]", text);
    *eq++ = '\0';
    p->from = 1;
    p->to = (unsigned long)-1;
    if (at) {
        char *end;
        *at++ = '\0';
        p->from = strtoul(at, &end, 10);
        bool range = *end == '-' && parse_count(end + 1, p->from, &p->to);
        if (!isdigit((unsigned char)*at) || !p->from || (*end && !range && strcmp(end, "+")))
            return ff_error_set(err, EINVAL, "faults: parse count \"%s\": want N, N+ or N-M", at);
        if (!*end)
            p->to = p->from;
    }
    if (!is_known(text))
        return ff_error_set(err, EINVAL, "faults: no such point \"%s\"", text);
    snprintf(p->name, sizeof(p->name), "%s", text);
    return parse_action(eq, p, err);
}

int ff_failpoints_arm(const char *spec, struct ff_error *err)
{
    n_points = 0;
    ff_failpoints_armed = false;
    if (!spec)
        spec = getenv("FARFORK_FAILPOINTS");
    if (!spec || !*spec)
        return 0;

    FF_AUTO_FREE char *copy = strdup(spec);
    if (!copy)
        return ff_error_set(err, ENOMEM, "faults: out of memory");
    char *save = NULL;
    for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        if (n_points == FF_ARRAY_LEN(points))
            return ff_error_set(err, EINVAL, "faults: more than %zu points", FF_ARRAY_LEN(points));
        int rc = parse_one(t, &points[n_points], err);
        if (rc)
            return rc;
        atomic_store(&points[n_points++].hits, 0);
    }
    ff_failpoints_armed = n_points > 0;
    return 0;
}

int ff_failpoints_start(struct ff_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool done;
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!done && getenv("FARFORK_FAILPOINTS"))
        rc = ff_failpoints_arm(NULL, err);
    done = !rc;
    pthread_mutex_unlock(&lock);
    return rc;
}

unsigned long ff_failpoint_hits(const char *name)
{
    for (unsigned i = 0; i < n_points; i++)
        if (!strcmp(points[i].name, name))
            return atomic_load(&points[i].hits);
    return 0;
}

int ff_failpoint_hit(const char *name)
{
    int rc = 0;

    for (unsigned i = 0; i < n_points; i++) {
        struct point *p = &points[i];
        if (strcmp(p->name, name))
            continue;
        unsigned long n = atomic_fetch_add(&p->hits, 1) + 1;
        if (n < p->from || n > p->to)
            continue;
        if (p->action == ACT_DELAY)
            usleep((useconds_t)p->arg);
        else if (p->action == ACT_FAIL)
            rc = -(int)p->arg;
        else
            kill(getpid(), SIGKILL);
    }
    return rc;
}
