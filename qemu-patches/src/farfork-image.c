/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: memory that stands still
 *
 * A fork()ed process keeps private memory as it was: the kernel copies what
 * either side writes.  A shared memfd it does not keep.  So such a block is
 * remapped once, private, over the same memfd, which nobody writes from then
 * on: it is the image.  It stays so; later forks go by fork() alone.
 *
 *   before   ram -> memfd (shared)        new: private mapping of the memfd
 *   pause    the page tables of ram move away: done by the entry of 2 MiB,
 *            not by the page (MREMAP_DONTUNMAP); the private mapping moves
 *            to where ram was.  At no time is there a gap.  Unmapping would
 *            take 50 ms a GiB.  What the pause still grows with is KVM, which
 *            forgets every page that it had mapped
 *   after    a thread unmaps the old mapping, which takes the kernel as long
 *            as it has pages, while the guest runs; not at once
 *
 * Everything that may fail for want of something, such as huge pages for
 * what this guest writes, fails before the pause.
 *
 * A block's fd is taken away from it when it becomes an image, so that nobody
 * who is plugged later (vhost-user) writes to the file, and this file keeps it.
 *
 * Discards are off from then on: in the file they would change an image that
 * others read, in the mapping they would bring back old content, and a hole
 * in a hugetlb file takes the private pages of every process with it.  Memory
 * that is anonymous needs nothing of this: MADV_DONTNEED does not reach a
 * fork()ed process.
 *
 * A file that is the whole image is lent to agents on this host: one that is
 * remapped in this pause, or whose mapping holds no copied page yet, as that
 * of a template; the kernel tells (PAGEMAP_SCAN).  Its holes are zeros.
 */
#include "qemu/osdep.h"
#include <linux/mempolicy.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "hw/boards.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/madvise.h"
#include "qemu/thread.h"
#include "qemu/units.h"
#include "compat.h"
#include "farfork-fork.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Of pagemap, from Linux 6.7 on; without it no image is lent twice */
#ifndef PAGEMAP_SCAN
#define PAGE_IS_FILE (1 << 2)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask;
    uint64_t return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif

#define NODES_MAX 4096 /* more than any kernel is built for */

#define UNMAP_AFTER_US (2 * G_USEC_PER_SEC)
#define UNMAP_PIECE (32 * MiB)
#define UNMAP_PAUSE_US 2000

static GArray *images;      /* of struct fc_image */
static bool discards_held;

/* What fc_freeze_prepare() made for a block that is shared */
static struct {
    void *private;          /* to become the block's memory */
    void *away;             /* where its page tables go */
    size_t len;             /* of both */
} work[RP_REGIONS_MAX];

/* --- images --- */

const struct fc_image *fc_image_of(const RAMBlock *block)
{
    for (unsigned i = 0; images && i < images->len; i++) {
        if (g_array_index(images, struct fc_image, i).block == block) {
            return &g_array_index(images, struct fc_image, i);
        }
    }
    return NULL;
}

/* A block is unplugged; another one may come to lie where it was */
static void image_block_removed(RAMBlockNotifier *n, void *host, size_t size,
                                size_t max_size)
{
    for (unsigned i = 0; i < images->len; i++) {
        struct fc_image *image = &g_array_index(images, struct fc_image, i);

        if (image->block->host == host) {
            close(image->fd);
            g_array_remove_index_fast(images, i);
            return;
        }
    }
}

void fc_image_adopt(RAMBlock *block, int fd, uint64_t offset)
{
    static RAMBlockNotifier notifier = { .ram_block_removed = image_block_removed };
    struct fc_image image = { .block = block, .fd = fd, .offset = offset };

    if (!images) {
        images = g_array_new(false, false, sizeof(struct fc_image));
        ram_block_notifier_add(&notifier);
    }
    if (block->fd >= 0 && block->fd != fd) {
        close(block->fd);
    }
    block->fd = -1;
    block->flags &= ~RAM_SHARED;
    if (!block->cpr_blocker) { /* a new QEMU would map the image, not this */
        ram_block_add_cpr_blocker(block, NULL);
    }
    g_array_append_val(images, image);
}

bool fc_hold_discards(Error **errp)
{
    if (!discards_held && ram_block_discard_disable(true)) {
        error_setg(errp, "a device (virtio-mem?) needs to discard guest "
                   "memory, which a fork's image forbids");
        return false;
    }
    discards_held = true;
    return true;
}

bool fc_is_pinned(void)
{
    return !discards_held && ram_block_discard_is_disabled();
}

/* Has no page of this private mapping been copied? */
static bool is_whole(const RAMBlock *block)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), n = -1;
    struct page_region found;
    struct pm_scan_arg scan = {
        .size = sizeof(scan),
        .start = (uintptr_t)block->host,
        .end = (uintptr_t)block->host + block->used_length,
        .vec = (uintptr_t)&found,
        .vec_len = 1,
        .max_pages = 1,
        .category_inverted = PAGE_IS_FILE,
        .category_mask = PAGE_IS_FILE, /* not of the file, and ... */
        .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        .return_mask = PAGE_IS_PRESENT,
    };

    if (fd >= 0) {
        n = ioctl(fd, PAGEMAP_SCAN, &scan);
        close(fd);
    }
    return n == 0;
}

struct ff_region fc_region(unsigned i)
{
    const struct fc_image *image = fc_image_of(rp_block[i]);
    struct ff_region r = rp_region(i);

    if (image && is_whole(rp_block[i])) {
        r.fd = image->fd;
        r.is_private = false;
    }
    return r;
}

/* --- freezing --- */

static bool must_remap(const RAMBlock *block)
{
    return block->flags & RAM_SHARED;
}

static bool check_block(const RAMBlock *block, Error **errp)
{
    if (!must_remap(block)) {
        return true;
    }
    if (block->fd < 0 || block->flags & (RAM_NAMED_FILE | RAM_PMEM |
                                         RAM_READONLY)) {
        error_setg(errp,
                   "cannot freeze memory region %s: other processes can map its file: use "
                   "memory-backend-memfd or anonymous memory",
                   block->idstr);
        return false;
    }
    return true;
}

void fc_advise_huge(const RAMBlock *block, bool on)
{
    qemu_madvise(block->host, block->max_length,
                 on ? QEMU_MADV_HUGEPAGE : QEMU_MADV_NOHUGEPAGE);
}

void fc_advise(const RAMBlock *block, void *at)
{
    qemu_madvise(at, block->max_length, QEMU_MADV_HUGEPAGE);
    qemu_madvise(at, block->max_length, QEMU_MADV_DONTFORK);
    if (!machine_dump_guest_core(current_machine)) {
        qemu_madvise(at, block->max_length, QEMU_MADV_DONTDUMP);
    }
    if (machine_mem_merge(current_machine)) {
        qemu_madvise(at, block->max_length, QEMU_MADV_MERGEABLE);
    }
}

/* Address space that page tables can move to by whole entries: as aligned */
static void *reserve_away(const RAMBlock *block)
{
    size_t align = MIN(1 * GiB, pow2ceil(block->max_length));
    size_t len = block->max_length + align;
    uint8_t *p = mmap(NULL, len, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *at;

    if (p == MAP_FAILED) {
        return NULL;
    }
    at = p + (((uintptr_t)block->host - (uintptr_t)p) & (align - 1));
    if (at > p) {
        munmap(p, at - p);
    }
    munmap(at + block->max_length, len - block->max_length - (at - p));
    return at;
}

/*
 * host-nodes= and policy= of the backend: a policy goes with a mapping, where
 * it does not with the file
 */
static bool keep_policy(const RAMBlock *block, void *private, Error **errp)
{
    unsigned long nodes[NODES_MAX / BITS_PER_LONG] = { 0 };
    int mode;

    if (syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)NODES_MAX,
                block->host, MPOL_F_ADDR) || mode == MPOL_DEFAULT ||
        !syscall(SYS_mbind, private, block->max_length, mode, nodes,
                 (unsigned long)NODES_MAX, 0)) {
        return true;
    }
    error_setg_errno(errp, errno, "cannot keep the NUMA policy of memory "
                     "region %s", block->idstr);
    return false;
}

bool fc_freeze_prepare(Error **errp)
{
    bool shared = false, file = false;

    for (unsigned i = 0; i < rp_n_blocks; i++) {
        if (!check_block(rp_block[i], errp)) {
            return false;
        }
        shared |= must_remap(rp_block[i]);
        /* a hole in a hugetlb file is one in the holder's private pages, too */
        file |= rp_block[i]->fd >= 0;
    }
    if (shared && !rp_check_poison(errp)) {
        return false;
    }
    /* block/nvme.c: its DMA would go on to the pages of the file */
    if (shared && fc_is_pinned()) {
        error_setg(
            errp,
            "cannot freeze guest memory that a device has pinned: use anonymous memory, or remove "
            "the device");
        return false;
    }
    if (file && !fc_hold_discards(errp)) {
        return false;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        RAMBlock *b = rp_block[i];
        void *p;

        if (!must_remap(b)) {
            continue;
        }
        p = mmap(NULL, b->max_length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | (b->flags & RAM_NORESERVE ? MAP_NORESERVE : 0),
                 b->fd, b->fd_offset);
        if (p == MAP_FAILED) {
            error_setg_errno(errp, errno, "cannot map memory region %s "
                             "privately%s", b->idstr,
                             b->page_size > qemu_real_host_page_size() ?
                             ": as many huge pages must be free as the guest "
                             "has" : "");
            return false;
        }
        work[i].private = p;
        work[i].len = b->max_length;
        if (!keep_policy(b, p, errp)) {
            return false;
        }
        fc_advise(b, p);
        if (b->page_size == qemu_real_host_page_size()) {
            work[i].away = reserve_away(b); /* huge pages are few */
        }
    }
    return true;
}

static bool remap(RAMBlock *b, void *private, void **away, Error **errp)
{
    int saved;

    /*
     * An empty, valid mapping stays, so that nobody hits a gap.  Only to save
     * time: where it cannot be done, what follows zaps the page tables.  It is
     * not known then whether what was reserved is ours still.
     */
    if (*away && mremap(b->host, b->max_length, b->max_length,
                        MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                        *away) == MAP_FAILED) {
        *away = NULL;
    }
    if (mremap(private, b->max_length, b->max_length,
               MREMAP_MAYMOVE | MREMAP_FIXED, b->host) != MAP_FAILED) {
        return true;
    }
    /* It may have unmapped what was there: map it as it was */
    saved = errno;
    if (mmap(b->host, b->max_length, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, b->fd, b->fd_offset) == MAP_FAILED) {
        error_report("farfork: memory region %s is lost: %s", b->idstr,
                     strerror(errno));
        abort();
    }
    fc_advise(b, b->host);
    error_setg_errno(errp, saved, "cannot remap memory region %s", b->idstr);
    return false;
}

/*
 * Children get the file, by a descriptor for reading alone, which /proc/self/fd
 * opens for writing: from here on nobody may, and the mapping that was there
 * before is ours.  A file that was made without seals stays as it is.
 */
static void seal(const RAMBlock *b)
{
    if (fcntl(b->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW |
              F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0) {
        info_report(
            "farfork: cannot seal memory region %s (%s): QEMU processes of its clones could write "
            "to its file",
            b->idstr, strerror(errno));
    }
}

bool fc_freeze(Error **errp)
{
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        if (!work[i].private) {
            continue;
        }
        if (!remap(rp_block[i], work[i].private, &work[i].away, errp)) {
            return false;
        }
        work[i].private = NULL;
        seal(rp_block[i]);
        fc_image_adopt(rp_block[i], rp_block[i]->fd, rp_block[i]->fd_offset);
    }
    return true;
}

struct range {
    void *at;
    size_t len;
};

/*
 * It takes a CPU for 50 ms a GiB, and those who want memory mapped wait for it
 * meanwhile.  Nothing is gained by haste, but children start just now.
 */
static void *unmap_thread(void *opaque)
{
    g_autoptr(GArray) ranges = opaque;

    g_usleep(UNMAP_AFTER_US);
    for (unsigned i = 0; i < ranges->len; i++) {
        struct range *r = &g_array_index(ranges, struct range, i);

        for (size_t done = 0; done < r->len; done += UNMAP_PIECE) {
            munmap(r->at + done, MIN(UNMAP_PIECE, r->len - done));
            g_usleep(UNMAP_PAUSE_US);
        }
    }
    return NULL;
}

void fc_freeze_end(void)
{
    GArray *ranges = g_array_new(false, false, sizeof(struct range));
    QemuThread thread;

    for (unsigned i = 0; i < RP_REGIONS_MAX; i++) {
        struct range r = { .at = work[i].away, .len = work[i].len };

        /* the block may have been unplugged */
        if (work[i].private) { /* it failed: nobody has touched it */
            munmap(work[i].private, work[i].len);
        }
        if (r.at) {
            g_array_append_val(ranges, r);
        }
        work[i].private = work[i].away = NULL;
    }
    if (!ranges->len) {
        g_array_unref(ranges);
        return;
    }
    qemu_thread_create(&thread, "farfork-unmap", unmap_thread, ranges,
                       QEMU_THREAD_DETACHED);
}

void fc_inherit(bool on)
{
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        qemu_madvise(rp_block[i]->host, rp_block[i]->max_length,
                     on ? MADV_DOFORK : QEMU_MADV_DONTFORK);
    }
}
