/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * identity_files.c - seeds and ids that are on no command line, which every user of a host can read
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      RUNDIR/N.genid, for -readconfig: the generation ID; RUNDIR/N.message, of a fw_cfg
 *              entry: the message with seed and boot_id. The agent writes them before it starts
 *              QEMU, and takes the secrets away when QEMU has read them.
 * Limits       a guest that is moved before farfork-guest has read its message has no seed and no
 *              boot_id of its own from it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "identity_private.h"
#include "qemu_opts.h"

#define GENID ".genid"
#define MESSAGE_MAX_BYTES 65536 /* what fw_cfg entries of this kind may have, and more */

static char *genid_path(unsigned number, const char *rundir)
{
    return xprintf("%s/%u" GENID, rundir, number);
}

bool identity_is_config(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t digits = strspn(name, "0123456789");

    return slash && digits && !strcmp(name + digits, GENID);
}

static void add_genid(json_t *files, unsigned number, const char *genid, const char *rundir)
{
    FF_AUTO_FREE char *path = genid_path(number, rundir);
    FF_AUTO_FREE char *text = xprintf("[global]\n  driver = \"vmgenid\"\n  property = \"guid\"\n"
                                   "  value = \"%s\"\n", genid);

    json_array_append_new(files, json_pack("{ss ss}", "path", path, "text", text));
}

char *identity_config(const struct identity *id, unsigned number, const char *rundir)
{
    return id->has_genid ? genid_path(number, rundir) : NULL;
}

json_t *identity_files(const struct identity *id, unsigned number, const char *rundir)
{
    json_t *files = json_array();

    if (id->has_genid)
        add_genid(files, number, id->child[number - 1].genid, rundir);
    if (id->has_fw_cfg) {
        FF_AUTO_FREE char *path = identity_message_path(number, rundir);
        FF_AUTO_FREE char *text = identity_padded(id, number, true);
        FF_AUTO_FREE char *after = identity_padded(id, number, false);
        json_array_append_new(files, json_pack("{ss ss ss}", "path", path, "text", text, "after",
                                               after));
    }
    return files;
}

/* --- a guest that is moved --- */

bool identity_has_genid(const json_t *argv)
{
    for (size_t i = 1; i < json_array_size(argv); i++)
        if (identity_is_genid(argv, i))
            return true;
    return false;
}

/* The whole of a file that is a message; NULL: it is none, or cannot be read */
static json_t *read_message(const char *path)
{
    FF_AUTO_FREE char *text = xcalloc(MESSAGE_MAX_BYTES + 1, 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, MESSAGE_MAX_BYTES);

    if (fd >= 0)
        close(fd);
    return n > 0 && (size_t)n == strlen(text) ? json_string(text) : NULL;
}

json_t *identity_move_argv(json_t *argv, const char *genid, const char *rundir)
{
    FF_AUTO_FREE char *path = identity_message_path(1, rundir);
    json_t *files = json_array();

    if (genid)
        add_genid(files, 1, genid, rundir);
    for (size_t i = 1; i < json_array_size(argv); i++) {
        if (identity_is_genid(argv, i) && genid)
            identity_drop_genid(argv, i);
        FF_AUTO_FREE char *file = identity_is_fw_cfg(argv, i)
                                   ? qemu_opts_get(identity_word(argv, i), "file") : NULL;
        json_t *message = file ? read_message(file) : NULL;
        if (!message)
            continue;
        json_array_append_new(files, json_pack("{ss sO sO}", "path", path, "text", message, "after",
                                               message));
        json_decref(message);
        identity_set_file(argv, i, path);
    }
    return files;
}
