//! Snapshots that cannot be restored are refused in words that name the file and
//! the remedy, and leave nothing behind: the same process takes the next one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use coppice_snapshot::{Manifest, import};
use coppice_tests::{Guest, Machine, Scratch, Snapshot};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

/// A machine, and a snapshot of it while it ran.
fn snapshot() -> (Machine, Snapshot) {
    let parent = Guest::bare(64).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    (parent, snapshot)
}

/// One process into which one snapshot after the other is loaded, in vain.
struct Target {
    machine: Machine,
}

impl Target {
    fn new() -> Self {
        Self {
            machine: Machine::empty(),
        }
    }

    /// The load is refused in `words`.
    fn refuses(&self, load: &Value, words: &[&str]) {
        let answer = self.machine.request("PUT", "/snapshot/load", Some(load));
        let fault = answer.fault();
        for word in words {
            assert!(fault.contains(word), "{word:?} is not in: {fault}");
        }
        let stderr = self.machine.stderr().text();
        assert!(!stderr.contains("panicked"), "{stderr}");
        // One that each attempt loses stands out from those that come and go.
        const ATTEMPTS: usize = 8;
        let before = self.machine.descriptors();
        for _ in 0..ATTEMPTS {
            let again = self.machine.request("PUT", "/snapshot/load", Some(load));
            assert_eq!(again.fault(), fault);
        }
        let lost = self.machine.descriptors().saturating_sub(before);
        assert!(lost < ATTEMPTS, "{lost} descriptors are lost: {fault}");
    }

    /// The load succeeds, and the guest goes on.
    fn takes(self, load: &Value) {
        self.machine.put("/snapshot/load", load);
        self.machine.goes_on();
    }
}

/// Changes a manifest so that its checksum is right.
fn rewrite(path: &Path, change: impl FnOnce(&mut Manifest)) {
    let (mut manifest, _) = Manifest::read(path).expect("it is whole");
    change(&mut manifest);
    manifest.write(path).expect("it can be written");
}

/// Changes a piece of JSON in a manifest.
fn edit(raw: &mut Box<serde_json::value::RawValue>, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_str(raw.get()).expect("it is JSON");
    change(&mut value);
    *raw = to_raw_value(&value).expect("it is JSON");
}

fn flip(file: &File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is there");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).expect("it can be written");
}

#[test]
fn a_manifest_that_is_cut_short_or_has_a_bit_flipped() {
    let (_parent, snapshot) = snapshot();
    let (target, path) = (Target::new(), snapshot.manifest());
    let load = snapshot.load_into(&target.machine);
    let whole = fs::read(&path).expect("it is there");
    let name = path.to_str().expect("UTF-8");
    let steps = |count: usize| (0..whole.len()).step_by(whole.len().div_ceil(count));
    for len in (0..140).chain(steps(40)).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).expect("it can be written");
        target.refuses(&load, &[name]);
    }
    for at in (0..140).chain(steps(60)).chain([whole.len() - 1]) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(&path, flipped).expect("it can be written");
        target.refuses(&load, &[name]);
    }
    let longer = [&whole[..], b"\0"].concat();
    fs::write(&path, longer).expect("it can be written");
    target.refuses(&load, &[name]);
    fs::remove_file(&path).expect("it is there");
    target.refuses(&load, &[name]);
    fs::create_dir(&path).expect("it can be made");
    target.refuses(&load, &[name]);
    fs::remove_dir(&path).expect("it is empty");
    fs::write(&path, whole).expect("it can be written");
    target.takes(&load);
}

#[test]
fn a_layer_that_is_cut_short_or_has_a_bit_flipped_in_its_index_or_footer() {
    let (_parent, snapshot) = snapshot();
    let (target, path) = (Target::new(), snapshot.memory());
    let load = snapshot.load_into(&target.machine);
    let name = path.to_str().expect("UTF-8");
    let kept = snapshot.dir().join("kept");
    let copy = || {
        let mut cp = Command::new("cp");
        cp.arg("--sparse=always").args([&kept, &path]);
        assert!(cp.status().expect("cp runs").success());
    };
    fs::rename(&path, &kept).expect("it is there");
    copy();
    let file = File::options().write(true).read(true).open(&path);
    let file = file.expect("it can be opened");
    let whole = file.metadata().expect("it is there").len();
    let data = 48 << 20;
    for at in data..whole {
        flip(&file, at);
        target.refuses(&load, &[name]);
        flip(&file, at);
    }
    for len in [whole - 1, whole - 8, data + 1, data, data - 1, 4097, 1, 0] {
        file.set_len(len).expect("it can be cut");
        target.refuses(&load, &[name]);
    }
    copy();
    target.takes(&load);
}

#[test]
fn layers_that_are_missing_swapped_or_renamed() {
    let (parent, first) = snapshot();
    let second = parent.snapshot("Diff");
    let target = Target::new();
    let load = second.load_into(&target.machine);
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (top, base) = (second.memory(), first.memory());
    let away = second.dir().join("away");
    // Each is there under the other's name.
    fs::rename(&top, &away).expect("it is there");
    fs::rename(&base, &top).expect("it is there");
    fs::rename(&away, &base).expect("it is there");
    target.refuses(&load, &[&path(&top)]);
    fs::rename(&top, &away).expect("it is there");
    target.refuses(&load, &[&path(&top)]);
    fs::rename(&base, &top).expect("it is there");
    target.refuses(&load, &["missing", &path(&base)]);
    // Under its own name it is found beside the others.
    let (manifest, _) = Manifest::read(&second.manifest()).expect("it is whole");
    let own = manifest.memory.layers[1].name.to_string();
    fs::rename(&away, second.dir().join(own)).expect("it is there");
    target.takes(&load);
}

#[test]
fn a_manifest_that_contradicts_itself_or_comes_from_other_processors() {
    let (_parent, snapshot) = snapshot();
    let (target, path) = (Target::new(), snapshot.manifest());
    let load = snapshot.load_into(&target.machine);
    let whole = fs::read(&path).expect("it is there");
    let name = path.to_str().expect("UTF-8");
    let refuses = |words: &[&str], change: &dyn Fn(&mut Manifest)| {
        rewrite(&path, change);
        target.refuses(&load, words);
        fs::write(&path, &whole).expect("it can be written");
    };
    let machine =
        |change: fn(&mut Value)| move |m: &mut Manifest| edit(&mut m.info.machine, change);
    let cpu = |change: fn(&mut Value)| move |m: &mut Manifest| edit(&mut m.info.cpu, change);
    let memory = machine(|spec| spec["machine-config"]["mem_size_mib"] = json!(64));
    refuses(&[name, "64 MiB"], &memory);
    let memory = machine(|spec| spec["machine-config"]["mem_size_mib"] = json!(1_u64 << 50));
    refuses(&["mem_size_mib"], &memory);
    let vcpus = machine(|spec| spec["machine-config"]["vcpu_count"] = json!(2));
    refuses(&["1 vCPUs", "2"], &vcpus);
    let vcpus = machine(|spec| spec["machine-config"]["vcpu_count"] = json!(0));
    refuses(&[name, "vcpu_count"], &vcpus);
    let drives = machine(|spec| spec["drives"] = json!([]));
    refuses(&["2 virtio devices", "1"], &drives);
    let drives = machine(|spec| spec["drives"] = json!("none"));
    refuses(&[name, "specification"], &drives);
    let other = cpu(|cpu| {
        cpu["boot_id"] = json!("another");
        cpu["vendor"] = json!("OtherMaker");
    });
    refuses(&["OtherMaker"], &other);
    refuses(&[name, "processors"], &cpu(|cpu| *cpu = json!([])));
    refuses(&["state"], &|m| m.state.clear());
    refuses(&["state"], &|m| m.state.push(0));
    // A version of the state that is not known.
    refuses(&["state", "later version"], &|m| m.state[0] = 1);
    refuses(&["layer"], &|m| m.memory.layers.clear());
    refuses(&["blocks"], &|m| m.memory.blocks += 1);
    target.takes(&load);
}

#[test]
fn no_state_that_is_cut_short_or_changed_ends_the_process() {
    let (_parent, snapshot) = snapshot();
    let path = snapshot.manifest();
    let (manifest, _) = Manifest::read(&path).expect("it is whole");
    let state = manifest.state;
    let mut target = Target::new();
    for len in (0..state.len()).step_by(state.len() / 80) {
        rewrite(&path, |manifest| manifest.state.truncate(len));
        let load = snapshot.load_into(&target.machine);
        target.refuses(&load, &["state"]);
        rewrite(&path, |manifest| manifest.state.clone_from(&state));
    }
    for at in (0..state.len()).step_by(state.len() / 80) {
        rewrite(&path, |manifest| manifest.state[at] ^= 0x11);
        let mut load = snapshot.load_into(&target.machine);
        load["resume_vm"] = json!(false);
        let answer = target.machine.request("PUT", "/snapshot/load", Some(&load));
        match answer.status {
            // Many values are as good as others.
            204 => target = Target::new(),
            _ => assert!(!answer.fault().is_empty()),
        }
        let stderr = target.machine.stderr().text();
        assert!(!stderr.contains("panicked"), "{stderr}");
        rewrite(&path, |manifest| manifest.state.clone_from(&state));
    }
}

#[test]
fn a_drive_whose_file_is_gone_or_has_changed() {
    let (parent, snapshot) = snapshot();
    let target = Target::new();
    let load = snapshot.load_into(&target.machine);
    let disk = parent.path("disk");
    let name = disk.to_str().expect("UTF-8");
    let away = parent.path("away");
    fs::rename(&disk, &away).expect("it is there");
    target.refuses(&load, &[name]);
    fs::rename(&away, &disk).expect("it is there");
    let file = File::options().write(true).open(&disk);
    let file = file.expect("it can be opened");
    file.set_len(2 << 20).expect("it can be longer");
    target.refuses(&load, &["data0", name, "drive_overrides"]);
    file.set_len(1 << 20).expect("it can be shorter");
    file.write_all_at(b"changed", 0).expect("it can be written");
    target.refuses(&load, &["data0", name, "accept_changed_drives"]);
    let mut other = load.clone();
    other["drive_overrides"] = json!([{ "drive_id": "none", "path_on_host": disk }]);
    target.refuses(&other, &["none"]);
    let mut copied = load.clone();
    fs::copy(&disk, &away).expect("it can be copied");
    copied["drive_overrides"] = json!([{ "drive_id": "data0", "path_on_host": away }]);
    target.takes(&copied);
}

#[test]
fn a_delta_that_is_not_named_or_exists_and_a_socket_that_is_in_use() {
    let files = Scratch::new();
    let image = files.file("image", vec![7; 1 << 20]);
    import(&image, &files.path("base"), &mut |_| {}).expect("an image becomes a layer");
    let drive = json!({
        "drive_id": "data",
        "is_root_device": false,
        "stack": { "layers": [files.path("base")], "delta": files.path("delta") },
    });
    let parent = Guest::bare(64)
        .change(|c| c["drives"] = json!([drive]))
        .boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    let target = Target::new();
    let mut load = snapshot.load_into(&target.machine);
    target.refuses(&load, &["data", "delta", "drive_overrides"]);
    let taken = files.file("taken", "something else");
    load["drive_overrides"] = json!([{ "drive_id": "data", "path_on_host": taken }]);
    target.refuses(&load, &["data", taken.to_str().expect("UTF-8")]);
    assert_eq!(fs::read(&taken).expect("it is there"), b"something else");
    let delta = files.path("child");
    load["drive_overrides"] = json!([{ "drive_id": "data", "path_on_host": delta }]);

    let mut in_use = load.clone();
    let socket = files.path("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    in_use["vsock_override"] = json!({ "uds_path": socket });
    target.refuses(&in_use, &["in use", socket.to_str().expect("UTF-8")]);
    UnixStream::connect(&socket).expect("the other's socket is as it was");
    drop(listener);
    assert!(!delta.exists(), "the delta of a machine that never was");
    target.takes(&load);
}

#[test]
fn loads_in_the_wrong_state() {
    let (parent, snapshot) = snapshot();
    let load = snapshot.load_into(&parent);
    let again = parent.request("PUT", "/snapshot/load", Some(&load)).fault();
    assert!(again.contains("start"), "{again}");
    let configured = Machine::empty();
    let config = json!({ "vcpu_count": 1, "mem_size_mib": 64 });
    configured.put("/machine-config", &config);
    let load = snapshot.load_into(&configured);
    let refused = configured.request("PUT", "/snapshot/load", Some(&load));
    assert!(refused.fault().contains("configured"));
    let child = snapshot.restore();
    let load = snapshot.load_into(&child);
    child.request("PUT", "/snapshot/load", Some(&load)).fault();
    for machine in [&parent, &child] {
        machine.goes_on();
    }
}
