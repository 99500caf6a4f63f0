/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * uffd_features.c - what userfaultfd offers here, by name
 *
 * Required: missing pages on anonymous, shmem and hugetlbfs memory, each able to register and COPY.
 * The rest is reported: where a bit is missing, Farfork has a slower way or refuses by name.
 * Source: ioctl_userfaultfd(2), UFFDIO_API; linux/userfaultfd.h
 */
#include "platform.h"

static const struct {
    uint64_t bit;
    const char *name;
} features[] = {
    {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"},
    {UFFD_FEATURE_EVENT_FORK, "EVENT_FORK"},
    {UFFD_FEATURE_EVENT_REMAP, "EVENT_REMAP"},
    {UFFD_FEATURE_EVENT_REMOVE, "EVENT_REMOVE"},
    {UFFD_FEATURE_MISSING_HUGETLBFS, "MISSING_HUGETLBFS"},
    {UFFD_FEATURE_MISSING_SHMEM, "MISSING_SHMEM"},
    {UFFD_FEATURE_EVENT_UNMAP, "EVENT_UNMAP"},
    {UFFD_FEATURE_SIGBUS, "SIGBUS"},
    {UFFD_FEATURE_THREAD_ID, "THREAD_ID"},
    {UFFD_FEATURE_MINOR_HUGETLBFS, "MINOR_HUGETLBFS"},
    {UFFD_FEATURE_MINOR_SHMEM, "MINOR_SHMEM"},
    {UFFD_FEATURE_EXACT_ADDRESS, "EXACT_ADDRESS"},
    {UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "WP_HUGETLBFS_SHMEM"},
    {UFFD_FEATURE_WP_UNPOPULATED, "WP_UNPOPULATED"},
    {UFFD_FEATURE_POISON, "POISON"},
    {UFFD_FEATURE_WP_ASYNC, "WP_ASYNC"},
    {UFFD_FEATURE_MOVE, "MOVE"},
};

static void print_features(const char *title, uint64_t known, bool have)
{
    const char *sep = title;

    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        if (((known & features[i].bit) != 0) == have) {
            printf("%s%s", sep, features[i].name);
            sep = " ";
        }
    }
}

/* Can missing pages of this mapping be watched and filled by COPY? */
static bool fillable(int fd, int flags)
{
    unsigned char *p = pl_map(fd, pl_page(), flags);
    int uffd = pl_uffd(0);
    uint64_t ioctls = pl_register(uffd, p, pl_page(), UFFDIO_REGISTER_MODE_MISSING);

    close(uffd);
    return ioctls & (1ull << _UFFDIO_COPY);
}

int main(void)
{
    uint64_t known, unnamed;

    pl_start();
    known = unnamed = pl_uffd_known();
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        unnamed &= ~features[i].bit;

    print_features("has: ", known, true);
    print_features("; lacks: ", known, false);
    printf("; bits without a name here: %#" PRIx64 "\n", unnamed);

    if (!fillable(-1, MAP_PRIVATE | MAP_ANONYMOUS))
        pl_fails("missing pages of anonymous memory cannot be watched and filled");
    if (!(known & UFFD_FEATURE_MISSING_SHMEM) || !fillable(pl_memfd(pl_page()), MAP_SHARED))
        pl_fails("missing pages of a memfd cannot be watched and filled");
    if (!(known & UFFD_FEATURE_MISSING_HUGETLBFS))
        pl_fails("missing pages of hugetlbfs cannot be watched");
    pl_holds("missing pages can be watched on anonymous memory, shmem and hugetlbfs");
}
