/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_private.h - what the files of disks share
 */
#ifndef FF_VM_DISK_DISKS_PRIVATE_H
#define FF_VM_DISK_DISKS_PRIVATE_H

#include <sys/stat.h>

#include "disks.h"

#define NBD_PORT "10809" /* IANA's */

/* How a disk is written on the command line */
enum disk_kind {
    DISK_NONE,     /* not found yet */
    DISK_DRIVE,    /* -drive a=b,... */
    DISK_BLOCKDEV, /* -blockdev, and the nodes below it */
    DISK_SHORT,    /* -hda FILE and its like */
};

struct disk {
    unsigned index;
    bool writable;         /* else a read-only one: served by NBD, otherwise left alone, but for */
    bool seed;             /* cloud-init's NoCloud data: a changed copy for each child */
    const char *instance;  /* data of another kind, which children share; NULL: none */
    char *name;            /* for messages: device name, device path or node */
    char *node;            /* the parent's top node */
    char *frozen, *format; /* what is immutable from the fork on: absolute name, raw or qcow2 */
    json_t *chain;         /* that, and all that it stands on: names */
    bool host_device;      /* a device node, not a file */
    json_int_t size;       /* bytes that the guest sees */
    bool direct, no_flush;
    char *detect_zeroes, *discard, *aio; /* NULL: QEMU's default */
    char *overlay, *overlay_node;        /* the parent's, from the fork on; or NULL, and */
    char *empty;                         /* the one that it has, and has not written to */
    bool awaited;          /* it gets one from somebody else: @empty, once it is there */
    bool elsewhere;        /* its option names another image than it has: forked, or changed */
    enum disk_kind kind;
    size_t at;             /* of its option's argument in argv */
};

struct disks {
    char *fork_id, *cwd;
    json_t *argv;
    struct disk *disk;
    size_t n, writable;
    bool foreign; /* of struct disks_input */
    size_t *emptied, n_emptied; /* arguments in argv of drives whose medium was ejected */
};

/* disks_argv.c: where on the command line is each disk? */
int disks_find(struct disks *d, const struct disks_input *in, struct ff_error *why);
/* Its image is a file that -snapshot made: without a name, and its header names nothing behind it.
 * -ENOTSUP */
int disks_check_temporary(const struct disks *d, const struct disk *disk, const json_t *image,
                          struct ff_error *why);

char *image_absolute(const char *cwd, const char *name); /* a name with a protocol stays as it is */
bool image_has_protocol(const char *name);
bool image_same_file(const char *cwd, const char *a, const char *b);
const json_t *image_backing(const json_t *image);
/* The format of a node with this driver: a file without a format node on it is raw */
const char *image_format(const char *driver);
/* What is found behind an image that is opened anew is what its header says: it must be what the
 * parent has. -ENOTSUP */
int image_check_chain(const char *cwd, const char *name, const json_t *image, struct ff_error *why);

/* Of one overlay: metadata of an empty one (200 KiB in clusters of 64 KiB), and the first clusters
 * that a guest writes when it wakes up */
#define DISK_ROOM_BYTES (1u << 20)

#define each_frozen(d, k)                                                                        \
    for (const struct disk *k = (d)->disk; k < (d)->disk + (d)->n; k++)                          \
        if (k->writable)
/* Those that a child has a file of its own for */
#define each_own(d, k)                                                                           \
    for (const struct disk *k = (d)->disk; k < (d)->disk + (d)->n; k++)                          \
        if (k->writable || k->seed)
#define each_new(d, k) each_frozen(d, k) if (k->overlay)

char *disk_name(const json_t *entry); /* of query-block */
bool disk_stores_nothing(const json_t *inserted); /* likewise: null-co and null-aio */

/* disks_held.c. The file of a protocol node, of query-named-block-nodes; NULL: it has none with a name */
char *disk_node_file(const char *cwd, const json_t *node);
/* @block: query-block. It is firmware of a machine's (pflash), which is read alone, or may also be @writable */
bool disk_is_firmware(const char *cwd, const json_t *block, const char *file, bool writable);
bool file_is_same(const struct stat *a, const struct stat *b);

/* The step that makes an overlay, without opening what is behind it */
json_t *disk_create_overlay(const char *backing, const char *format, const char *file,
                            json_int_t size);
/* An overlay as a block node; no "backing": what its header says */
json_t *disk_overlay_node(const struct disk *disk, const char *node, const char *file);

/* disks_child.c. Only what is on the parent's host can be served from it: children get at a
 * URL as the parent does */
bool disk_served(const struct disk *disk, const struct clone_place *p);
char *disk_url(const struct disk *disk, const struct clone_place *p);
char *disk_overlay(const struct disks *d, const struct disk *disk,
                   const struct clone_place *p, unsigned number);
/* Of an NBD server that is named as clone_place.nbd is, as QEMU wants it */
json_t *disk_nbd_address(const char *where);

#endif
