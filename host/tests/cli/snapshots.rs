//! `coppice snapshot`: what its users see.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use coppice_snapshot::{
    Content, DiskRef, Extents, Info, Kind, LayerRef, Manifest, Naming, StackRef,
};
use serde_json::Value;

use crate::bed::{Bed, outcome};

const MIB: u64 = 1 << 20;

/// Writes a layer of 1 MiB whose first block is full of `byte`.
fn layer(path: &Path, kind: Kind, byte: u8) -> LayerRef {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .expect("layer");
    file.write_all_at(&[byte; 4096], 0).expect("written");
    let mut held = Extents::new();
    held.push(0, 1);
    let content = Content {
        kind,
        blocks: MIB / 4096,
        held,
        zero: Extents::new(),
    };
    let sealed = content.seal(file, path, Naming::Content).expect("sealed");
    LayerRef {
        name: sealed.name(),
        path: path.to_owned(),
    }
}

/// A snapshot in files: two layers of memory, one of a disk.
fn made(bed: &Bed, name: &str, byte: u8) -> String {
    let dir = bed.path(name);
    fs::create_dir(&dir).expect("directory");
    let json = |text: &str| serde_json::from_str(text).expect("JSON");
    let stack = |layers| StackRef {
        blocks: MIB / 4096,
        layers,
    };
    let manifest = Manifest {
        info: Info {
            created_ms: 1_700_000_000_000 + u64::from(byte),
            version: "9.8.7".into(),
            parent: None,
            cpu: json(r#"{"vendor":"ACME"}"#),
            machine: json(r#"{"vcpu_count":3}"#),
        },
        memory: stack(vec![
            layer(&dir.join("top"), Kind::Memory, byte),
            layer(&dir.join("base"), Kind::Memory, 0xee),
        ]),
        disks: vec![DiskRef {
            drive_id: "rootfs".into(),
            stack: stack(vec![layer(&dir.join("disk"), Kind::Disk, byte)]),
        }],
        state: vec![0; 2048],
    };
    let path = dir.join("vm.snap");
    manifest.write(&path).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

struct Store<'a> {
    bed: &'a Bed,
    name: &'static str,
}

impl Store<'_> {
    fn command<'b>(&self, args: impl IntoIterator<Item = &'b str>) -> Command {
        let mut command = self.bed.coppice(["snapshot"].into_iter().chain(args));
        command.env("COPPICE_STORE", self.bed.path(self.name));
        command
    }

    /// Runs a command that has to succeed, and gives its output without the end
    /// of the line.
    fn ok<'b>(&self, args: impl IntoIterator<Item = &'b str>) -> String {
        let (code, out, err) = outcome(self.command(args));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        out.trim_end().to_owned()
    }

    fn json<'b>(&self, args: impl IntoIterator<Item = &'b str>) -> Value {
        let args = ["--json"].into_iter().chain(args);
        serde_json::from_str(&self.ok(args)).expect("JSON")
    }

    /// Runs a command that has to fail, and gives what it says.
    fn fails<'b>(&self, args: impl IntoIterator<Item = &'b str>) -> String {
        let (code, out, err) = outcome(self.command(args));
        assert_eq!((code, out.as_str()), (Some(125), ""), "{err}");
        err
    }

    fn layer_files(&self) -> Vec<std::path::PathBuf> {
        let dir = self.bed.path(self.name).join("layers");
        let entries = fs::read_dir(dir).expect("layers");
        entries.map(|entry| entry.expect("read").path()).collect()
    }
}

#[test]
fn what_was_put_is_listed_shown_and_removed() {
    let bed = Bed::new();
    let store = Store {
        bed: &bed,
        name: "store",
    };
    assert_eq!(store.ok(["ls"]), "");
    let path = made(&bed, "made", 1);
    let id = store.ok(["put", &path, "--tag", "first"]);
    let other = store.ok(["put", &made(&bed, "other", 2)]);
    for text in ["vm.snap", "disk"] {
        assert!(bed.path("made").join(text).exists(), "files stay");
    }

    let text = store.ok(["ls"]);
    assert!(text.starts_with("ID") && text.contains(&id[..12]) && text.contains("first"));
    let rows = store.json(["ls"]);
    assert_eq!(
        rows[0]["id"],
        Value::from(id.as_str()),
        "the oldest is first"
    );
    assert_eq!(rows[0]["tags"], serde_json::json!(["first"]));
    assert_eq!(rows[0]["memory_bytes"], MIB);
    assert_eq!(rows[0]["layers"], 3);
    assert_eq!(rows[1]["id"], Value::from(other.as_str()));
    assert!(rows[0]["own_bytes"].as_u64() < rows[0]["data_bytes"].as_u64());
    assert_eq!(store.ok(["ls", "--layers"]).lines().count(), 5);

    let shown = store.json(["inspect", "first"]);
    assert_eq!(shown["machine"]["vcpu_count"], 3);
    assert_eq!(shown["memory"]["layers"][0]["data_bytes"], 4096);
    assert_eq!(shown["disks"][0]["drive_id"], "rootfs");
    assert_eq!(store.json(["inspect", &path])["version"], "9.8.7");
    let text = store.ok(["inspect", &id[..6]]);
    assert!(
        text.contains("ACME") && text.contains("disk \"rootfs\" of 1.00 MiB"),
        "{text}"
    );

    store.ok(["tag", &other, "second"]);
    store.ok(["tag", "-d", "second"]);
    let error = store.fails(["inspect", "second"]);
    assert!(
        error.contains("\"second\"") && error.contains("coppice snapshot ls"),
        "{error}"
    );

    let removed = store.json(["rm", "first"]);
    assert_eq!(removed["layers"].as_array().expect("a list").len(), 2);
    assert_eq!(store.json(["ls"]).as_array().expect("a list").len(), 1);
    assert_eq!(store.ok(["gc", "--dry-run"]), "would remove 0 layers, 0 B");
    store.ok(["rm", &other]);
    assert!(store.layer_files().is_empty());
}

#[test]
fn a_snapshot_is_carried_to_another_host() {
    let bed = Bed::new();
    let [here, there] = ["here", "there"].map(|name| Store { bed: &bed, name });
    let first = here.ok(["put", &made(&bed, "made", 1), "--tag", "first"]);
    let pack = bed.path("first.pack");
    let pack = pack.to_str().expect("UTF-8");
    let packed = here.json(["pack", "first", "-o", pack]);
    assert_eq!(packed["bytes"], fs::metadata(pack).expect("pack").len());
    assert_eq!(there.ok(["unpack", pack]), first);
    assert_eq!(there.json(["unpack", pack])["layers_present"], 3);

    // By pipe, without what is there.
    let second = here.ok(["put", &made(&bed, "other", 2)]);
    let theirs = bed.path("theirs");
    fs::write(&theirs, there.ok(["ls", "--layers"])).expect("list");
    let theirs = theirs.to_str().expect("UTF-8");
    let mut packing = here
        .command(["pack", &second, "--without", theirs])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut unpacking = there.command(["unpack", "-", "--json"]);
    unpacking.stdin(packing.stdout.take().expect("piped"));
    let (code, out, err) = outcome(unpacking);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(packing.wait().expect("ended").success());
    let done: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(done["layers_written"], 2);
    assert_eq!(there.ok(["verify"]), "found 5 layers whole");

    let nowhere = Store {
        bed: &bed,
        name: "nowhere",
    };
    here.ok(["pack", &second, "--without", theirs, "-o", pack]);
    let error = nowhere.fails(["unpack", pack]);
    assert!(
        error.contains("does not include 1 of its layers"),
        "{error}"
    );
    let whole = fs::read(pack).expect("pack");
    fs::write(pack, &whole[..whole.len() / 2]).expect("truncated");
    let error = there.fails(["unpack", pack]);
    assert!(
        error.contains(pack) && error.contains("truncated"),
        "{error}"
    );
    fs::write(theirs, "nonsense\n").expect("list");
    let error = here.fails(["pack", &second, "--without", theirs, "-o", pack]);
    assert!(error.contains("in line 1 of"), "{error}");
}

#[test]
fn damage_is_found_and_named() {
    let bed = Bed::new();
    let store = Store {
        bed: &bed,
        name: "store",
    };
    let path = made(&bed, "made", 1);
    store.ok(["put", "--move", &path, "--tag", "first"]);
    assert!(!Path::new(&path).exists());
    store.ok(["verify", "first"]);
    let damaged = store.layer_files().remove(0);
    fs::set_permissions(&damaged, fs::Permissions::from_mode(0o644)).expect("mode");
    let file = File::options().write(true).open(&damaged).expect("layer");
    file.write_all_at(b"x", 100).expect("damaged");
    let recent = store.ok(["verify", "--older-than", "1h"]);
    assert_eq!(recent, "found 0 layers whole");
    for args in [&["verify"][..], &["verify", "first"]] {
        let (code, out, _) = outcome(store.command(args.iter().copied()));
        assert_eq!(code, Some(1));
        assert!(out.contains(damaged.to_str().expect("UTF-8")), "{out}");
    }
    let name = damaged.file_name().and_then(|name| name.to_str());
    let layers = store.json(["ls", "--layers"]);
    let layers = layers.as_array().expect("a list");
    let row = layers.iter().find(|row| row["name"].as_str() == name);
    assert_eq!(row.expect("listed")["whole"], false);
    let error = store.fails(["pack", "first"]);
    assert!(error.contains("does not match its name"), "{error}");
    let error = store.fails(["flatten", "first"]);
    assert!(
        error.contains("does not match its name") || error.contains("damaged"),
        "{error}"
    );
}

#[test]
fn an_unreadable_manifest_stops_no_more_than_it_must() {
    let bed = Bed::new();
    let store = Store {
        bed: &bed,
        name: "store",
    };
    let bad = store.ok(["put", &made(&bed, "made", 1)]);
    let good = store.ok(["put", &made(&bed, "other", 2)]);
    let manifest = bed.path("store/snapshots").join(&bad);
    fs::write(&manifest, "COPPSNAP").expect("truncated");
    let manifest = manifest.to_str().expect("UTF-8");
    let text = store.ok(["ls"]);
    assert!(
        text.contains(&good[..12]) && text.contains(manifest),
        "{text}"
    );
    let (code, out, err) = outcome(store.command(["verify"]));
    assert_eq!((code, err.as_str()), (Some(1), ""));
    assert!(out.contains(manifest) && out.contains("truncated"), "{out}");
    for args in [&["gc"][..], &["ls", "--layers"]] {
        let error = store.fails(args.iter().copied());
        assert!(
            error.contains(manifest) && error.contains("snapshot rm"),
            "{error}"
        );
    }
    store.ok(["rm", &bad]);
    store.ok(["gc"]);
    assert_eq!(store.ok(["verify"]), "found 3 layers whole");
}

#[test]
fn a_flat_snapshot_needs_the_old_one_no_longer() {
    let bed = Bed::new();
    let store = Store {
        bed: &bed,
        name: "store",
    };
    let old = store.ok(["put", &made(&bed, "made", 1)]);
    let flat = store.ok(["flatten", &old, "--tag", "flat"]);
    store.ok(["rm", &old]);
    let shown = store.json(["inspect", "flat"]);
    assert_eq!(shown["id"], Value::from(flat));
    assert_eq!(
        shown["memory"]["layers"].as_array().expect("a list").len(),
        1
    );
    assert_eq!(store.ok(["verify", "flat"]), "found 2 layers whole");
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let bed = Bed::new();
    let store = Store {
        bed: &bed,
        name: "store",
    };
    for (args, said) in [
        (&["inspect", "nosuch"][..], "no snapshot \"nosuch\""),
        (&["put", "/nosuch/vm.snap"], "/nosuch/vm.snap"),
        (&["put", "/etc/passwd"], "/etc/passwd is no snapshot"),
        (&["tag", "x", "not/a/tag"], "cannot be a tag"),
        (&["tag", "x"], "TAG"),
        (&["unpack", "/etc/passwd"], "no pack"),
        (&["unpack", "/nosuch"], "/nosuch could not be opened"),
        (&["--store", "/etc", "ls"], "/etc is no store"),
        (&["rm", "nosuch"], "nosuch"),
    ] {
        let error = store.fails(args.iter().copied());
        assert!(error.contains(said), "{args:?}: {error}");
    }
}
