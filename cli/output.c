/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * output.c - what was printed has to get there
 */
#include <stdio.h>

#include "cli.h"

int output_code(const char *program, int code, int failed)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    fprintf(stderr, "%s: write the output: not all of it was written (exit code %d otherwise)\n",
            program, code);
    clearerr(stdout);
    return code ? code : failed;
}
