/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * jsonl.h - one JSON value a line, over pipes and sockets that do not block
 */
#ifndef FF_VM_JSONL_H
#define FF_VM_JSONL_H

#include <jansson.h>

#include "error.h"
#include "strv.h"

#define LINE_MAX_BYTES (64u << 20) /* the answer to a query can be long */

/* What was read and is not yet a line; {0} is an empty one */
struct jsonl_reader {
    char *data;
    size_t len, room, taken;
    bool ended;
};

/* Read once from @fd: 0; also at its end, then @r->ended, and if it would block. -errno: broken */
int jsonl_read(struct jsonl_reader *r, int fd);

/* The next whole line without its newline, valid until the next call; NULL: none yet. What comes
 * before the end without a newline is a line too. */
char *jsonl_next(struct jsonl_reader *r);
void jsonl_free(struct jsonl_reader *r);

/* Write all of it, waiting at most @limit_ms for the reader: 0, -ETIMEDOUT, -EPIPE */
int jsonl_write(int fd, const char *data, size_t len, int limit_ms);
/* Likewise, from @*done on, which goes up: what was left can be written later */
int jsonl_write_on(int fd, const char *data, size_t len, size_t *done, int limit_ms);
int jsonl_write_json(int fd, const json_t *value, int limit_ms);

#endif
