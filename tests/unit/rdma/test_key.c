/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_key.c - keys: which text and which files are taken, and where the bytes are
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>

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
                                      "zeros", "fifo", "link", "empty"};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),  cmocka_unit_test(test_digits),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_owner), cmocka_unit_test(test_no_dump),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder) ? 1 : 0;
}
