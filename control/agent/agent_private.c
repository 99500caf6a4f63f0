/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_private.c - files with secrets, which a child's QEMU reads when it starts
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      every user of a host can read a command line, so secrets are in files that only
 *              their owner can read. An agent writes them before it starts QEMU, and overwrites
 *              them when QEMU has read them: with a text of the same length, which needs no room.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "autojson.h"

static int write_text(int fd, const char *text)
{
    size_t len = strlen(text);
    ssize_t n = fd < 0 ? -1 : pwrite(fd, text, len, 0);
    int code = n < 0 ? errno : (size_t)n < len ? ENOSPC : 0;

    if (fd >= 0)
        close(fd);
    return -code;
}

int agent_private_write(const json_t *files, struct ff_error *why)
{
    size_t i;
    json_t *f;

    json_array_foreach(files, i, f) {
        const char *path = text_of(f, "path");
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        int rc = write_text(fd, text_of(f, "text"));
        if (rc)
            return ff_error_set(why, -rc, "spawn: write %s: %s", path, strerror(-rc));
    }
    return 0;
}

void agent_private_remove(json_t *files)
{
    size_t i;
    json_t *f;

    json_array_foreach(files, i, f)
        unlink(text_of(f, "path"));
    json_decref(files);
}

/* A text of the same length over the other: that needs no room */
void agent_private_forget(struct agent_vm *vm)
{
    size_t i;
    json_t *f;

    json_array_foreach(vm->private, i, f) {
        const char *path = text_of(f, "path"),
                   *after = json_string_value(json_object_get(f, "after"));
        if (!after || strlen(after) != strlen(text_of(f, "text")) ||
            write_text(open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW), after))
            unlink(path);
    }
    json_decref(vm->private);
    vm->private = NULL;
}
