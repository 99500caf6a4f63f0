/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_key.c - keys: which text and which files are taken, and where the bytes are
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "key.h"
#include "secret.h"

#define TEXT "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF"

static char folder[64];

static void make_file(char path[96], const char *name, const char *text, mode_t mode)
{
    snprintf(path, 96, "%s/%s", folder, name);
    FF_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/farfork-key-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const all[] = {"good", "bare", "group", "world", "short", "long", "digit",
                                      "zeros", "fifo", "link", "empty",  "psk"};
    char path[96];
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, all[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void test_text(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    assert_ok(ff_key_parse(TEXT, 64, &k, &err), err);
    for (int i = 0; i < FF_KEY_LEN; i++)
        assert_int_equal(ff_key_bytes(k)[i], i < 31 ? i : 255);
    ff_key_unref(k);
    assert_ok(ff_key_parse(TEXT "\n", 65, &k, &err), err);
    assert_ptr_equal(ff_key_ref(k), k);
    ff_key_unref(k);
    assert_int_equal(ff_key_bytes(k)[31], 255); /* one reference is left */
    ff_key_unref(k);
    ff_key_unref(NULL);
    assert_null(ff_key_ref(NULL));
    for (size_t len = 0; len < 64; len++)
        assert_fails(ff_key_parse(TEXT, len, &k, &err), EINVAL);
    assert_error(err, EINVAL, "63 characters", "want 64");
    assert_fails(ff_key_parse(TEXT "\n\n", 66, &k, &err), EINVAL);
    assert_fails(ff_key_parse(TEXT "0", 65, &k, &err), EINVAL);
}

/* Whatever is no digit is refused, and no message tells what stood there */
static void test_digits(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    char text[65];
    (void)state;

    for (int c = 0; c < 256; c++) {
        bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        memcpy(text, TEXT, sizeof(text));
        text[7] = (char)c;
        int rc = ff_key_parse(text, 64, &k, &err);
        assert_int_equal(rc, good ? 0 : -EINVAL);
        if (good)
            ff_key_unref(k);
        else
            assert_null(strstr(err.text, "0405"));
    }
    memset(text, '0', 64);
    assert_fails(ff_key_parse(text, 64, &k, &err), EINVAL);
    assert_error(err, EINVAL, "zeros");
}

static void test_files(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    char path[96], link[96];
    (void)state;

    make_file(path, "good", TEXT "\n", 0600);
    assert_ok(ff_key_load(path, &k, &err), err);
    assert_int_equal(ff_key_bytes(k)[1], 1);
    ff_key_unref(k);
    snprintf(link, sizeof(link), "%s/link", folder); /* as a mounted secret may be */
    assert_int_equal(symlink(path, link), 0);
    assert_ok(ff_key_load(link, &k, &err), err);
    ff_key_unref(k);
    make_file(path, "bare", TEXT, 0400);
    assert_ok(ff_key_load(path, &k, &err), err);
    ff_key_unref(k);

    make_file(path, "group", TEXT, 0640);
    assert_fails(ff_key_load(path, &k, &err), EPERM);
    assert_error(err, EPERM, "640", "chmod 600", "group");
    make_file(path, "world", TEXT, 0604);
    assert_fails(ff_key_load(path, &k, &err), EPERM);
    make_file(path, "short", "00010203", 0600);
    assert_fails(ff_key_load(path, &k, &err), EINVAL);
    assert_error(err, EINVAL, "short", "8 characters");
    make_file(path, "long", TEXT TEXT TEXT, 0600);
    assert_fails(ff_key_load(path, &k, &err), EINVAL);
    assert_error(err, EINVAL, "at least 66");
    make_file(path, "digit", "x" TEXT, 0600);
    assert_fails(ff_key_load(path, &k, &err), EINVAL);
    make_file(path, "empty", "", 0600);
    assert_fails(ff_key_load(path, &k, &err), EINVAL);
    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(ff_key_load(path, &k, &err), EINVAL);
    assert_error(err, EINVAL, "no file");
    assert_fails(ff_key_load("/nonexistent/key", &k, &err), ENOENT);
}

/* A file of another user, which this one may read (root may) */
static void test_owner(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    char path[96];
    (void)state;

    if (geteuid()) {
        print_message("SKIP: only root can give a file away\n");
        return;
    }
    make_file(path, "zeros", TEXT, 0600);
    assert_int_equal(chown(path, 65534, 0), 0);
    assert_fails(ff_key_load(path, &k, &err), EPERM);
    assert_error(err, EPERM, "65534");
}

/* The kernel leaves the mapping that holds @p out of core dumps: "dd" in its VmFlags */
static bool left_out_of_dumps(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to;
    bool inside = false, found = false;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = from <= (uintptr_t)p && (uintptr_t)p < to;
        else if (inside && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, " dd") != NULL;
    }
    fclose(f);
    return found;
}

static void test_no_dump(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    assert_false(left_out_of_dumps(&folder)); /* what is not meant for it, so that this can fail */
    uint8_t *p = ff_secret_new(100);
    assert_non_null(p);
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i], 0);
    assert_true(left_out_of_dumps(p));
    ff_secret_free(p, 100);
    ff_secret_free(NULL, 100);
    assert_ok(ff_key_parse(TEXT, 64, &k, &err), err);
    assert_true(left_out_of_dumps(ff_key_bytes(k)));
    ff_key_unref(k);
}

/* --- users of TLS-PSK --- */

#define ONE "00112233445566778899aabbccddeeff"
#define TWO "ffeeddccbbaa99887766554433221100"

static int load_psk(const char *text, mode_t mode, const char *user, struct ff_key **k,
                    struct ff_error *err)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/psk", folder);
    unlink(path);
    make_file(path, "psk", text, mode);
    return ff_key_load_psk(path, user, k, err);
}

static struct ff_key *must_load_psk(const char *text, const char *user)
{
    struct ff_error err;
    struct ff_key *k;

    assert_ok(load_psk(text, 0640, user, &k, &err), err);
    return k;
}

/* A user's own key is the one that a destination with all of them finds by his mark */
static void test_users(void **state)
{
    struct ff_key *all = must_load_psk("one:" ONE "\n\ntwo:" TWO "\nthree:" ONE "\n", NULL);
    const char *const name[] = {"one", "two", "three"};
    uint8_t nonce[32], plain[32];
    struct ff_key *k[3], *plain_key;
    struct ff_error err;
    (void)state;

    memset(plain, 7, sizeof(plain));
    for (int i = 0; i < 3; i++) {
        k[i] = must_load_psk("two:" TWO "\none:" ONE "\nthree:" ONE "\none:" TWO "\nx:bad",
                             name[i]);
        memcpy(nonce, plain, sizeof(nonce));
        assert_int_equal(ff_key_mark(k[i], nonce, sizeof(nonce)), 0);
        assert_memory_equal(nonce, plain, sizeof(nonce) - FF_KEY_MARK_LEN);
        assert_memory_not_equal(nonce, plain, sizeof(nonce));
        assert_memory_equal(ff_key_marked(all, nonce, sizeof(nonce)), ff_key_bytes(k[i]),
                            FF_KEY_LEN);
        nonce[0] ^= 1; /* no mark is good for another nonce: the first key */
        assert_ptr_equal(ff_key_marked(all, nonce, sizeof(nonce)), ff_key_bytes(all));
        assert_true(left_out_of_dumps(ff_key_bytes(k[i])));
    }
    /* the name is in the key: one text of two users is two keys */
    assert_memory_not_equal(ff_key_bytes(k[0]), ff_key_bytes(k[2]), FF_KEY_LEN);
    assert_memory_not_equal(ff_key_bytes(k[0]), ff_key_bytes(k[1]), FF_KEY_LEN);
    assert_false(ff_key_equal(k[0], k[2]));
    assert_false(ff_key_equal(k[0], all));
    assert_false(ff_key_equal(k[0], NULL));
    assert_true(ff_key_equal(all, all) && ff_key_equal(NULL, NULL));
    for (int i = 0; i < 3; i++)
        ff_key_unref(k[i]);
    ff_key_unref(all);

    assert_ok(ff_key_parse(TEXT, 64, &plain_key, &err), err);
    memcpy(nonce, plain, sizeof(nonce));
    assert_int_equal(ff_key_mark(plain_key, nonce, sizeof(nonce)), 0);
    assert_memory_equal(nonce, plain, sizeof(nonce)); /* a key of its own has no mark */
    ff_key_unref(plain_key);
}

static unsigned n_expands;

int __real_gnutls_hkdf_expand(gnutls_mac_algorithm_t mac, const gnutls_datum_t *key,
                              const gnutls_datum_t *info, void *out, size_t len);
int __wrap_gnutls_hkdf_expand(gnutls_mac_algorithm_t mac, const gnutls_datum_t *key,
                              const gnutls_datum_t *info, void *out, size_t len);

int __wrap_gnutls_hkdf_expand(gnutls_mac_algorithm_t mac, const gnutls_datum_t *key,
                              const gnutls_datum_t *info, void *out, size_t len)
{
    n_expands++;
    return __real_gnutls_hkdf_expand(mac, key, info, out, len);
}

/* Nor does the time that it takes to find a user tell which one it is */
static void test_no_user_is_first(void **state)
{
    static const char *const user[] = {"one", "two", "three", "x"};
    struct ff_key *all = must_load_psk("one:" ONE "\ntwo:" TWO "\nthree:" ONE "\n", NULL);
    uint8_t nonce[32] = "a nonce of 32 bytes";
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(user); i++) {
        struct ff_key *k = must_load_psk("one:" ONE "\ntwo:" TWO "\nthree:" ONE "\nx:" TWO "\n",
                                         user[i]);
        assert_int_equal(ff_key_mark(k, nonce, sizeof(nonce)), 0);
        n_expands = 0;
        const uint8_t *found = ff_key_marked(all, nonce, sizeof(nonce));
        assert_int_equal(n_expands, 3);
        if (i < 3)
            assert_memory_equal(found, ff_key_bytes(k), FF_KEY_LEN);
        else
            assert_ptr_equal(found, ff_key_bytes(all));
        ff_key_unref(k);
    }
    ff_key_unref(all);
}

static void test_bad_users(void **state)
{
    static const struct {
        const char *text, *user, *says;
        int code;
    } bad[] = {
        {"one:" ONE "\n", "two", "no user two", ENOENT},
        {"one:" ONE "\n", "on", "no user on", ENOENT},
        {"", NULL, "no user", EINVAL},
        {"one:" ONE "\ntwo\n", NULL, "line 2", EINVAL},
        {":" ONE "\n", NULL, "line 1", EINVAL},
        {"one:0011223344556677889900112233445\n", NULL, "31 hexadecimal", EINVAL},
        {"one:001122334455667788990011223344\n", "one", "30 hexadecimal", EINVAL},
        {"one:" ONE "\r\n", NULL, "no hexadecimal digit", EINVAL},
        {"one:" ONE "g0\n", NULL, "no hexadecimal digit", EINVAL},
    };
    char many[FF_KEY_USERS * 48 + 64];
    struct ff_error err;
    struct ff_key *k;
    size_t len = 0;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        assert_fails(load_psk(bad[i].text, 0600, bad[i].user, &k, &err), bad[i].code);
        assert_non_null(strstr(err.text, bad[i].says));
        assert_null(strstr(err.text, "0011"));
    }
    for (mode_t mode = 1; mode <= 0400; mode <<= 1)
        if (mode & 0027) {
            assert_fails(load_psk("one:" ONE "\n", 0600 | mode, NULL, &k, &err), EPERM);
            assert_error(err, EPERM, "open to others", "chmod 640");
        }
    for (unsigned i = 0; i < FF_KEY_USERS; i++)
        len += (size_t)snprintf(many + len, sizeof(many) - len, "u%u:" ONE "\n", i);
    k = must_load_psk(many, NULL);
    ff_key_unref(k);
    snprintf(many + len, sizeof(many) - len, "more:" ONE "\n");
    assert_fails(load_psk(many, 0600, NULL, &k, &err), E2BIG);
    k = must_load_psk(many, "more");
    ff_key_unref(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),  cmocka_unit_test(test_digits),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_owner), cmocka_unit_test(test_no_dump),
        cmocka_unit_test(test_users), cmocka_unit_test(test_bad_users),
        cmocka_unit_test(test_no_user_is_first),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder) ? 1 : 0;
}
