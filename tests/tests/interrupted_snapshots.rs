//! Snapshots that are interrupted, refused or repeated: there is always the old
//! snapshot or the new one, and never a part of one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use coppice_snapshot::{BLOCK_SIZE, Kind, Manifest, Places, import};
use coppice_tests::{Guest, Machine, Scratch, Snapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// Pages of a guest whose snapshot takes a while.
const MANY: u32 = 7000;

/// The names in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("it can be listed");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("it can be read").file_name();
    entries
        .map(|entry| name(entry).into_string().expect("UTF-8"))
        .collect()
}

/// All of the memory in a snapshot.
fn memory(snapshot: &Snapshot) -> Vec<u8> {
    let path = snapshot.manifest();
    let (manifest, _) = Manifest::read(&path).expect("it is whole");
    let stack = Places::beside(&path).open(Kind::Memory, &manifest.memory);
    let stack = stack.expect("its layers are there");
    let mut memory = vec![0; (manifest.memory.blocks * BLOCK_SIZE) as usize];
    for piece in stack.resolve() {
        let range = (piece.start * BLOCK_SIZE)..((piece.start + piece.len) * BLOCK_SIZE);
        let place = &mut memory[range.start as usize..range.end as usize];
        let file = stack.layers()[piece.layer].file();
        file.read_exact_at(place, range.start).expect("it is whole");
    }
    memory
}

/// The process that copies the machine's memory, once there is one.
fn helper(machine: &Machine) -> Option<Pid> {
    let pid = machine.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let pid = children.split_whitespace().next()?.parse().ok()?;
    Some(Pid::from_raw(pid))
}

/// Asks for a snapshot in a thread of its own, and calls `meanwhile`; the answer's
/// fault, if it was refused, and nothing if there was no answer.
fn create_and(machine: &Machine, snapshot: &Snapshot, meanwhile: impl FnOnce()) -> Option<u16> {
    let body = snapshot.create("Full");
    thread::scope(|scope| {
        let request = scope.spawn(|| {
            let ask = || {
                machine
                    .request("PUT", "/snapshot/create", Some(&body))
                    .status
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).ok()
        });
        meanwhile();
        request.join().expect("it caught its panics")
    })
}

#[test]
fn a_machine_killed_at_any_moment_of_a_snapshot_leaves_the_old_one_or_the_new_one() {
    let parent = Guest::bare(MANY).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    let began = Instant::now();
    parent.put("/snapshot/create", &snapshot.create("Full"));
    let whole = began.elapsed();
    let id = || Manifest::read(&snapshot.manifest()).expect("it is whole").1;
    let (mut old, mut new) = (0, 0);
    for round in 0..12 {
        let before = id();
        let machine = snapshot.restore();
        machine.goes_on();
        create_and(&machine, &snapshot, || {
            // Not to synchronise, but to kill at another moment each time.
            thread::sleep(whole * round / 10);
            machine.signal(Signal::SIGKILL);
        });
        *if id() == before { &mut old } else { &mut new } += 1;
        let shown: Vec<_> = names(snapshot.dir()).into_iter().collect();
        let shown = shown.iter().filter(|name| !name.ends_with(".draft"));
        for name in shown {
            let known = name == "manifest" || name == "memory" || name.len() >= 64;
            assert!(known, "{name} was left");
        }
    }
    assert!(old > 0, "none was killed early enough");
    eprintln!("{old} times the old snapshot counts, {new} times the new one");
    let last = snapshot.restore();
    last.goes_on();
    last.put("/snapshot/create", &snapshot.create("Full"));
    let drafts = names(snapshot.dir());
    assert!(
        !drafts.iter().any(|name| name.ends_with(".draft")),
        "{drafts:?}"
    );
    snapshot.restore().goes_on();
}

#[test]
fn a_machine_that_is_ended_in_the_middle_of_a_snapshot_ends_soon_and_leaves_nothing() {
    let parent = Guest::bare(MANY).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    let (files, before) = (names(snapshot.dir()), memory(&snapshot));
    for round in 0..6 {
        let mut machine = snapshot.restore();
        machine.goes_on();
        let mut took = Duration::ZERO;
        create_and(&machine, &snapshot, || {
            // Not to synchronise, but to end it at another moment each time.
            thread::sleep(Duration::from_millis(round * 5));
            let began = Instant::now();
            machine.signal(Signal::SIGTERM);
            while Path::new(&format!("/proc/{}/exe", machine.pid())).exists() {
                thread::sleep(Duration::from_millis(1));
            }
            took = began.elapsed();
        });
        assert_eq!(machine.end().code, Some(0));
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(names(snapshot.dir()), files);
    }
    drop(before);
    snapshot.restore().goes_on();
}

#[test]
fn a_helper_that_is_killed_fails_one_snapshot_and_not_the_next() {
    let machine = Guest::bare(MANY).boot();
    machine.goes_on();
    let snapshot = Snapshot::new();
    let mut status = None;
    for _ in 0..20 {
        status = create_and(&machine, &snapshot, || {
            let limit = Instant::now() + Duration::from_millis(500);
            while Instant::now() < limit {
                if let Some(helper) = helper(&machine) {
                    // It may have ended just now.
                    let _ = kill(helper, Signal::SIGKILL);
                    break;
                }
            }
        });
        if status == Some(400) {
            break;
        }
        fs::remove_file(snapshot.manifest()).expect("it was made");
        fs::remove_file(snapshot.memory()).expect("it was made");
    }
    assert_eq!(status, Some(400));
    assert_eq!(names(snapshot.dir()), BTreeSet::new());
    machine.goes_on();
    machine.put("/snapshot/create", &snapshot.create("Diff"));
    snapshot.restore().goes_on();
}

#[test]
fn a_second_snapshot_waits_for_nobody_and_is_refused() {
    let machine = Guest::bare(MANY).boot();
    machine.goes_on();
    let (first, second) = (Snapshot::new(), Snapshot::new());
    for _ in 0..20 {
        let mut other = None;
        let status = create_and(&machine, &first, || {
            while helper(&machine).is_none() {}
            let body = second.create("Full");
            other = Some(machine.request("PUT", "/snapshot/create", Some(&body)));
        });
        assert_eq!(status, Some(204));
        let other = other.expect("it was asked");
        if other.status == 204 {
            // The first was done by then.
            continue;
        }
        assert!(other.fault().contains("being written"), "{}", other.body);
        first.restore().goes_on();
        machine.put("/snapshot/create", &second.create("Diff"));
        second.restore().goes_on();
        return;
    }
    panic!("the first was always done when the second was asked for");
}

/// Has the process write no more than `limit` bytes to a file.
fn limit_files(machine: &Machine, limit: &str) {
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--pid", &machine.pid().to_string()]);
    let status = prlimit.arg(format!("--fsize={limit}")).status();
    assert!(status.expect("prlimit (util-linux) runs").success());
}

#[test]
fn a_snapshot_that_failed_for_want_of_room_is_complete_when_it_is_repeated() {
    let parent = Guest::bare(MANY).boot();
    parent.goes_on();
    let base = parent.snapshot("Full");
    for machine in [&parent, &base.restore()] {
        machine.goes_on();
        machine.set_state("Paused");
        let (retried, whole) = (Snapshot::new(), Snapshot::new());
        // The data, and then only the index.
        for limit in ["20000000:", "50331700:"] {
            limit_files(machine, limit);
            let body = retried.create("Diff");
            let fault = machine
                .request("PUT", "/snapshot/create", Some(&body))
                .fault();
            assert!(fault.contains("written"), "{fault}");
            assert_eq!(names(retried.dir()), BTreeSet::new());
            assert!(machine.request("GET", "/", None).body.contains("Paused"));
        }
        limit_files(machine, "unlimited:");
        machine.put("/snapshot/create", &retried.create("Diff"));
        machine.put("/snapshot/create", &whole.create("Full"));
        assert!(memory(&retried) == memory(&whole), "pages are missing");
        machine.set_state("Resumed");
        machine.goes_on();
        retried.restore().goes_on();
    }
}

/// A small file system, unmounted with it.
struct Tmpfs(Scratch);

impl Tmpfs {
    fn new(size: &str) -> Self {
        let scratch = Scratch::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]);
        let status = mount.arg(scratch.dir()).status();
        assert!(status.expect("mount runs").success(), "run as root");
        Self(scratch)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.dir()).status();
    }
}

#[test]
fn a_full_disk_keeps_the_old_snapshot_and_takes_the_next_when_there_is_room() {
    let machine = Guest::bare(MANY).boot();
    machine.goes_on();
    // Room for one snapshot of 28 MiB and not for two.
    let small = Tmpfs::new("40m");
    let create = json!({
        "snapshot_path": small.0.path("manifest"),
        "mem_file_path": small.0.path("memory"),
        "live": true,
    });
    machine.put("/snapshot/create", &create);
    let before = fs::read(small.0.path("manifest")).expect("it is there");
    let files = names(small.0.dir());
    for _ in 0..3 {
        machine.goes_on();
        let answer = machine.request("PUT", "/snapshot/create", Some(&create));
        assert!(answer.fault().contains("No space left"), "{}", answer.body);
        assert_eq!(
            fs::read(small.0.path("manifest")).expect("it is there"),
            before
        );
        assert_eq!(names(small.0.dir()), files);
    }
    let restored = Machine::empty();
    let load = json!({
        "snapshot_path": small.0.path("manifest"),
        "mem_file_path": small.0.path("memory"),
        "vsock_override": { "uds_path": restored.path("vsock") },
        "resume_vm": true,
    });
    restored.put("/snapshot/load", &load);
    restored.goes_on();
    let remount = format!("remount,size={}", "120m");
    let status = Command::new("mount")
        .args(["-o", &remount])
        .arg(small.0.dir())
        .status();
    assert!(status.expect("mount runs").success());
    machine.put("/snapshot/create", &create);
    machine.goes_on();
    restored.goes_on();
}

#[test]
fn a_snapshot_goes_where_the_running_machine_has_its_memory_from() {
    for (kind, alias) in [
        ("Full", None),
        ("Diff", None),
        ("Full", Some("hard")),
        ("Diff", Some("hard")),
        ("Full", Some("soft")),
        ("Diff", Some("soft")),
    ] {
        let parent = Guest::bare(64).boot();
        parent.goes_on();
        let snapshot = parent.snapshot("Full");
        let machine = snapshot.restore();
        machine.goes_on();
        let other = snapshot.dir().join("other");
        match alias {
            Some("hard") => fs::hard_link(snapshot.memory(), &other).expect("a link"),
            Some(_) => std::os::unix::fs::symlink(snapshot.memory(), &other).expect("a link"),
            None => {}
        }
        let memory = alias.map_or(snapshot.memory(), |_| other.clone());
        // Twice, so that the machine's own snapshot is replaced as well.
        for _ in 0..2 {
            let mut create = snapshot.create(kind);
            create["mem_file_path"] = json!(memory);
            machine.put("/snapshot/create", &create);
            machine.goes_on();
            let child = Machine::empty();
            let mut load = snapshot.load_into(&child);
            load["mem_file_path"] = json!(memory);
            child.put("/snapshot/load", &load);
            child.goes_on();
        }
    }
}

#[test]
fn files_that_the_machine_needs_are_not_replaced() {
    let files = Scratch::new();
    let image = files.file("image", vec![7; 1 << 20]);
    import(&image, &files.path("base"), &mut |_| {}).expect("an image becomes a layer");
    let stack = json!({
        "drive_id": "data",
        "is_root_device": false,
        "stack": { "layers": [files.path("base")], "delta": files.path("delta") },
    });
    let add = |c: &mut serde_json::Value| c["drives"].as_array_mut().expect("a list").push(stack);
    let parent = Guest::bare(64).change(add).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full").with_deltas(&["data"]);
    let child = snapshot.restore();
    child.goes_on();
    let own = Snapshot::new();
    let refuses = |field: &str, path: PathBuf, word: &str| {
        let before = names(path.parent().expect("it has one"));
        let mut create = own.create("Diff");
        create[field] = json!(path);
        let fault = child
            .request("PUT", "/snapshot/create", Some(&create))
            .fault();
        assert!(fault.contains(field) && fault.contains(word), "{fault}");
        assert!(fault.contains(path.to_str().expect("UTF-8")), "{fault}");
        assert_eq!(names(path.parent().expect("it has one")), before);
        assert_eq!(names(own.dir()), BTreeSet::new());
    };
    for field in ["snapshot_path", "mem_file_path"] {
        refuses(field, parent.path("disk"), "data0");
        refuses(field, parent.path("kernel"), "kernel");
        refuses(field, files.path("base"), "data");
        refuses(field, child.path("data.delta"), "data");
        refuses(field, child.path("vsock"), "regular");
        refuses(field, own.dir().to_owned(), "regular");
    }
    refuses("snapshot_path", snapshot.memory(), "layer");
    refuses("mem_file_path", snapshot.manifest(), "manifest");
    let again = own
        .dir()
        .join("..")
        .join(own.dir().file_name().expect("a name"));
    refuses("mem_file_path", again.join("manifest"), "snapshot_path");
    let mut nowhere = own.create("Diff");
    nowhere["snapshot_path"] = json!(own.dir().join("no/where"));
    let answer = child.request("PUT", "/snapshot/create", Some(&nowhere));
    assert!(answer.fault().contains("no/where"), "{}", answer.body);
    assert_eq!(names(own.dir()), BTreeSet::new());
    child.put("/snapshot/create", &own.create("Diff"));
    own.with_deltas(&["data"]).restore().goes_on();
}

#[test]
fn snapshots_in_the_wrong_state() {
    let snapshot = Snapshot::new();
    let empty = Machine::empty();
    let create = snapshot.create("Full");
    let fault = empty
        .request("PUT", "/snapshot/create", Some(&create))
        .fault();
    assert!(fault.contains("start"), "{fault}");
    let mut machine = Guest::bare(64).boot();
    machine.goes_on();
    let mut create = snapshot.create("Full");
    create["live"] = json!(false);
    let fault = machine
        .request("PUT", "/snapshot/create", Some(&create))
        .fault();
    assert!(fault.contains("pause") && fault.contains("live"), "{fault}");
    assert_eq!(names(snapshot.dir()), BTreeSet::new());
    machine.set_state("Paused");
    machine.put("/snapshot/create", &create);
    let state = machine.request("GET", "/", None).body;
    assert!(state.contains("Paused"), "{state}");
    machine.set_state("Resumed");
    machine.goes_on();
    // A machine that was restored and has not run is as good.
    let (waiting, second) = (Machine::empty(), Snapshot::new());
    let mut load = snapshot.load_into(&waiting);
    load["resume_vm"] = json!(false);
    waiting.put("/snapshot/load", &load);
    waiting.put("/snapshot/create", &second.create("Diff"));
    second.restore().goes_on();
    waiting.set_state("Resumed");
    waiting.goes_on();
    // Its guest resets the machine.
    machine.type_in("x");
    assert_eq!(machine.end().code, Some(0));
}
