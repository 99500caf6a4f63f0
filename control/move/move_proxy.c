/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_proxy.c - a move of a QEMU that has not the transport: a proxy on each side
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      farfork move ... proxy here ==== link ==== proxy there ... agent
 *                                 | QMP, stream             | QMP, stream
 *                               QEMU here                 QEMU there
 *
 *              Each proxy is farfork proxy, and answers QMP as a QEMU with the transport does:
 *              object-add of the key, migrate, migrate-incoming, query-migrate. What it does not know
 *              it passes on. So all else of a move is the same, with a proxy in a QEMU's place.
 *              A QEMU serves one QMP client at a time: its proxy.
 * Ownership    the proxy there is a child of the agent. The one here is a process in a session of
 *              its own. It outlives this program, as the QEMU here does, once the guest is sent; its
 *              folder in the run directory goes with it.
 * Failure      a proxy that ends leaves the socket of its QEMU to whoever asks next.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "move.h"
#include "outside.h"
#include "process.h"
#include "rundir.h"

#define HERE "source-proxy" /* its folder: BASE/ID/HERE */
#define STREAM "stream"         /* in that */
#define LOOK_MS 5
#define CONNECT_LIMIT_MS 5000
#define END_LIMIT_MS 10000
#define PATCHED_COMMAND "x-farfork-export"

int move_choose_via(struct move *m, struct ff_error *why)
{
    const char *host = move_host(m)->node->host;
    FF_AUTO_JSON json_t *list = NULL;

    int rc = move_ask_first(m, 1, "query-commands", &list, why);
    if (rc)
        return rc;
    bool there = json_find(list, "name", PATCHED_COMMAND);
    if (m->via == VIA_TRANSPORT && !there)
        return ff_error_set(why, ENOTSUP,
                            "--via transport: the QEMU on %s has no rdma-postcopy: name Farfork's "
                            "by --qemu, or use --via proxy", host);
    if (m->via == VIA_AUTO && !(m->patched && there))
        session_note(&m->s, "by proxies, since the QEMU %s%s%s has no rdma-postcopy",
                 m->patched ? "on " : "here", m->patched ? host : "",
                 m->patched || there ? "" : ", and the one there,");
    if (m->via == VIA_AUTO)
        m->via = m->patched && there ? VIA_TRANSPORT : VIA_PROXY;
    if (m->via == VIA_PROXY && m->back.go)
        return ff_error_set(why, ENOTSUP,
                            "--fallback go: a move by proxies cannot be taken back: it needs "
                            "Farfork's QEMU on both hosts");
    if (m->via == VIA_PROXY && !m->from_stream && !m->attach && outside_may(m->s.parent_pid, true, why) == -EPERM) {
        m->from_stream = true;
        session_note(&m->s, "memory by QEMU's own stream, which is slower: %s", why->text);
    }
    return 0;
}

int move_proxy_there(struct move *m, struct ff_error *why)
{
    struct host *h = move_host(m);
    struct vm *proxy = move_proxy(m);

    (void)why;
    proxy->qmp = xprintf("%s/2.qmp", h->rundir);
    proxy->log = xprintf("%s/2.log", h->rundir);
    json_t *argv = json_pack("[sssssssss]", m->s.o.agent, "proxy", "--destination", "--qmp",
                             move_child(m)->qmp, "--monitor", proxy->qmp, "--connect", "");
    json_array_set_new(argv, 8, json_sprintf("unix:%s/2.stream", h->rundir));
    if (m->untested)
        json_array_append_new(argv, json_string("--untested"));
    if (m->from_stream)
        json_array_append_new(argv, json_string("--from-stream"));
    if (m->attach) {
        json_array_append_new(argv, json_string("--attach"));
        if (!m->s.o.unconfined && !m->s.o.qemu) {
            json_array_append_new(argv, json_string("--watcher"));
            json_array_append_new(argv, json_sprintf("%s/watcher", h->rundir));
        }
    }
    host_send(h, json_pack("{s{si so ss ss sb}}", "spawn", "number", 2, "argv", argv, "log",
                           proxy->log, "qmp", proxy->qmp, "proxy", true));
    proxy->state = VM_SPAWNED;
    return 0;
}

/* --- the one here --- */

static int start_here(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *base = m->s.o.rundir ? xstrdup(m->s.o.rundir) : rundir_base();
    FF_AUTO_FREE char *log = NULL, *stream = NULL;
    char self[PATH_MAX] = "";
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (len < 0)
        return ff_error_set(why, errno, "/proc/self/exe: %s", strerror(errno));
    int rc = rundir_make(base, m->s.o.id, HERE, &m->proxy_dir, why);
    if (rc)
        return rc;
    log = xprintf("%s/log", m->proxy_dir);
    m->proxy_qmp = xprintf("%s/qmp", m->proxy_dir);
    stream = xprintf("unix:%s/" STREAM, m->proxy_dir);
    struct strv argv = {0};
    for (char **word = (char *[]){self, "proxy", "--source", "--qmp", (char *)m->s.o.parent_path,
                                  "--monitor", m->proxy_qmp, "--listen", stream, "--rundir",
                                  m->proxy_dir, NULL}; *word; word++)
        strv_add(&argv, "%s", *word);
    if (m->untested)
        strv_add(&argv, "--untested");
    if (m->from_stream)
        strv_add(&argv, "--from-stream");
    if (m->attach)
        strv_add(&argv, "--attach");
    if (m->attach && (m->keep_source || m->starter))
        strv_add(&argv, "--keep");
    const struct ff_process p = {.argv = argv.v, .log = log};
    int status_fd = -1;
    rc = ff_process_exec(&p, &m->proxy_pid, &status_fd, why);
    strv_free(&argv);
    if (rc)
        return rc;
    close(status_fd); /* a program that does not run ends, which is seen */
    return 0;
}

/* Its last words */
static int say_last_words(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *log = xprintf("%s/log", m->proxy_dir);
    char line[512] = "", last[512] = "no message";
    FILE *f = fopen(log, "re");

    while (f && fgets(line, sizeof(line), f))
        snprintf(last, sizeof(last), "%.*s", (int)strcspn(line, "\n"), line);
    if (f)
        fclose(f);
    return ff_error_set(why, ECHILD, "the proxy here ended: %s", last);
}

static int connect_proxy(struct move *m, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    int rc = -ENOENT;

    while (rc == -ENOENT || rc == -ECONNREFUSED) {
        if (waitpid(m->proxy_pid, NULL, WNOHANG) == m->proxy_pid) {
            m->proxy_pid = 0;
            return say_last_words(m, why);
        }
        rc = qmp_connect(m->proxy_qmp, m->s.signals, CONNECT_LIMIT_MS, &m->s.qmp, why);
        if (ff_now_ms() > end)
            return rc;
        if (rc)
            poll(NULL, 0, LOOK_MS);
    }
    return rc;
}

static void connect_parent(struct move *m)
{
    struct ff_error ignored; /* then it is not known where the guest is, and said so */

    qmp_free(m->s.qmp);
    m->s.qmp = NULL;
    m->s.parent_silent = false;
    qmp_connect(m->s.o.parent_path, -1, CONNECT_LIMIT_MS, &m->s.qmp, &ignored);
}

/* Of one that was killed before GO: it gets the guest back, with limits of its own, and then removes
 * the stream's socket. It is in the proxy's group */
static void await_keeper(const struct move *m)
{
    FF_AUTO_FREE char *stream = xprintf("%s/" STREAM, m->proxy_dir);

    while (!access(stream, F_OK) && !kill(-m->proxy_pid, 0))
        poll(NULL, 0, LOOK_MS);
}

/* One that attaches and was killed: a QEMU that is there has not let go of its guest, or the kernel would have
 * ended it too */
static void give_back(struct move *m)
{
    struct ff_error ignored;

    if (m->attach && m->was_running && !m->keep_source && !m->starter && m->s.qmp)
        qmp_command(m->s.qmp, "cont", NULL, NULL, &ignored);
}

bool move_proxy_has_ended(struct move *m, struct ff_error *why)
{
    int status = 0;

    if (m->proxy_pid > 0 && waitpid(m->proxy_pid, &status, WNOHANG) != m->proxy_pid)
        return false;
    await_keeper(m);
    m->proxy_pid = 0;
    say_last_words(m, why);
    rundir_remove(m->proxy_dir);
    connect_parent(m);
    if (WIFSIGNALED(status))
        give_back(m);
    return true;
}

int move_proxy_here(struct move *m, struct ff_error *why)
{
    qmp_free(m->s.qmp); /* the proxy's turn */
    m->s.qmp = NULL;
    int rc = start_here(m, why);
    if (!rc)
        rc = connect_proxy(m, why);
    if (rc && !m->s.qmp)
        connect_parent(m);
    return rc;
}

void move_proxy_over(struct move *m)
{
    uint64_t end = ff_now_ms() + END_LIMIT_MS;

    if (m->proxy_pid <= 0)
        return;
    if (m->outcome == MOVE_LOST || m->outcome == MOVE_ENDED) { /* nobody needs its memory */
        kill(m->proxy_pid, SIGKILL);
        rundir_remove(m->proxy_dir);
    }
    while (waitpid(m->proxy_pid, NULL, WNOHANG) == 0 && ff_now_ms() < end)
        poll(NULL, 0, LOOK_MS);
    m->proxy_pid = 0;
    connect_parent(m);
}

/* "guest running, migration completed" */
static char *side_says(const json_t *status, const json_t *info)
{
    return xprintf("guest %s, migration %s", text_of(status, "status"),
                   *text_of(info, "status") ? text_of(info, "status") : "none");
}

void move_proxy_say_sides(struct move *m)
{
    FF_AUTO_JSON json_t *status = NULL, *info = NULL, *status_there = NULL, *info_there = NULL;
    FF_AUTO_FREE char *here = NULL, *there = NULL;
    struct ff_error why = {0};

    if (m->s.qmp)
        qmp_limit(m->s.qmp, CONNECT_LIMIT_MS);
    if (process_look(m->s.parent_pid, m->s.parent_start) == PROCESS_GONE)
        here = xstrdup("its QEMU has ended");
    else if (!m->s.qmp || qmp_command(m->s.qmp, "query-status", NULL, &status, &why) ||
             qmp_command(m->s.qmp, "query-migrate", NULL, &info, &why))
        here = xprintf("its QEMU does not answer%s%s", *why.text ? ": " : "", why.text);
    else
        here = side_says(status, info);
    if (move_check_there(m, &why) || move_ask(m, "query-status", NULL, &status_there, &why) ||
        move_ask(m, "query-migrate", NULL, &info_there, &why))
        there = xstrdup(why.text);
    else
        there = side_says(status_there, info_there);
    session_note(&m->s, "here: %s; there: %s", here, there);
}

void move_proxy_drop(struct move *m)
{
    if (m->proxy_pid <= 0)
        return;
    kill(m->proxy_pid, SIGTERM); /* this program's child, and not reaped yet */
    move_proxy_over(m);
}
