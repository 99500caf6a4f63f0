/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * host.c - an agent on a host: start it through the launcher, talk to it, end it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one process for each host, local or the launcher's, with three pipes: commands,
 *              events, and what it has to complain about. All of them end with it, and it ends
 *              with them: whatever becomes of this program, no agent stays that was not told to.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clone.h"
#include "launch.h"

#define WRITE_LIMIT_MS 10000

int host_resolve(struct host *h, struct why *why)
{
    const char *name = h->here && !h->node->address_given ? "127.0.0.1" : h->node->address;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    char text[NI_MAXHOST];
    int rc = getaddrinfo(name, NULL, &hints, &list);

    if (rc)
        return refuse(why, EHOSTUNREACH, "no address for \"%s\": %s; name one: %s=ADDRESS", name,
                      gai_strerror(rc), h->node->host);
    rc = getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
    if (!rc)
        h->address = xprintf(list->ai_family == AF_INET6 ? "[%s]" : "%s", text);
    freeaddrinfo(list);
    return rc ? refuse(why, EHOSTUNREACH, "no address for \"%s\"", name) : 0;
}

/* The command line of the agent */
static void agent_argv(const struct clone *c, const struct host *h, struct words *w)
{
    const struct clone_options *o = c->o;

    words_add(w, "%s", o->agent);
    words_add(w, "agent");
    if (o->move) {
        words_add(w, "--timeout");
        words_add(w, "%u", o->timeout_s);
    } else {
        words_add(w, "--listen");
        words_add(w, "%s:0%s%s", h->address, o->link_options ? "," : "",
                  o->link_options ? o->link_options : "");
    }
    words_add(w, "--id");
    words_add(w, "%s", o->id);
    words_add(w, "--node");
    words_add(w, "%s", h->name);
    words_add(w, "--parent");
    words_add(w, "%s", o->parent_path);
    if (o->rundir) {
        words_add(w, "--rundir");
        words_add(w, "%s", o->rundir);
    }
}

static void __attribute__((noreturn)) become(char **argv, const int *fds)
{
    sigset_t none;

    setpgid(0, 0); /* Ctrl-C is for vmclone, which ends it in order */
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(127);
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int three_pipes(int p[3][2])
{
    for (int i = 0; i < 3; i++)
        if (pipe2(p[i], O_CLOEXEC) < 0) {
            while (i-- > 0) {
                close(p[i][0]);
                close(p[i][1]);
            }
            return -1;
        }
    return 0;
}

int host_launch(struct clone *c, struct host *h, struct why *why)
{
    struct words w = {0};
    int p[3][2];

    agent_argv(c, h, &w);
    AUTO_FREE char *line = h->here ? NULL : launch_line(c->o->launcher, h->node->host, w.v);
    char *shell[] = {"/bin/sh", "-c", line, NULL};
    if (three_pipes(p)) {
        words_free(&w);
        return refuse(why, errno, "pipe: %s", strerror(errno));
    }
    h->pid = fork();
    if (!h->pid)
        become(h->here ? w.v : shell, (int[]){p[0][0], p[1][1], p[2][1]});
    int code = errno;
    close(p[0][0]);
    close(p[1][1]);
    close(p[2][1]);
    h->in = p[0][1];
    h->out = p[1][0];
    h->err = p[2][0];
    fcntl(h->in, F_SETFL, O_NONBLOCK);
    fcntl(h->out, F_SETFL, O_NONBLOCK);
    fcntl(h->err, F_SETFL, O_NONBLOCK);
    words_free(&w);
    if (h->pid < 0) {
        h->pid = 0;
        return refuse(why, code, "start the launcher: %s", strerror(code));
    }
    setpgid(h->pid, h->pid);
    return 0;
}

void host_send(struct host *h, json_t *command)
{
    if (h->in >= 0 && lines_write_json(h->in, command, WRITE_LIMIT_MS)) {
        close(h->in); /* its end is heard on the other pipe */
        h->in = -1;
    }
    json_decref(command);
}

void host_fail(struct clone *c, struct host *h, const char *fmt, ...)
{
    struct why w;
    va_list ap;

    if (h->state == HOST_FAILED)
        return;
    va_start(ap, fmt);
    vsnprintf(w.text, sizeof(w.text), fmt, ap);
    va_end(ap);
    h->state = HOST_FAILED;
    h->error = xstrdup(w.text);
    for (size_t i = 0; i < c->n_children; i++)
        if (&c->hosts[c->children[i].host] == h && c->children[i].state != CHILD_COMPLETE &&
            c->children[i].state != CHILD_ENDED)
            child_fail(&c->children[i], "host %s: %s", h->node->host, w.text);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The launcher has ended, and with it the agent or the way to it */
static void ended(struct clone *c, struct host *h)
{
    int status = 0;
    bool known = false;

    for (int i = 0; i < 100 && !known; i++) { /* its pipes closed a moment before it ends */
        known = waitpid(h->pid, &status, WNOHANG) == h->pid;
        if (!known)
            poll(NULL, 0, 5);
    }
    if (known)
        h->pid = 0;
    if (h->let_go)
        return;
    const char *words = h->last_words ? h->last_words : "no message";
    if (known && WIFEXITED(status))
        host_fail(c, h, "the agent there ended with exit code %d: %s", WEXITSTATUS(status), words);
    else
        host_fail(c, h, "the agent there ended: %s", words);
}

void host_hear(struct clone *c, struct host *h)
{
    char *line;

    if (h->err >= 0) {
        int rc = lines_read(&h->err_lines, h->err);
        while ((line = lines_next(&h->err_lines)))
            if (*line) {
                free(h->last_words);
                h->last_words = xstrdup(line);
            }
        if (rc || h->err_lines.ended)
            close_fd(&h->err);
    }
    if (h->out < 0)
        return;
    int rc = lines_read(&h->out_lines, h->out);
    while ((line = lines_next(&h->out_lines))) {
        json_t *e = json_loads(line, 0, NULL);
        if (e)
            clone_event(c, h, e);
        else if (*line) { /* a login shell that greets, a launcher that complains */
            free(h->last_words);
            h->last_words = xstrdup(line);
        }
        json_decref(e);
    }
    if (rc || h->out_lines.ended) {
        close_fd(&h->out);
        if (h->err >= 0) /* why */
            host_hear(c, h);
        ended(c, h);
    }
}

static bool gone(struct host *h, int limit_ms)
{
    uint64_t end = now_ms() + (uint64_t)limit_ms;

    while (h->pid && waitpid(h->pid, NULL, WNOHANG) == 0) {
        if (now_ms() > end)
            return false;
        poll(NULL, 0, 5);
    }
    h->pid = 0;
    return true;
}

void host_close_input(struct host *h)
{
    close_fd(&h->in);
}

void host_close(struct host *h, int limit_ms)
{
    host_close_input(h);
    if (!gone(h, limit_ms)) {
        kill(-h->pid, SIGTERM);
        if (!gone(h, 2000)) {
            kill(-h->pid, SIGKILL);
            gone(h, 2000);
        }
    }
    close_fd(&h->out);
    close_fd(&h->err);
}
