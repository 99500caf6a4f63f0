/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp_secret.h - a key to a QEMU: object-add of a secret, which no heap of ours has
 */
#ifndef FF_VM_QMP_SECRET_H
#define FF_VM_QMP_SECRET_H

#include <jansson.h>

#include "error.h"

/* A key is 64 hexadecimal digits, and stands in memory of base/secret.h, with a NUL */
#define KEY_TEXT_LEN 64
#define KEY_TEXT_BYTES (KEY_TEXT_LEN + 1)

#define KEY_SECRET "farfork-key" /* key=KEY_SECRET in an address of that QEMU */

/* A copy of the KEY_TEXT_LEN digits at @text, for key_text_free(); NULL: they are none, or there is
 * no memory */
char *key_text_new(const char *text);
void key_text_free(char *key); /* wiped; @key may be NULL */
int key_text_make(char **out, struct ff_error *why); /* a random one. 0; -ENOMEM; -errno */

/* A key as the first line of a program's input: {"key":"64 hexadecimal digits"} without spaces: no
 * JSON library takes it apart, since that would keep copies of it. Write it: as jsonl_write(), or
 * -ENOMEM. Take it out of a line, which is wiped: for key_text_free(); NULL: it is none */
#define KEY_LINE_HEAD "{\"key\":\""
#define KEY_LINE_TAIL "\"}"
int key_line_write(int fd, const char *key, int limit_ms);
char *key_line_take(char *line);

/**
 * qmp_secret_write() - write object-add of the secret KEY_SECRET, whose data is @key
 * @id:       of the command
 * @limit_ms: how long it may take
 *
 * Return: as jsonl_write(), or -ENOMEM
 */
int qmp_secret_write(int fd, json_int_t id, const char *key, int limit_ms);

/* The key in a line that qmp_secret_write() wrote, for key_text_free(); its digits are wiped there.
 * NULL: there is none */
char *qmp_secret_take(char *line);

#endif
