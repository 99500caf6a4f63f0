/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * journal.h - lines for systemd's journal, with fields: of which fork, child and host
 */
#ifndef FF_CONTROL_HOST_JOURNAL_H
#define FF_CONTROL_HOST_JOURNAL_H

#include <sys/types.h>

#include "cleanup.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* Of syslog(3) */
enum { JOURNAL_ERROR = 3, JOURNAL_WARNING = 4, JOURNAL_NOTICE = 5, JOURNAL_INFO = 6 };

/* Whose lines they are; all borrowed. @socket: JOURNAL_SOCKET */
struct journal {
    const char *socket, *fork, *host;
};

/* What a line is about: FARFORK_CHILD, FARFORK_PID, FARFORK_EVENT, where they are not 0 */
struct journal_about {
    const char *event;
    unsigned child;
    pid_t pid;
};

/* Where there is no journal, nothing happens; nobody waits for one that is busy: it loses the line */
void journal_send(const struct journal *j, int priority, const struct journal_about *about,
                  const char *fmt, ...) FF_PRINTF(4, 5);

#endif
