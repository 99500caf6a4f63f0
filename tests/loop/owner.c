/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * owner.c - a process whose memory a source in another reads; see owner.h
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "owner.h"
#include "pagemap.h"

struct owner owner;

/* What the file of a private mapping has, and not the process */
static bool is_in_file(uint64_t cell)
{
    return cell % 3 == 0;
}

static void *map_at_image(int flags, int fd)
{
    void *at = mmap(image, image_cells * CELL, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);

    must(at == image);
    return at;
}

/* Memory of that kind instead of the image, with its bytes; the cells of zeros nobody touches */
void owner_remap(void)
{
    const struct owner *o = &owner;
    uint8_t *was = mmap(NULL, image_cells * CELL, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    must(was != MAP_FAILED && mremap(image, image_cells * CELL, image_cells * CELL,
                                     MREMAP_MAYMOVE | MREMAP_FIXED, was) == was);
    if (o->owns == OWNS_HUGE)
        map_at_image(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
    else if (o->owns == OWNS_HOLES)
        map_at_image(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    else
        map_at_image(o->owns == OWNS_SHORT_FILE ? MAP_SHARED : MAP_PRIVATE, o->file);
    if (o->owns == OWNS_HOLES)
        madvise(image, image_cells * CELL, MADV_NOHUGEPAGE);
    for (uint64_t c = 0; c < image_cells; c++) {
        bool file = o->owns == OWNS_SHORT_FILE ||
                    (o->owns == OWNS_PRIVATE_FILE && is_in_file(c));
        if (cell_is_zero(c))
            continue;
        if (file)
            must(pwrite(o->file, was + c * CELL, CELL, (off_t)(c * CELL)) == CELL);
        else
            memcpy(image + c * CELL, was + c * CELL, CELL);
    }
    munmap(was, image_cells * CELL);
    if (o->owns == OWNS_SHORT_FILE)
        must(!ftruncate(o->file, (off_t)((image_cells - OWNER_BAD_CELLS) * CELL)));
}

static void owner_main(void *arg)
{
    (void)arg;
    close(owner.ready[0]);
    if (owner.owns != OWNS_IMAGE)
        owner_remap();
    must(write(owner.ready[1], "", 1) == 1);
    for (;;)
        pause();
}

void owner_start(enum owns owns)
{
    char byte;

    owner = (struct owner){.owns = owns, .file = -1, .zero_fill = owns != OWNS_SHORT_FILE};
    if (owns == OWNS_PRIVATE_FILE || owns == OWNS_SHORT_FILE) {
        owner.file = memfd_create("owner", MFD_CLOEXEC);
        must(owner.file >= 0 && !ftruncate(owner.file, (off_t)(image_cells * CELL)));
    }
    must(!pipe(owner.ready));
    owner.pid = child_start(owner_main, NULL);
    close(owner.ready[1]);
    must(read(owner.ready[0], &byte, 1) == 1);
    close(owner.ready[0]);
    image_hide(true); /* from here on it is the owner's alone */
}

void owner_kill(void)
{
    must(!kill(owner.pid, SIGKILL));
    must(child_wait(owner.pid, OWNER_LIMIT_S) >= 0);
}

/* KiB of the owner's image that smaps counts in lines of @key */
static unsigned long long taken_of(const char *key)
{
    unsigned long long sum = 0, start, end, kib, at = (uintptr_t)image;
    char path[40], line[256];
    bool in = false;

    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)owner.pid);
    FILE *f = fopen(path, "r");
    must(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            in = start < at + image_cells * CELL && end > at;
        else if (in && !strncmp(line, key, strlen(key)) &&
                 sscanf(line + strlen(key), ": %llu", &kib) == 1)
            sum += kib;
    }
    fclose(f);
    return sum;
}

/* Pages in the owner's page tables: Rss does not count the kernel's page of zeros */
static unsigned long long mapped_pages(void)
{
    unsigned long long n = 0;
    char path[40];
    uint64_t e;

    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)owner.pid);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (uint64_t c = 0; c < image_cells; c++) {
        must(ff_pagemap_read(fd, image + c * CELL, 1, &e));
        n += !!(e & (FF_PM_PRESENT | FF_PM_SWAPPED));
    }
    return n;
}

/* With what its file takes */
unsigned long long owner_taken(void)
{
    struct stat st = {.st_blocks = 0};

    must(owner.file < 0 || !fstat(owner.file, &st));
    return mapped_pages() * (CELL >> 10) + taken_of("Rss") + taken_of("Private_Hugetlb") + (unsigned long long)st.st_blocks / 2;
}

void owner_add(struct move *m, struct ff_region *r)
{
    struct ff_error err;

    r->zero_fill = owner.zero_fill;
    r->is_private = owner.owns == OWNS_PRIVATE_FILE;
    r->private_fd = owner.file;
    r->fd_offset = (uint64_t)((uint8_t *)r->host - image);
    must_ok(ff_source_add_region_of(m->source, r, owner.pid, &err), err);
}

void owner_old_kernel(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffff), /* type and number, no size */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'f' << 8 | 16, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'f' << 8 | 17, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
    };
    struct sock_fprog filter = {.len = FF_ARRAY_LEN(code), .filter = code};

    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        loop_skip("seccomp: %s", strerror(errno));
    FF_AUTO_CLOSE int fd = ff_pagemap_open();
    must(fd >= 0 && !ff_pagemap_scans(fd));
}
