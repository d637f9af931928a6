use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::testing::{self, snapshot};
use crate::{Layer, Naming, Progress};

fn put(store: &Store, dir: &Path, byte: u8, take: Take) -> SnapshotId {
    let (_, manifest, places) = snapshot(dir, byte);
    store.put(&manifest, &places, take, &mut |_| {}).unwrap()
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn a_snapshot_comes_back_as_it_was_put() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("a/store")).unwrap();
    let (_, manifest, places) = snapshot(&dir.path().join("made"), 7);
    let mut told = Vec::new();
    let id = store
        .put(&manifest, &places, Take::Keep, &mut |progress| {
            told.push(progress);
        })
        .unwrap();
    let total = (12 + 2 + 1) * 4096;
    assert_eq!(told.first(), Some(&Progress { done: 0, total }));
    let last = told.last().unwrap();
    assert_eq!((last.done, last.total), (total, total));
    // The files have done their duty.
    fs::remove_dir_all(dir.path().join("made")).unwrap();
    let opened = store.open_snapshot(&id).unwrap();
    assert_eq!(opened.manifest.state, manifest.state);
    assert_eq!(opened.memory.layers().len(), 2);
    assert_eq!(opened.disks[0].layers().len(), 1);
    for layer in opened
        .memory
        .layers()
        .iter()
        .chain(opened.disks[0].layers())
    {
        assert!(layer.name().is_by_content());
        assert_eq!(
            layer.path().file_name().unwrap(),
            &*layer.name().to_string()
        );
        assert_eq!(
            layer.file().metadata().unwrap().permissions().mode() & 0o222,
            0
        );
        layer.verify(&mut |_| {}).unwrap();
    }
    let top = opened.memory.layers()[0].clone();
    assert_eq!((top.held().blocks(), top.zero().blocks()), (3, 1));
    // The manifest in the store finds its layers by itself.
    let path = store.manifest_path(&id);
    let (read, found) = Manifest::read(&path).unwrap();
    assert_eq!(found, id);
    Places::beside(&path)
        .open(Kind::Memory, &read.memory)
        .unwrap();
}

#[test]
fn what_is_there_is_not_written_again_and_an_id_does_not_depend_on_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let first = put(&store, &dir.path().join("1"), 7, Take::Keep);
    let layers = files(&store.dir.join("layers"));
    let inode = |name: &String| {
        use std::os::unix::fs::MetadataExt;
        store
            .dir
            .join("layers")
            .join(name)
            .metadata()
            .unwrap()
            .ino()
    };
    let inodes: Vec<u64> = layers.iter().map(inode).collect();
    let again = put(&store, &dir.path().join("2"), 7, Take::Keep);
    let other = put(&store, &dir.path().join("3"), 8, Take::Keep);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_eq!(layers.iter().map(inode).collect::<Vec<u64>>(), inodes);
    assert_eq!(
        files(&store.dir.join("layers")).len(),
        3 + 2,
        "the base is shared"
    );
    let elsewhere = Store::open(&dir.path().join("elsewhere")).unwrap();
    assert_eq!(put(&elsewhere, &dir.path().join("4"), 7, Take::Keep), first);
}

#[test]
fn moving_shares_the_file_and_then_removes_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let staging = store.staging().unwrap();
    let id = put(&store, staging.dir(), 7, Take::Move);
    assert_eq!(files(staging.dir()), ["snapshot"]);
    // Also those that are there already, but not the store's own.
    put(&store, &dir.path().join("again"), 7, Take::Move);
    assert_eq!(files(&dir.path().join("again")), ["snapshot"]);
    let manifest = store.read(&id).unwrap();
    let places = store.places();
    store
        .put(&manifest, &places, Take::Move, &mut |_| {})
        .unwrap();
    store.open_snapshot(&id).unwrap();
    let path = staging.dir().to_owned();
    assert_eq!(store.collect().unwrap(), Collected::default());
    assert!(path.exists(), "it is in use");
    drop(staging);
    assert!(!path.exists());
}

#[test]
fn a_layer_whose_content_is_wrong_does_not_enter() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    for (n, mode) in [0o444, 0o644].into_iter().enumerate() {
        let made = dir.path().join(n.to_string());
        let (_, manifest, places) = snapshot(&made, 7);
        let base = made.join("base");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o644)).unwrap();
        let file = File::options().write(true).open(&base).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 5000).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(mode)).unwrap();
        let error = store.put(&manifest, &places, Take::Move, &mut |_| {});
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("base") && error.contains("does not match its name"),
            "{error}"
        );
        assert!(made.join("memory").exists(), "nothing was moved");
        assert_eq!(store.ids().unwrap(), []);
    }
}

#[test]
fn a_damaged_layer_in_the_store_is_replaced_by_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    put(&store, &dir.path().join("1"), 7, Take::Keep);
    for name in files(&store.dir.join("layers")) {
        let path = store.dir.join("layers").join(name);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "half").unwrap();
    }
    let id = put(&store, &dir.path().join("2"), 7, Take::Keep);
    store.open_snapshot(&id).unwrap();
}

#[test]
fn snapshots_are_found_by_tag_and_by_the_beginning_of_their_id() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let ids = [1, 2].map(|byte| put(&store, &dir.path().join(byte.to_string()), byte, Take::Keep));
    let tag: Tag = "base-1.0".parse().unwrap();
    store.tag(&ids[0], &tag).unwrap();
    assert_eq!(store.resolve("base-1.0").unwrap(), ids[0]);
    store.tag(&ids[1], &tag).unwrap();
    assert_eq!(store.tags().unwrap(), [(tag.clone(), ids[1])]);
    let text = ids[0].to_string();
    assert_eq!(store.resolve(&text[..12]).unwrap(), ids[0]);
    assert!(matches!(
        store.resolve(&text[..3]),
        Err(StoreError::NoSnapshot { .. })
    ));
    assert!(matches!(
        store.resolve("../tags/base-1.0"),
        Err(StoreError::NoSnapshot { .. })
    ));
    store.untag(&tag).unwrap();
    assert!(matches!(store.untag(&tag), Err(StoreError::NoTag { .. })));
    assert!(store.resolve("base-1.0").is_err());
    for bad in [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "é",
        "0123",
        "feed",
        &"x".repeat(101),
    ] {
        assert!(bad.parse::<Tag>().is_err(), "{bad}");
    }
}

#[test]
fn removal_takes_what_nobody_else_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let ids = [1, 2].map(|byte| put(&store, &dir.path().join(byte.to_string()), byte, Take::Keep));
    store.tag(&ids[0], &"t".parse().unwrap()).unwrap();
    let uses: Vec<usize> = store
        .layers()
        .unwrap()
        .values()
        .map(|layer| layer.snapshots.len())
        .collect();
    assert_eq!(uses.iter().filter(|&&uses| uses == 2).count(), 1);
    assert_eq!(uses.len(), 5);
    let removed = store.remove(&ids[0]).unwrap();
    assert_eq!(removed.layers.len(), 2);
    assert!(removed.bytes() > 0);
    assert_eq!(store.tags().unwrap(), []);
    store.open_snapshot(&ids[1]).unwrap();
    assert!(matches!(
        store.remove(&ids[0]),
        Err(StoreError::NoSnapshot { .. })
    ));
    assert_eq!(store.collect().unwrap(), Collected::default());
}

#[test]
fn a_collection_leaves_what_a_machine_runs_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let id = put(&store, &dir.path().join("1"), 7, Take::Keep);
    fs::remove_dir_all(dir.path().join("1")).unwrap();
    let machine = store.open_snapshot(&id).unwrap();
    let removed = store.remove(&id).unwrap();
    assert_eq!((removed.layers.len(), removed.in_use.len()), (0, 3));
    assert_eq!(store.collect().unwrap().in_use.len(), 3);
    // So its next snapshot is whole.
    let again = store
        .put(&machine.manifest, &store.places(), Take::Keep, &mut |_| {})
        .unwrap();
    assert_eq!(again, id);
    store.remove(&id).unwrap();
    drop(machine);
    let collected = store.collect().unwrap();
    assert_eq!((collected.layers.len(), collected.in_use.len()), (3, 0));
    assert_eq!(files(&store.dir.join("layers")), [""; 0]);
}

#[test]
fn a_collection_removes_what_dead_writers_left_and_nothing_of_the_living() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let alive = Draft::beside(&store.dir.join("layers/x")).unwrap();
    let dead = [".format", "layers/.x", "snapshots/.x", "tags/.x"]
        .map(|name| store.dir.join(format!("{name}.0123456789abcdef.draft")));
    for path in &dead {
        fs::write(path, [1; 4096]).unwrap();
    }
    let staging = store.dir.join("staging/0123");
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join("memory"), [1; 8192]).unwrap();
    fs::write(store.dir.join("layers/README"), "not ours").unwrap();
    let collected = store.collect().unwrap();
    assert_eq!(collected.unfinished, 4 * 4096 + 8192);
    assert!(dead.iter().all(|path| !path.exists()) && !staging.exists());
    assert!(alive.path().exists() && store.dir.join("layers/README").exists());
}

#[test]
fn nothing_is_collected_while_a_manifest_is_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let ids = [1, 2].map(|byte| put(&store, &dir.path().join(byte.to_string()), byte, Take::Keep));
    fs::write(store.manifest_path(&ids[0]), "COPPSNAP and then nothing").unwrap();
    let error = store.collect().unwrap_err();
    assert!(matches!(error, StoreError::Unreadable(_)), "{error}");
    assert!(error.to_string().contains(&ids[0].to_string()), "{error}");
    assert_eq!(files(&store.dir.join("layers")).len(), 5);
    let listed = store.list().unwrap();
    assert!(listed[&ids[0]].is_err() && listed[&ids[1]].is_ok());
    // The way out that the error names.
    store.remove(&ids[0]).unwrap();
    assert_eq!(store.collect().unwrap().layers.len(), 2);
    store.open_snapshot(&ids[1]).unwrap();
}

#[test]
fn verification_finds_damage_and_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let id = put(&store, &dir.path().join("1"), 7, Take::Move);
    let names: Vec<LayerName> = store.layers().unwrap().into_keys().collect();
    assert_eq!(store.unverified_since(1).unwrap().len(), 3);
    let bad = store.verify(&names, &mut |_| {}).unwrap();
    assert!(bad.is_empty());
    assert!(store.unverified_since(1).unwrap().is_empty());
    assert_eq!(store.unverified_since(u64::MAX).unwrap().len(), 3);
    let manifest = store.read(&id).unwrap();
    let base = manifest.memory.layers[1].name;
    let path = store.layer_path(&base);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 5000).unwrap();
    let bad = store.verify(&names, &mut |_| {}).unwrap();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0].0, base);
    let verified = store.verified().unwrap();
    assert_eq!(verified.values().filter(|found| found.whole).count(), 2);
    assert!(!verified[&base].whole);
    store.remove(&id).unwrap();
    store.collect().unwrap();
    assert!(store.verified().unwrap().is_empty());
}

#[test]
fn a_store_is_told_from_other_directories() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter"), "dear").unwrap();
    assert!(matches!(
        Store::open(dir.path()),
        Err(StoreError::NotAStore { .. })
    ));
    assert_eq!(files(dir.path()), ["letter"]);
    fs::remove_file(dir.path().join("letter")).unwrap();
    Store::open(dir.path()).unwrap();
    Store::open(dir.path()).unwrap();
    fs::write(dir.path().join("format"), "coppice store 2\n").unwrap();
    let error = Store::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("coppice store 2") && error.contains("newer"),
        "{error}"
    );
}

#[test]
fn a_snapshot_with_a_missing_or_swapped_layer_does_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let id = put(&store, &dir.path().join("1"), 7, Take::Keep);
    let layers: Vec<LayerName> = store
        .read(&id)
        .unwrap()
        .layers()
        .map(|layer| layer.name)
        .collect();
    for (n, name) in layers.iter().enumerate() {
        let path = store.layer_path(name);
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        let error = store.open_snapshot(&id).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        fs::hard_link(store.layer_path(&layers[(n + 1) % 3]), &path).unwrap();
        let error = store.open_snapshot(&id).unwrap_err().to_string();
        assert!(error.contains("is the layer"), "{error}");
        fs::rename(&aside, &path).unwrap();
    }
    store.open_snapshot(&id).unwrap();
    // One of another machine's size.
    let odd = testing::layer(
        &dir.path().join("odd"),
        Kind::Memory,
        17,
        &[(0, 1)],
        Naming::Content,
    );
    let manifest = testing::manifest(vec![testing::reference(&odd)], Vec::new());
    let error = store
        .put(&manifest, &Places::default(), Take::Keep, &mut |_| {})
        .unwrap_err();
    assert!(error.to_string().contains("17 blocks"), "{error}");
    Layer::open(&dir.path().join("odd")).unwrap();
}

#[test]
fn a_flattened_snapshot_shows_the_same_in_one_layer_each() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let id = put(&store, &dir.path().join("1"), 7, Take::Keep);
    let flat = store.flatten(&id, &mut |_| {}).unwrap();
    assert_ne!(flat, id);
    let opened = store.open_snapshot(&flat).unwrap();
    let [memory] = opened.memory.layers() else {
        panic!("{:?}", opened.memory);
    };
    assert_eq!(
        memory.held().iter().map(|e| e.range()).collect::<Vec<_>>(),
        [0..2, 3..12, 15..16]
    );
    let before = store.open_snapshot(&id).unwrap();
    assert_eq!(
        opened.disks[0].layers()[0].name(),
        before.disks[0].layers()[0].name()
    );
    assert_eq!(opened.manifest.state, before.manifest.state);
    assert_eq!(store.flatten(&flat, &mut |_| {}).unwrap(), flat);
}
