/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * printable.c - replace control characters in untrusted text
 */
#include "printable.h"

#include <stddef.h>

/* Bytes of the character of UTF-8 at @c; 0: there is none */
static size_t utf8_bytes(const unsigned char *c)
{
    size_t n = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;

    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80) /* as the end of the text is */
            return 0;
    /* longer than they need to be, surrogates, beyond Unicode */
    if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] >= 0xa0) || (*c == 0xf0 && c[1] < 0x90) ||
        (*c == 0xf4 && c[1] >= 0x90))
        return 0;
    return n;
}

char *ff_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c;) {
        size_t n = utf8_bytes(c);
        if (!n || (*c < ' ' && *c != '\n' && *c != '\t') || *c == 0x7f)
            *c++ = '?';
        else if (*c == 0xc2 && c[1] < 0xa0)
            *c++ = '?', *c++ = '?';
        else
            c += n;
    }
    return text;
}
