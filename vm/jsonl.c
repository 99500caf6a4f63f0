/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * jsonl.c - one JSON value a line, over pipes and sockets that do not block
 */
/**
 * DOC: Theory of Operation
 *
 * Invariants   A line may have a key in it. So a buffer is wiped before it is freed, and never left
 *              behind by realloc(); who takes a key out of a line wipes that line.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jsonl.h"

#define READ_BYTES 65536

static void jsonl_wipe(struct jsonl_reader *r)
{
    if (r->data)
        explicit_bzero(r->data, r->room);
}

int jsonl_read(struct jsonl_reader *r, int fd)
{
    if (r->taken) {
        memmove(r->data, r->data + r->taken, r->len - r->taken);
        r->len -= r->taken;
        r->taken = 0;
    }
    for (;;) {
        if (r->len > LINE_MAX_BYTES)
            return -EMSGSIZE;
        if (r->room < r->len + READ_BYTES + 1) {
            size_t room = 2 * r->room + READ_BYTES + 1;
            char *more = malloc(room);
            if (!more)
                return -ENOMEM;
            if (r->len)
                memcpy(more, r->data, r->len);
            jsonl_wipe(r);
            free(r->data);
            r->data = more;
            r->room = room;
        }
        ssize_t n = read(fd, r->data + r->len, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0 && errno != ECONNRESET)
            return -errno;
        if (n <= 0)
            r->ended = true;
        else
            r->len += (size_t)n;
        return 0;
    }
}

char *jsonl_next(struct jsonl_reader *r)
{
    if (r->taken == r->len)
        return NULL;
    char *line = r->data + r->taken, *end = memchr(line, '\n', r->len - r->taken);

    if (!end && !r->ended)
        return NULL;
    if (!end)
        end = r->data + r->len; /* there is room for one more byte */
    r->taken = (size_t)(end - r->data) + (end < r->data + r->len);
    *end = '\0';
    if (end > line && end[-1] == '\r')
        end[-1] = '\0';
    return line;
}

void jsonl_free(struct jsonl_reader *r)
{
    jsonl_wipe(r);
    free(r->data);
    *r = (struct jsonl_reader){0};
}

int jsonl_write_on(int fd, const char *data, size_t len, size_t *done, int limit_ms)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;

    while (*done < len) {
        ssize_t n = write(fd, data + *done, len - *done);
        if (n > 0) {
            *done += (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return -errno;
        uint64_t now = ff_now_ms();
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (now >= end || poll(&p, 1, (int)(end - now)) == 0)
            return -ETIMEDOUT;
    }
    return 0;
}

int jsonl_write(int fd, const char *data, size_t len, int limit_ms)
{
    size_t done = 0;

    return jsonl_write_on(fd, data, len, &done, limit_ms);
}

int jsonl_write_json(int fd, const json_t *value, int limit_ms)
{
    FF_AUTO_FREE char *text = json_dumps(value, JSON_COMPACT);

    if (!text)
        return -ENOMEM;
    FF_AUTO_FREE char *line = xprintf("%s\n", text);
    return jsonl_write(fd, line, strlen(line), limit_ms);
}
