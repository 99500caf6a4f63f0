/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp_secret.c - a key to a QEMU: object-add of a secret, which no heap of ours has
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      no JSON value is made of a key: a library's heap would keep copies, which a core
 *              dump contains. The line is put together in memory for keys, and wiped.
 * Limits       QEMU has it on its own heap, also when the object is gone.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "jsonl.h"
#include "qmp_secret.h"
#include "secret.h"

#define LINE_BYTES 512
#define DATA "\"data\":\""

char *key_text_new(const char *text)
{
    char *key;

    if (strnlen(text, KEY_TEXT_LEN) < KEY_TEXT_LEN ||
        strspn(text, "0123456789abcdefABCDEF") < KEY_TEXT_LEN ||
        !(key = ff_secret_new(KEY_TEXT_BYTES)))
        return NULL;
    memcpy(key, text, KEY_TEXT_LEN);
    return key;
}

void key_text_free(char *key)
{
    ff_secret_free(key, KEY_TEXT_BYTES);
}

int key_text_make(char **out, struct ff_error *why)
{
    unsigned char *raw = ff_secret_new(KEY_TEXT_LEN / 2);
    char *key = ff_secret_new(KEY_TEXT_BYTES);
    int rc = raw && key ? 0 : ff_error_set(why, ENOMEM, "key: out of memory");

    if (!rc && getrandom(raw, KEY_TEXT_LEN / 2, 0) != KEY_TEXT_LEN / 2)
        rc = ff_error_set(why, errno, "key: getrandom: %s", strerror(errno));
    for (size_t i = 0; !rc && i < KEY_TEXT_LEN / 2; i++)
        snprintf(key + 2 * i, 3, "%02x", raw[i]);
    ff_secret_free(raw, KEY_TEXT_LEN / 2);
    if (rc) {
        key_text_free(key);
        return rc;
    }
    *out = key;
    return 0;
}

int key_line_write(int fd, const char *key, int limit_ms)
{
    char *line = ff_secret_new(LINE_BYTES);

    if (!line)
        return -ENOMEM;
    int len = snprintf(line, LINE_BYTES, KEY_LINE_HEAD "%s" KEY_LINE_TAIL "\n", key);
    int rc = jsonl_write(fd, line, (size_t)len, limit_ms);
    ff_secret_free(line, LINE_BYTES);
    return rc;
}

char *key_line_take(char *line)
{
    char *digits = line + strlen(KEY_LINE_HEAD), *key = NULL;
    size_t len = strlen(line);

    if (len == strlen(KEY_LINE_HEAD KEY_LINE_TAIL) + KEY_TEXT_LEN &&
        !strncmp(line, KEY_LINE_HEAD, strlen(KEY_LINE_HEAD)) &&
        !strcmp(digits + KEY_TEXT_LEN, KEY_LINE_TAIL))
        key = key_text_new(digits);
    explicit_bzero(line, len);
    return key;
}

int qmp_secret_write(int fd, json_int_t id, const char *key, int limit_ms)
{
    char *line = ff_secret_new(LINE_BYTES);

    if (!line)
        return -ENOMEM;
    int len = snprintf(line, LINE_BYTES,
                       "{\"execute\":\"object-add\",\"id\":%lld,\"arguments\":"
                       "{\"qom-type\":\"secret\",\"id\":\"" KEY_SECRET "\"," DATA "%s\"}}\n",
                       (long long)id, key);
    int rc = len < LINE_BYTES ? jsonl_write(fd, line, (size_t)len, limit_ms) : -EINVAL;
    ff_secret_free(line, LINE_BYTES);
    return rc;
}

char *qmp_secret_take(char *line)
{
    char *digits = strstr(line, "\"id\":\"" KEY_SECRET "\"") ? strstr(line, DATA) : NULL;
    char *key = digits ? key_text_new(digits + strlen(DATA)) : NULL;

    for (size_t i = 0; key && i < KEY_TEXT_LEN; i++)
        ((volatile char *)digits)[strlen(DATA) + i] = '0';
    return key;
}
