/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * command_host.c - the host that command_fuzz.c gives an agent: nothing on it is real
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an input names programs, files, sockets and processes. The linker (tests.mk) puts
 *              the __wrap_ functions here in the place of what would touch them, and they check
 *              what they are asked for.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "command_host.h"
#include "journal.h"
#include "process.h"

struct world w;

/* --- processes --- */

static struct kid *kid_of(pid_t pid)
{
    must(pid >= FIRST_PID && pid < FIRST_PID + (pid_t)w.n_kids);
    return &w.kid[pid - FIRST_PID];
}

void end_kid(struct kid *k, int status)
{
    if (k->ended)
        return;
    k->ended = true;
    k->status = status;
    ff_close_fd(&k->exec_status);
}

int __wrap_kill(pid_t pid, int sig);
int __wrap_kill(pid_t pid, int sig)
{
    if (!sig && pid == getpid()) /* whether it is there */
        return 0;
    struct kid *k = kid_of(pid < 0 ? -pid : pid);
    if (!sig && k->reaped) {
        errno = ESRCH;
        return -1;
    }
    must(!k->reaped);
    if (sig == SIGKILL)
        end_kid(k, SIGKILL);
    return 0;
}

int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int flags);
int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int flags)
{
    must(flags & WNOWAIT && flags & WNOHANG);
    info->si_pid = 0;
    if (type == P_PID && kid_of((pid_t)id)->ended) {
        must(!kid_of((pid_t)id)->reaped);
        info->si_pid = (pid_t)id;
    }
    return 0;
}

pid_t __wrap_waitpid(pid_t pid, int *status, int flags);
pid_t __wrap_waitpid(pid_t pid, int *status, int flags)
{
    struct kid *k = kid_of(pid);

    must(flags & WNOHANG && !k->reaped);
    if (!k->ended)
        return 0;
    k->reaped = true;
    *status = k->status;
    return pid;
}

int __wrap_ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd, struct ff_error *err);
int __wrap_ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd, struct ff_error *err)
{
    int fd[2];

    must(p->argv && p->argv[0] && p->log);
    for (char *const *const *b = p->before; b && *b; b++)
        must(**b != NULL);
    if (w.failing & NO_PROCESS || w.n_kids == KIDS)
        return ff_error_set(err, ENOENT, "%s: %s", p->argv[0], strerror(ENOENT));
    must(!pipe2(fd, O_CLOEXEC | O_NONBLOCK));
    w.kid[w.n_kids] = (struct kid){.exec_status = fd[1]};
    *exec_status_fd = fd[0];
    *pid = FIRST_PID + (pid_t)w.n_kids++;
    return 0;
}

/* --- files and sockets --- */

static bool is_fuzzed(const char *path)
{
    return !strncmp(path, FILES "/", strlen(FILES) + 1);
}

static void drop_secret(const char *path)
{
    for (unsigned i = 0; i < SECRETS; i++)
        if (w.secret[i] && !strcmp(w.secret[i], path)) {
            free(w.secret[i]);
            w.secret[i] = NULL;
        }
}

/* A file that is written has a secret in it, until it is written again or removed */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    static const char log[] = "qemu: \303\244 \1 it failed\n";

    if (!w.runs || !strcmp(path, "/dev/null"))
        return __real_open(path, flags, 0600);
    if (!is_fuzzed(path) || (flags & O_CREAT && w.failing & NO_ROOM)) {
        errno = ENOENT;
        return -1;
    }
    if (flags & O_WRONLY)
        drop_secret(path);
    for (unsigned i = 0; flags & O_CREAT && i < SECRETS; i++)
        if (!w.secret[i]) {
            w.secret[i] = xstrdup(path);
            break;
        }
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, log, sizeof(log) - 1) == sizeof(log) - 1);
    return fd;
}

int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    drop_secret(path);
    return 0;
}

int __wrap_access(const char *path, int how);
int __wrap_access(const char *path, int how)
{
    (void)how;
    return is_fuzzed(path) && strlen(path) % 2 ? 0 : -1;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    unsigned i = 0;
    int pair[2];

    must(to->sa_family == AF_UNIX && len == sizeof(struct sockaddr_un));
    while (i < FARS && w.far[i] >= 0)
        i++;
    if (!is_fuzzed(((const struct sockaddr_un *)(const void *)to)->sun_path) || i == FARS ||
        w.failing & NO_SOCKET) {
        errno = ENOENT;
        return -1;
    }
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    must(dup3(pair[0], fd, O_CLOEXEC) == fd);
    close(pair[0]);
    w.far[i] = pair[1];
    return 0;
}

/* --- in place of what the agent's parts do with files --- */

static void check_text(const json_t *o)
{
    FF_AUTO_FREE char *text = json_dumps(o, JSON_COMPACT);

    must(text && json_is_object(o) && !strstr(text, KEY_TEXT));
}

int __wrap_rundir_write_state(const char *dir, const json_t *state);
int __wrap_rundir_write_state(const char *dir, const json_t *state)
{
    must(dir != NULL);
    check_text(state);
    return w.failing & NO_ROOM ? -ENOSPC : 0;
}

int __wrap_rundir_reserve_state(const char *dir, size_t bytes, struct ff_error *why);
int __wrap_rundir_reserve_state(const char *dir, size_t bytes, struct ff_error *why)
{
    must(bytes > w.a.reserved);
    return w.failing & NO_ROOM ? ff_error_set(why, ENOSPC, "%s: full", dir) : 0;
}

int __wrap_preflight_check(const json_t *want, struct ff_error *why);
int __wrap_preflight_check(const json_t *want, struct ff_error *why)
{
    must(want && !w.a.detached && !w.a.ending);
    return w.failing & NO_CHECK ? ff_error_set(why, ENOSPC, "check: no room") : 0;
}

int __wrap_overlay_records_make(const char *dir, unsigned number, const json_t *files,
                                struct ff_error *why);
int __wrap_overlay_records_make(const char *dir, unsigned number, const json_t *files,
                                struct ff_error *why)
{
    (void)files;
    must(number >= 1 && (!w.a.detached || w.may_spawn--));
    for (unsigned i = 0; i < w.n_made; i++)
        must(w.made[i] != number);
    if (w.failing & NO_ROOM || w.n_made == FF_ARRAY_LEN(w.made))
        return ff_error_set(why, ENOSPC, "%s: no room", dir);
    w.made[w.n_made++] = number;
    return 0;
}

void __wrap_overlay_records_unmake(const char *dir, unsigned number);
void __wrap_overlay_records_unmake(const char *dir, unsigned number)
{
    (void)dir;
    must(w.n_made && w.made[w.n_made - 1] == number);
    w.n_made--;
}

int __wrap_overlay_records_add(const char *dir, unsigned number, const json_t *files,
                               struct ff_error *why);
int __wrap_overlay_records_add(const char *dir, unsigned number, const json_t *files,
                               struct ff_error *why)
{
    must(agent_vms_find(&w.a.vms, number) && !w.a.detached && !w.a.ending);
    return json_is_array(files) ? 0 : ff_error_set(why, EINVAL, "%s: want files", dir);
}

void __wrap_overlay_records_sweep(const char *base, const char *id, struct strv *kept);
void __wrap_overlay_records_sweep(const char *base, const char *id, struct strv *kept)
{
    (void)base, (void)id, (void)kept;
}

void __wrap_overlay_records_leave(const char *base, const char *dir, const json_t *state);
void __wrap_overlay_records_leave(const char *base, const char *dir, const json_t *state)
{
    (void)base, (void)dir;
    check_text(state);
    for (unsigned i = 0; i < w.n_kids; i++)
        must(w.kid[i].reaped);
}

bool __wrap_agent_set_weight(size_t sessions);
bool __wrap_agent_set_weight(size_t sessions)
{
    must(!sessions || !w.a.detached);
    return true;
}

/* This host's journal is not its own */
void __wrap_journal_send(const struct journal *j, int priority, const struct journal_about *about,
                         const char *fmt, ...);
void __wrap_journal_send(const struct journal *j, int priority, const struct journal_about *about,
                         const char *fmt, ...)
{
    must(j->fork && j->host && priority && about && fmt);
}

/* What it tells who started it */
int __real_jsonl_write_json(int fd, const json_t *value, int limit_ms);
int __wrap_jsonl_write_json(int fd, const json_t *value, int limit_ms);
int __wrap_jsonl_write_json(int fd, const json_t *value, int limit_ms)
{
    const char *name = json_string_value(json_object_get(value, "event"));
    json_t *child = json_object_get(value, "child");

    if (fd != STDOUT_FILENO)
        return __real_jsonl_write_json(fd, value, limit_ms);
    must(name && !w.said_end && !w.a.detached);
    check_text(value);
    w.said_end = !strcmp(name, "end");
    if (!strcmp(name, "error"))
        must(*json_string_value(json_object_get(value, "error")));
    if (!strcmp(name, "detached"))
        w.may_spawn = (unsigned)agent_waiting(&w.a);
    if (!strcmp(name, "child")) {
        json_int_t number = json_integer_value(child);
        const char *what = json_string_value(json_object_get(value, "what"));
        if (number < NUMBERS)
            must((w.ended_told[number] += !strcmp(what, "ended")) <= 1);
    }
    return w.failing & NO_READER ? -EPIPE : 0;
}

/* --- in place of the library --- */

void __wrap_ff_agent_together(struct ff_agent *a, unsigned n);
void __wrap_ff_agent_together(struct ff_agent *a, unsigned n)
{
    (void)n;
    must(a && !w.library_freed);
}

void __wrap_ff_agent_stats(struct ff_agent *a, struct ff_agent_stats *out);
void __wrap_ff_agent_stats(struct ff_agent *a, struct ff_agent_stats *out)
{
    must(a && !w.library_freed);
    *out = (struct ff_agent_stats){.children = w.n_kids, .bytes_lent = w.turns / 8};
}

void __wrap_ff_agent_session(struct ff_agent *a, char out[FF_SESSION_TEXT]);
void __wrap_ff_agent_session(struct ff_agent *a, char out[FF_SESSION_TEXT])
{
    must(a && !w.library_freed);
    strcpy(out, "00112233");
}

void __wrap_ff_agent_image_name(struct ff_agent *a, char out[FF_SESSION_TEXT]);
void __wrap_ff_agent_image_name(struct ff_agent *a, char out[FF_SESSION_TEXT])
{
    must(a && !w.library_freed);
    strcpy(out, w.turns % 2 ? "33221100" : "");
}

char *__wrap_ff_agent_working_set(struct ff_agent *a);
char *__wrap_ff_agent_working_set(struct ff_agent *a)
{
    (void)a;
    return w.turns % 2 ? strdup("pc.ram=0+1,7") : NULL;
}

void __wrap_ff_agent_free(struct ff_agent *a);
void __wrap_ff_agent_free(struct ff_agent *a)
{
    must(!w.library_freed);
    w.library_freed = a;
}
