/*
 * What the host charges for a restore, and no more: the calls of KVM that give a
 * machine back its state, in the order that KVM serves fastest, with nothing in
 * between.
 *
 *   floor save CODE MIB STATE MEMORY
 *       runs CODE, loaded at LOAD and entered in 64-bit mode, in a machine of MIB
 *       MiB until it writes to the serial port, and saves the machine
 *   floor restore STATE MEMORY
 *       restores it, runs it until it writes again, and passes that on
 *   floor fork MIB
 *       touches MIB MiB of memory; then for each byte of input forks, and prints
 *       how many microseconds the fork took
 *
 * A machine has one vCPU, and the interrupts and notifications that a serial
 * port, a keyboard controller, firmware events, a block device and a vsock device
 * need.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOAD 0x200000UL
#define PAGE_TABLES 0x9000UL
#define GAP 0xd0000000UL
#define GAP_END 0x100000000UL
#define IDENTITY_MAP 0xfffbc000UL
#define TSS 0xfffbd000UL
#define SERIAL 0x3f8
#define MAX_MSRS 1024
#define MAX_CPUID 256
#define XSAVE_BYTES (16 << 10)

struct state {
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debugregs;
	struct kvm_lapic_state lapic;
	struct kvm_mp_state mp_state;
	struct kvm_vcpu_events events;
	struct kvm_irqchip irqchips[3];
	struct kvm_pit_state2 pit;
	struct kvm_clock_data clock;
	struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[MAX_CPUID];
	} cpuid;
	struct {
		struct kvm_msrs head;
		struct kvm_msr_entry entries[MAX_MSRS];
	} msrs;
	uint8_t xsave[XSAVE_BYTES];
};

struct machine {
	int kvm, vm, vcpu;
	uint8_t *memory;
	struct kvm_run *run;
};

static void fail(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int call(int fd, unsigned long request, const void *argument, const char *what)
{
	int result = ioctl(fd, request, argument);
	if (result < 0)
		fail(what);
	return result;
}

#define CALL(fd, request, argument) \
	call(fd, request, (const void *)(uintptr_t)(argument), #request)

static void slot(const struct machine *m, uint32_t number, uint64_t gpa, uint64_t offset,
		 uint64_t size)
{
	struct kvm_userspace_memory_region region = {
		.slot = number,
		.guest_phys_addr = gpa,
		.memory_size = size,
		.userspace_addr = (uint64_t)(uintptr_t)m->memory + offset,
	};
	CALL(m->vm, KVM_SET_USER_MEMORY_REGION, &region);
}

static void interrupt(const struct machine *m, uint32_t gsi)
{
	struct kvm_irqfd irqfd = { .fd = (uint32_t)eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .gsi = gsi };
	CALL(m->vm, KVM_IRQFD, &irqfd);
}

static void notification(const struct machine *m, uint64_t window, uint64_t queue)
{
	struct kvm_ioeventfd event = {
		.datamatch = queue,
		.addr = window + 0x50,
		.len = 4,
		.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
		.flags = KVM_IOEVENTFD_FLAG_DATAMATCH,
	};
	CALL(m->vm, KVM_IOEVENTFD, &event);
}

/* A machine of `size` bytes from the file `memory`. The memory is registered
 * before there is an interrupt controller, after which that call waits for a grace
 * period of the kernel. */
static struct machine build(const char *path, uint64_t size, int sharing)
{
	struct machine m;
	int file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		fail(path);
	m.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE, file, 0);
	if (m.memory == MAP_FAILED)
		fail("mmap of the memory");
	m.kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (m.kvm < 0)
		fail("/dev/kvm");
	do
		m.vm = ioctl(m.kvm, KVM_CREATE_VM, 0);
	while (m.vm < 0 && errno == EINTR);
	if (m.vm < 0)
		fail("KVM_CREATE_VM");
	slot(&m, 0, 0, 0, size < GAP ? size : GAP);
	if (size > GAP)
		slot(&m, 1, GAP_END, GAP, size - GAP);
	uint64_t identity_map = IDENTITY_MAP;
	CALL(m.vm, KVM_SET_IDENTITY_MAP_ADDR, &identity_map);
	CALL(m.vm, KVM_SET_TSS_ADDR, TSS);
	CALL(m.vm, KVM_CREATE_IRQCHIP, 0);
	struct kvm_pit_config pit = { .flags = KVM_PIT_SPEAKER_DUMMY };
	CALL(m.vm, KVM_CREATE_PIT2, &pit);
	m.vcpu = CALL(m.vm, KVM_CREATE_VCPU, 0);
	int length = CALL(m.kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	m.run = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, m.vcpu, 0);
	if (m.run == MAP_FAILED)
		fail("mmap of the vCPU");
	interrupt(&m, 4); /* serial port */
	interrupt(&m, 1); /* keyboard controller */
	interrupt(&m, 23); /* firmware events */
	interrupt(&m, 5); /* block */
	notification(&m, GAP, 0);
	interrupt(&m, 6); /* vsock */
	for (uint64_t queue = 0; queue < 3; queue++)
		notification(&m, GAP + 0x1000, queue);
	return m;
}

/* Runs the guest until it has written to the serial port. */
static uint8_t run(const struct machine *m)
{
	CALL(m->vcpu, KVM_RUN, 0);
	if (m->run->exit_reason != KVM_EXIT_IO || m->run->io.port != SERIAL) {
		fprintf(stderr, "floor: the guest ended with exit reason %u\n", m->run->exit_reason);
		exit(1);
	}
	return *((uint8_t *)m->run + m->run->io.data_offset);
}

static void transfer(const char *path, int flags, void *data, size_t size)
{
	int file = open(path, flags | O_CLOEXEC, 0644);
	ssize_t done = flags == O_RDONLY ? read(file, data, size) : write(file, data, size);
	if (done < 0 || (flags != O_RDONLY && (size_t)done != size))
		fail(path);
	close(file);
}

static void enter_long_mode(const struct machine *m)
{
	/* 4 GiB one to one in pages of 2 MiB: a PML4, a PDPT and four PDs. */
	uint64_t *tables = (uint64_t *)(m->memory + PAGE_TABLES);
	tables[0] = (PAGE_TABLES + 0x1000) | 3;
	for (uint64_t i = 0; i < 4; i++)
		tables[512 + i] = (PAGE_TABLES + 0x2000 + i * 0x1000) | 3;
	for (uint64_t i = 0; i < 2048; i++)
		tables[1024 + i] = i << 21 | 0x83;
	struct kvm_sregs sregs;
	CALL(m->vcpu, KVM_GET_SREGS, &sregs);
	struct kvm_segment data = { .limit = ~0U, .selector = 0x18, .type = 3, .present = 1,
				    .db = 1, .s = 1, .g = 1 };
	struct kvm_segment code = { .limit = ~0U, .selector = 0x10, .type = 11, .present = 1,
				    .s = 1, .l = 1, .g = 1 };
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	sregs.cr0 = 0x80000011;
	sregs.cr3 = PAGE_TABLES;
	sregs.cr4 = 0x20;
	sregs.efer = 0x500;
	CALL(m->vcpu, KVM_SET_SREGS, &sregs);
	struct kvm_regs regs = { .rip = LOAD, .rflags = 2 };
	CALL(m->vcpu, KVM_SET_REGS, &regs);
}

/* Reads all MSRs that KVM lists and this processor has. */
static void get_msrs(const struct machine *m, struct state *s)
{
	static struct {
		struct kvm_msr_list head;
		uint32_t indices[MAX_MSRS];
	} list;
	static struct {
		struct kvm_msrs head;
		struct kvm_msr_entry entry;
	} one = { .head.nmsrs = 1 };
	list.head.nmsrs = MAX_MSRS;
	CALL(m->kvm, KVM_GET_MSR_INDEX_LIST, &list);
	s->msrs.head.nmsrs = 0;
	for (uint32_t i = 0; i < list.head.nmsrs; i++) {
		one.entry = (struct kvm_msr_entry){ .index = list.indices[i] };
		/* Read-only ones are not given back. */
		if (ioctl(m->vcpu, KVM_GET_MSRS, &one) == 1 && ioctl(m->vcpu, KVM_SET_MSRS, &one) == 1)
			s->msrs.entries[s->msrs.head.nmsrs++] = one.entry;
	}
}

static void save(const char *code, uint64_t mib, const char *state, const char *memory)
{
	static struct state s;
	int file = open(memory, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (file < 0 || ftruncate(file, mib << 20) < 0)
		fail(memory);
	struct machine m = build(memory, mib << 20, MAP_SHARED);
	s.cpuid.head.nent = MAX_CPUID;
	CALL(m.kvm, KVM_GET_SUPPORTED_CPUID, &s.cpuid);
	CALL(m.vcpu, KVM_SET_CPUID2, &s.cpuid);
	transfer(code, O_RDONLY, m.memory + LOAD, 4096);
	enter_long_mode(&m);
	run(&m);
	/* The exit is only over when KVM has run again. */
	m.run->immediate_exit = 1;
	if (ioctl(m.vcpu, KVM_RUN, 0) == 0)
		fail("leaving the guest");
	CALL(m.vcpu, KVM_GET_MP_STATE, &s.mp_state);
	CALL(m.vcpu, KVM_GET_REGS, &s.regs);
	CALL(m.vcpu, KVM_GET_SREGS, &s.sregs);
	CALL(m.vcpu, KVM_GET_XCRS, &s.xcrs);
	if (ioctl(m.kvm, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2) > XSAVE_BYTES)
		fail("the state of the processor is too large");
	if (ioctl(m.vcpu, KVM_GET_XSAVE2, s.xsave) < 0)
		CALL(m.vcpu, KVM_GET_XSAVE, s.xsave);
	CALL(m.vcpu, KVM_GET_DEBUGREGS, &s.debugregs);
	CALL(m.vcpu, KVM_GET_LAPIC, &s.lapic);
	CALL(m.vcpu, KVM_GET_VCPU_EVENTS, &s.events);
	get_msrs(&m, &s);
	for (uint32_t i = 0; i < 3; i++) {
		s.irqchips[i].chip_id = i;
		CALL(m.vm, KVM_GET_IRQCHIP, &s.irqchips[i]);
	}
	CALL(m.vm, KVM_GET_PIT2, &s.pit);
	CALL(m.vm, KVM_GET_CLOCK, &s.clock);
	s.clock.flags = 0;
	transfer(state, O_WRONLY | O_CREAT | O_TRUNC, &s, sizeof s);
}

static void restore(const char *state, const char *memory)
{
	static struct state s;
	transfer(state, O_RDONLY, &s, sizeof s);
	struct stat metadata;
	if (stat(memory, &metadata) < 0)
		fail(memory);
	struct machine m = build(memory, metadata.st_size, MAP_PRIVATE);
	CALL(m.vcpu, KVM_SET_CPUID2, &s.cpuid);
	CALL(m.vcpu, KVM_SET_MP_STATE, &s.mp_state);
	CALL(m.vcpu, KVM_SET_REGS, &s.regs);
	CALL(m.vcpu, KVM_SET_SREGS, &s.sregs);
	CALL(m.vcpu, KVM_SET_XCRS, &s.xcrs);
	CALL(m.vcpu, KVM_SET_XSAVE, s.xsave);
	CALL(m.vcpu, KVM_SET_DEBUGREGS, &s.debugregs);
	CALL(m.vcpu, KVM_SET_LAPIC, &s.lapic);
	if (CALL(m.vcpu, KVM_SET_MSRS, &s.msrs) != (int)s.msrs.head.nmsrs)
		fail("KVM_SET_MSRS");
	CALL(m.vcpu, KVM_SET_VCPU_EVENTS, &s.events);
	for (uint32_t i = 0; i < 3; i++)
		CALL(m.vm, KVM_SET_IRQCHIP, &s.irqchips[i]);
	CALL(m.vm, KVM_SET_PIT2, &s.pit);
	CALL(m.vm, KVM_SET_CLOCK, &s.clock);
	uint8_t byte = run(&m);
	if (write(STDOUT_FILENO, &byte, 1) != 1)
		fail("standard output");
	/* It is measured for as long as it is idle, and then killed. */
	for (;;)
		pause();
}

static void forks(uint64_t mib)
{
	uint8_t *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	for (uint64_t at = 0; at < mib << 20; at += 4096)
		memory[at] = 1;
	uint8_t byte;
	while (read(STDIN_FILENO, &byte, 1) == 1) {
		struct timespec begin, end;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		pid_t child = fork();
		clock_gettime(CLOCK_MONOTONIC, &end);
		if (child == 0)
			_exit(0);
		if (child < 0)
			fail("fork");
		waitpid(child, NULL, 0);
		printf("%ld\n", (end.tv_sec - begin.tv_sec) * 1000000 +
					(end.tv_nsec - begin.tv_nsec) / 1000);
		fflush(stdout);
	}
}

int main(int count, char **words)
{
	if (count == 6 && strcmp(words[1], "save") == 0)
		save(words[2], strtoull(words[3], NULL, 10), words[4], words[5]);
	else if (count == 4 && strcmp(words[1], "restore") == 0)
		restore(words[2], words[3]);
	else if (count == 3 && strcmp(words[1], "fork") == 0)
		forks(strtoull(words[2], NULL, 10));
	else {
		fprintf(stderr, "usage: floor save CODE MIB STATE MEMORY | restore STATE MEMORY | fork MIB\n");
		return 2;
	}
	return 0;
}
