/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * signals.h - Ctrl-C and its like, for a program that has to end in good order
 */
#ifndef FF_CONTROL_HOST_SIGNALS_H
#define FF_CONTROL_HOST_SIGNALS_H

/* From here on SIGINT, SIGTERM and SIGHUP end nothing, but are to be read as signalfd(2) has them, without
 * waiting; nor does SIGPIPE. Programs that are started have them as ever. The descriptor, or -1 */
int signals_take(void);
int signals_take_more(int number); /* that one, too; 0: none */

#endif
