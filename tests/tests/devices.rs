//! Block devices, vsock and the serial console, seen from both sides.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::thread;

use coppice_tests::Guest;
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;

#[test]
fn what_the_guest_writes_is_in_the_file_and_the_other_way_round() {
    let guest = Guest::serving().new_drive("disk", 16 * MIB);
    let pattern: Vec<u8> = (0..MIB).map(|i| (i * 7 % 251) as u8).collect();
    let disk = File::options()
        .read(true)
        .write(true)
        .open(guest.path("disk"))
        .unwrap();
    disk.write_all_at(&pattern, 3 * MIB).unwrap();
    let read_only = guest.path("read-only");
    fs::write(&read_only, &pattern).unwrap();
    let mut machine = guest.drive(&read_only, true).boot();
    machine.wait_for_agent();

    // Host to guest.
    let sum = machine.output("dd if=/dev/vda bs=1M skip=3 count=1 2>/dev/null | md5sum");
    assert_eq!(sum, machine.output("md5sum < /dev/vdb"));
    assert_eq!(machine.output("blockdev --getsize64 /dev/vda"), "16777216");

    // Guest to host, durable once sync has returned.
    machine.output("dd if=/dev/vda of=/dev/vda bs=1M skip=3 seek=9 count=1 conv=fsync 2>&1");
    let mut found = vec![0; pattern.len()];
    disk.read_exact_at(&mut found, 9 * MIB).unwrap();
    assert!(found == pattern, "what was written is not in the file");

    // Discarded blocks read as zeroes and need no room.
    let blocks = |disk: &File| disk.metadata().unwrap().blocks();
    let before = blocks(&disk);
    machine.output("blkdiscard -o 3145728 -l 1048576 /dev/vda");
    disk.read_exact_at(&mut found, 3 * MIB).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    assert!(blocks(&disk) < before, "the room was not given back");

    // Read-only means it.
    let write = machine.exec("dd if=/dev/zero of=/dev/vdb bs=512 count=1 conv=fsync");
    assert_ne!(write.code, 0);
    assert!(fs::read(&read_only).unwrap() == pattern);

    // A file system on it, with a workload.
    machine.output(
        "mke2fs -F /dev/vda >/dev/null 2>&1 && mount -t ext4 /dev/vda /mnt &&
         for i in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom of=/mnt/f$i bs=64k count=8 2>/dev/null; done &&
         md5sum /mnt/f* > /tmp/sums && umount /mnt && mount -t ext4 /dev/vda /mnt &&
         md5sum -c /tmp/sums >/dev/null && umount /mnt",
    );
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, Some(0));
}

#[test]
fn an_image_that_shrinks_in_use_gives_errors_to_the_guest_alone() {
    let guest = Guest::serving().new_drive("disk", 8 * MIB);
    let disk = File::options()
        .write(true)
        .open(guest.path("disk"))
        .unwrap();
    let mut machine = guest.boot();
    machine.wait_for_agent();
    machine.output("dd if=/dev/vda of=/dev/null bs=1M count=1 2>&1");
    disk.set_len(MIB).unwrap();
    let read = machine.exec("dd if=/dev/vda of=/dev/null bs=4k skip=1500 count=1 iflag=direct");
    assert_ne!(read.code, 0, "{:?}", String::from_utf8(read.stderr));
    assert_eq!(machine.output("echo alive"), "alive");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, Some(0));
}

#[test]
fn streams_to_the_guest_are_whole_many_at_once_and_can_be_large() {
    let mut machine = Guest::serving().vcpus(2).boot();
    machine.wait_for_agent();
    // Large: every byte, in order.
    let done = machine.exec("seq 1 2000000; echo over >&2; exit 7");
    assert_eq!((done.code, done.stderr.as_slice()), (7, &b"over\n"[..]));
    let mut expected = Vec::new();
    for i in 1..=2_000_000 {
        writeln!(expected, "{i}").unwrap();
    }
    assert!(done.stdout == expected, "{} bytes", done.stdout.len());

    // Many at once.
    thread::scope(|scope| {
        for i in 0..50 {
            let machine = &machine;
            scope.spawn(move || {
                let output = machine.output(&format!("echo {i}; sleep 0.2; echo {i}"));
                assert_eq!(output, format!("{i}\n{i}"));
            });
        }
    });

    // Nobody listens there.
    let refused = machine.connect(4711);
    assert!(refused.is_err(), "{refused:?}");

    // Garbage on the agent's port.
    for garbage in [&b""[..], b"\xff\xff\xff\xff\xff\xff", &[0; 100_000]] {
        let mut stream = machine.connect(1024).unwrap();
        // The agent may close at once.
        let _ = stream.write_all(garbage);
    }
    assert_eq!(machine.output("echo alive"), "alive");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, Some(0));
}

#[test]
fn typing_reaches_the_shell_on_the_console_whole() {
    let mut machine = Guest::running("stty -echo; echo up=1; cat | md5sum; reboot -f").boot();
    machine.console().value("up");
    let line = "0123456789abcdef".repeat(16) + "\n";
    for _ in 0..40 {
        machine.type_in(&line);
    }
    machine.type_in("\x04");
    machine.console().wait_for("  -");
    let end = machine.end();
    assert_eq!(end.code, Some(0));
    let sums = Guest::serving().boot();
    sums.wait_for_agent();
    let again = sums.output(&format!(
        "i=0; while [ $i -lt 40 ]; do echo {}; i=$((i+1)); done | md5sum",
        line.trim()
    ));
    assert!(end.console.contains(&again), "{again}: {}", end.console);
}

#[test]
fn a_flood_of_console_output_stops_nobody() {
    let mut machine = Guest::serving().boot();
    machine.wait_for_agent();
    let begin = machine.console().len();
    machine.output("yes 0123456789abcde | head -c 10000 > /dev/ttyS0");
    assert_eq!(machine.output("echo alive"), "alive");
    assert_eq!(machine.request("GET", "/", None).status, 200);
    let came = machine.console().len() - begin;
    assert!(came > 9_000, "{came} bytes");
    // The input's end is no end of the machine.
    machine.close_input();
    assert_eq!(machine.output("echo alive"), "alive");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, Some(0));
}
