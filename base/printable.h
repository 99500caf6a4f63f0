/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * printable.h - replace control characters in untrusted text
 */
#ifndef FF_BASE_PRINTABLE_H
#define FF_BASE_PRINTABLE_H

/**
 * ff_printable() - take out of a text what a terminal would obey
 * @text: a guest's name, what a launcher or a QEMU printed, any text that others chose
 *
 * Each byte of a control character (C0 but newline and tab, DEL, C1) becomes '?', and so does
 * each byte that is no UTF-8. The length stays as it is.
 *
 * Cost:    one pass, no allocation
 * Return:  @text
 * Source:  ECMA-48, 5.2 and 5.3: C0 and C1; RFC 3629, 4: which sequences are UTF-8
 */
char *ff_printable(char *text);

#endif
