/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_kids.c - the children that an agent starts and looks after
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "lines.h"
#include "rundir.h"

#define LAST_WORDS_BYTES 600

const char *kid_state_name(enum kid_state s)
{
    static const char *const names[] = {"preparing", "started", "attached", "running",
                                        "complete", "lost", "ended"};
    return names[s];
}

struct kid *kids_find(struct kids *k, unsigned number)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].number == number)
            return &k->v[i];
    return NULL;
}

size_t kids_alive(const struct kids *k)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++)
        n += k->v[i].state != KID_ENDED;
    return n;
}

size_t kids_starting(const struct kids *k)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++)
        n += k->v[i].state < KID_RUNNING;
    return n;
}

/* --- in the new process: only what may be called between fork() and exec() --- */

static void __attribute__((noreturn)) give_up(int fd, const char *what, const char *with, int code)
{
    const char *const parts[] = {what, " ", with, ": ", strerrordesc_np(code), "\n"};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i] && write(fd, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(127);
}

static void run_before(int fd, char **argv)
{
    int status;
    pid_t pid = fork();

    if (pid < 0)
        give_up(fd, "prepare: start", argv[0], errno);
    if (!pid) {
        execvp(argv[0], argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            give_up(fd, "prepare: wait for", argv[0], errno);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 127)
        give_up(fd, "prepare: run", argv[0], ENOENT);
    if (WEXITSTATUS(status))
        give_up(fd, "prepare: it failed, see its log:", argv[0], EIO);
}

struct start {
    char **argv, ***before; /* before: NULL at its end */
    const char *log, *cwd;
};

static void __attribute__((noreturn)) become(const struct start *s, int fd)
{
    sigset_t none;

    setpgid(0, 0);
    for (int i = 1; i < 32; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int in = open("/dev/null", O_RDONLY);
    int out = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (out < 0)
        give_up(fd, "log", s->log, errno);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        give_up(fd, "log", s->log, errno);
    if (s->cwd && chdir(s->cwd) < 0)
        give_up(fd, "a child runs in its parent's folder: enter", s->cwd, errno);
    for (char ***b = s->before; b && *b; b++)
        run_before(fd, *b);
    execvp(s->argv[0], s->argv);
    give_up(fd, "run", s->argv[0], errno);
}

/* --- in the agent --- */

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

static struct kid *new_kid(struct kids *k)
{
    struct kid *v = realloc(k->v, (k->n + 1) * sizeof(*v));

    if (!v)
        return NULL;
    k->v = v;
    v[k->n] = (struct kid){.trouble_fd = -1};
    return &v[k->n++];
}

static pid_t start_process(const struct start *s, int *trouble_fd)
{
    int p[2];

    if (pipe2(p, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (!pid)
        become(s, p[1]);
    close(p[1]);
    *trouble_fd = p[0];
    if (pid < 0)
        close(p[0]);
    return pid;
}

/* What is there is not the child's: it would be written over, and removed at its end. NULL: none */
static const char *file_there(const json_t *files)
{
    struct stat st;
    size_t i;
    json_t *f;

    json_array_foreach(files, i, f)
        if (json_is_string(f) && !lstat(json_string_value(f), &st))
            return json_string_value(f);
    return NULL;
}

int kids_spawn(struct kids *k, const json_t *o, struct kid **out, struct why *why)
{
    json_int_t number = json_integer_value(json_object_get(o, "number"));
    const char *qmp = json_string_value(json_object_get(o, "qmp"));
    char **argv = strings_of(json_object_get(o, "argv"));
    bool ok = true;
    char ***before = commands_of(json_object_get(o, "before"), &ok);
    struct start s = {.argv = argv, .before = before,
                      .log = json_string_value(json_object_get(o, "log")),
                      .cwd = json_string_value(json_object_get(o, "cwd"))};
    const char *there = file_there(json_object_get(o, "files"));
    int fd = -1, rc = 0;

    if (!argv || !s.log || !ok || number < 1 || number > UINT32_MAX)
        rc = refuse(why, EINVAL, "spawn: want number, argv, log");
    else if (kids_find(k, (unsigned)number))
        rc = refuse(why, EEXIST, "spawn: there is a child %d", (int)number);
    else if (there)
        rc = refuse(why, EEXIST, "spawn: create %s: the file exists; take another fork id, or "
                                 "remove it if nobody uses it", there);
    pid_t pid = rc ? 0 : start_process(&s, &fd);
    struct kid *kid = pid > 0 ? new_kid(k) : NULL;
    if (pid < 0)
        rc = refuse(why, errno, "spawn: start a process: %s", strerror(errno));
    if (kid) {
        setpgid(pid, pid); /* it does so too: whoever comes first */
        kid->number = (unsigned)number;
        kid->pid = pid;
        kid->start = process_start(pid);
        kid->trouble_fd = fd;
        kid->trouble = xcalloc(1, sizeof(*kid->trouble));
        kid->log = xstrdup(s.log);
        kid->qmp = qmp ? xstrdup(qmp) : NULL;
        kid->channel = channel_new(json_object_get(o, "channel"));
        size_t i;
        json_t *f;
        json_array_foreach(json_object_get(o, "files"), i, f)
            if (json_is_string(f))
                words_add(&kid->files, "%s", json_string_value(f));
        *out = kid;
    }
    for (char ***b = before; b && b < before + json_array_size(json_object_get(o, "before")); b++)
        free(*b);
    free(before);
    free(argv);
    return rc;
}

int kids_hear(struct kid *kid, struct why *why)
{
    int rc = lines_read(kid->trouble, kid->trouble_fd);
    char *line = lines_next(kid->trouble);

    if (!rc && !line && !kid->trouble->ended)
        return -EAGAIN;
    close(kid->trouble_fd);
    kid->trouble_fd = -1;
    if (line)
        return refuse(why, ECHILD, "%s", line);
    if (kid->state == KID_PREPARING)
        kid->state = KID_STARTED;
    return 0;
}

struct kid *kids_reap(struct kids *k, char **how, int *code)
{
    siginfo_t ended;
    int status;

    for (size_t i = 0; i < k->n; i++) {
        struct kid *kid = &k->v[i];
        ended.si_pid = 0;
        if (kid->state == KID_ENDED ||
            waitid(P_PID, (id_t)kid->pid, &ended, WEXITED | WNOHANG | WNOWAIT) || !ended.si_pid)
            continue;
        kid_kill(kid); /* what is left of its group, while the number is still its own */
        if (waitpid(kid->pid, &status, WNOHANG) != kid->pid)
            continue;
        *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        *how = WIFEXITED(status) ? xprintf("exit code %d", WEXITSTATUS(status))
                                 : xprintf("SIG%s", sigabbrev_np(WTERMSIG(status)));
        kid->state = KID_ENDED;
        for (size_t f = 0; f < kid->files.n; f++)
            unlink(kid->files.v[f]);
        return kid;
    }
    return NULL;
}

char *kid_last_words(const struct kid *kid)
{
    char text[LAST_WORDS_BYTES + 1];
    int fd = open(kid->log, O_RDONLY | O_CLOEXEC);

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

void kid_kill(const struct kid *kid)
{
    kill(-kid->pid, SIGKILL);
    kill(kid->pid, SIGKILL); /* it may not lead its group yet */
}

bool kids_end(struct kids *k, int limit_ms)
{
    uint64_t end = now_ms() + (uint64_t)limit_ms;

    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state != KID_ENDED)
            kid_kill(&k->v[i]);
    while (kids_alive(k)) {
        char *how = NULL;
        int code;
        if (kids_reap(k, &how, &code)) {
            free(how);
            continue;
        }
        if (now_ms() > end)
            return false;
        poll(NULL, 0, 5);
    }
    return true;
}

json_t *kids_state(const struct kids *k)
{
    json_t *a = json_array();

    for (size_t i = 0; i < k->n; i++) {
        const struct kid *c = &k->v[i];
        json_array_append_new(a, json_pack("{si si sI ss ss ss}", "number", (int)c->number, "pid",
                                           (int)c->pid, "start", (json_int_t)c->start, "state",
                                           kid_state_name(c->state), "log", c->log, "qmp",
                                           c->qmp ? c->qmp : ""));
    }
    return a;
}

void kids_free(struct kids *k)
{
    for (size_t i = 0; i < k->n; i++) {
        struct kid *c = &k->v[i];
        if (c->trouble_fd >= 0)
            close(c->trouble_fd);
        lines_free(c->trouble);
        free(c->trouble);
        free(c->log);
        free(c->qmp);
        words_free(&c->files);
        channel_free(c->channel);
    }
    free(k->v);
    *k = (struct kids){0};
}
