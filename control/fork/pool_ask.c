/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool_ask.c - vmclone asks the parent's pool for a fork; farfork pool: what pools there are
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      vmclone -> pool.c: terms, number of children
 *                      <- no: an ordinary fork, or
 *                      <- taken, by a process that does all the rest, in vmclone's name
 *                      -> stdout and stderr
 *                      <- code: of the fork: vmclone ends with it
 * Invariants   never two forks: an ordinary one is made where `taken` was not read, and cannot
 *              come any more.
 * Failure      a signal goes on to the process that makes the fork. vmclone that is killed leaves
 *              the fork to it.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autojson.h"
#include "pool.h"
#include "pool_message.h"
#include "rundir.h"

#define SAY_MS 1000
#define LIST_LIMIT_MS 5000
#define END_LIMIT_MS 30000
#define MIB (1 << 20)

static int request(int sock, const struct fork_options *o, const struct hostlist *hosts)
{
    json_t *fork = json_pack("{si ss? sb sb sb sb si}", "n", (int)o->s.n, "user", o->user_data,
                             "template", o->template, "follow", o->follow, "json", o->s.json,
                             "quiet", o->s.quiet, "timeout", (int)o->s.timeout_s);

    return pool_send(sock, json_pack("{so so}", "fork", fork, "terms", pool_terms(o, hosts)), NULL,
                     0);
}

static void lend_output(int sock)
{
    const int fds[] = {[POOL_OUT] = STDOUT_FILENO, [POOL_ERR] = STDERR_FILENO};

    if (pool_send(sock, json_pack("{sb}", "output", true), fds, FF_ARRAY_LEN(fds)))
        shutdown(sock, SHUT_WR); /* one is closed: nobody waits for it */
}

/* Until there is a message, or a signal: -EINTR, or so long */
static int hear(int sock, int signals, int limit_ms, json_t **m)
{
    struct pollfd p[] = {{.fd = sock, .events = POLLIN}, {.fd = signals, .events = POLLIN}};

    int n = poll(p, 2, limit_ms);
    if (n > 0 && !p[0].revents)
        return -EINTR;
    return n > 0 ? pool_recv(sock, 0, m, NULL) : -ETIMEDOUT;
}

/* Nobody can take the request any more: unless somebody has */
static int withdraw(int sock, json_t **m)
{
    shutdown(sock, SHUT_RD);
    return pool_recv(sock, 0, m, NULL);
}

/* Whatever the process says, until it says how the fork ended */
static int follow_process(int sock, int signals, pid_t pid)
{
    FF_AUTO_CLOSE int process = (int)syscall(SYS_pidfd_open, pid, 0);
    struct signalfd_siginfo s;

    for (;;) {
        FF_AUTO_JSON json_t *m = NULL;
        int rc = hear(sock, signals, -1, &m);
        if (rc == -EINTR && read(signals, &s, sizeof(s)) == sizeof(s)) {
            syscall(SYS_pidfd_send_signal, process, (int)s.ssi_signo, NULL, 0);
        } else if (!rc && json_object_get(m, "code")) {
            return (int)json_integer_value(json_object_get(m, "code"));
        } else if (rc == -EPIPE) {
            fprintf(stderr, "vmclone: the pool's process that made the fork has ended\n");
            return EXIT_NONE;
        }
    }
}

/* The pid of who makes the fork; 0: nobody does, and *@why says why. -EINTR: interrupted */
static int ask_for_fork(int sock, int signals, const struct fork_options *o,
                        const struct hostlist *hosts, struct ff_error *why)
{
    FF_AUTO_JSON json_t *m = NULL;
    int rc = request(sock, o, hosts);

    if (!rc)
        rc = hear(sock, signals, SAY_MS, &m);
    if (rc == -ETIMEDOUT) {
        if (!o->s.quiet)
            fprintf(stderr, "vmclone: waiting for the parent's pool, at most for %u s\n", o->s.timeout_s);
        rc = hear(sock, signals, (int)o->s.timeout_s * 1000, &m);
    }
    int kept = rc;
    if (rc)
        rc = withdraw(sock, &m);
    int pid = rc ? 0 : (int)json_integer_value(json_object_get(m, "taken"));
    if (!pid && kept == -EINTR)
        return -EINTR;
    const char *no = kept == -ETIMEDOUT ? "no answer in time" : "it has ended";
    if (!pid)
        ff_error_set(why, EAGAIN, "%s", *text_of(m, "no") ? text_of(m, "no") : no);
    return pid;
}

bool pool_fork(const struct fork_options *o, const struct hostlist *hosts, int *code)
{
    FF_AUTO_FREE char *base = pool_base(o->s.rundir);
    FF_AUTO_FREE char *path = pool_path(base, o->s.parent_path);
    struct ff_error why;
    sigset_t set, was;

    if (!path || !rundir_is_own(base) || access(path, F_OK))
        return false;
    FF_AUTO_CLOSE int sock = o->s.id ? ff_error_set(&why, EINVAL, "--id: it names its forks itself")
                                     : pool_connect(path, &why);
    if (sock == -ECONNREFUSED) {
        pool_clear(base, path);
        ff_error_set(&why, ECONNREFUSED, "it was killed");
    }
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &was);
    FF_AUTO_CLOSE int signals = signalfd(-1, &set, SFD_CLOEXEC);
    int pid = sock < 0 ? 0 : ask_for_fork(sock, signals, o, hosts, &why);
    if (pid > 0) {
        fflush(NULL);
        lend_output(sock);
        *code = follow_process(sock, signals, pid);
    } else if (pid < 0) {
        *code = EXIT_NONE;
    } else {
        fprintf(stderr, "vmclone: an ordinary fork, not of the parent's pool: %s\n", why.text);
    }
    if (!pid)
        sigprocmask(SIG_SETMASK, &was, NULL);
    return pid != 0;
}

/* --- farfork pool --- */

static json_t *pool_state(const char *path)
{
    struct ff_error ignored;
    json_t *m = NULL;
    FF_AUTO_CLOSE int sock = pool_connect(path, &ignored);

    if (sock >= 0 && !pool_send(sock, json_pack("{sb}", "state", true), NULL, 0))
        pool_recv(sock, LIST_LIMIT_MS, &m, NULL);
    return json_printable(m);
}

static void print_pool(const json_t *p)
{
    size_t i;
    json_t *h;

    printf("%s  pid %lld  %lld of %lld ready%s, %lld used by %lld forks\n", text_of(p, "parent"),
           (long long)json_integer_value(json_object_get(p, "pid")),
           (long long)json_integer_value(json_object_get(p, "ready")),
           (long long)json_integer_value(json_object_get(p, "limit")),
           json_integer_value(json_object_get(p, "starting")) ? ", being started" : "",
           (long long)json_integer_value(json_object_get(p, "used")),
           (long long)json_integer_value(json_object_get(p, "forks")));
    json_array_foreach(json_object_get(p, "hosts"), i, h) {
        json_int_t n = json_integer_value(json_object_get(h, "children"));
        double bytes = (double)json_integer_value(json_object_get(h, "pss_bytes"));
        printf("  %s  %lld ready, %.1f MiB each\n", text_of(h, "host"), (long long)n,
               n ? bytes / (double)n / MIB : 0);
    }
    json_array_foreach(json_object_get(p, "lost"), i, h)
        printf("  %s  not kept any more: %s\n", text_of(h, "host"), text_of(h, "error"));
}

int pool_list(const char *given, bool json)
{
    FF_AUTO_FREE char *base = pool_base(given);
    FF_AUTO_JSON json_t *all = json_array();
    DIR *d = rundir_is_own(base) ? opendir(base) : NULL;
    size_t i;
    json_t *p;

    for (struct dirent *e; d && (e = readdir(d));) {
        FF_AUTO_FREE char *path = xprintf("%s/%s", base, e->d_name);
        json_t *one = strncmp(e->d_name, ".pool-", 6) ? NULL : pool_state(path);
        if (one)
            json_array_append_new(all, one);
    }
    if (d)
        closedir(d);
    if (json) {
        json_dumpf(all, stdout, JSON_COMPACT);
        putchar('\n');
        return EXIT_ALL;
    }
    json_array_foreach(all, i, p)
        print_pool(p);
    if (!json_array_size(all))
        printf("no pools on this host (%s)\n", base);
    return EXIT_ALL;
}

int pool_end(const char *given, const char *parent)
{
    FF_AUTO_FREE char *base = pool_base(given);
    FF_AUTO_FREE char *path = pool_path(base, parent);
    struct ff_error why;
    json_t *m = NULL;

    if (!path)
        ff_error_set(&why, ENOENT, "%s: no QMP socket", parent);
    else if (!rundir_is_own(base))
        ff_error_set(&why, ENOENT, "%s is no run directory of this user's", base);
    FF_AUTO_CLOSE int sock = path && rundir_is_own(base) ? pool_connect(path, &why) : -1;
    if (sock < 0 || pool_send(sock, json_pack("{sb}", "end", true), NULL, 0)) {
        fprintf(stderr, "farfork: no pool: %s\n", why.text);
        return EXIT_NONE;
    }
    if (pool_recv(sock, END_LIMIT_MS, &m, NULL) == -EPIPE)
        return EXIT_ALL; /* it has: nothing of it is left */
    json_decref(m);
    fprintf(stderr, "farfork: the pool has not ended within %d s\n", END_LIMIT_MS / 1000);
    return EXIT_SOME;
}
