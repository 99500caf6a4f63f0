/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory as libfarfork's regions, devices saved and loaded,
 * the pages that the CPUs touch first: for each vCPU instruction, stack,
 * descriptor tables, task state and GS bases, with the page tables that lead
 * there; for each virtqueue where its rings begin
 */
#include "qemu/osdep.h"
#include "block/aio.h"
#include "block/block.h"
#include "hw/boards.h"
#include "hw/virtio/virtio-serial.h"
#include "migration/global_state.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "system/cpus.h"
#include "system/hw_accel.h"
#include "system/system.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "migration/migration.h"
#include "migration/qemu-file.h"
#include "rdma-postcopy-ram.h"
#include "migration/savevm.h"

/* Longer than the requests that a guest has queued take on a disk that works, and shorter than
 * guests wait for one */
#define SETTLE_MS 5000

RAMBlock *rp_block[RP_REGIONS_MAX];
unsigned rp_n_blocks;
static unsigned ram_version; /* of ram_list when rp_block[] was filled */
static bool held; /* there is a reference to the owner of each */

/* --- memory --- */

/* Every migratable RAM block becomes a region */
bool rp_collect_blocks(Error **errp)
{
    RAMBlock *block;
    unsigned synic = 0;

    rp_n_blocks = 0;
    RCU_READ_LOCK_GUARD();
    RAMBLOCK_FOREACH(block) {
        if (!qemu_ram_is_migratable(block)) {
            if (memory_region_is_ram_device(block->mr)) {
                continue; /* a device's own memory, not the guest's */
            }
            error_setg(errp, "rdma-postcopy cannot move memory region %s: it "
                       "is not migratable",
                       block->idstr[0] ? block->idstr
                                       : memory_region_name(block->mr));
            return false;
        }
        if (rp_n_blocks < RP_REGIONS_MAX) {
            rp_block[rp_n_blocks] = block;
        }
        rp_n_blocks++;
        synic += g_str_has_prefix(memory_region_name(block->mr), "synic-");
    }
    if (rp_n_blocks > RP_REGIONS_MAX) {
        error_setg(
            errp, "rdma-postcopy: %u memory regions (at most %d)%s", rp_n_blocks, RP_REGIONS_MAX,
            !synic ? "" : ": hv-synic has two for each CPU: use fewer CPUs, or leave it out");
        rp_n_blocks = 0;
        return false;
    }
    ram_version = ram_list.version;
    return true;
}

/* Are these the blocks of now? What was plugged and unplugged since does not matter */
static bool have_all_blocks(void)
{
    RAMBlock *block;
    unsigned n = 0;

    RCU_READ_LOCK_GUARD();
    RAMBLOCK_FOREACH(block) {
        unsigned i = 0;

        if (!qemu_ram_is_migratable(block)) {
            continue;
        }
        while (i < rp_n_blocks && rp_block[i] != block) {
            i++;
        }
        if (i == rp_n_blocks) {
            return false;
        }
        n++;
    }
    return n == rp_n_blocks;
}

bool rp_blocks_changed(void)
{
    /* one that is not held may be gone, and another be in its place */
    if (ram_list.version != ram_version && !(held && have_all_blocks())) {
        return true;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        if (!qemu_ram_is_migratable(rp_block[i])) {
            return true; /* unplugged, and still there */
        }
    }
    return false;
}

void rp_hold_blocks(void)
{
    held = true;
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        memory_region_ref(rp_block[i]->mr);
    }
}

void rp_drop_blocks(void)
{
    for (unsigned i = 0; held && i < rp_n_blocks; i++) {
        memory_region_unref(rp_block[i]->mr);
    }
    held = false;
}

struct ff_region rp_region(unsigned i)
{
    RAMBlock *block = rp_block[i];
    bool shared = qemu_ram_is_shared(block);

    return (struct ff_region) {
        .name = block->idstr,
        .host = qemu_ram_get_host_addr(block),
        .len_bytes = qemu_ram_get_used_length(block),
        .psize = qemu_ram_pagesize(block),
        .fd = shared ? block->fd : -1,
        .fd_offset = block->fd_offset,
        /* not a private mapping of a file that others may write to */
        .zero_fill = shared == (block->fd >= 0),
        .private_fd = -1,
    };
}

enum mapped {
    AS_BY_QEMU,
    VIEW_OF_ITS_FILE, /* private, of a guest that was forked from outside */
    VIEW,             /* of another file: of a child of such a fork; or it is not known */
};

/* How the kernel has it; @maps: /proc/self/maps */
static enum mapped how_mapped(RAMBlock *block, const char *maps)
{
    uintptr_t at = (uintptr_t)qemu_ram_get_host_addr(block);
    uintptr_t end = at + qemu_ram_get_used_length(block);
    bool shared = qemu_ram_is_shared(block);
    enum mapped how = AS_BY_QEMU;
    struct stat st = { 0 };

    if (block->fd >= 0 && fstat(block->fd, &st) < 0) {
        return VIEW;
    }
    for (const char *line = maps; *line; line += strcspn(line, "\n") + 1) {
        unsigned long from, to, inode;
        char perms[5];

        if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, perms, &inode) != 4) {
            return VIEW;
        }
        if (to <= at || from >= end) {
            continue;
        }
        if (block->fd < 0 ? inode && perms[3] == 'p' : inode != st.st_ino) {
            return VIEW;
        }
        if (block->fd >= 0 && shared && perms[3] == 'p') {
            how = VIEW_OF_ITS_FILE;
        }
    }
    return how;
}

struct ff_region rp_region_to_leave(unsigned i)
{
    g_autofree char *maps = NULL;
    struct ff_region r = rp_region(i);
    enum mapped how = g_file_get_contents("/proc/self/maps", &maps, NULL, NULL)
                      ? how_mapped(rp_block[i], maps) : VIEW;

    if (how != AS_BY_QEMU) {
        r.fd = -1;
    }
    if (how == VIEW_OF_ITS_FILE) {
        r.is_private = true;
        r.private_fd = rp_block[i]->fd;
    } else if (how == VIEW) {
        r.zero_fill = false;
    }
    return r;
}

const char *rp_machine_config(void)
{
    static char config[200];

    snprintf(config, sizeof(config), "%s, %s, page size %zu",
             MACHINE_GET_CLASS(current_machine)->name, TARGET_NAME,
             qemu_target_page_size());
    return config;
}

/* --- devices, and the guest itself --- */

void rp_log_line(enum ff_level level, const char *line)
{
    if (level == FF_ERROR) {
        error_report("rdma-postcopy: %s", line);
    } else if (level == FF_WARN) {
        warn_report("rdma-postcopy: %s", line);
    } else {
        info_report("rdma-postcopy: %s", line);
    }
}

/*
 * A device leaves to a bottom half what follows a request to a disk (pvscsi, AHCI), a packet (EHCI) or
 * a notification of the guest (virtio-gpu): it writes guest memory and begins the next request.  What
 * is still scheduled when devices are saved is no part of their state, and would write to memory that
 * is an image by then.  Which bottom half is a device's cannot be told, so that all of the main loop
 * run, those of nested loops and of the outermost one.  A command that has come runs here, too, as it
 * would between any two of the pause's.
 */
bool rp_settle_devices(Error **errp)
{
    int64_t end = qemu_clock_get_ms(QEMU_CLOCK_REALTIME) + SETTLE_MS;

    do {
        bdrv_drain_all();
        if (!aio_bh_poll(qemu_get_aio_context()) &&
            !aio_bh_poll(iohandler_get_aio_context())) {
            return true;
        }
    } while (qemu_clock_get_ms(QEMU_CLOCK_REALTIME) < end);
    error_setg(errp, "rdma-postcopy: devices of the stopped guest are still busy after %d ms: try "
               "again when its disks and USB devices have less to do", SETTLE_MS);
    return false;
}

bool rp_save_devices(void **state, size_t *len, Error **errp)
{
    QIOChannelBuffer *bioc = qio_channel_buffer_new(1 << 20);
    QEMUFile *f = qemu_file_new_output(QIO_CHANNEL(bioc));
    int ret;

    object_unref(OBJECT(bioc)); /* the file's now */
    ret = qemu_save_device_state(f);
    if (!ret) {
        ret = qemu_fflush(f);
    }
    if (ret) {
        error_setg_errno(errp, -ret, "rdma-postcopy: cannot save the devices");
    } else {
        /* closing the file frees the buffer: the data is still needed */
        *state = g_memdup2(bioc->data, bioc->usage);
        *len = bioc->usage;
    }
    qemu_fclose(f);
    return !ret;
}

/*
 * A port of virtio-serial whose reader was slow sends the rest of what it holds. A
 * socket with nobody at its other end takes none, and no event goes on with it: the
 * port would be silent until whoever connects has left. So it drops that, as when
 * its reader leaves.
 */
static int drop_unread(Object *o, void *opaque)
{
    VirtIOSerialPort *port = (VirtIOSerialPort *)object_dynamic_cast(
        o, TYPE_VIRTIO_SERIAL_PORT);

    if (port && port->elem && !port->host_connected) {
        virtio_serial_close(port);
    }
    return 0;
}

int rp_load_devices(const void *state, size_t len)
{
    QIOChannelBuffer *bioc = qio_channel_buffer_new(len);
    QEMUFile *f;
    int ret = -EINVAL;

    memcpy(bioc->data, state, len);
    bioc->usage = len;
    f = qemu_file_new_input(QIO_CHANNEL(bioc));
    object_unref(OBJECT(bioc));
    if (qemu_get_be32(f) != QEMU_VM_FILE_MAGIC ||
        qemu_get_be32(f) != QEMU_VM_FILE_VERSION) {
        error_report("rdma-postcopy: the device state is of another version");
    } else {
        cpu_synchronize_all_pre_loadvm();
        ret = compat_load_device_state(f);
    }
    qemu_fclose(f);
    if (!ret) {
        object_child_foreach_recursive(object_get_root(), drop_unread, NULL);
    }
    return ret;
}

/* All but its vCPUs; whether to resume them */
static bool prepare_guest(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    postcopy_state_set(POSTCOPY_INCOMING_RUNNING);
    migrate_set_state(&mis->state, MIGRATION_STATUS_ACTIVE,
                      MIGRATION_STATUS_POSTCOPY_ACTIVE);
    if (!runstate_is_live(global_state_received() ?
                          global_state_get_runstate() : RUN_STATE_RUNNING)) {
        runstate_set(global_state_get_runstate());
    } else if (!autostart) {
        runstate_set(RUN_STATE_PAUSED);
    } else if (migration_block_activate(NULL)) {
        return !vm_prepare_start(false);
    } else {
        runstate_set(RUN_STATE_PAUSED); /* `cont` tries again */
    }
    return false;
}

void rp_run_guest(void)
{
    if (prepare_guest()) {
        resume_all_vcpus();
    }
}

struct main_call {
    int (*fn)(void);
    int ret;
    QemuSemaphore done;
};

static void main_call_bh(void *opaque)
{
    struct main_call *c = opaque;

    c->ret = c->fn();
    qemu_sem_post(&c->done);
}

int rp_main_thread(int (*fn)(void))
{
    struct main_call c = { .fn = fn };

    qemu_sem_init(&c.done, 0);
    migration_bh_schedule(main_call_bh, &c);
    qemu_sem_wait(&c.done);
    qemu_sem_destroy(&c.done);
    return c.ret;
}

/* --- first-touch set: the pages that the state of CPUs and devices points at --- */

static void add_phys(struct rp_first_touch *ft, hwaddr addr)
{
    hwaddr xlat, len = 1;
    MemoryRegion *mr = address_space_translate(&address_space_memory, addr,
                                               &xlat, &len, false,
                                               MEMTXATTRS_UNSPECIFIED);
    RAMBlock *block = memory_region_is_ram(mr) ? mr->ram_block : NULL;

    for (unsigned i = 0; block && i < rp_n_blocks; i++) {
        if (rp_block[i] != block ||
            xlat >= qemu_ram_get_used_length(block)) {
            continue;
        }
        xlat &= ~(hwaddr)(qemu_ram_pagesize(block) - 1);
        for (unsigned k = 0; k < ft->n; k++) {
            if (ft->page[k].region == i && ft->page[k].offset == xlat) {
                return;
            }
        }
        if (ft->n < RP_FIRST_MAX) {
            ft->page[ft->n++] = (struct ff_page_ref) {
                .region = i, .offset = xlat
            };
        }
        return;
    }
}

#ifdef TARGET_X86_64
/* The page tables on the way to @vaddr, and the page itself */
static void add_virt(struct rp_first_touch *ft, CPUState *cs, uint64_t vaddr)
{
    CPUX86State *env = cpu_env(cs);
    hwaddr table = env->cr[3] & 0x000ffffffffff000ull;
    int level = env->cr[4] & CR4_LA57_MASK ? 4 : 3;

    if (!(env->cr[0] & CR0_PG_MASK)) {
        add_phys(ft, (uint32_t)vaddr);
        return;
    }
    for (; env->efer & MSR_EFER_LMA && level >= 0; level--) {
        hwaddr slot = table + ((vaddr >> (12 + 9 * level)) & 0x1ff) * 8;
        uint64_t pte;

        add_phys(ft, slot);
        pte = address_space_ldq_le(cs->as, slot, MEMTXATTRS_UNSPECIFIED, NULL);
        if (!(pte & PG_PRESENT_MASK) || (pte & PG_PSE_MASK && level < 3)) {
            break;
        }
        table = pte & 0x000ffffffffff000ull;
    }
    table = cpu_get_phys_page_debug(cs, vaddr & TARGET_PAGE_MASK);
    if (table != -1) {
        add_phys(ft, table + (vaddr & ~TARGET_PAGE_MASK));
    }
}

static void add_cpu(struct rp_first_touch *ft, CPUState *cs)
{
    CPUX86State *env = cpu_env(cs);
    uint64_t pc = env->segs[R_CS].base + env->eip;
    uint64_t sp = env->segs[R_SS].base + env->regs[R_ESP];

    add_virt(ft, cs, pc);
    add_virt(ft, cs, pc + TARGET_PAGE_SIZE);
    add_virt(ft, cs, sp);
    add_virt(ft, cs, sp - TARGET_PAGE_SIZE);
    add_virt(ft, cs, sp + TARGET_PAGE_SIZE);
    add_virt(ft, cs, env->gdt.base);
    add_virt(ft, cs, env->idt.base);
    add_virt(ft, cs, env->tr.base);
    add_virt(ft, cs, env->segs[R_GS].base);
    add_virt(ft, cs, env->kernelgsbase);
}
#else
static void add_cpu(struct rp_first_touch *ft, CPUState *cs)
{
}
#endif

/*
 * Where a ring begins it has its index, which devices read when they are
 * loaded; one of 256 entries is not much longer
 */
static int add_rings(Object *obj, void *opaque)
{
    struct rp_first_touch *ft = opaque;
    VirtIODevice *vdev = (VirtIODevice *)object_dynamic_cast(
        obj, TYPE_VIRTIO_DEVICE);

    /* behind an IOMMU addresses are not the guest's physical ones */
    if (!vdev || vdev->dma_as != &address_space_memory) {
        return 0;
    }
    for (int n = 0; n < VIRTIO_QUEUE_MAX && virtio_queue_get_num(vdev, n); n++) {
        if (virtio_queue_get_desc_addr(vdev, n)) {
            add_phys(ft, virtio_queue_get_desc_addr(vdev, n));
            add_phys(ft, virtio_queue_get_avail_addr(vdev, n));
            add_phys(ft, virtio_queue_get_used_addr(vdev, n));
        }
    }
    return 0;
}

void rp_first_touch(struct rp_first_touch *ft)
{
    CPUState *cs;

    RCU_READ_LOCK_GUARD();
    CPU_FOREACH(cs) {
        add_cpu(ft, cs);
    }
    object_child_foreach_recursive(object_get_root(), add_rings, ft);
}
