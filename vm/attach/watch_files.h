/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch_files.h - private views of files instead of the memory of another process, with a userfaultfd over them
 */
#ifndef FF_VM_ATTACH_WATCH_FILES_H
#define FF_VM_ATTACH_WATCH_FILES_H

#include "watch.h"

enum watch_advice { /* flags */
    WATCH_NO_DUMP = 1u, /* not in a core dump, as the memory was that was there */
    WATCH_MERGE = 2u,   /* what is written may be merged (KSM) */
};

struct watch_file { /* what a block becomes a view of */
    int there;       /* its number in that process, open for reading */
    uint32_t is_complete; /* no page of it is missing: it is not watched */
    uint64_t offset;
};

/**
 * watch_files_begin() - map these files privately over these blocks of a process, and watch what is not complete
 * @filters, @device: as watch_begin()
 * @b: with addresses; the first @len_bytes of each are replaced
 * @f: of each of @b
 * @advice: of enum watch_advice
 * @w: set, also on failure: watch_end() may follow. @w->fd is -1 where all is complete
 *
 * What was in the memory is lost, also on failure: then that process may not go on, whose memory is not
 * accessible or not watched. Only its main thread may touch these blocks meanwhile: it stands still, another one would get
 * SIGSEGV. The mappings are not inherited by fork(2). A page that is missing is one that the file has not: who
 * touches it waits until it is written there, and for UFFDIO_WAKE. watch_begin() has what becomes of that when this
 * process ends.
 *
 * Cost:   a millisecond
 * Return: 0; as outside_check_places(): nothing was replaced; -ENOTSUP: that process has locked memory (mlock(2)), and would wait for pages here; else as watch_begin()
 */
int watch_files_begin(struct watch *w, pid_t pid, unsigned filters, int device, const struct outside_block *b,
                      const struct watch_file *f, unsigned n, unsigned advice, struct ff_error *err);

#endif
