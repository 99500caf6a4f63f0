/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * libvirt_calls.c - load the functions of libvirt that Farfork calls; see libvirt_calls.h
 */
#include "libvirt_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "cleanup.h"

struct symbol {
    const char *name;
    size_t offset; /* of its pointer in the table */
    bool of_qemu, may_lack;
};

#define SYMBOL(name, member, ...) {name, offsetof(struct libvirt_calls, member), __VA_ARGS__}

static const struct symbol symbols[] = {
    SYMBOL("virInitialize", initialize, false, false),
    SYMBOL("virSetErrorFunc", set_error_func, false, false),
    SYMBOL("virGetLastError", get_last_error, false, false),
    SYMBOL("virConnectOpen", connect_open, false, false),
    SYMBOL("virConnectClose", connect_close, false, false),
    SYMBOL("virConnectRef", connect_ref, false, false),
    SYMBOL("virConnectIsAlive", connect_is_alive, false, false),
    SYMBOL("virConnectGetLibVersion", connect_get_lib_version, false, false),
    SYMBOL("virDomainLookupByName", domain_lookup, false, false),
    SYMBOL("virDomainFree", domain_free, false, false),
    SYMBOL("virDomainSuspend", domain_suspend, false, false),
    SYMBOL("virDomainResume", domain_resume, false, false),
    SYMBOL("virDomainDestroy", domain_destroy, false, false),
    SYMBOL("virDomainUndefineFlags", domain_undefine, false, false),
    SYMBOL("virDomainIsActive", domain_is_active, false, false),
    SYMBOL("virDomainGetXMLDesc", domain_xml, false, false),
    SYMBOL("virDomainDefineXML", domain_define, false, false),
    SYMBOL("virDomainRestoreFlags", domain_restore, false, false),
    SYMBOL("virDomainListGetStats", stats, false, false),
    SYMBOL("virDomainStatsRecordListFree", stats_free, false, false),
    SYMBOL("virDomainSnapshotCreateXML", snapshot, false, false),
    SYMBOL("virDomainSnapshotFree", snapshot_free, false, false),
    SYMBOL("virDomainBlockCommit", commit, false, false),
    SYMBOL("virDomainGetBlockJobInfo", job_info, false, false),
    SYMBOL("virDomainBlockJobAbort", job_abort, false, false),
    SYMBOL("virDomainQemuMonitorCommand", monitor, true, false),
    SYMBOL("virDomainQemuMonitorCommandWithFiles", monitor_with_files, true, true),
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct libvirt_calls loaded;
static const struct libvirt_calls *calls;

static void say_nothing(void *opaque, struct virt_error *e)
{
    (void)opaque; /* else libvirt prints each failure */
    (void)e;
}

static int load_libvirt(struct ff_error *err)
{
    void *library[2] = {dlopen("libvirt.so.0", RTLD_NOW | RTLD_LOCAL), NULL};

    library[1] = library[0] ? dlopen("libvirt-qemu.so.0", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library[1])
        return ff_error_set(err, ENOENT, "libvirt: load its library: %s: install libvirt0, libvirt-clients", dlerror());
    for (size_t i = 0; i < FF_ARRAY_LEN(symbols); i++) {
        void *at = dlsym(library[symbols[i].of_qemu], symbols[i].name);

        if (!at && !symbols[i].may_lack)
            return ff_error_set(err, ENOSYS, "libvirt: its library has no %s: it is older than 3.0", symbols[i].name);
        memcpy((char *)&loaded + symbols[i].offset, &at, sizeof(at));
    }
    if (loaded.initialize())
        return ff_error_set(err, EIO, "libvirt: initialize: it failed");
    loaded.set_error_func(NULL, say_nothing);
    calls = &loaded;
    return 0;
}

const struct libvirt_calls *libvirt_calls(struct ff_error *err)
{
    pthread_mutex_lock(&lock);
    if (!calls)
        load_libvirt(err);
    const struct libvirt_calls *c = calls;
    pthread_mutex_unlock(&lock);
    return c;
}

void libvirt_calls_are(const struct libvirt_calls *c)
{
    calls = c;
}
