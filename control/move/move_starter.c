/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_starter.c - keep the source QEMU if its exit would start or remove something
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Refuse the move if a systemd unit would restart QEMU: even a later crash would start a
 *              second guest. With --keep-source, or if starter.h finds another cause, the QEMU here is
 *              not quit: it keeps its memory and the disks' names, stands still, and refuses `cont`,
 *              until somebody ends it.
 * Limits       a crash of the kept QEMU is not handled.
 */
#include <errno.h>

#include "move.h"
#include "starter.h"

int move_check_starter(struct move *m, struct ff_error *why)
{
    struct starter s;
    int rc = 0;

    starter_find(m->s.parent_pid, &s);
    if (s.unit && !m->keep_source)
        rc = ff_error_set(why, EBUSY,
                          "%s (systemd%s) has Restart=%s and would start its QEMU here again, beside the guest that "
                          "has moved: say Restart=no under [Service] by \"systemctl %sedit --runtime %s\", then move it; "
                          "or give --keep-source",
                          s.unit, s.user ? ", of this user" : "", s.restart, s.user ? "--user " : "", s.unit);
    else if (s.unit)
        m->starter = xprintf("%s of systemd, by its Restart=%s", s.unit, s.restart);
    else if (s.who)
        m->starter = xstrdup(s.who);
    starter_free(&s);
    return rc;
}

/* All of the guest is there: end the QEMU here, or say why it stays */
void move_end_source(struct move *m)
{
    const char *end = m->via == VIA_ATTACH ? "SIGKILL" : "quit";
    const char *is = m->via == VIA_ATTACH ? "stands still, whatever its monitor is told (SIGSTOP)"
                                           : "cannot run the guest any more";
    struct ff_error why;

    if (m->starter)
        session_note(&m->s, "the QEMU here (pid %d) was kept, and %s: its end may start another "
                              "one, or remove what the guest uses, by %s. See to that first, then end it: %s, at %s",
                 (int)m->s.parent_pid, is, m->starter, end, m->s.o.parent_path);
    else if (m->keep_source)
        session_note(&m->s, "the QEMU here (pid %d) was kept, and %s; end it: %s, at %s",
                 (int)m->s.parent_pid, is, end, m->s.o.parent_path);
    else if (move_quit_parent(m, &why))
        session_note(&m->s, "the QEMU here (pid %d) no longer runs the guest; end it: %s", (int)m->s.parent_pid,
                 why.text);
}
