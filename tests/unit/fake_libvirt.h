/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fake_libvirt.h - a connection to a libvirt that a test plays: for libvirt_calls_are()
 */
#ifndef FF_TESTS_UNIT_FAKE_LIBVIRT_H
#define FF_TESTS_UNIT_FAKE_LIBVIRT_H

#include <stddef.h>
#include <stdint.h>

#include "libvirt_calls.h"

static struct virt_connect *fake_open(const char *uri)
{
    return (void *)(uintptr_t)uri;
}

static int fake_fine(struct virt_connect *c)
{
    return !c;
}

static int fake_is_alive(struct virt_connect *c)
{
    return c != NULL;
}

#endif
