/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * api.c - errors and messages as farfork.h shows them
 */
#include <stdio.h>
#include <stdlib.h>

#include "error.h"
#include "farfork.h"
#include "log.h"
#include "wire.h"

_Static_assert((int)FF_ERROR == FF_LOG_ERROR && (int)FF_WARN == FF_LOG_WARN &&
                   (int)FF_INFO == FF_LOG_INFO && (int)FF_DEBUG == FF_LOG_DEBUG,
               "public and internal levels are the same numbers");

static void (*public_log)(enum ff_level level, const char *line);

static void to_public(enum ff_log_level level, const char *line)
{
    public_log((enum ff_level)level, line);
}

void ff_set_log(void (*fn)(enum ff_level level, const char *line), enum ff_level max)
{
    public_log = fn;
    ff_log_set(fn ? to_public : NULL, (enum ff_log_level)max);
}

void ff_session_text(const uint8_t *session, char out[FF_SESSION_TEXT])
{
    out[0] = '\0';
    for (unsigned i = 0; session && i < FF_SESSION_LEN; i++)
        sprintf(out + 2 * i, "%02x", session[i]);
}

struct ff_error *ff_error_new(void)
{
    return calloc(1, sizeof(struct ff_error));
}

const char *ff_error_message(const struct ff_error *err)
{
    return err && err->code ? err->text : "no error";
}

int ff_error_code(const struct ff_error *err)
{
    return err ? err->code : 0;
}

void ff_error_free(struct ff_error *err)
{
    free(err);
}
