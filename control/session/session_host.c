/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_host.c - an agent on a host: start it through the launcher, talk to it, end it
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      launcher, three pipes: commands in, events out, complaints
 *              One short command line is quoted for the launcher; all else, QEMU's command lines
 *              too, is text in JSON lines (farfork(1)), which needs no quoting.
 * Failure      the end of the launcher is the end of the agent, or of the way to it: the host has
 *              failed, with the last line of the complaints, unless it was let go.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "autojson.h"
#include "command_line.h"
#include "launcher.h"
#include "session.h"

int host_resolve(struct host *h, struct ff_error *why)
{
    FF_AUTO_FREE char *remedy = xprintf("%s=ADDRESS", h->node->host);
    const char *name = h->here && !h->node->address_given ? "127.0.0.1" : h->node->address;

    return host_numeric(name, remedy, &h->address, why);
}

unsigned host_vms(const struct session *s, const struct host *h)
{
    unsigned n = 0;

    for (size_t k = 0; k < s->n_vms; k++)
        n += &s->hosts[s->vms[k].host] == h;
    return n;
}

/* The command line of the agent */
static void agent_argv(const struct session *s, const struct host *h, struct strv *w)
{
    const struct session_options *o = &s->o;

    strv_add(w, "%s", o->agent);
    strv_add(w, "agent");
    s->kind->agent_options(s, h, w);
    if (h->keyed)
        strv_add(w, "--keyed");
    /* what runs there instead of QEMU is not known */
    if (s->o.qemu || s->o.unconfined)
        strv_add(w, "--unconfined");
    if (s->o.watcher)
        strv_add(w, "--watcher");
    if (h->stays)
        strv_add(w, "--stay");
    strv_add(w, "--children");
    strv_add(w, "%u", host_vms(s, h));
    strv_add(w, "--id");
    strv_add(w, "%s", o->id);
    strv_add(w, "--node");
    strv_add(w, "%s", h->name);
    strv_add(w, "--parent");
    strv_add(w, "%s", o->parent_path);
    if (o->rundir) {
        strv_add(w, "--rundir");
        strv_add(w, "%s", o->rundir);
    }
    if (o->scope) {
        strv_add(w, "--scope");
        strv_add(w, "%s", o->scope);
    }
    if (o->metrics_dir) {
        strv_add(w, "--metrics-dir");
        strv_add(w, "%s", o->metrics_dir);
    }
}

int host_launch(struct session *s, struct host *h, struct ff_error *why)
{
    struct strv w = {0};

    h->stays = !h->here && launcher_ends_all(s->o.launcher);
    agent_argv(s, h, &w);
    FF_AUTO_FREE char *line = h->here ? NULL : launcher_line(s->o.launcher, h->node->host, w.v);
    int rc = spawn_start(&h->run, w.v, line, why);
    strv_free(&w);
    return rc || !h->keyed ? rc : session_send_key(s, h, why);
}

void host_ping(struct host *h)
{
    h->ping_ms = ff_now_ms();
    h->pings++;
    host_send(h, json_pack("{sb}", "ping", true));
}

/* The launcher has ended, and with it the agent or the way to it */
static void host_ended(struct session *s, struct host *h)
{
    int status;
    bool known = spawn_ended(&h->run, SPAWN_ENDS_MS, &status);

    if (h->let_go)
        return;
    const char *words = h->run.words ? h->run.words : "no message";
    if (known && WIFEXITED(status))
        host_fail(s, h, "the agent there ended with exit code %d: %s", WEXITSTATUS(status), words);
    else
        host_fail(s, h, "the agent there ended: %s", words);
}

void host_on_output(struct session *s, struct host *h)
{
    char *line;

    if (h->run.out < 0) {
        spawn_on_output(&h->run);
        return;
    }
    bool over = spawn_on_output(&h->run);
    while ((line = jsonl_next(&h->run.out_lines))) {
        json_t *e = json_printable(json_loads(line, 0, NULL));
        if (e)
            session_on_agent_event(s, h, e);
        else if (*line) /* a login shell that greets, a launcher that complains */
            spawn_add_error(&h->run, line);
        json_decref(e);
    }
    if (over)
        host_ended(s, h);
}

void host_close_input(struct host *h)
{
    h->ends_input = true;
    host_flush(h, 0);
}

void host_close(struct host *h, int limit_ms)
{
    host_flush(h, limit_ms);
    if (h->stays && h->let_go && !h->ending) { /* to end the launcher would end what it keeps */
        spawn_leave(&h->run);
        return;
    }
    h->ended |= spawn_end(&h->run, limit_ms) && h->ending;
}
