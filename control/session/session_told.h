/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_told.h - note run-time settings of QEMU that a new QEMU will not have
 */
#ifndef FF_CONTROL_SESSION_SESSION_TOLD_H
#define FF_CONTROL_SESSION_SESSION_TOLD_H

#include "session.h"

/* A note for each, with s->parent_argv as the command line of the other. @fork: its disks get
 * overlays */
void session_note_told(struct session *s, bool fork);

/* Those notes that have not been printed yet, on standard output, but for JSON, which has all of them
 * at its end */
void session_say_notes(struct session *s);

#endif
