/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * key.c - the key of a move or fork: 32 random bytes that both ends share
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      keep a key. handshake.c says what is done with it.
 * Picture      as text it has FF_KEY_TEXT_LEN hexadecimal digits, everywhere: a file, a line on
 *              standard input, a secret of QEMU's. Text survives terminals and JSON, and one that
 *              was cut short is noticed. `openssl rand -hex 32` makes one.
 * Invariants   1. The bytes stand in memory of base/secret.h alone; the text passes through a
 *                 buffer of the same kind. Neither is on the heap, in a message or in a log.
 *              2. A key has all its bits from a random source: nobody stretches a password here.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "error.h"
#include "key.h"
#include "secret.h"

struct ff_key {
    atomic_uint refs;
    uint8_t bytes[FF_KEY_LEN];
};

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int ff_key_parse(const char *text, size_t len, struct ff_key **out, struct ff_error *err)
{
    uint8_t any = 0;

    if (len == FF_KEY_TEXT_LEN + 1 && text[len - 1] == '\n')
        len--;
    if (len != FF_KEY_TEXT_LEN)
        return ff_error_set(err, EINVAL,
                            "key: %s%zu characters (want %d hexadecimal digits, as "
                            "`openssl rand -hex %d` writes them)",
                            len > FF_KEY_TEXT_LEN ? "at least " : "", len, FF_KEY_TEXT_LEN,
                            FF_KEY_LEN);
    struct ff_key *k = ff_secret_new(sizeof(*k));
    if (!k)
        return ff_error_set(err, ENOMEM, "key: out of memory");
    atomic_init(&k->refs, 1);
    for (size_t i = 0; i < FF_KEY_LEN; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            ff_key_unref(k);
            return ff_error_set(err, EINVAL, "key: character %zu or the one after it is no "
                                "hexadecimal digit", 2 * i + 1);
        }
        k->bytes[i] = (uint8_t)(high << 4 | low);
        any |= k->bytes[i];
    }
    if (!any) {
        ff_key_unref(k);
        return ff_error_set(err, EINVAL, "key: all zeros: that is no random key");
    }
    *out = k;
    return 0;
}

/* Who but its owner may read it? An access control list shows in the bits of the group */
static int check_key_owner(int fd, const char *path, struct ff_error *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return ff_error_set(err, errno, "key: read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ff_error_set(err, EINVAL, "key: %s is no file", path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ff_error_set(err, EPERM, "key: %s belongs to user %u (want this user, %u, or root)",
                            path, st.st_uid, geteuid());
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return ff_error_set(err, EPERM, "key: %s is open to others (mode %03o): make a new key, "
                            "and chmod 600 it first", path, st.st_mode & 0777u);
    return 0;
}

int ff_key_load(const char *path, struct ff_key **out, struct ff_error *err)
{
    enum { ROOM = FF_KEY_TEXT_LEN + 2 }; /* more than a key: too long shows */
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo blocks nobody */
    size_t len = 0;
    ssize_t n = 1;

    if (fd < 0)
        return ff_error_set(err, errno, "key: open %s: %s", path, strerror(errno));
    int rc = check_key_owner(fd, path, err);
    if (rc)
        return rc;
    char *text = ff_secret_new(ROOM);
    if (!text)
        return ff_error_set(err, ENOMEM, "key: out of memory");
    while (len < ROOM && n > 0) {
        n = read(fd, text + len, ROOM - len);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            len += (size_t)n;
    }
    if (n < 0)
        rc = ff_error_set(err, errno, "key: read %s: %s", path, strerror(errno));
    else if ((rc = ff_key_parse(text, len, out, err)))
        rc = ff_error_context(err, "key-file=%s", path);
    ff_secret_free(text, ROOM);
    return rc;
}

struct ff_key *ff_key_ref(struct ff_key *k)
{
    if (k)
        atomic_fetch_add(&k->refs, 1);
    return k;
}

void ff_key_unref(struct ff_key *k)
{
    if (k && atomic_fetch_sub(&k->refs, 1) == 1)
        ff_secret_free(k, sizeof(*k));
}

const uint8_t *ff_key_bytes(const struct ff_key *k)
{
    return k->bytes;
}
