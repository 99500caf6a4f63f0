/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kernel_checks.h - what this kernel lacks of what moves and forks use, and what that costs
 */
#ifndef FF_PROBE_KERNEL_CHECKS_H
#define FF_PROBE_KERNEL_CHECKS_H

/* Call @fn for each thing that is not here; @since: the first Linux that has it. Return: how many */
unsigned ff_kernel_lacks(void (*fn)(void *opaque, const char *what, const char *since,
                                    const char *cost),
                         void *opaque);

#endif
