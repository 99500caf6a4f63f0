/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * instance_data.c - images that tell a guest which instance it is, and that children share
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find, by file-system label, images with instance data that nocloud.c cannot rewrite
 *              for each child. Children share the parent's data; vmclone prints a note.
 * Limits       raw images without partitions; a label that is not in the list.
 * Sources      cloud-init: DataSourceConfigDrive, NoCloud, OpenNebula, OVF; Cloudbase-Init; ECMA-119
 *              8.4.7; Microsoft's FAT specification: BS_VolLab
 */
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "instance_data.h"

#define ISO_LABEL (16 * 2048 + 40) /* 32 bytes, of the first volume descriptor */
#define FAT_LABEL 43               /* 11 bytes; FAT32: */
#define FAT32_LABEL 71

static const struct {
    const char *label, *what;
} known[] = {{"config-2", "an OpenStack config drive"},
             {"cidata", "cloud-init's NoCloud data"},
             {"CONTEXT", "OpenNebula's contextualization"},
             {"OVF ENV", "an OVF environment"},
             {"OVF-TRANSPORT", "an OVF environment"}};

/* Padded with blanks */
static const char *what_of(const char *label, size_t len)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t n = strlen(known[i].label);
        if (n <= len && !strncasecmp(label, known[i].label, n) &&
            (n == len || label[n] == ' ' || !label[n]))
            return known[i].what;
    }
    return NULL;
}

const char *instance_data_of(const char *path)
{
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char boot[512], volume[6], label[32];
    struct stat st;
    const char *what = NULL;

    if (fd < 0 || fstat(fd, &st) || (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)))
        return NULL;
    if (pread(fd, volume, sizeof(volume), ISO_LABEL - 40) == sizeof(volume) &&
        !memcmp(volume + 1, "CD001", 5) &&
        pread(fd, label, sizeof(label), ISO_LABEL) == sizeof(label))
        what = what_of(label, sizeof(label));
    if (!what && pread(fd, boot, sizeof(boot), 0) == sizeof(boot) && boot[510] == 0x55 &&
        (unsigned char)boot[511] == 0xaa) {
        what = what_of(boot + FAT_LABEL, 11);
        what = what ? what : what_of(boot + FAT32_LABEL, 11);
    }
    return what;
}
