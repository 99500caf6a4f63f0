/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_attach.c - a move by attaching: a process beside each QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      farfork move ... process here ==== link ==== process there ... agent
 *                                 | QMP, its memory         | QMP, its memory
 *                               QEMU here                 QEMU there
 *
 *              Each process is farfork attach, and answers QMP as a QEMU with the transport does:
 *              object-add of the key, migrate, migrate-incoming, query-migrate. What it does not know
 *              it passes on. So all else of a move is the same, with that process in a QEMU's place.
 *              A QEMU serves one QMP client at a time: that process.
 * Ownership    the one there is a child of the agent. The one here is in a session of its own. It outlives
 *              this program, as the QEMU here does, once the guest is sent; its folder in the run directory
 *              goes with it.
 * Failure      one that ends leaves the socket of its QEMU to whoever asks next.
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
#include "promote.h"
#include "rundir.h"

#define HERE "source" /* its folder: BASE/ID/HERE */
#define LOOK_MS 5
#define POLL_MS 100
#define CONNECT_LIMIT_MS 5000
#define END_LIMIT_MS 10000
#define CONT_AGAIN_MS 10000 /* the QEMU there may still have the locks of its images */

int move_attach_there(struct move *m, struct ff_error *why)
{
    struct host *h = move_host(m);
    struct vm *side = move_side(m);

    (void)why;
    side->qmp = xprintf("%s/2.qmp", h->rundir);
    side->log = xprintf("%s/2.log", h->rundir);
    json_t *argv = json_pack("[sssssssss]", m->s.o.agent, "attach", "--destination", "--qmp",
                             move_child(m)->qmp, "--monitor", side->qmp, "--connect", "");
    json_array_set_new(argv, 8, json_sprintf("unix:%s/2.stream", h->rundir));
    if (!m->s.o.unconfined && !m->s.o.qemu) { /* its filter refuses ptrace(2) */
        json_array_append_new(argv, json_string("--watcher"));
        json_array_append_new(argv, json_sprintf("%s/watcher", h->rundir));
    }
    if (m->return_of) {
        json_array_append_new(argv, json_string("--return"));
        json_array_append_new(argv, json_string(m->return_of));
    }
    if (m->promote) {
        json_array_append_new(argv, json_string("--image"));
        json_array_append_new(argv, json_string(m->promote->image));
        json_array_append_new(argv, json_string("--replaces"));
        json_array_append_new(argv, json_sprintf("%d:%llu:%s", (int)m->promote->parent_pid,
                                                 (unsigned long long)m->promote->parent_start, m->promote->parent_qmp));
        if (m->promote->view) {
            json_array_append_new(argv, json_string("--view"));
            json_array_append_new(argv, json_sprintf("%d:%llu", (int)m->promote->view, (unsigned long long)m->promote->view_start));
        }
    }
    host_send(h, json_pack("{s{si so ss ss sb}}", "spawn", "number", 2, "argv", argv, "log",
                           side->log, "qmp", side->qmp, "side", true));
    side->state = VM_SPAWNED;
    return 0;
}

/* --- the one here --- */

static int start_here(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *base = m->s.o.rundir ? xstrdup(m->s.o.rundir) : rundir_base();
    FF_AUTO_FREE char *log = NULL;
    char self[PATH_MAX] = "";
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (len < 0)
        return ff_error_set(why, errno, "/proc/self/exe: %s", strerror(errno));
    int rc = rundir_make(base, m->s.o.id, HERE, &m->side_dir, why);
    if (rc)
        return rc;
    log = xprintf("%s/log", m->side_dir);
    m->side_qmp = xprintf("%s/qmp", m->side_dir);
    struct strv argv = {0};
    for (char **word = (char *[]){self, "attach", "--source", "--qmp", (char *)m->s.o.parent_path,
                                  "--monitor", m->side_qmp, "--rundir", m->side_dir, NULL}; *word; word++)
        strv_add(&argv, "%s", *word);
    if (m->keep_source || m->starter)
        strv_add(&argv, "--keep");
    if (m->promote) {
        strv_add(&argv, "--image");
        strv_add(&argv, "%s", m->promote->image);
    }
    const struct ff_process p = {.argv = argv.v, .log = log, .bound = true}; /* wait_told() */
    int status_fd = -1;
    rc = ff_process_exec(&p, &m->side_pid, &status_fd, why);
    strv_free(&argv);
    if (rc)
        return rc;
    close(status_fd); /* a program that does not run ends, which is seen */
    return 0;
}

/* Its last words */
static int say_last_words(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *log = xprintf("%s/log", m->side_dir);
    char line[512] = "", last[512] = "no message";
    FILE *f = fopen(log, "re");

    while (f && fgets(line, sizeof(line), f))
        snprintf(last, sizeof(last), "%.*s", (int)strcspn(line, "\n"), line);
    if (f)
        fclose(f);
    return ff_error_set(why, ECHILD, "the process beside the QEMU here ended: %s", last);
}

static int connect_side(struct move *m, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + m->s.o.timeout_s * 1000ull;
    int rc = -ENOENT;

    while (rc == -ENOENT || rc == -ECONNREFUSED) {
        if (waitpid(m->side_pid, NULL, WNOHANG) == m->side_pid) {
            m->side_pid = 0;
            return say_last_words(m, why);
        }
        rc = qmp_connect(m->side_qmp, m->s.signals, CONNECT_LIMIT_MS, &m->s.qmp, why);
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

/* One that was killed: a QEMU that answers has not let go of its guest, or the kernel would have ended it too. One that is
 * kept afterwards answers nobody */
static void give_back(struct move *m)
{
    uint64_t end = ff_now_ms() + CONT_AGAIN_MS;
    struct ff_error ignored; /* what it says next of its guest counts */

    if (!m->was_running || m->switched || !m->s.qmp)
        return;
    qmp_limit(m->s.qmp, CONT_AGAIN_MS);
    while (qmp_command(m->s.qmp, "cont", NULL, NULL, &ignored) == -EREMOTEIO && ff_now_ms() < end)
        poll(NULL, 0, POLL_MS);
}

bool move_attach_has_ended(struct move *m, struct ff_error *why)
{
    int status = 0;

    if (m->side_pid > 0 && waitpid(m->side_pid, &status, WNOHANG) != m->side_pid)
        return false;
    m->side_pid = 0;
    say_last_words(m, why);
    rundir_remove(m->side_dir);
    connect_parent(m);
    m->s.parent_gone = !m->s.qmp; /* the kernel is asked */
    if (WIFSIGNALED(status))
        give_back(m);
    return true;
}

int move_attach_here(struct move *m, struct ff_error *why)
{
    qmp_free(m->s.qmp); /* that process's turn */
    m->s.qmp = NULL;
    int rc = start_here(m, why);
    if (!rc)
        rc = connect_side(m, why);
    if (rc && !m->s.qmp)
        connect_parent(m);
    return rc;
}

void move_attach_over(struct move *m)
{
    uint64_t end = ff_now_ms() + END_LIMIT_MS;

    if (m->side_pid <= 0)
        return;
    if (m->outcome == MOVE_LOST || m->outcome == MOVE_ENDED) { /* nobody needs its memory */
        kill(m->side_pid, SIGKILL);
        rundir_remove(m->side_dir);
    }
    while (waitpid(m->side_pid, NULL, WNOHANG) == 0 && ff_now_ms() < end)
        poll(NULL, 0, LOOK_MS);
    m->side_pid = 0;
    connect_parent(m);
}

/* "guest running, migration completed" */
static char *side_says(const json_t *status, const json_t *info)
{
    return xprintf("guest %s, migration %s", text_of(status, "status"),
                   *text_of(info, "status") ? text_of(info, "status") : "none");
}

void move_attach_say_sides(struct move *m)
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
    if (m->visit && m->side_pid > 0)
        session_note(&m->s, "process %d holds the QEMU here (pid %d), whose memory a guest that visits needs: leave both until that "
                     "guest is home, or was left where it is for good", (int)m->side_pid, (int)m->s.parent_pid);
    else if (m->outcome == MOVE_UNCLEAR && m->side_pid > 0 && !m->back.go)
        session_note(&m->s, "process %d holds the QEMU here (pid %d), whatever that is told: end that QEMU by SIGKILL; or where you "
                     "know that the guest never ran there, SIGTERM to process %d, SIGCONT to that QEMU, and cont",
                     (int)m->side_pid, (int)m->s.parent_pid, (int)m->side_pid);
    if (m->back.go && m->outcome == MOVE_UNCLEAR && m->side_pid > 0)
        session_note(&m->s, "the process beside the QEMU here (pid %d) answers x-rdma-postcopy-take-back, at %s", (int)m->side_pid,
                     m->side_qmp);
}

void move_attach_drop(struct move *m)
{
    if (m->side_pid <= 0)
        return;
    kill(m->side_pid, SIGTERM); /* this program's child, and not reaped yet */
    move_attach_over(m);
}
