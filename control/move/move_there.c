/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_there.c - the guest's QEMU on the other host, by an agent: started, asked, let go
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "move.h"

#define TURN_MS 50
#define END_LIMIT_MS 12000 /* the agent ends its child first */

static int turns_limit(const struct move *m)
{
    return (int)m->o.timeout_s * 1000;
}

/* --- its command line --- */

static json_t *words_json(const struct words *w)
{
    json_t *a = json_array();

    for (size_t i = 0; i < w->n; i++)
        json_array_append_new(a, json_stringn_nocheck(w->v[i], strlen(w->v[i])));
    return a;
}

/* *@files: what its QEMU reads when it starts; to be released */
static int make_argv(struct move *m, const char *rundir, struct words *out, json_t **files,
                     struct why *why)
{
    AUTO_JSON json_t *words = words_json(&m->argv);
    const char *genid = *m->genid ? m->genid : NULL;
    struct words own = {0};
    size_t i;
    json_t *w;

    *files = identity_move_argv(words, genid, rundir);
    json_array_foreach(words, i, w)
        words_add(&own, "%s", json_string_value(w));
    const char *config = text_of(json_array_get(*files, 0), "path");
    const struct child_spec s = {.id = m->o.id, .number = 1, .total = 1, .qemu = m->c.parent_exe,
                                 .rundir = rundir, .here = move_host(m)->here, .net = NET_KEEP,
                                 .incoming = "defer", .replaced = m->o.parent_path,
                                 .config = genid ? config : NULL};
    int rc = clone_argv(own.v, &s, out, &m->c.notes, why);
    words_free(&own);
    return rc;
}

/* What cannot be moved is refused before anything is started */
int move_check_argv(struct move *m, struct why *why)
{
    AUTO_JSON json_t *files = NULL;
    struct words out = {0};
    int rc = make_argv(m, "/run", &out, &files, why);

    words_free(&out);
    return rc;
}

static int spawn(struct move *m, struct why *why)
{
    struct host *h = move_host(m);
    struct child *k = move_child(m);
    AUTO_JSON json_t *files = NULL;
    struct words argv = {0};
    int rc = make_argv(m, h->rundir, &argv, &files, why);
    json_t *words = words_json(&argv);

    words_free(&argv);
    if (rc) {
        json_decref(words);
        return rc;
    }
    k->qmp = xprintf("%s/1.qmp", h->rundir);
    k->log = xprintf("%s/1.log", h->rundir);
    json_t *o = json_pack("{si so ss ss sO}", "number", 1, "argv", words, "log", k->log, "qmp",
                          k->qmp, "private", files);
    if (m->c.parent_cwd)
        json_object_set_new(o, "cwd", json_string(m->c.parent_cwd));
    host_send(h, json_pack("{so}", "spawn", o));
    k->state = CHILD_SPAWNED;
    return 0;
}

/* --- waiting --- */

/* Neither the agent nor the QEMU there has ended. -EHOSTUNREACH, -ECHILD */
static int check_there(struct move *m, struct why *why)
{
    const struct host *h = move_host(m);
    const struct child *k = move_child(m);

    if (h->state == HOST_FAILED)
        return refuse(why, EHOSTUNREACH, "%s: %s", h->node->host, h->error);
    if (k->state == CHILD_FAILED)
        return refuse(why, ECHILD, "its QEMU on %s: %s", h->node->host, k->error);
    return 0;
}

/* Before `migrate` Ctrl-C ends every wait; from then on the source's state decides */
static int check_wait(struct move *m, uint64_t end_ms, const char *what, struct why *why)
{
    int rc = check_there(m, why);

    if (rc)
        return rc;
    if (m->c.interrupted && !m->sent)
        return refuse(why, ECANCELED, "interrupted");
    if (now_ms() > end_ms)
        return refuse(why, ETIMEDOUT, "%s: %s: no answer within %u s%s%s", move_host(m)->node->host,
                      what, m->o.timeout_s, move_host(m)->run.words ? ": " : "",
                      move_host(m)->run.words ? move_host(m)->run.words : "");
    return 0;
}

static int wait_answer(struct move *m, const char *event, const char *what, struct why *why)
{
    uint64_t end = now_ms() + (uint64_t)turns_limit(m);

    for (;;) {
        const char *name = json_string_value(json_object_get(m->c.answer, "event"));
        json_int_t id = json_integer_value(json_object_get(m->c.answer, "id"));
        if (name && !strcmp(name, event) && (strcmp(event, "qmp") || id == m->asked))
            return 0;
        int rc = check_wait(m, end, what, why);
        if (rc)
            return rc;
        clone_turn(&m->c, TURN_MS);
    }
}

static void forget_answer(struct move *m)
{
    json_decref(m->c.answer);
    m->c.answer = NULL;
}

int move_ask(struct move *m, const char *execute, json_t *arguments, json_t **result,
             struct why *why)
{
    json_t *q = json_pack("{si ss sI}", "child", 1, "execute", execute, "id", ++m->asked);

    if (arguments)
        json_object_set_new(q, "arguments", arguments);
    forget_answer(m);
    host_send(move_host(m), json_pack("{so}", "qmp", q));
    int rc = wait_answer(m, "qmp", execute, why);
    if (rc)
        return rc;
    const char *error = json_string_value(json_object_get(m->c.answer, "error"));
    if (error && (rc = check_there(m, why))) /* that it has ended says more */
        return rc;
    if (json_is_true(json_object_get(m->c.answer, "again")))
        return refuse(why, EAGAIN, "its QEMU on %s: %s", move_host(m)->node->host, error);
    if (error)
        return refuse(why, EREMOTEIO, "its QEMU on %s: %s", move_host(m)->node->host, error);
    if (result)
        *result = json_incref(json_object_get(m->c.answer, "return"));
    return 0;
}

/* --- the steps --- */

static int start_agent(struct move *m, struct why *why)
{
    struct host *h = move_host(m);
    uint64_t end = now_ms() + (uint64_t)turns_limit(m);
    int rc = host_resolve(h, why);

    m->c.launched = true;
    if (!rc)
        rc = host_launch(&m->c, h, why);
    while (!rc && h->state == HOST_STARTING) {
        rc = check_wait(m, end, "the agent there", why);
        if (!rc)
            clone_turn(&m->c, TURN_MS);
    }
    if (!rc)
        rc = check_there(m, why);
    m->listening_ms = now_exact_ms();
    return rc;
}

/* Its socket is there some time after its process is */
static int ask_to_listen(struct move *m, struct why *why)
{
    const struct host *h = move_host(m);
    AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:0%s%s", h->address,
                                  m->o.link_options ? "," : "",
                                  m->o.link_options ? m->o.link_options : "");
    uint64_t end = now_ms() + (uint64_t)turns_limit(m);
    int rc;

    while ((rc = move_ask(m, "migrate-incoming", json_pack("{ss}", "uri", uri), NULL, why)) ==
           -EAGAIN) {
        if (now_ms() > end)
            return refuse(why, ETIMEDOUT, "its QEMU on %s does not answer within %u s; see %s",
                          h->node->host, m->o.timeout_s, move_child(m)->log);
        clone_turn(&m->c, TURN_MS);
    }
    return rc;
}

static int find_port(struct move *m, struct why *why)
{
    AUTO_JSON json_t *info = NULL;
    int rc = move_ask(m, "query-migrate", NULL, &info, why);
    const json_t *first = json_array_get(json_object_get(info, "socket-address"), 0);
    const char *port = json_string_value(json_object_get(first, "port"));

    if (rc)
        return rc;
    m->port = port ? (unsigned)strtoul(port, NULL, 10) : 0;
    return m->port ? 0 : refuse(why, ENOTSUP, "its QEMU on %s does not say at which port it "
                                              "listens: it is older than this program",
                                move_host(m)->node->host);
}

/* From here on the agent does not end it, whatever becomes of this program */
static int keep(struct move *m, struct why *why)
{
    forget_answer(m);
    host_send(move_host(m), json_pack("{sb}", "keep", true));
    return wait_answer(m, "keep", "the agent there", why);
}

int move_start(struct move *m, struct why *why)
{
    int rc = start_agent(m, why);

    if (!rc)
        rc = spawn(m, why);
    if (!rc)
        rc = ask_to_listen(m, why);
    if (!rc)
        rc = find_port(m, why);
    if (!rc)
        rc = keep(m, why);
    m->ready_ms = now_exact_ms();
    return rc;
}

/* It is written down there first: in both records, or in neither of them, no overlay is lost. One that
 * cannot be read is not handed over */
bool move_hand_over(struct move *m, struct why *why)
{
    struct words files = {0};
    json_t *list = json_array();

    int rc = m->owner.dir ? overlays_read(m->owner.dir, m->owner.number, &files, why) : 0;
    for (size_t i = 0; i < files.n; i++)
        json_array_append_new(list, json_string(files.v[i]));
    if (!rc && files.n) {
        forget_answer(m);
        host_send(move_host(m), json_pack("{s{si so}}", "adopt", "child", 1, "files",
                                          json_incref(list)));
        rc = wait_answer(m, "adopt", "the agent there", why);
        const char *error = rc ? "" : text_of(m->c.answer, "error");
        if (*error)
            rc = refuse(why, EREMOTEIO, "the agent on %s: %s", move_host(m)->node->host, error);
        if (!rc)
            overlays_forget(m->owner.dir, m->owner.number);
    }
    if (!rc)
        overlays_owner_free(&m->owner);
    json_decref(list);
    words_free(&files);
    return !rc;
}

/* The guest is here: nothing of it stays there. Else the agent looks after it alone */
void move_let_go(struct move *m)
{
    struct host *h = m->c.hosts;
    uint64_t end = now_ms() + END_LIMIT_MS;

    if (!m->c.launched)
        return;
    h->let_go = true;
    if (!h->rundir) {
        host_close(h, 0); /* it never got so far as to listen */
    } else if (!m->sent || m->outcome == MOVE_HERE) {
        host_send(h, json_pack("{sb}", "end", true));
    } else if (m->outcome == MOVE_THERE) {
        host_send(h, json_pack("{sb}", "detach", true));
    } else if (h->run.in >= 0) { /* it keeps what is there, and does not call it complete */
        host_close_input(h);
    }
    while (h->run.out >= 0 && now_ms() < end)
        clone_turn(&m->c, TURN_MS);
    host_close(h, 2000);
}
