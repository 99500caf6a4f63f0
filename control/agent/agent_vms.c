/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_vms.c - the children that an agent starts and looks after
 */
/**
 * DOC: Theory of Operation
 *
 * States       preparing   its disks' commands run
 *              started     its QEMU runs
 *              connected   it has asked for the image
 *              attached    it has the state, its memory is mapped
 *              running, complete
 *              lost        the image is lost, and it must end
 *              ended       reaped; its last lines of log go with the event
 * Ownership    each child is a process group, which the agent ends as a whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "agent_taps.h"
#include "jsonl.h"
#include "overlay_records.h"
#include "process.h"
#include "rundir.h"

#define LAST_WORDS_BYTES 600
#define WORD_LIMIT_MS 1000

const char *agent_vm_state_name(enum agent_vm_state s)
{
    static const char *const names[] = {"preparing", "started", "connected", "attached", "running",
                                        "complete", "lost", "ended"};
    return names[s];
}

struct agent_vm *agent_vms_find(struct agent_vms *k, json_int_t number)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].number == number)
            return &k->v[i];
    return NULL;
}

size_t agent_vms_alive(const struct agent_vms *k)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++)
        n += k->v[i].state != AGENT_VM_ENDED;
    return n;
}

size_t agent_vms_starting(const struct agent_vms *k)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++)
        n += k->v[i].state < AGENT_VM_RUNNING;
    return n;
}

/* The strings of an array, NULL at the end, borrowed; NULL: not such an array, or an empty one */
static char **strings_of(const json_t *a)
{
    size_t n = json_array_size(a);
    char **v = n ? xcalloc(n + 1, sizeof(*v)) : NULL;

    for (size_t i = 0; v && i < n; i++) {
        v[i] = (char *)json_string_value(json_array_get(a, i));
        if (!v[i]) {
            free(v);
            return NULL;
        }
    }
    return v;
}

static char ***commands_of(const json_t *a, bool *ok)
{
    size_t n = json_array_size(a);
    char ***v = n ? xcalloc(n + 1, sizeof(*v)) : NULL;

    for (size_t i = 0; i < n; i++)
        *ok &= (v[i] = strings_of(json_array_get(a, i))) != NULL;
    return v;
}

static struct agent_vm *new_agent_vm(struct agent_vms *k)
{
    struct agent_vm *v = realloc(k->v, (k->n + 1) * sizeof(*v));

    if (!v)
        return NULL;
    k->v = v;
    v[k->n] = (struct agent_vm){.exec_status_fd = -1};
    return &v[k->n++];
}

int agent_vms_spawn(struct agent_vms *k, const json_t *o, struct agent_vm **out,
                    struct ff_error *why)
{
    json_int_t number = json_integer_value(json_object_get(o, "number"));
    const char *qmp = json_string_value(json_object_get(o, "qmp"));
    const char *until_go = json_string_value(json_object_get(o, "until_go"));
    const char *down = json_string_value(json_object_get(o, "shut_down_file"));
    char **argv = strings_of(json_object_get(o, "argv"));
    bool ok = true;
    char ***before = commands_of(json_object_get(o, "before"), &ok);
    struct ff_process p = {.argv = argv, .before = (char *const *const *)before,
                           .log = json_string_value(json_object_get(o, "log")),
                           .cwd = json_string_value(json_object_get(o, "cwd"))};
    const json_t *files = json_object_get(o, "files");
    if (p.cwd && json_is_true(json_object_get(o, "anywhere")) && access(p.cwd, X_OK))
        p.cwd = "/";
    struct agent_taps taps = {0};
    int fd = -1, rc = 0;
    pid_t pid = 0;

    if (!argv || !p.log || !ok || number < 1 || number > INT_MAX)
        rc = ff_error_set(why, EINVAL, "spawn: want number, argv, log");
    else if (agent_vms_find(k, number))
        rc = ff_error_set(why, EEXIST, "spawn: there is a child %d", (int)number);
    else
        rc = overlay_records_make(k->dir, (unsigned)number, files, why);
    bool made = !rc;
    json_t *private = rc ? NULL : json_incref(json_object_get(o, "private"));
    if (!rc)
        rc = agent_private_write(private, why);
    if (!rc && json_is_true(json_object_get(o, "taps")) && !(rc = agent_taps_open(&taps, k->dir, argv, why))) {
        p.argv = taps.argv;
        p.kept = taps.fd;
    }
    if (!rc && (rc = ff_process_exec(&p, &pid, &fd, why)))
        ff_error_context(why, "spawn");
    if (rc && made)
        overlay_records_unmake(k->dir, (unsigned)number);
    struct agent_vm *vm = rc ? NULL : new_agent_vm(k);
    if (!vm)
        agent_private_remove(private);
    if (vm) {
        vm->number = (unsigned)number;
        vm->is_side = json_is_true(json_object_get(o, "side"));
        vm->by_term = json_is_true(json_object_get(o, "term"));
        vm->pid = pid;
        vm->begun_ms = ff_now_ms();
        vm->start = process_start_time(pid);
        vm->exec_status_fd = fd;
        vm->exec_status = xcalloc(1, sizeof(*vm->exec_status));
        vm->log = xstrdup(p.log);
        vm->qmp = qmp ? xstrdup(qmp) : NULL;
        vm->until_go = until_go ? xstrdup(until_go) : NULL;
        vm->shut_down_file = down ? xstrdup(down) : NULL;
        vm->private = private;
        vm->beside = json_incref(json_object_get(o, "beside"));
        vm->channel = agent_port_new(json_object_get(o, "channel"));
        *out = vm;
    }
    for (char ***b = before; b && b < before + json_array_size(json_object_get(o, "before")); b++)
        free(*b);
    free(before);
    free(argv);
    agent_taps_close(&taps);
    return rc;
}

int agent_vms_on_exec_status(struct agent_vm *vm, struct ff_error *why)
{
    int rc = jsonl_read(vm->exec_status, vm->exec_status_fd);
    char *line = jsonl_next(vm->exec_status);

    if (!rc && !line && !vm->exec_status->ended)
        return -EAGAIN;
    close(vm->exec_status_fd);
    vm->exec_status_fd = -1;
    if (line) {
        FF_AUTO_FREE char *log = agent_vm_last_words(vm); /* which goes with the run directory */
        const char *last = strrchr(log, '\n');
        return ff_error_set(why, ECHILD, "%s%s%s", line, *log ? ": " : "", last ? last + 1 : log);
    }
    if (vm->state == AGENT_VM_PREPARING)
        vm->state = AGENT_VM_STARTED;
    return 0;
}

static bool is_agent_vm(const struct agent_vms *k, pid_t pid)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].pid == pid && k->v[i].state != AGENT_VM_ENDED)
            return true;
    return false;
}

/* The watcher, if somebody has killed it */
static void reap_others(struct agent_vms *k)
{
    siginfo_t ended = {0};

    while (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid &&
           !is_agent_vm(k, ended.si_pid)) {
        waitpid(ended.si_pid, NULL, WNOHANG);
        ended.si_pid = 0;
    }
}

/* Who was to bring it a guest has ended, and nobody may run it: its source is to hear that it never did. Whether one
 * has not ended yet */
static bool end_never_run(const struct agent_vms *k)
{
    bool any = false;

    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state != AGENT_VM_ENDED && rundir_was_left(k->v[i].until_go) == LEFT_YES) {
            agent_vm_kill(&k->v[i]);
            any = true;
        }
    return any;
}

static bool has_exited(pid_t pid)
{
    siginfo_t is = {.si_pid = 0};

    return !waitid(P_PID, (id_t)pid, &is, WEXITED | WNOHANG | WNOWAIT) && is.si_pid;
}

/* It has ended in order, and a process beside it, which hears why from its monitor, may be about to write that down */
static bool awaits_word(const struct agent_vms *k, struct agent_vm *vm, const siginfo_t *ended)
{
    bool has_side = false;

    for (size_t i = 0; i < k->n; i++)
        has_side |= k->v[i].is_side && k->v[i].state != AGENT_VM_ENDED && !has_exited(k->v[i].pid);
    if (vm->is_side || !has_side || !vm->shut_down_file || ended->si_code != CLD_EXITED || ended->si_status ||
        rundir_was_left(vm->shut_down_file) != LEFT_NO)
        return false;
    if (!vm->word_ms)
        vm->word_ms = ff_now_ms() + WORD_LIMIT_MS;
    return ff_now_ms() < vm->word_ms;
}

bool agent_vms_reap(struct agent_vms *k)
{
    siginfo_t ended;
    bool any = false;
    int status;

    for (size_t i = 0; i < k->n; i++) {
        struct agent_vm *vm = &k->v[i];
        ended.si_pid = 0;
        if (vm->state == AGENT_VM_ENDED ||
            waitid(P_PID, (id_t)vm->pid, &ended, WEXITED | WNOHANG | WNOWAIT) || !ended.si_pid)
            continue;
        if (vm->is_side && end_never_run(k))
            continue; /* that is said first */
        if (awaits_word(k, vm, &ended))
            continue;
        agent_vm_kill(vm); /* what is left of its group, while the number is still its own */
        if (waitpid(vm->pid, &status, WNOHANG) != vm->pid)
            continue;
        vm->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        vm->how = WIFEXITED(status) ? xprintf("exit code %d", WEXITSTATUS(status))
                                     : xprintf("SIG%s", sigabbrev_np(WTERMSIG(status)));
        vm->state = AGENT_VM_ENDED;
        vm->never_ran = rundir_was_left(vm->until_go) == LEFT_YES;
        vm->shut_down = rundir_was_left(vm->shut_down_file);
        agent_private_remove(vm->private);
        vm->private = NULL;
        any = true;
    }
    reap_others(k);
    return any;
}

char *agent_vm_last_words(const struct agent_vm *vm)
{
    char text[LAST_WORDS_BYTES + 1];
    int fd = open(vm->log, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return xstrdup("");
    off_t size = lseek(fd, 0, SEEK_END);
    off_t from = size > LAST_WORDS_BYTES ? size - LAST_WORDS_BYTES : 0;
    ssize_t n = pread(fd, text, LAST_WORDS_BYTES, from);
    close(fd);
    if (n < 0)
        n = 0;
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    for (ssize_t i = 0; i < n; i++) /* it goes into JSON, which is UTF-8 */
        if ((unsigned char)text[i] < ' ' ? text[i] != '\n' : (unsigned char)text[i] > '~')
            text[i] = '?';
    text[n] = '\0';
    return xstrdup(text);
}

void agent_vm_kill(const struct agent_vm *vm)
{
    if (vm->by_term) {
        kill(vm->pid, SIGTERM);
        return;
    }
    kill(-vm->pid, SIGKILL);
    kill(vm->pid, SIGKILL); /* it may not lead its group yet */
}

bool agent_vms_end(struct agent_vms *k, int limit_ms)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;

    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state != AGENT_VM_ENDED)
            agent_vm_kill(&k->v[i]);
    while (agent_vms_alive(k)) {
        if (agent_vms_reap(k))
            continue;
        if (ff_now_ms() > end)
            return false;
        poll(NULL, 0, 5);
    }
    return true;
}

json_t *agent_vms_state(const struct agent_vms *k)
{
    json_t *a = json_array();

    for (size_t i = 0; i < k->n; i++) {
        const struct agent_vm *c = &k->v[i];
        if ((c->is_side || c->unused) && c->state == AGENT_VM_ENDED)
            continue; /* its work is done */
        json_array_append_new(a, json_pack("{si si sI ss ss ss ss ss}", "number", (int)c->number,
                                           "pid", (int)c->pid, "start", (json_int_t)c->start,
                                           "state", agent_vm_state_name(c->state), "log", c->log,
                                           "qmp", c->qmp ? c->qmp : "", "until_go",
                                           c->until_go ? c->until_go : "", "shut_down_file",
                                           c->shut_down_file ? c->shut_down_file : ""));
        if (c->by_term)
            json_object_set_new(json_array_get(a, json_array_size(a) - 1), "term", json_true());
    }
    return a;
}

void agent_vms_free(struct agent_vms *k)
{
    for (size_t i = 0; i < k->n; i++) {
        struct agent_vm *c = &k->v[i];
        if (c->exec_status_fd >= 0)
            close(c->exec_status_fd);
        jsonl_free(c->exec_status);
        free(c->exec_status);
        free(c->log);
        free(c->qmp);
        free(c->until_go);
        free(c->shut_down_file);
        free(c->how);
        json_decref(c->private);
        json_decref(c->beside);
        agent_port_free(c->channel);
    }
    free(k->v);
    *k = (struct agent_vms){0};
}
