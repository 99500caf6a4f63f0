/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * overlay.h - look into a qcow2 overlay
 */
#ifndef FF_CLI_OVERLAY_H
#define FF_CLI_OVERLAY_H

#include <stdbool.h>

/* Whether everything that is read from it comes from what is behind it. False when in doubt */
bool overlay_is_empty(const char *path);

#endif
