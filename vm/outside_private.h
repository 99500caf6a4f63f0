/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * outside_private.h - what the files of outside.h share, and their tests
 */
#ifndef FF_VM_OUTSIDE_PRIVATE_H
#define FF_VM_OUTSIDE_PRIVATE_H

#include <stdio.h>

#include "outside.h"

/* --- outside_maps.c --- */

struct outside_vma { /* a line of maps, or a paragraph of smaps */
    uint64_t start, end, offset, inode;
    unsigned major, minor; /* of the file; inode 0: none */
    bool is_readable, is_writable, is_shared;
    bool is_hugetlb; /* smaps alone: ht */
    bool is_watched; /* likewise: um, ui: a userfaultfd tells of pages that are missing */
    char name[256];              /* cut, if it is longer */
};

struct outside_span { /* VMAs that are one memory: what the first one says, and of all of them */
    struct outside_vma of; /* start, end: of the first VMA; offset: at @at */
    uint64_t at;
};

/* The whole text. 0; -EPROTO: it is neither maps nor smaps; -EIO */
int outside_parse_maps(FILE *text, struct outside_vma **out, unsigned *n, struct ff_error *err);

/* Of a process, by smaps if @flags. Fails as outside_may(), too */
int outside_read_maps(pid_t pid, bool flags, struct outside_vma **out, unsigned *n,
                      struct ff_error *err);

/* What holds the block at its address: 0; -ENOENT: a hole, or more than one memory */
int outside_find_span(const struct outside_vma *v, unsigned n, const struct outside_block *b,
                      struct outside_span *out, struct ff_error *err);

/* Whether all of the block, as much as QEMU has mapped of it, is readable memory: 0; -ENOENT; -EACCES. @is_told: QEMU
 * itself says where it is: then it may be in the heap, as tpm-ppi is */
int outside_check_mapped(const struct outside_vma *v, unsigned n, const struct outside_block *b, bool is_told,
                         struct ff_error *err);

/* Whether no two of these share bytes: 0; -ENOTUNIQ */
int outside_check_apart(const struct outside_block *b, unsigned n, struct ff_error *err);

/* As outside_locate() */
int outside_find_by_length(const struct outside_vma *v, unsigned n, struct outside_block *b,
                           struct ff_error *err);

/* --- outside_record.c --- */

struct outside_record { /* the head of QEMU's struct RAMBlock */
    uint64_t rcu[2], mr, host, colo_cache, offset, used_length, max_length, resized;
    uint32_t flags;
    char idstr[256];
    uint64_t le_next, le_prev;
};

/* The address of each block by its record; 0: there is none. 0; -ENOTUNIQ: two; fails as
 * outside_may(), too */
int outside_find_records(pid_t pid, const struct outside_vma *v, unsigned n_vmas,
                         const struct outside_block *b, unsigned n, uint64_t *hva,
                         struct ff_error *err);

/* --- outside_blocks.c --- */

/* What `info ramblock` shows: 0; -EPROTO */
int outside_parse_blocks(const char *text, struct outside_block **out, unsigned *n,
                         struct ff_error *err);

/* Where `info mtree -f` shows CPUs a piece of the block: its guest address, and which piece */
bool outside_find_guest_address(const char *mtree, const char *block, uint64_t *gpa,
                                uint64_t *offset);

/* What gpa2hva answers for an address in @block; 0: something else */
uint64_t outside_parse_hva(const char *text, const char *block);

/* One address of what gpa2hva said, in the block, and QEMU's record; each may be 0. 0; -ENOENT:
 * both are; -ENOTUNIQ: they differ */
int outside_agree(struct outside_block *b, uint64_t record, struct ff_error *err);

/* --- outside_may.c --- */

struct outside_facts {
    uid_t uid[3], my_uid, my_euid; /* real, effective, saved */
    gid_t gid[3], my_gid, my_egid;
    uint64_t permitted, my_permitted, my_effective; /* capabilities */
    uid_t owner;       /* of its files in /proc: root, where it is not dumpable */
    int ptrace_scope;  /* yama's; -1: there is none */
    int my_seccomp;    /* 2: a filter */
    bool is_hidden;    /* /proc does not show it (hidepid) */
    bool is_ancestor;  /* this process is one of it */
    bool is_refused_to_self; /* the calls, on this very process */
    char label[128], my_label[128]; /* of a MAC policy; "": none */
};

/* @proc: "/proc". 0; -ESRCH */
int outside_read_facts(const char *proc, pid_t pid, struct outside_facts *f, struct ff_error *err);

/* What forbids it, of those: -EPERM, always */
int outside_judge(const struct outside_facts *f, pid_t pid, bool attach, struct ff_error *err);

#endif
