/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * save_image.h - the beginning of a file that `virsh restore` takes, before QEMU's stream
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      92 bytes: "LibvirtQemudSave"; version 2; length of the data; whether the guest ran; format, 0: raw;
 *              where in the data the cookie is, 0: there is none; 14 zeros. Numbers are 32 bits, little-endian
 *              data: XML of the domain, a zero byte; the cookie, a zero byte
 *              the stream, as -incoming takes it
 * Cookie       what the definition alone does not tell: the CPU that the running guest has, where the definition asks for
 *              the host's
 * Limits       libvirt appends 64 KiB of zeros to the data, so that somebody can edit the XML. It does not want them.
 * Sources      virQEMUSaveHeader, virQEMUSaveDataWrite(), qemuSaveImageReadHeader() of libvirt 9.0 and 11.10
 */
#ifndef FF_VM_ATTACH_SAVE_IMAGE_H
#define FF_VM_ATTACH_SAVE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

#define SAVE_IMAGE_DATA_MAX (16u << 20) /* four times what virsh takes of libvirtd */

/**
 * save_image_head() - write all that comes before the stream
 * @xml:     as `virsh dumpxml --migratable` prints it
 * @cpu:     the element of the running guest; NULL: no cookie
 * @running: whether restore lets it run where it is not told
 * @out:     to be freed
 *
 * Return: 0; -EINVAL: no XML, or too long; -ENOMEM
 */
int save_image_head(const char *xml, const char *cpu, bool running, uint8_t **out, size_t *len_bytes,
                    struct ff_error *err);

#endif
