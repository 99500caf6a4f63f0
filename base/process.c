/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process.c - processes for programs: by exec, or forked off one that is as good as started
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      every program that is started is started here: one fork and exec, which says why
 *              the program does not run.
 *              Many children of one program: what a program does before it looks at its arguments
 *              (relocations, registration of types) is done once, in a fork server, and shared.
 *
 * Picture      agent                    server                  child
 *              words, a descriptor --> fork, and again      --> (waits)
 *                                  <-- the child's pid
 *              go ------------------ by the descriptor --------> group, log, folder, commands
 *                                  <-- the descriptor ends ----- its own main() goes on
 *              The process in the middle ends at once: the child is the agent's then, which is a
 *              subreaper, and waits for it as for any other.
 *
 * Invariants   1. A child that the agent has not heard of never runs: without its go it ends.
 *              2. A start that a server fails is not tried again by exec: the first one may still
 *                 start, and two copies would run. A program that is no server is found out before
 *                 the first child.
 *              3. In the server there is one thread that computes.
 *              4. The child's arguments are in the kernel too (PR_SET_MM_MAP): a fork of the
 *                 child is made from /proc/PID/cmdline.
 * Limits       children of one server have the layout of their addresses in common.
 *              WORDS_MAX bytes of arguments; the agent waits ANSWER_MS for the server.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "fd_pass.h"
#include "process.h"

#define WORDS_MAX (4u << 20)
#define ANSWER_MS 5000

/* --- in the new process: only what may be called between fork() and exec() --- */

static void __attribute__((noreturn)) say_all(int fd, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (parts[i] && write(fd, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(127);
}

static void __attribute__((noreturn)) give_up(int fd, const char *what, const char *with, int code)
{
    const char *const parts[] = {what, " ", with, ": ", strerrordesc_np(code), "\n"};

    say_all(fd, parts, FF_ARRAY_LEN(parts));
}

static void run_before(int fd, char *const *argv)
{
    int status;
    pid_t pid = _Fork();

    if (pid < 0)
        give_up(fd, "prepare: start", argv[0], errno);
    if (!pid) {
        execvp(argv[0], argv);
        give_up(fd, "prepare: run", argv[0], errno);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            give_up(fd, "prepare: wait for", argv[0], errno);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        _exit(127); /* it has said why */
    if (WIFSIGNALED(status)) {
        const char *const parts[] = {"prepare: ", argv[0], " was killed by SIG",
                                     sigabbrev_np(WTERMSIG(status)), "\n"};
        say_all(fd, parts, FF_ARRAY_LEN(parts));
    }
    if (WEXITSTATUS(status)) {
        const char *const parts[] = {"prepare: ", argv[0], " failed\n"};
        say_all(fd, parts, FF_ARRAY_LEN(parts));
    }
}

static void log_output(const char *path, int fd)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        give_up(fd, "log", path, errno);
    close(in);
    close(out);
}

static void prepare(const struct ff_process *p, int fd)
{
    sigset_t none;

    setpgid(0, 0);
    for (int i = 1; i < 32; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (!p->fds)
        log_output(p->log, fd);
    int own[3]; /* where the caller has no 0, 1 or 2, they may be among those */
    for (int i = 0; p->fds && i < 3; i++)
        if ((own[i] = fcntl(p->fds[i], F_DUPFD_CLOEXEC, 3)) < 0)
            give_up(fd, "set descriptors of", p->argv[0], errno);
    for (int i = 0; p->fds && i < 3; i++)
        if (dup2(own[i], i) < 0)
            give_up(fd, "set descriptors of", p->argv[0], errno);
    if (p->cwd && chdir(p->cwd) < 0)
        give_up(fd, "a child runs in its parent's folder: enter", p->cwd, errno);
    for (char *const *const *b = p->before; b && *b; b++)
        run_before(fd, *b);
    for (const int *k = p->kept; k && *k >= 0; k++)
        if (fcntl(*k, F_SETFD, 0) < 0)
            give_up(fd, "keep descriptors of", p->argv[0], errno);
}

/* --- by exec --- */

int ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                    struct ff_error *err)
{
    int fd[2] = {-1, -1};

    if (exec_status_fd && pipe2(fd, O_CLOEXEC) < 0)
        return ff_error_set(err, errno, "start %s: pipe: %s", p->argv[0], strerror(errno));
    *pid = fork();
    if (!*pid) {
        int status = fcntl(exec_status_fd ? fd[1] : p->fds[2], F_DUPFD_CLOEXEC, 3);
        prepare(p, status);
        execvp(p->argv[0], p->argv);
        give_up(status, "run", p->argv[0], errno);
    }
    int code = errno;
    ff_close_fd(&fd[1]);
    if (*pid > 0) {
        setpgid(*pid, *pid); /* it does so too: whoever comes first */
        if (exec_status_fd)
            *exec_status_fd = fd[0];
        return 0;
    }
    ff_close_fd(&fd[0]);
    return ff_error_set(err, code, "start %s: %s", p->argv[0], strerror(code));
}

/* --- what is said on the server's socket --- */

struct request {
    uint32_t bytes, before; /* of words that follow: log, folder, commands, arguments */
};

/* --- the agent's side --- */

struct words {
    char *at;
    size_t len, room;
};

static bool add_word(struct words *w, const char *s)
{
    size_t len = strlen(s) + 1;

    if (w->room - w->len < len) {
        size_t room = 2 * (w->room + len);
        char *more = room > WORDS_MAX ? NULL : realloc(w->at, room);
        if (!more)
            return false;
        w->at = more;
        w->room = room;
    }
    memcpy(w->at + w->len, s, len);
    w->len += len;
    return true;
}

/* Each command is followed by an empty word: its own are not */
static bool pack(const struct ff_process *p, struct request *r, struct words *w)
{
    bool ok = add_word(w, p->log) && add_word(w, p->cwd ? p->cwd : "");

    for (char *const *const *b = p->before; b && *b && ok; b++, r->before++) {
        for (char *const *a = *b; *a && ok; a++)
            ok = **a && add_word(w, *a);
        ok = ok && add_word(w, "");
    }
    for (char *const *a = p->argv; *a && ok; a++)
        ok = add_word(w, *a);
    r->bytes = (uint32_t)w->len;
    return ok;
}

static int limit_answer(int sock)
{
    struct timeval t = {.tv_sec = ANSWER_MS / 1000};

    return setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) ||
           setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) ? -errno : 0;
}

int ff_process_wait_server(int sock, struct ff_error *err)
{
    char ready;
    int rc = limit_answer(sock);

    if (!rc)
        rc = ff_fd_receive(sock, &ready, 1, NULL);
    return rc ? ff_error_set(err, -rc, "fork server: %s",
                             rc == -EPIPE ? "it has ended" : strerror(-rc))
              : 0;
}

/* The child @pid waits for its go at the other end of @theirs */
static int ask(int sock, const struct ff_process *p, int theirs, pid_t *pid, struct ff_error *err)
{
    struct request r = {0};
    struct words w = {0};
    int32_t answer = 0;
    int rc = pack(p, &r, &w) ? 0 : -E2BIG;

    if (!rc)
        rc = ff_fd_send(sock, &r, sizeof(r), theirs);
    if (!rc)
        rc = ff_fd_send(sock, w.at, w.len, -1);
    free(w.at);
    if (!rc)
        rc = ff_fd_receive(sock, &answer, sizeof(answer), NULL);
    if (!rc && answer <= 0)
        rc = answer ? answer : -EPROTO;
    *pid = answer;
    return rc ? ff_error_set(err, -rc, "start %s: fork server: %s", p->argv[0], strerror(-rc)) : 0;
}

int ff_process_fork(int sock, const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                    struct ff_error *err)
{
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return ff_error_set(err, errno, "start %s: socket: %s", p->argv[0], strerror(errno));
    int rc = ask(sock, p, fd[1], pid, err);
    close(fd[1]);
    if (!rc && (rc = ff_failpoint("process.go")))
        ff_error_set(err, -rc, "start %s: injected", p->argv[0]);
    if (!rc && (rc = ff_fd_send(fd[0], "g", 1, -1)))
        ff_error_set(err, -rc, "start %s: %s", p->argv[0], strerror(-rc));
    if (rc) {
        close(fd[0]);
        return rc;
    }
    shutdown(fd[0], SHUT_WR);
    *exec_status_fd = fd[0];
    return 0;
}

/* --- the server --- */

/* What /proc/self/stat says of where things are, by the number of the field */
static bool read_stat(unsigned long long *field, unsigned n)
{
    char text[2048];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    ff_close_fd(&fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    char *at = strrchr(text, ')'); /* field 2; the third follows */
    for (unsigned i = 3; at && i <= n; i++) {
        at = strchr(at, ' ');
        field[i] = at ? strtoull(at + 1, NULL, 10) : 0;
        at += !!at;
    }
    return at;
}

/* Say where the arguments are, NUL-terminated words; NULL: where they have been */
static int set_arguments(char *words, size_t len)
{
    unsigned long long f[52];
    struct prctl_mm_map map;

    if (!read_stat(f, 51))
        return -ENOSYS;
    map = (struct prctl_mm_map){.start_code = f[26], .end_code = f[27], .start_stack = f[28],
                                .start_data = f[45], .end_data = f[46], .start_brk = f[47],
                                .arg_start = f[48], .arg_end = f[49],
                                .env_start = f[50], .env_end = f[51], .exe_fd = (uint32_t)-1};
    if (words) {
        map.arg_start = (uintptr_t)words;
        map.arg_end = (uintptr_t)words + len;
    }
    do { /* another thread may give memory back meanwhile */
        map.brk = (uintptr_t)sbrk(0);
        if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0))
            return -errno;
    } while (syscall(SYS_brk, 0) != (long)(uintptr_t)sbrk(0));
    return 0;
}

/* Words of @w, which end with @end: a list, and *@w behind it; @until: up to an empty word */
static char **unpack_list(char **w, const char *end, bool until)
{
    size_t n = 0;

    for (char *s = *w; s < end && !(until && !*s); s += strlen(s) + 1)
        n++;
    char **v = calloc(n + 1, sizeof(*v));
    for (size_t i = 0; v && i < n; i++, *w += strlen(*w) + 1)
        v[i] = *w;
    if (until)
        *w += *w < end;
    return v;
}

/* In the child; @words stays. It has its own arguments before it waits: who ends it knows it by them */
static void exec_program(const struct request *r, char *words, int fd, int *argc, char ***argv)
{
    const char *end = words + r->bytes;
    struct ff_process p = {.log = words};
    char *at = words + strlen(words) + 1, go = 0;
    ssize_t n;

    p.cwd = *at ? at : NULL;
    at += strlen(at) + 1;
    char *const **before = calloc(r->before + 1, sizeof(*before));
    bool room = before;
    for (uint32_t i = 0; room && i < r->before; i++)
        room = (before[i] = unpack_list(&at, end, true)) != NULL;
    char *first = at;
    int rc = room ? set_arguments(first, (size_t)(end - first)) : 0;
    while ((n = read(fd, &go, 1)) < 0 && errno == EINTR)
        ;
    if (n != 1 || go != 'g')
        _exit(127);
    if (!room)
        give_up(fd, "start", words, ENOMEM);
    *argv = unpack_list(&at, end, false);
    if (rc || !*argv)
        give_up(fd, "set the arguments of", first, rc ? -rc : ENOMEM);
    p.before = before;
    prepare(&p, fd);
    free(before);
    for (*argc = 0; (*argv)[*argc]; ++*argc)
        ;
    close(fd);
}

static bool valid(const struct request *r, const char *words)
{
    size_t ends = 0;

    if (!r->bytes || words[r->bytes - 1])
        return false;
    for (uint32_t i = 0; i < r->bytes; i++)
        ends += !words[i];
    return ends >= 3 + 2ull * r->before;
}

int ff_process_serve(int sock, int *argc, char ***argv, struct ff_error *err)
{
    struct request r;
    int rc = set_arguments(NULL, 0), status;
    volatile int32_t *pid = mmap(NULL, sizeof(*pid), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (rc || pid == MAP_FAILED)
        return ff_error_set(err, rc ? -rc : errno, "fork server: %s", strerror(rc ? -rc : errno));
    rc = ff_fd_send(sock, "r", 1, -1);
    for (;;) {
        int fd = -1;
        char *words = NULL;
        rc = rc ? rc : ff_fd_receive(sock, &r, sizeof(r), &fd);
        if (!rc && (fd < 0 || r.bytes > WORDS_MAX || !(words = malloc(r.bytes + 1))))
            rc = -EPROTO;
        if (!rc)
            rc = ff_fd_receive(sock, words, r.bytes, NULL);
        if (rc || !valid(&r, words))
            _exit(rc == -EPIPE || rc == -ECONNRESET ? 0 : 1); /* the agent has ended, or is none */
        *pid = -ECHILD;
        pid_t middle = fork(), child;
        if (!middle) {
            child = fork();
            if (!child) {
                close(sock);
                exec_program(&r, words, fd, argc, argv);
                return 0;
            }
            *pid = child < 0 ? -errno : child;
            _exit(0);
        }
        while (middle > 0 && waitpid(middle, &status, 0) < 0 && errno == EINTR)
            ;
        int32_t answer = middle < 0 ? -EAGAIN : *pid;
        close(fd);
        free(words);
        rc = ff_fd_send(sock, &answer, sizeof(answer), -1);
    }
}
