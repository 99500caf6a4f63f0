/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * region_memory.c - the image, the destination's memory of every kind, the threads that touch it
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "loop.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#define HUGE_BYTES (2u << 20)
#define PERIOD 4093u
#define WORDS_AT (CELL - CELL_WORDS * 8)

uint8_t *image;
uint64_t image_cells;
static uint8_t ring[PERIOD + CELL];

/* --- the image: any byte of it can be said without it --- */

static uint64_t hash(uint64_t v)
{
    v = (v ^ (v >> 31)) * 0x7fb5d329728ea185ull;
    v = (v ^ (v >> 27)) * 0x81dadef4bc2dd44dull;
    return v ^ (v >> 33);
}

bool cell_is_zero(uint64_t cell)
{
    /* whole huge pages of zeros, and single cells */
    return hash(cell / (HUGE_BYTES / CELL)) % 4 == 0 || hash(cell ^ 0x5a5a) % 4 == 0;
}

static uint64_t first_word(uint64_t cell)
{
    return hash(cell) | 1;
}

static void fill_cell(uint8_t *p, uint64_t cell)
{
    uint64_t word = first_word(cell);

    if (cell_is_zero(cell)) {
        memset(p, 0, CELL);
        return;
    }
    memcpy(p, ring + cell * CELL % PERIOD, CELL);
    memcpy(p, &word, 8);
}

/* The 8 bytes at @offset of a cell that nobody has written */
static uint64_t word_of(uint64_t cell, unsigned offset)
{
    uint64_t v = 0;

    if (cell_is_zero(cell))
        return 0;
    if (!offset)
        return first_word(cell);
    memcpy(&v, ring + cell * CELL % PERIOD + offset, 8);
    return v;
}

static uint64_t written_word(uint64_t cell, unsigned id, uint32_t number)
{
    return hash(cell << 20 ^ (uint64_t)id << 60 ^ number) | 1;
}

static uint8_t *map_aligned(uint64_t len)
{
    uint8_t *p = mmap(NULL, len + HUGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(p != MAP_FAILED);
    uint8_t *start = (uint8_t *)(((uintptr_t)p + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    if (start != p)
        munmap(p, (size_t)(start - p));
    return start;
}

void image_new(uint64_t cells)
{
    for (unsigned i = 0; i < sizeof(ring); i++)
        ring[i] = (uint8_t)((i % PERIOD) * 131 >> 2);
    image = map_aligned(cells * CELL);
    madvise(image, cells * CELL, MADV_HUGEPAGE);
    for (uint64_t c = 0; c < cells; c++)
        fill_cell(image + c * CELL, c);
    image_cells = cells;
}

/* As a guest at the source does while its memory is served already: TSAN does not see that the
 * message STATE orders this before the read */
__attribute__((no_sanitize("thread"))) void image_flip(uint64_t cell)
{
    for (unsigned i = 0; i < CELL; i++)
        image[cell * CELL + i] ^= 0xff;
}

void image_hide(bool hide)
{
    must(!mprotect(image, image_cells * CELL, hide ? PROT_NONE : PROT_READ | PROT_WRITE));
}

/* --- the destination's memory --- */

void area_new(struct area *a, enum memory kind, uint64_t len)
{
    bool huge = kind == MEM_HUGETLB || kind == MEM_HUGETLB_ANON;
    unsigned mfd = MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    int flags = kind == MEM_MEMFD || kind == MEM_HUGETLB ? MAP_SHARED : MAP_PRIVATE;

    *a = (struct area){.fd = -1, .psize = huge ? HUGE_BYTES : CELL};
    a->len_bytes = (len + a->psize - 1) / a->psize * a->psize;
    if (kind == MEM_ANON || kind == MEM_ANON_THP) {
        a->host = map_aligned(a->len_bytes);
        must(!madvise(a->host, a->len_bytes,
                      kind == MEM_ANON ? MADV_NOHUGEPAGE : MADV_HUGEPAGE) || errno == EINVAL);
        return;
    }
    if (kind == MEM_HUGETLB_ANON) {
        a->host = mmap(NULL, a->len_bytes, PROT_READ | PROT_WRITE,
                       flags | MAP_ANONYMOUS | MAP_HUGETLB | (int)MFD_HUGE_2MB, -1, 0);
    } else {
        a->fd = memfd_create("farfork-loop", mfd);
        must(a->fd >= 0 && !ftruncate(a->fd, (off_t)a->len_bytes));
        a->host = mmap(NULL, a->len_bytes, PROT_READ | PROT_WRITE, flags, a->fd, 0);
        if (kind == MEM_MEMFD_PRIVATE) { /* the library is told of shared mappings alone */
            close(a->fd);
            a->fd = -1;
        }
    }
    if (a->host == MAP_FAILED)
        loop_fail(__FILE__, __LINE__, "map %llu bytes of kind %d: %s",
                  (unsigned long long)a->len_bytes, kind, strerror(errno));
}

/* --- touching --- */

static uint8_t *cell_at(struct move *m, uint64_t cell)
{
    for (unsigned i = 0; i < m->n_regions; i++) {
        uint64_t n = m->area[i].len_bytes / CELL;
        if (cell < n)
            return m->area[i].host + cell * CELL;
        cell -= n;
    }
    loop_fail(__FILE__, __LINE__, "no such cell");
}

static uint64_t load(const uint8_t *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

void touch_cell(struct toucher *t, uint64_t cell, bool write)
{
    uint8_t *p = cell_at(t->m, cell), *own = p + WORDS_AT + t->id * 8;
    uint32_t last = t->last[cell];

    if (write) {
        __atomic_store_n((uint64_t *)own, written_word(cell, t->id, last + 1), __ATOMIC_RELAXED);
        t->last[cell] = last + 1;
        return;
    }
    unsigned offset = (unsigned)(hash(cell + t->n_done) % (WORDS_AT / 8)) * 8;
    uint64_t got = load(p + offset), want = word_of(cell, offset);
    if (got != want)
        loop_fail(__FILE__, __LINE__, "cell %llu offset %u: read 0x%llx, want 0x%llx%s",
                  (unsigned long long)cell, offset, (unsigned long long)got,
                  (unsigned long long)want, got ? "" : ": zeros in place of content");
    got = load(own);
    want = last ? written_word(cell, t->id, last) : word_of(cell, WORDS_AT + t->id * 8);
    if (got != want)
        loop_fail(__FILE__, __LINE__, "cell %llu: own word 0x%llx, want 0x%llx: %s",
                  (unsigned long long)cell, (unsigned long long)got, (unsigned long long)want,
                  last ? "a write was lost" : "not what was sent");
}

bool thread_blocked(atomic_int *tid, atomic_bool *ended)
{
    uint64_t end = ff_now_ns() + 20000000000ull;

    while (!wait_flag(ended, 100)) {
        char path[64], stat[512] = "", state = '?';
        snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(tid));
        FILE *f = fopen(path, "re");
        if (f && fgets(stat, sizeof(stat), f) && strrchr(stat, ')'))
            sscanf(strrchr(stat, ')'), ") %c", &state);
        if (f)
            fclose(f);
        if (state == 'S' || state == 'D')
            return true;
        must(ff_now_ns() < end);
    }
    return false;
}

static void *toucher_main(void *arg)
{
    struct toucher *t = arg;
    struct move *m = t->m;
    uint64_t seed = hash(t->id + 77);

    atomic_store(&t->tid, (int)syscall(SYS_gettid));
    for (; t->n_done < m->touches && !atomic_load(&m->stop_touching); t->n_done++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t cell = (seed >> 20) % m->n_cells;
        touch_cell(t, cell, m->writes && (seed >> 60) < 6);
    }
    atomic_store(&t->ended, true);
    return NULL;
}

void touchers_start(struct move *m)
{
    for (unsigned i = 0; i < m->touchers; i++) {
        struct toucher *t = &m->toucher[i];
        t->m = m;
        t->id = i;
        must(!pthread_create(&t->thread, NULL, toucher_main, t));
    }
}

void touchers_join(struct move *m)
{
    for (unsigned i = 0; i < m->touchers; i++)
        if (m->toucher[i].m)
            pthread_join(m->toucher[i].thread, NULL); /* the test's limit bounds it */
    m->touchers = 0;
}

void verify_all(struct move *m)
{
    uint8_t want[CELL];

    for (uint64_t c = 0; c < m->n_cells; c++) {
        const uint8_t *got = cell_at(m, c);
        fill_cell(want, c);
        for (unsigned id = 0; id < CELL_WORDS; id++) {
            const struct toucher *t = &m->toucher[id];
            if (!t->last || !t->last[c])
                continue;
            uint64_t word = written_word(c, id, t->last[c]);
            memcpy(want + WORDS_AT + id * 8, &word, 8);
        }
        if (!memcmp(got, want, CELL))
            continue;
        unsigned at = 0;
        while (got[at] == want[at])
            at++;
        loop_fail(__FILE__, __LINE__, "cell %llu of %llu differs from byte %u on: 0x%02x, want "
                  "0x%02x", (unsigned long long)c, (unsigned long long)m->n_cells, at, got[at],
                  want[at]);
    }
}

/* --- one thread in one fault --- */

static void *peek_main(void *arg)
{
    struct peek *p = arg;
    uint8_t *at = cell_at(p->m, p->cell);

    atomic_store(&p->tid, (int)syscall(SYS_gettid));
    if (load(at) != word_of(p->cell, 0))
        loop_fail(__FILE__, __LINE__, "cell %llu: wrong content after a fault",
                  (unsigned long long)p->cell);
    atomic_store(&p->ended, true);
    return NULL;
}

void peek_start(struct peek *p, struct move *m, uint64_t cell)
{
    *p = (struct peek){.m = m, .cell = cell};
    must(!pthread_create(&p->thread, NULL, peek_main, p));
}

bool peek_blocked(struct peek *p)
{
    return thread_blocked(&p->tid, &p->ended);
}
