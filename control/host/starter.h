/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * starter.h - find a unit or parent process that acts when QEMU exits
 */
#ifndef FF_CONTROL_HOST_STARTER_H
#define FF_CONTROL_HOST_STARTER_H

#include <stdbool.h>
#include <sys/types.h>

/**
 * struct starter - who acts on the end of a process
 * @unit:     the systemd unit that starts it again; NULL: none does
 * @restart:  that unit's Restart=
 * @who:      a text that names who else acts on its end, or may; NULL: nobody
 * @user:     @unit is of a user's manager
 */
struct starter {
    char *unit, *restart, *who;
    bool user;
};

/* Of process @pid of this host. What cannot be found out is named in @who. To be freed */
void starter_find(pid_t pid, struct starter *out);
void starter_free(struct starter *s);

/* The same of its unit alone: @groups is its /proc/PID/cgroup */
void starter_find_unit(const char *groups, pid_t pid, struct starter *out);

#endif
