/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_config_file.c - -readconfig: the options that stand in its place, and what is left as it is
 */
#include "unit.h"

#include <stdio.h>
#include <unistd.h>

#include "config_file.h"

static char path[32];

#define LOOK 1e9 /* config_file_look() */

/* The words after -M q35 -readconfig FILE -boot d of a process of that age, in one string */
static char *expanded(const char *text, double age_s)
{
    struct strv argv = {0};
    FILE *f = fopen(path, "we");
    char *line = xstrdup("");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    const char *const words[] = {"qemu", "-M", "q35", "-readconfig", path, "-boot", "d"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        strv_add(&argv, "%s", words[i]);
    if (age_s >= LOOK)
        config_file_look(&argv, "/");
    else
        config_file_expand(&argv, "/", age_s);
    for (size_t i = 1; i < argv.n; i++) {
        char *more = xprintf("%s%s%s", line, i > 1 ? " " : "", argv.v[i]);
        free(line);
        line = more;
    }
    strv_free(&argv);
    return line;
}

#define assert_expanded(text, want)                                                            \
    do {                                                                                       \
        FF_AUTO_FREE char *got_ = expanded(text, -1);                                          \
        assert_string_equal(got_, "-M q35 " want " -boot d");                                  \
    } while (0)

static void assert_left(const char *text, double age_s)
{
    FF_AUTO_FREE char *got = expanded(text, age_s);
    FF_AUTO_FREE char *want = xprintf("-M q35 -readconfig %s -boot d", path);

    assert_string_equal(got, want);
}

static void test_sections(void **state)
{
    (void)state;
    assert_expanded("# of a machine\n\n[device \"ehci\"]\n  driver = \"ich9-usb-ehci1\"\n"
                    "  addr = \"1d.7\"\n\n[device]\n  driver=\"usb-tablet\"\n bus = \"ehci.0\"\n",
                    "-device id=ehci,driver=ich9-usb-ehci1,addr=1d.7 "
                    "-device driver=usb-tablet,bus=ehci.0");
    assert_expanded("[drive \"d\"]\n file = \"/a,b\"\n serial = \"\"\n[global]\n driver = \"x\"\n",
                    "-drive id=d,file=/a,,b,serial= -global driver=x");
    FF_AUTO_FREE char *nothing = expanded("# nothing\n", -1);
    assert_string_equal(nothing, "-M q35 -boot d");
}

static void test_left(void **state)
{
    static const char *const texts[] = {"[memory]\n size = \"1G\"\n",
                                        "[machine]\n type = \"q35\"\n",
                                        "[device \"a\"]\n driver = \"x\"\n[smp-opts]\n",
                                        "[device \"a\"]\n driver = x\n",
                                        "[device \"a\"]\n driver = \"x\n",
                                        "[device \"a]\n driver = \"x\"\n",
                                        "driver = \"x\"\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_left(texts[i], -1);
}

static void test_changed(void **state)
{
    (void)state;
    assert_left("[device]\n driver = \"x\"\n", 60);
}

/* A monitor is found, whatever else stands there and however old it is */
static void test_look(void **state)
{
    static const char text[] = "[machine]\n type = \"q35\"\n[chardev \"c\"]\n backend = \"socket\"\n"
                               " path = \"/run/m\"\n server = \"on\"\n[smp-opts]\n cpus = \"2\"\n"
                               "[mon \"m\"]\n chardev = \"c\"\n mode = \"control\"\n nonsense\n"
                               "[memory \"x\"]\n size = \"1G\"\n";
    FF_AUTO_FREE char *got = expanded(text, LOOK);
    (void)state;

    assert_string_equal(got, "-M q35 -chardev id=c,backend=socket,path=/run/m,server=on "
                             "-mon id=m,chardev=c,mode=control -boot d");
    assert_left(text, -1);
}

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/ff-config-XXXXXX");
    int fd = mkstemp(path);

    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

UNIT_MAIN(cmocka_unit_test_setup_teardown(test_sections, make_file, remove_file),
          cmocka_unit_test_setup_teardown(test_left, make_file, remove_file),
          cmocka_unit_test_setup_teardown(test_changed, make_file, remove_file),
          cmocka_unit_test_setup_teardown(test_look, make_file, remove_file))
