/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * journal.c - lines for systemd's journal, with fields: of which fork, child and host
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent that has detached has nobody to tell: the journal keeps what happens, and
 *              `journalctl FARFORK_FORK=ID` shows it, of agents, children and commands alike.
 * Picture      a datagram a line: NAME=value\n; a value of several lines is NAME\n, its length in 8
 *              bytes, little-endian, the value, \n
 * Limits       a line has LINE_BYTES at most; what does not fit is cut off.
 * Sources      systemd's "Native Journal Protocol"; systemd.journal-fields(7)
 */
#include "journal.h"

#include <endian.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LINE_BYTES 4096
#define FIELD_BYTES (16 + sizeof(uint64_t)) /* the longest name, and what stands around a value */

struct entry {
    char data[LINE_BYTES];
    size_t len;
};

static void put_bytes(struct entry *e, const void *data, size_t len)
{
    memcpy(e->data + e->len, data, len);
    e->len += len;
}

/* One that does not fit at all is left out */
static void put_field(struct entry *e, const char *name, const char *value)
{
    size_t len = strlen(value), room = sizeof(e->data) - e->len;

    if (!*value || room < FIELD_BYTES + 16)
        return;
    len = FF_MIN(len, room - FIELD_BYTES);
    put_bytes(e, name, strlen(name));
    if (memchr(value, '\n', len)) {
        const uint64_t bytes = htole64(len);
        put_bytes(e, "\n", 1);
        put_bytes(e, &bytes, sizeof(bytes));
    } else {
        put_bytes(e, "=", 1);
    }
    put_bytes(e, value, len);
    put_bytes(e, "\n", 1);
}

static void put_number(struct entry *e, const char *name, long value)
{
    char text[24];

    snprintf(text, sizeof(text), "%ld", value);
    put_field(e, name, value ? text : "");
}

void journal_send(const struct journal *j, int priority, const struct journal_about *about,
                  const char *fmt, ...)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char text[LINE_BYTES - 512];
    struct entry e = {.len = 0};
    va_list ap;

    FF_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || strlen(j->socket) >= sizeof(to.sun_path))
        return;
    strcpy(to.sun_path, j->socket);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    put_number(&e, "PRIORITY", priority);
    put_field(&e, "SYSLOG_IDENTIFIER", "farfork");
    put_field(&e, "FARFORK_FORK", j->fork);
    put_field(&e, "FARFORK_HOST", j->host);
    put_number(&e, "FARFORK_CHILD", about->child);
    put_number(&e, "FARFORK_PID", about->pid);
    put_field(&e, "FARFORK_EVENT", about->event ? about->event : "");
    put_field(&e, "MESSAGE", text);
    (void)!sendto(fd, e.data, e.len, MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof(to));
}
