/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * keyed.c - whole moves and a fork with a key; sources with another one, or none, get nothing
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "family.h"
#include "loop.h"

#define KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170\n"
#define OTHER "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928171\n"

static char with_key[120];

static void setup(void)
{
    image_new(4000);
}

/* A file for one test, gone as soon as the options have been read twice: by both ends */
static char key_path[64];

static const char *key_options(void)
{
    snprintf(key_path, sizeof(key_path), "/tmp/farfork-keyed-XXXXXX");
    FF_AUTO_CLOSE int fd = mkstemp(key_path);
    must(fd >= 0 && write(fd, KEY, strlen(KEY)) == (ssize_t)strlen(KEY));
    snprintf(with_key, sizeof(with_key), "key-file=%s,link=tcp", key_path);
    return with_key;
}

static void remove_key(void)
{
    must(!unlink(key_path));
}

static void moves(void)
{
    static const char *const prefills[] = {"pull", "push"};
    static struct move m;
    char options[160];

    key_options();
    for (unsigned i = 0; i < FF_ARRAY_LEN(prefills); i++) {
        snprintf(options, sizeof(options), "%s,prefill=%s", with_key, prefills[i]);
        m = (struct move){.tcp = true, .options = options, .touchers = 3, .writes = true,
                          .state_bytes = 3 << 20};
        move_run(&m);
        move_must_succeed(&m);
    }
    remove_key();
}

/* --- others first --- */

static void other_source(struct move *m, const char *key, int code, const char *says)
{
    static uint8_t mem[1 << 16] __attribute__((aligned(65536)));
    struct ff_region r = {
        .name = "region0", .host = mem, .len_bytes = sizeof(mem), .psize = 4096, .fd = -1};
    struct ff_address *a;
    struct ff_source *s;
    struct ff_error err;
    char text[64];

    snprintf(text, sizeof(text), "127.0.0.1:%u,link=tcp,timeout=5", ff_dest_port(m->dest));
    must_ok(ff_address_parse(text, &a, &err), err);
    if (key)
        must_ok(ff_address_set_key(a, key, strlen(key), &err), err);
    must_ok(ff_source_new(a, &s, &err), err);
    ff_address_free(a); /* the source has its own reference to the key */
    must_ok(ff_source_add_region(s, &r, &err), err);
    int rc = ff_source_connect(s, "test", &err);
    if (rc != -code || !strstr(err.text, says))
        loop_fail(__FILE__, __LINE__, "%d, want %d and \"%s\": %s", rc, -code, says,
                  rc ? err.text : "");
    ff_source_free(s);
}

static void others_first(struct move *m, enum stage stage)
{
    if (stage != S_CONNECT)
        return;
    other_source(m, OTHER, EACCES, "another key");
    other_source(m, NULL, EACCES, "wants a key");
}

static void others_then_good(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = key_options(), .hook = others_first};
    move_run(&m);
    must(m.dst.stage == D_END); /* nobody was adopted before */
    move_must_succeed(&m);
    remove_key();
}

/* The destination has none: the source says nothing of its guest to it */
static void keyed_first(struct move *m, enum stage stage)
{
    if (stage == S_CONNECT)
        other_source(m, KEY, ECONNRESET, "has the destination no key");
}

static void keyed_source_alone(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "link=tcp", .hook = keyed_first};
    move_run(&m);
    move_must_succeed(&m);
}

/* --- a fork --- */

static void fork_with_key(void)
{
    struct family *f = family_new();

    f->options = key_options();
    f->n_children = 2;
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
    remove_key();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"moves with a key", moves, 0},
        {"others, then the right source", others_then_good, 0},
        {"a key at the source alone", keyed_source_alone, 0},
        {"a fork with a key", fork_with_key, 60},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
