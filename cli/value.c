/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * value.c - parse option values; report a bad one in one line
 */
#include <stdio.h>
#include <string.h>

#include "defaults.h"
#include "value.h"
#include "xalloc.h"

int value_bad(const char *command, const struct option *o, const char *value, const char *permitted)
{
    fprintf(stderr, "%s: --%s: \"%s\" (permitted: %s)\n", command, o->name, value, permitted);
    return EXIT_USAGE;
}

bool value_number(const char *command, const struct option *o, const char *value, unsigned min, unsigned max,
                  unsigned *out)
{
    if (!min && !strcmp(value, "0")) {
        *out = 0;
        return true;
    }
    if (parse_number(value, max, out) && *out >= min)
        return true;
    FF_AUTO_FREE char *permitted = xprintf("%u..%u", min, max);
    value_bad(command, o, value, permitted);
    return false;
}

int value_word(const char *command, const struct option *o, const char *value, const char *words)
{
    size_t len = strlen(value);
    int at = 0;

    for (const char *w = words; w; w = strchr(w, '|'), w += !!w, at++)
        if (len && strcspn(w, "|") == len && !memcmp(w, value, len))
            return at;
    value_bad(command, o, value, words);
    return -1;
}

int value_unknown(const char *command)
{
    fprintf(stderr, "%s: \"%s --help\" has the options\n", command, command);
    return EXIT_USAGE;
}
