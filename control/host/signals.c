/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * signals.c - Ctrl-C and its like, for a program that has to end in good order
 */
#include <signal.h>
#include <sys/signalfd.h>

#include "signals.h"

int signals_take_more(int number)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    if (number)
        sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int signals_take(void)
{
    return signals_take_more(0);
}
