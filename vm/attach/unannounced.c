/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unannounced.c - a guest whose NICs do not announce it; see unannounced.h
 */
#include <stdbool.h>
#include <string.h>

#include "unannounced.h"

#define SECTION_FULL 4u /* migration/savevm.h */
#define SUBSECTION 5u
#define FOOTER 0x7eu
#define DESCRIPTION 6u
#define DEVICE "virtio-net"
#define WIDE "virtio/64bit_features"
#define STATE_VERSION 11u /* VIRTIO_NET_VM_VERSION, since QEMU 1.0 */
#define ANNOUNCES (1u << 21)
/* MAC, STATUS, CTRL_VQ: no driver agrees on the one without these */
#define WITH_IT ((1u << 5) | (1u << 16) | (1u << 17))
#define CONFIG_MIN 8u /* struct virtio_net_config: MAC and status, and what follows them */
#define CONFIG_MAX 64u
#define QUEUES_MAX 1024u
#define STATUS_MASK 0x4fu /* ACKNOWLEDGE, DRIVER, DRIVER_OK, FEATURES_OK, NEEDS_RESET */

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* A section of such a card begins there: 0, or how many bytes its head has */
static size_t head_at(const uint8_t *p, size_t len)
{
    const size_t name = strlen(DEVICE);

    if (len < 6 || p[0] != SECTION_FULL || p[5] < name || len < 6u + p[5] + 8)
        return 0;
    const uint8_t *end = p + 6 + p[5];
    bool is = !memcmp(end - name, DEVICE, name) && (p[5] == name || end[-(int)name - 1] == '/') &&
              be32(end + 4) == STATE_VERSION;
    return is ? 6u + p[5] + 8 : 0;
}

/* Behind @at: the footer of the section whose head is at 0, and then another section, a description, or the end */
static size_t section_end(const uint8_t *p, size_t len, size_t at)
{
    for (; at + 6 <= len; at++)
        if (p[at] == FOOTER && !memcmp(p + at + 1, p + 1, 4) &&
            (p[at + 5] == SECTION_FULL || p[at + 5] == DESCRIPTION || !p[at + 5]))
            return at;
    return len;
}

/* virtio_save(): status, isr, queue_sel, features, config_len */
static bool is_common(const uint8_t *p)
{
    const uint32_t features = be32(p + 4), config = be32(p + 8);

    return !(p[0] & ~STATUS_MASK) && p[1] <= 3 && ((uint32_t)p[2] << 8 | p[3]) <= 2 * QUEUES_MAX &&
           (features & (WITH_IT | ANNOUNCES)) == (WITH_IT | ANNOUNCES) && config >= CONFIG_MIN && config <= CONFIG_MAX;
}

static void clear_at(uint8_t *be32_at)
{
    be32_at[1] &= (uint8_t)~(ANNOUNCES >> 16);
}

static bool silence(uint8_t *p, size_t len)
{
    static const uint8_t wide[] = {SUBSECTION, sizeof(WIDE) - 1};
    const size_t name = sizeof(WIDE) - 1;
    size_t at = 0;

    while (at + 12 <= len && !is_common(p + at))
        at++;
    if (at + 12 > len)
        return false;
    clear_at(p + at + 4);
    for (at += 12; at + 2 + name + 12 <= len; at++)
        if (!memcmp(p + at, wide, 2) && !memcmp(p + at + 2, WIDE, name)) {
            clear_at(p + at + 2 + name + 4 + 4); /* version, then the upper half */
            break;
        }
    return true;
}

unsigned unannounced_from_load(uint8_t *state, size_t len)
{
    unsigned n = 0;

    for (size_t at = 0; at < len; at++) {
        size_t head = head_at(state + at, len - at);

        if (!head)
            continue;
        size_t end = section_end(state + at, len - at, head);
        n += silence(state + at + head, end - head);
        at += end - 1;
    }
    return n;
}
