/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_take_back.c - fallback=go: the guest is taken back from a destination that is lost
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      no link any more; wait until the lease has ended (source_lease.c), and a margin
 *                 -> record=FILE on stable storage   from here on there is no way back to serving
 *                 -> fence=PROGRAM has succeeded     from here on the guest may run here, as of GO
 *
 * Invariants   1. Not after DONE: the destination may have committed what it wrote.
 *              2. The record is there before the fence begins: whoever finds this host dead can
 *                 tell from it that the destination is not to go on.
 * Limits       MARGIN_MS, and a hundredth of the lease: clocks that differ, and writes under way
 *              from a process that the kernel has ended. FENCE_MS for the fence.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"
#include "process.h"
#include "source_private.h"

#define MARGIN_MS 1000
#define FENCE_MS 60000

static int await_lease_end(struct ff_source *s, struct ff_error *err)
{
    uint64_t margin_ns = (MARGIN_MS + (uint64_t)s->addr.lease_ms / 100) * 1000000u;
    struct pollfd stop = {.fd = s->cancel_fd, .events = POLLIN};
    uint64_t end_ns = s->lease_end_ns + margin_ns, now;

    while ((now = ff_boot_ns()) < end_ns)
        if (poll(&stop, 1, (int)((end_ns - now) / 1000000u) + 1) > 0)
            return ff_source_take_interrupt(s, err);
    return 0;
}

static int put_record(int fd, const char *text)
{
    size_t len = strlen(text);

    return write(fd, text, len) == (ssize_t)len && !fsync(fd) ? 0 : errno ? -errno : -EIO;
}

/* On stable storage, with its name, or not there */
static int write_record(struct ff_source *s, struct ff_error *err)
{
    const char *path = s->addr.record;
    char folder[FF_PATH_ROOM], session[FF_SESSION_TEXT], text[512];
    int rc = ff_failpoint("source.record");

    ff_session_text(s->session, session);
    snprintf(text, sizeof(text), "taken-back\nsession=%s\ndestination=%s:%s\n", session,
             s->addr.host, s->addr.port);
    errno = 0;
    FF_AUTO_CLOSE int fd = rc ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (!rc)
        rc = fd < 0 ? -errno : put_record(fd, text);
    if (!rc) {
        FF_AUTO_CLOSE int dir =
            open(ff_source_record_folder(s, folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || fsync(dir))
            rc = -errno;
    }
    if (rc && fd >= 0)
        unlink(path);
    /* not the file system's own number: some have a meaning to our caller */
    return rc ? ff_error_set(err, EIO, "record=%s: %s", path, strerror(-rc)) : 0;
}

/* Whether it ends in time; a signal ends no wait */
static bool fence_ends(int fd)
{
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    uint64_t end_ns = ff_boot_ns() + FENCE_MS * 1000000ull, now;
    int n = 0;

    while (n <= 0 && (now = ff_boot_ns()) < end_ns) {
        n = poll(&ended, 1, (int)((end_ns - now) / 1000000u) + 1);
        if (n < 0 && errno != EINTR)
            return false;
    }
    return n > 0;
}

/* 0: it has ended with exit code 0, as waitpid(2) says. It is killed when it takes too long */
static int await_fence(pid_t pid, struct ff_error *err)
{
    FF_AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool late = fd < 0 || !fence_ends(fd);
    int status = -1;
    pid_t reaped;

    if (late)
        kill(-pid, SIGKILL);
    while ((reaped = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        ;
    if (late)
        return ff_error_set(err, EPERM, "it did not end within %d s", FENCE_MS / 1000);
    if (reaped != pid)
        return ff_error_set(err, EPERM, "how it ended is not known: %s%s", strerror(errno),
                            errno == ECHILD ? ": SIGCHLD is ignored here" : "");
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    return WIFEXITED(status) ? ff_error_set(err, EPERM, "it ended with %d", WEXITSTATUS(status))
                             : ff_error_set(err, EPERM, "it was killed by signal %d",
                                            WTERMSIG(status));
}

static int run_fence(struct ff_source *s, struct ff_error *err)
{
    char session[FF_SESSION_TEXT], name[sizeof(s->addr.host) + 64], of[FF_SESSION_TEXT + 64];
    char *argv[] = {(char *)"env", name, of, s->addr.fence, NULL};
    struct ff_error why;
    pid_t pid;

    ff_session_text(s->session, session);
    snprintf(name, sizeof(name), "FARFORK_DESTINATION=%s:%s", s->addr.host, s->addr.port);
    snprintf(of, sizeof(of), "FARFORK_SESSION=%s", session);
    FF_AUTO_CLOSE int in = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct ff_process p = {.fds = (int[]){in, 2, 2}, .argv = argv};
    int rc = ff_failpoint("source.fence");
    if (rc)
        rc = ff_error_set(&why, -rc, "injected");
    if (!rc)
        rc = ff_process_exec(&p, &pid, NULL, &why);
    if (!rc)
        rc = await_fence(pid, &why);
    return rc ? ff_error_set(err, EPERM, "fence=%s: %s", s->addr.fence, why.text) : 0;
}

int ff_source_take_back(struct ff_source *s, struct ff_error *err)
{
    struct ff_error why;
    int rc = 0;

    if (!s->addr.fallback)
        return ff_error_set(err, EINVAL,
                            "source: take back: the guest was let go for good, without fallback=go");
    if (s->stage == TAKEN)
        return 0;
    if (s->stage != GONE && s->stage != TAKING)
        return ff_error_set(err, EINVAL, "source: take back: %s",
                            s->stage == DONE ? "the destination has every page, and the guest is "
                                               "its own for good"
                                             : "nothing was let go of");
    rc = ff_source_begin_taking(s, err);
    if (rc)
        return rc;
    ff_source_drop_link(s);
    s->paused_ns = 0;
    if (s->stage == GONE) {
        rc = await_lease_end(s, &why);
        if (!rc)
            rc = write_record(s, &why);
        if (!rc)
            s->stage = TAKING;
    }
    if (!rc)
        rc = run_fence(s, &why);
    if (rc && s->stage == GONE)
        ff_source_end_taking(s);
    if (rc)
        return ff_error_set(err, -rc, "source: take back: %s", why.text);
    s->stage = TAKEN;
    ff_log(FF_LOG_WARN, "source: the guest is taken back from %s:%s, as it was at GO", s->addr.host,
           s->addr.port);
    return 0;
}

int ff_source_tell_taken_back(struct ff_source *s, struct ff_error *err)
{
    struct ff_welcome w;
    struct ff_error why;

    if (s->stage != TAKEN)
        return ff_error_set(err, EINVAL, "source: take back: the guest is not taken back");
    struct ff_address to = s->addr;
    to.link = s->verbs ? FF_LINK_VERBS : FF_LINK_TCP;
    int rc = ff_source_ask(s, &to, true, &w, &why);
    ff_source_drop_link(s);
    if (!rc && w.answer != FF_ANSWER_TAKEN_BACK)
        rc = ff_error_set(&why, EPROTO, "WELCOME says %u (want %u)", w.answer,
                          FF_ANSWER_TAKEN_BACK);
    if (rc)
        ff_error_set(err, -rc, "source: say that the guest is taken back: %s", why.text);
    return rc;
}
