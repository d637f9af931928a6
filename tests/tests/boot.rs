//! Kernels, processors and memory that guests boot with.

use coppice_agent_protocol::{ExecRequest, MessageReader, ToHost};
use coppice_tests::{Guest, Kernel, image};

/// What the guest finds, told on its console.
const FACTS: &str = "
echo cmdline=$(cat /proc/cmdline)
echo cpus=$(nproc)
echo packages=$(sort -u /sys/devices/system/cpu/cpu*/topology/physical_package_id | wc -l)
echo mem_total_kib=$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)
echo apic_trouble=$(dmesg | grep -c -i 'apic id mismatch\\|firmware bug')
grep -i 'system ram' /proc/iomem | sed 's/ *: .*//; s/^/ram=/'
echo told=all
reboot -f";

#[test]
fn vmlinux_and_bzimage_are_the_same_kernel() {
    let boot = |kernel| {
        let mut machine = Guest::running(FACTS).kernel(kernel).boot();
        let cmdline = machine.console().value("cmdline");
        let memory: u64 = machine.console().value("mem_total_kib").parse().unwrap();
        assert_eq!(machine.end().code, Some(0));
        (cmdline, memory)
    };
    let (elf_line, elf_memory) = boot(Kernel::Vmlinux);
    let (compressed_line, compressed_memory) = boot(Kernel::BzImage);
    assert_eq!(elf_line, compressed_line);
    assert!(elf_memory.abs_diff(compressed_memory) < 1024);
}

#[test]
fn an_image_boots_without_an_initrd_and_its_agent_calls_the_host() {
    let guest = Guest::from_image(&image("minimal"));
    // Guest to host: the agent calls port 1025 of the host when it is ready.
    let ready = std::os::unix::net::UnixListener::bind(guest.path("vsock_1025")).unwrap();
    let mut machine = guest.boot();
    let (call, _) = ready.accept().unwrap();
    let mut reader = MessageReader::<_, ToHost>::new(call);
    let hello = reader.next_message().unwrap();
    assert!(
        matches!(&hello, Some(ToHost::Hello(hello)) if hello.init),
        "{hello:?}"
    );
    let root = machine.output("grep ' / ext4 ' /proc/mounts");
    assert!(root.contains(" rw,"), "{root}");
    assert_eq!(machine.output("echo kept > /kept; sync; cat /kept"), "kept");
    drop(ready);
    std::fs::remove_file(machine.path("vsock_1025")).unwrap();
    let _going_down = machine.start_exec(ExecRequest::shell("poweroff -f"));
    assert_eq!(machine.end().code, Some(0));
}

fn cpus(count: u64) {
    let mut machine = Guest::running(FACTS).vcpus(count).memory_mib(256).boot();
    let console = machine.console().clone();
    assert_eq!(console.value("cpus"), count.to_string());
    assert_eq!(console.value("packages"), "1");
    assert_eq!(console.value("apic_trouble"), "0");
    assert_eq!(machine.end().code, Some(0));
}

#[test]
fn two_vcpus_are_online() {
    cpus(2);
}

#[test]
fn eight_vcpus_are_online() {
    cpus(8);
}

#[test]
fn thirty_two_vcpus_are_online() {
    cpus(32);
}

/// All of the memory is there, none of it where devices are, and the last of it
/// can be used.
fn memory(mib: u64) {
    let mut machine = Guest::running(FACTS).memory_mib(mib).boot();
    let console = machine.console().clone();
    console.wait_for("told=all");
    let total_kib: u64 = console.value("mem_total_kib").parse().unwrap();
    let asked_kib = mib * 1024;
    // The kernel keeps its own image and a descriptor of each page to itself.
    // Memory above 4 GiB makes it set bounce buffers of 64 MiB aside besides.
    let bounce_buffers = if mib > 3328 { 64 * 1024 } else { 0 };
    let reserved = asked_kib / 50 + 40 * 1024 + bounce_buffers;
    assert!(
        total_kib < asked_kib && total_kib + reserved > asked_kib,
        "{total_kib} KiB of {asked_kib}"
    );
    let text = console.text();
    let ranges = text.lines().filter_map(|line| line.strip_prefix("ram="));
    let mut ram = 0;
    for range in ranges {
        let (start, end) = range.trim().split_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        assert!(
            end < 0xd000_0000 || start >= 1 << 32,
            "RAM in the gap: {start:#x}-{end:#x}"
        );
        ram += end + 1 - start;
    }
    assert!(
        ram <= mib << 20 && ram + (2 << 20) > mib << 20,
        "{ram} bytes"
    );
    assert_eq!(machine.end().code, Some(0));
}

#[test]
fn memory_of_64_mib() {
    memory(64);
}

#[test]
fn memory_just_below_the_gap() {
    memory(3327);
}

#[test]
fn memory_up_to_the_gap() {
    memory(3328);
}

#[test]
fn memory_one_mib_beyond_the_gap() {
    memory(3329);
}

#[test]
fn memory_beyond_4_gib() {
    memory(6144);
}
