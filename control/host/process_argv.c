/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_argv.c - what a process of this host was started with
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "process_argv.h"

#define ARGV_MAX_BYTES (4u << 20)

int process_argv(pid_t pid, struct strv *out, struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/cmdline", (int)pid);
    FF_AUTO_FREE char *text = xcalloc(ARGV_MAX_BYTES + 1, 1);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0, before = out->n;
    ssize_t n = -1;

    while (fd >= 0 && len < ARGV_MAX_BYTES && (n = read(fd, text + len, ARGV_MAX_BYTES - len)) > 0)
        len += (size_t)n;
    if (n < 0)
        return ff_error_set(why, errno, "%s: %s: vmclone and farfork move need the parent's command line", path,
                            strerror(errno));
    for (size_t at = 0; at < len; at += strlen(text + at) + 1)
        strv_add(out, "%s", text + at);
    return out->n > before ? 0 : ff_error_set(why, ESRCH, "%s: empty: the process has ended", path);
}
