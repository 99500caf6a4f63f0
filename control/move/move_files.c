/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_files.c - check that the destination has the same image files
 */
#include <errno.h>

#include "autojson.h"
#include "move.h"
#include "same_file.h"

static int ask_once(struct move *m, struct same_files *s, bool *all, struct ff_error *why)
{
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{so}", "same", same_files_ask(s)));
    int rc = move_wait_answer(m, "same", "its images there", why);

    if (!rc)
        *all = same_files_heard(s, json_object_get(m->s.answer, "files"));
    return rc;
}

int move_check_files(struct move *m, struct ff_error *why)
{
    bool all = false;

    if (m->same_disks || !json_array_size(m->files))
        return 0;
    struct same_files *s = same_files_new(m->files);
    int rc = ask_once(m, s, &all, why);
    if (!rc && !all && same_files_mark(s))
        rc = ask_once(m, s, &all, why);
    if (!rc)
        rc = same_files_refuse(s, move_host(m)->node->host, why);
    same_files_free(s);
    return rc;
}
