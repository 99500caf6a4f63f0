/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * autojson.h - JSON values that are released at the end of a scope
 */
#ifndef FF_CLI_AUTOJSON_H
#define FF_CLI_AUTOJSON_H

#include <jansson.h>

static inline void json_auto_free(json_t **j)
{
    json_decref(*j);
}
#define AUTO_JSON __attribute__((cleanup(json_auto_free)))

#endif
