/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * missing.h - destination: which pages are not here, in words
 */
#ifndef FF_MIGRATE_MISSING_H
#define FF_MIGRATE_MISSING_H

#include "pager.h"

#define FF_MISSING_RUNS 3u /* are named; of the others there is the number */
#define FF_MISSING_TEXT 450 /* of an error's text */

/* "812 pages (3248 KiB): pc.ram 0x1000-0x8fff, ... and 17 ranges more". Any thread; what comes
 * meanwhile may be counted */
void ff_missing_text(const struct ff_pager *p, char text[FF_MISSING_TEXT]);

#endif
