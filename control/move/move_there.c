/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_there.c - the guest's QEMU on the other host, by an agent: started, asked, let go
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      spawn -> -incoming defer -> the key, migrate-incoming, which listens at a port of
 *              its own and has the key then; the key's object is deleted
 *              keep                     -> from here on the agent ends nothing
 *              adopt                    -> the agent owns the overlays of a guest that is a child
 *              query-status             -> it runs, as it was at the source
 *              detach                   -> the agent stays until the guest ends
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "command_line.h"
#include "identity.h"
#include "move.h"
#include "promote.h"
#include "qmp_secret.h"
#include "visit.h"

#define END_LIMIT_MS 12000 /* the agent ends its child first */

/* --- its command line --- */

/* *@files: what its QEMU reads when it starts; to be released */
static int make_argv(struct move *m, const char *rundir, struct strv *out, json_t **files,
                     struct ff_error *why)
{
    FF_AUTO_JSON json_t *words = strv_json(m->argv.v);
    const char *genid = *m->genid ? m->genid : NULL;
    struct strv own = {0};

    *files = identity_move_argv(words, genid, rundir);
    strv_add_json(&own, words);
    const char *config = text_of(json_array_get(*files, 0), "path");
    const bool beside = move_host(m)->here && !m->return_of; /* the one that a guest returns to has let go of its sockets */
    const struct vm_spec s = {.id = m->s.o.id, .number = 1, .total = 1, .qemu = m->s.parent_exe,
                                 .rundir = rundir, .here = beside, .net = NET_KEEP, .programs = m->s.o.unconfined && !m->no_programs,
                                 .takes_place = m->promote, .incoming = "defer", .tpm = m->tpm,
                                 .replaced = m->promote ? m->promote->parent_qmp : m->s.o.parent_path,
                                 .config = genid ? config : NULL};
    int rc = command_line_rewrite(own.v, &s, out, &m->s.notes, why);
    strv_free(&own);
    return rc;
}

/* What cannot be moved is refused before anything is started */
int move_check_argv(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *files = NULL;
    struct strv out = {0};
    int rc = make_argv(m, "/run", &out, &files, why);

    strv_free(&out);
    return rc;
}

/* Its QEMU may make the file of until-go somewhere else than where the agent looks: a program starts
 * it, it changes its user, or its root. The process beside it does not */
static bool has_other_files(const struct move *m)
{
    bool other = m->s.o.qemu;

    if (m->via == VIA_ATTACH)
        return false;
    for (size_t i = 0; i < m->argv.n && !other; i++) {
        const char *w = m->argv.v[i] + (m->argv.v[i][0] == '-' && m->argv.v[i][1] == '-');
        const char *value = !strcmp(w, "-run-with") && i + 1 < m->argv.n ? m->argv.v[i + 1] : "";
        other = !strcmp(w, "-runas") || !strcmp(w, "-chroot") || strstr(value, "user=") ||
                strstr(value, "chroot=");
    }
    return other;
}

static int spawn_there(struct move *m, struct ff_error *why)
{
    struct host *h = move_host(m);
    struct vm *k = move_child(m);
    FF_AUTO_JSON json_t *files = NULL;
    struct strv argv = {0};
    int rc = make_argv(m, h->rundir, &argv, &files, why);
    if (!rc && m->visit && m->visit->o.word)
        rc = visit_port_find(m, &argv, why);
    if (!rc && m->return_of)
        visit_port_find(m, &argv, NULL);
    if (!rc && m->visit) {
        strv_add(&argv, "-qmp");
        strv_add(&argv, "unix:%s/" VISIT_BACK_QMP ",server=on,wait=off", h->rundir);
    }
    json_t *words = strv_json(argv.v);

    strv_free(&argv);
    if (rc) {
        json_decref(words);
        return rc;
    }
    k->qmp = xprintf("%s/1.qmp", h->rundir);
    k->log = xprintf("%s/1.log", h->rundir);
    /* a program that starts QEMU may also end before it does, whoever makes the file: its end says nothing of a
     * guest. That it has shut itself down is said by a file that is there, wherever others are made */
    json_t *until_go = m->s.o.qemu || has_other_files(m) ? json_null() : json_sprintf("%s/" UNTIL_GO, h->lasting);
    json_t *o = json_pack("{si so ss ss sO so so}", "number", 1, "argv", words, "log", k->log,
                          "qmp", k->qmp, "private", files, "until_go", until_go, "shut_down_file",
                          json_sprintf("%s/" UNTIL_GO ".shut-down", h->lasting));
    json_object_set_new(o, "cwd", json_string(m->s.parent_cwd));
    json_object_set_new(o, "anywhere", json_boolean(m->s.anywhere));
    json_object_set_new(o, "taps", json_boolean(m->via == VIA_ATTACH));
    host_send(h, json_pack("{so}", "spawn", o));
    k->state = VM_SPAWNED;
    return 0;
}

/* --- the steps --- */

static int start_agent(struct move *m, struct ff_error *why)
{
    struct host *h = move_host(m);
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);
    int rc = host_resolve(h, why);

    m->s.launched = true;
    h->keyed = true;
    if (!rc)
        rc = host_launch(&m->s, h, why);
    while (!rc && h->state == HOST_STARTING) {
        rc = move_check_wait(m, end, "the agent there", why);
        if (!rc)
            session_turn(&m->s, MOVE_TURN_MS);
    }
    if (!rc)
        rc = move_check_there(m, why);
    m->listening_ms = ff_now_exact_ms();
    return rc;
}

static int ask_to_listen(struct move *m, struct ff_error *why)
{
    const struct host *h = move_host(m);
    FF_AUTO_FREE char *options = session_link_options(&m->s, h);
    FF_AUTO_FREE char *visit = visit_options_there(m);
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:0%s%s", h->address, options, visit);
    FF_AUTO_FREE char *marked = xprintf("%s,until-go=%s/" UNTIL_GO, uri, h->lasting);
    int rc = move_ask(m, "migrate-incoming", json_pack("{ss}", "uri", marked), NULL, why);

    if (rc == -EREMOTEIO && has_other_files(m)) { /* whatever it was: without that file it is refused again */
        FF_AUTO_FREE char *refused = xstrdup(why->text);
        rc = move_ask(m, "migrate-incoming", json_pack("{ss}", "uri", uri), NULL, why);
        if (!rc)
            session_note(&m->s, "if the QEMU there is killed at the switch, nobody can tell whether the "
                                "guest ran: %s", refused);
    }
    return rc ? rc : move_ask(m, "object-del", json_pack("{ss}", "id", KEY_SECRET), NULL, why);
}

static int find_port(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *info = NULL;
    int rc = move_ask(m, "query-migrate", NULL, &info, why);
    const json_t *first = json_array_get(json_object_get(info, "socket-address"), 0);
    const char *port = json_string_value(json_object_get(first, "port"));

    if (rc)
        return rc;
    m->port = port ? (unsigned)strtoul(port, NULL, 10) : 0;
    return m->port ? 0
                   : ff_error_set(
                         why, ENOTSUP,
                         "its QEMU on %s does not show the port where it listens: it is older than "
                         "this program",
                         move_host(m)->node->host);
}

/* From here on the agent does not end it, whatever becomes of this program */
static int keep_there(struct move *m, struct ff_error *why)
{
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{sb}", "keep", true));
    return move_wait_answer(m, "keep", "the agent there", why);
}

/* Until it has its monitor */
static int wait_qemu(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = move_ask_first(m, 1, "query-commands", &list, why);

    if (!rc && m->via == VIA_TRANSPORT && !json_find(list, "name", PATCHED_COMMAND))
        rc = ff_error_set(why, ENOTSUP, "--via transport: the QEMU on %s has no rdma-postcopy: name Farfork's by "
                                        "--qemu, or leave --via out", move_host(m)->node->host);
    return rc;
}

int move_start(struct move *m, struct ff_error *why)
{
    int rc = start_agent(m, why);

    if (!rc)
        rc = move_check_files(m, why);
    if (!rc)
        rc = move_fallback_make(m, why);
    if (!rc)
        rc = spawn_there(m, why);
    if (!rc)
        rc = wait_qemu(m, why);
    if (!rc)
        rc = move_check_same(m, why);
    if (!rc && m->via == VIA_ATTACH)
        rc = move_attach_there(m, why);
    if (!rc)
        rc = move_ask_first(m, m->via == VIA_ATTACH ? 2 : 1, NULL, NULL, why);
    if (!rc)
        rc = ask_to_listen(m, why);
    if (!rc)
        rc = find_port(m, why);
    if (!rc)
        rc = keep_there(m, why);
    m->ready_ms = ff_now_exact_ms();
    return rc;
}

/* It is written down there first: in both records, or in neither of them, no overlay is lost. One
 * that cannot be read is not handed over */
bool move_hand_over(struct move *m, struct ff_error *why)
{
    struct strv files = {0};
    json_t *list = json_array();

    int rc = m->owner.dir ? overlay_records_read(m->owner.dir, m->owner.number, &files, why) : 0;
    for (size_t i = 0; i < files.n; i++)
        json_array_append_new(list, json_string(files.v[i]));
    if (!rc && files.n) {
        move_forget_answer(m);
        host_send(move_host(m), json_pack("{s{si so}}", "adopt", "child", 1, "files",
                                          json_incref(list)));
        rc = move_wait_answer(m, "adopt", "the agent there", why);
        const char *error = rc ? "" : text_of(m->s.answer, "error");
        if (*error)
            rc = ff_error_set(why, EREMOTEIO, "the agent on %s: %s", move_host(m)->node->host,
                              error);
        if (!rc)
            overlay_records_forget(m->owner.dir, m->owner.number);
    }
    if (!rc)
        overlay_records_owner_free(&m->owner);
    json_decref(list);
    strv_free(&files);
    return !rc;
}

/* The guest is here, or nowhere: nothing of it stays there. Else the agent looks after it alone */
void move_let_go(struct move *m)
{
    struct host *h = m->s.hosts;
    uint64_t end = ff_now_ms() + END_LIMIT_MS;

    if (!m->s.launched)
        return;
    h->let_go = true;
    h->ending = !h->rundir || !m->sent || m->outcome == MOVE_HERE || m->end_there;
    if (!h->rundir) {
        host_close(h, 0); /* it never got so far as to listen */
    } else if (h->ending) {
        host_send(h, json_pack("{sb}", "end", true));
    } else if (m->outcome == MOVE_THERE) {
        host_send(h, json_pack("{sb}", "detach", true));
    } else if (h->run.in >= 0) { /* it keeps what is there, and does not call it complete */
        host_close_input(h);
    }
    while (h->run.out >= 0 && ff_now_ms() < end)
        session_turn(&m->s, MOVE_TURN_MS);
    host_close(h, 2000);
}
