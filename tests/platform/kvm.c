/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kvm.c - /dev/kvm makes a machine with memory and a vCPU
 *
 * Nothing is run: how well it runs is for the end-to-end tests.
 * Source: Documentation/virt/kvm/api.rst
 */
#include "platform.h"
#include <linux/kvm.h>

int main(void)
{
    struct kvm_userspace_memory_region slot = {.memory_size = pl_page()};
    int kvm, vm, vcpu, version;

    pl_start();
    kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        pl_skip("/dev/kvm: %s; %s", strerror(errno), errno == EACCES ?
                "add this user to group kvm" :
                "load kvm_intel or kvm_amd, and switch virtualisation on in the firmware (or "
                "nesting on the host); the tests with TCG run without");
    version = ioctl(kvm, KVM_GET_API_VERSION, 0);
    if (version != KVM_API_VERSION)
        pl_fails("KVM interface version %d, not %d", version, KVM_API_VERSION);
    vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0)
        pl_fails("/dev/kvm opens, but creates no VM: %s", strerror(errno));
    if (ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_SYNC_MMU) <= 0)
        pl_fails("KVM without SYNC_MMU: guest faults do not reach the host's memory management");
    slot.userspace_addr = (uintptr_t)pl_anon(pl_page());
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) != 0)
        pl_fails("KVM takes no guest memory: %s", strerror(errno));
    vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    if (vcpu < 0)
        pl_fails("KVM creates no vCPU: %s", strerror(errno));
    pl_holds("KVM creates a VM with memory and a vCPU; SYNC_MMU, memory slots %d",
             ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_NR_MEMSLOTS));
}
