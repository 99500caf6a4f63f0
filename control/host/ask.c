/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ask.c - one command of farfork's on many hosts at once; see ask.h
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "ask.h"
#include "autojson.h"
#include "launcher.h"

void asked_prepare(void)
{
    struct rlimit l;

    if (!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

struct asked asked_new(json_t *entry)
{
    return (struct asked){.entry = entry, .run = SPAWN_NONE, .code = -1};
}

void asked_start(struct asked *a, char *const *words)
{
    const char *rundir = text_of(a->entry, "rundir");
    struct strv w = {0};

    strv_add(&w, "%s", text_of(a->entry, "agent"));
    for (; *words; words++)
        strv_add(&w, "%s", *words);
    strv_add(&w, "--json");
    if (*rundir) {
        strv_add(&w, "--rundir");
        strv_add(&w, "%s", rundir);
    }
    const char *launcher = text_of(a->entry, "launcher");
    FF_AUTO_FREE char *line = *launcher ? launcher_line(launcher, text_of(a->entry, "host"), w.v) : NULL;
    a->over = spawn_start(&a->run, w.v, line, &a->why) != 0;
    strv_free(&w);
}

static void read_reply(struct asked *a)
{
    char *line;
    int status;
    bool over = spawn_on_output(&a->run);

    while ((line = jsonl_next(&a->run.out_lines))) {
        free(a->line);
        a->line = xstrdup(line);
    }
    if (!over)
        return;
    if (spawn_ended(&a->run, SPAWN_ENDS_MS, &status) && WIFEXITED(status))
        a->code = WEXITSTATUS(status);
    a->over = true;
}

void asked_read(struct asked *a, size_t n, uint64_t limit_ms)
{
    struct pollfd *p = xcalloc(2 * n, sizeof(*p));
    uint64_t end = ff_now_ms() + limit_ms;

    for (;;) {
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            p[2 * i] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.out, .events = POLLIN};
            p[2 * i + 1] = (struct pollfd){.fd = a[i].over ? -1 : a[i].run.err, .events = POLLIN};
            left += !a[i].over;
        }
        uint64_t now = ff_now_ms();
        if (!left || (limit_ms && now >= end))
            break;
        poll(p, 2 * n, limit_ms ? (int)(end - now) : -1);
        for (size_t i = 0; i < n; i++)
            if (p[2 * i].revents || p[2 * i + 1].revents)
                read_reply(&a[i]);
    }
    for (size_t i = 0; i < n; i++) /* all of them at once, before each is waited for */
        if (!a[i].over && a[i].run.pid > 0)
            kill(-a[i].run.pid, SIGTERM);
    for (size_t i = 0; i < n; i++) {
        if (!a[i].over)
            ff_error_set(&a[i].why, 0, "no answer within %u s", (unsigned)(limit_ms / 1000));
        spawn_end(&a[i].run, 0);
    }
    free(p);
}

json_t *asked_answer(struct asked *a)
{
    json_t *said = a->line ? json_printable(json_loads(a->line, 0, NULL)) : NULL;

    if (said || a->code < 0)
        return said;
    if (!*a->why.text && !a->run.words)
        ff_error_set(&a->why, 0, "exit code %d, and no answer", a->code);
    return NULL;
}

char *asked_why(const struct asked *a)
{
    return *a->why.text ? xstrdup(a->why.text)
                        : xprintf("exit code %d: %s", a->code, a->run.words ? a->run.words : "no message");
}

void asked_free(struct asked *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        spawn_free(&a[i].run);
        json_decref(a[i].entry);
        json_decref(a[i].ours);
        free(a[i].line);
    }
    free(a);
}
