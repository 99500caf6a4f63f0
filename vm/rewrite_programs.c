/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite_programs.c - which options make a QEMU start a program
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      A QEMU can write to its own command line, and one that its guest has taken over may have
 *              done so. Another host would run such a program, outside the -sandbox that QEMU has
 *              here. So these options are refused without --unconfined.
 * Limits       files and addresses that an option names are opened with the rights of the user there:
 *              AppArmor's profile of the agent limits those.
 */
#include <string.h>

#include "command_line.h"
#include "qemu_opts.h"
#include "strv.h"

static bool is_script(const char *path)
{
    return path && strcmp(path, "no");
}

static bool is_type(const char *first, const char *last, const char *type)
{
    return (first && !strcmp(first, type)) || (last && !strcmp(last, type));
}

static bool net_runs(const char *value)
{
    static const char *const handed[] = {"fd", "fds", "vhostfd", "vhostfds"};
    FF_AUTO_FREE char *first = qemu_opts_get_first(value, "type"), *last = qemu_opts_get(value, "type"),
                      *script = qemu_opts_get(value, "script"), *down = qemu_opts_get(value, "downscript"),
                      *helper = qemu_opts_get(value, "helper"), *smb = qemu_opts_get(value, "smb");
    bool is_handed = false, tap = is_type(first, last, "tap");

    for (size_t i = 0; i < FF_ARRAY_LEN(handed); i++) {
        FF_AUTO_FREE char *fd = qemu_opts_get(value, handed[i]);
        is_handed |= fd != NULL;
    }
    /* whatever the type: of several QEMU takes the last; "cmd:" of guestfwd=, and of a switch's socket */
    return helper || smb || is_script(script) || is_script(down) || strstr(value, "cmd:") ||
           (tap && !script && !is_handed) || /* /etc/qemu-ifup */
           is_type(first, last, "bridge");
}

bool command_line_starts_program(const char *option, const char *value)
{
    if (qemu_option_is(option, "netdev") || qemu_option_is(option, "nic") || qemu_option_is(option, "net"))
        return net_runs(value);
    /* GROUP.ID.KEY=VALUE */
    return qemu_option_is(option, "set") && (!strncmp(value, "net", 3) || !strncmp(value, "nic", 3));
}
