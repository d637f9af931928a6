//! Pages that are in swap are pages of the machine all the same.
//!
//! As root, and on a host that has swap or can make some of its memory swap (zram).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use coppice_tests::{Guest, Machine};

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
}

/// Swap in compressed memory, gone with it.
struct Swap(u32);

impl Swap {
    fn new() -> Self {
        run("modprobe", &["zram"]);
        let number = fs::read_to_string("/sys/class/zram-control/hot_add");
        let number = number.expect("zram makes devices").trim().parse();
        let swap = Self(number.expect("a number"));
        let size = format!("/sys/block/zram{}/disksize", swap.0);
        fs::write(size, "256M").expect("there is memory");
        run("mkswap", &[&swap.device()]);
        run("swapon", &[&swap.device()]);
        swap
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.device()).status();
        let _ = fs::write("/sys/class/zram-control/hot_remove", self.0.to_string());
    }
}

/// A group of processes whose memory can be pushed out, gone with it.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        fs::write(root.join("cgroup.subtree_control"), "+memory").expect("root's groups");
        let group = Self(root.join(format!("coppice-test-{}", std::process::id())));
        fs::create_dir(&group.0).expect("groups can be made");
        group
    }

    fn write(&self, file: &str, text: &str) -> std::io::Result<()> {
        fs::write(self.0.join(file), text)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes may take a moment to end; an empty group does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}

/// KiB of the machine that are in swap.
fn swapped(machine: &Machine) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", machine.pid()));
    let status = status.expect("it is there");
    let line = status.lines().find(|line| line.starts_with("VmSwap"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn pages_in_swap_are_in_the_snapshot() {
    let group = Group::new();
    let swap = Swap::new();
    let parent = Guest::bare(8000).boot();
    // What is touched before may be charged to another group.
    let pid = parent.pid().to_string();
    group.write("cgroup.procs", &pid).expect("it can be moved");
    parent.goes_on();
    let mut snapshots = Vec::new();
    for kind in ["Full", "Diff", "Diff"] {
        parent.set_state("Paused");
        // It complains if it was less than that.
        let _ = group.write("memory.reclaim", "64M");
        let kib = swapped(&parent);
        assert!(kib > 8000, "{kib} KiB are in swap");
        snapshots.push(parent.snapshot(kind));
        assert!(swapped(&parent) > 8000, "the snapshot took it back");
        parent.set_state("Resumed");
        parent.goes_on();
    }
    for snapshot in &snapshots {
        snapshot.restore().goes_on();
    }
    drop(parent);
    drop(swap);
}
