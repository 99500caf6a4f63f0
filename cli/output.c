/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * output.c - a command's input and output: who started it may be gone
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

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

bool input_is_pipe(void)
{
    struct stat st;

    return !fstat(STDIN_FILENO, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}
