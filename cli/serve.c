/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve.c - vmclone --serve: fork a guest when it asks for that
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the host's end of the parent's port (docs/guest.md). A request becomes an ordinary
 *              run of this program, with the options that --serve was given; its outcome is the
 *              answer. The children's ends are their agents'.
 * Failure      a fork that fails is said to the guest with the last line of what went wrong. One
 *              of which some children run has happened: the guest gets its number.
 * Limits       one fork at a time; not more children than N of the command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "clone.h"
#include "guest_channel.h"
#include "serve.h"

#define SEND_LIMIT_MS 5000

static int say(int fd, char *text)
{
    size_t len = strlen(text), at = 0;
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    while (at < len && poll(&p, 1, SEND_LIMIT_MS) > 0) {
        ssize_t n = send(fd, text + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    free(text);
    return at == len ? 0 : -EPIPE;
}

/* Run it; what it says on stderr goes on, and its last line to @last: the exit code */
static int run(char *const *argv, char *last, size_t room)
{
    char line[512];
    int p[2], status = 0;

    *last = '\0';
    fflush(NULL);
    if (pipe2(p, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (!pid) {
        dup2(p[1], STDERR_FILENO);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(p[1]);
    FILE *f = fdopen(p[0], "r");
    while (f && fgets(line, sizeof(line), f)) {
        fputs(line, stderr);
        line[strcspn(line, "\n")] = '\0';
        if (*line)
            snprintf(last, room, "%s", line);
    }
    if (f)
        fclose(f);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The message of the parent: nothing in it is its own but the number */
static char *parent_message(const char *id, unsigned count)
{
    AUTO_JSON json_t *none = json_array();
    const struct identity_input in = {.fork_id = id, .count = count, .argv = none};
    struct identity *plan = NULL;
    char *out = NULL;

    if (!identity_plan(&in, &plan, NULL))
        out = identity_message(plan, 0, 0);
    identity_free(plan);
    return out;
}

static int do_fork(const struct serve *s, int fd, const struct guest_request *r, unsigned turn)
{
    AUTO_FREE char *id = xprintf("%s-%u", s->id, turn), *n = xprintf("%u", r->count);
    struct words argv = {0};
    char last[512];

    words_add(&argv, "vmclone");
    for (char *const *o = s->options; *o; o++)
        words_add(&argv, "%s", *o);
    words_add(&argv, "--id=%s", id);
    words_add(&argv, "--user-data=%s", r->user);
    words_add(&argv, "--");
    words_add(&argv, "%s", s->parent);
    words_add(&argv, "%s", n);
    for (char *const *h = s->hosts; *h; h++)
        words_add(&argv, "%s", *h);
    int code = run(argv.v, last, sizeof(last));
    words_free(&argv);
    AUTO_FREE char *message = code == EXIT_ALL || code == EXIT_SOME ? parent_message(id, r->count)
                                                                     : NULL;
    return say(fd, message ? guest_forked(message)
                           : guest_failed(*last ? last : "vmclone failed"));
}

static int answer(const struct serve *s, int fd, const struct guest_request *r, unsigned turn)
{
    switch (r->verb) {
    case GUEST_FORK:
        return do_fork(s, fd, r, turn);
    case GUEST_JOIN:
        return say(fd, guest_failed("join is not served: vmclone --wait on the hosts does that"));
    default: /* of children, or of who has been one */
        return 0;
    }
}

int serve(const struct serve *s, struct why *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    static struct guest_input in;
    struct guest_request r;
    struct why bad;
    unsigned turn = 0;
    ssize_t got = 0;
    size_t room;

    if (strlen(s->port) >= sizeof(a.sun_path))
        return refuse(why, ENAMETOOLONG, "--serve %s: the name is too long", s->port);
    strcpy(a.sun_path, s->port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return refuse(why, code,
                      "--serve %s: %s: want the socket of the parent's port " GUEST_CHANNEL,
                      s->port, strerror(code));
    }
    printf("serving %s\n", s->port);
    fflush(stdout);
    for (int rc = 0; rc >= 0 && got >= 0;) {
        int whole = guest_input_take(&in, (size_t)got, s->max, &r, &bad);
        got = 0;
        if (whole < 0) {
            rc = say(fd, guest_failed(bad.text));
        } else if (whole) {
            rc = answer(s, fd, &r, ++turn);
        } else {
            char *at = guest_input_room(&in, &room);
            do
                got = read(fd, at, room);
            while (got < 0 && errno == EINTR);
            if (!got) /* the parent has ended */
                break;
        }
    }
    close(fd);
    return 0;
}
