/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * load.c - how busy this host's CPUs are
 */
#include <stdlib.h>
#include <unistd.h>

#include "load.h"

uint32_t ff_load_permille(void)
{
    double load;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    if (getloadavg(&load, 1) != 1 || cpus < 1 || load < 0 || load > 1e6)
        return 0;
    return (uint32_t)(load * 1000 / (double)cpus);
}
