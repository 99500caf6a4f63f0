/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_hostile.c - children and sources that mean harm: to the image, to other children
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "stranger.h"

static void setup(void)
{
    image_new(3000);
}

/* --- a child that writes where it must not --- */

/* By what the file behind @fd, which others read, can be changed; NULL: by nothing */
static const char *breach(int fd, uint64_t len)
{
    const char *by = NULL;
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    FF_AUTO_CLOSE int again = open(path, O_RDWR | O_CLOEXEC);
    int use = again >= 0 ? again : fd;
    void *p = mmap(NULL, CELL, PROT_READ | PROT_WRITE, MAP_SHARED, use, 0);
    if (p != MAP_FAILED) {
        munmap(p, CELL);
        by = "a shared mapping";
    } else if (pwrite(use, "x", 1, 0) == 1) {
        by = "a write";
    } else if (!ftruncate(use, (off_t)len + CELL) || !ftruncate(use, (off_t)len - CELL)) {
        by = "another length";
    } else if (!fallocate(use, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, CELL)) {
        by = "a hole";
    }
    return by;
}

static void must_be_sealed(const struct ff_clone_msg *m, const uint64_t *len)
{
    for (unsigned i = 0; i < m->n_fds; i++) {
        const char *by = breach(m->fd[i], len[i]);
        if (by)
            loop_fail(__FILE__, __LINE__, "a child changes file %u of %s by %s", i,
                      ff_clone_name(m->type), by);
    }
}

static void child_writes(void)
{
    struct family *f = family_new();
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r), files;
    uint64_t len[2] = {r[0].len_bytes, r[1].len_bytes};
    struct ff_error err;

    f->n_children = 2;
    f->options = "prefill=off";
    f->last_later = true;
    family_start(f);
    family_source(f, S_RUNNING);
    int sock = stranger(f);
    must_ok(ff_clone_send(sock, &m, &err), err);
    must_ok(ff_clone_expect(sock, -1, &files, 10000, &err), err);
    must(files.type == FF_CLONE_IMAGE && files.n_fds == 1);
    must_be_sealed(&files, &files.state_bytes);
    ff_clone_close(&files);
    must_ok(ff_clone_expect(sock, -1, &files, 10000, &err), err);
    must(files.type == FF_CLONE_MEMORY && files.n_fds == 2);
    must_be_sealed(&files, len);
    ff_clone_close(&files);
    close(sock);
    family_last(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a child writes into the image", child_writes, 40},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
