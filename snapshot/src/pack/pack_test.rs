use std::collections::HashSet;
use std::path::Path;

use super::*;
use crate::store::Take;
use crate::testing::snapshot;
use crate::{Progress, SnapshotId, Store};

struct Bed {
    dir: tempfile::TempDir,
    here: Store,
    there: Store,
    id: SnapshotId,
}

fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let here = Store::open(&dir.path().join("here")).unwrap();
    let there = Store::open(&dir.path().join("there")).unwrap();
    let id = put(&here, &dir.path().join("made"), 7);
    here.tag(&id, &"template".parse().unwrap()).unwrap();
    Bed {
        dir,
        here,
        there,
        id,
    }
}

fn put(store: &Store, dir: &Path, byte: u8) -> SnapshotId {
    let (_, manifest, places) = snapshot(dir, byte);
    store
        .put(&manifest, &places, Take::Keep, &mut |_| {})
        .unwrap()
}

fn pack(store: &Store, ids: &[SnapshotId], without: HashSet<LayerName>) -> Vec<u8> {
    let mut packer = Packer::new(without);
    for id in ids {
        packer.add(Source::in_store(store, id).unwrap()).unwrap();
    }
    let mut bytes = Vec::new();
    packer
        .write(&mut bytes, Path::new("p"), 3, &mut |_| {})
        .unwrap();
    bytes
}

fn unpacked(bytes: &[u8], store: &Store) -> Result<Unpacked, PackError> {
    unpack(bytes, Path::new("/p/pack"), store, &mut |_| {})
}

fn layers(store: &Store) -> HashSet<LayerName> {
    store.layers().unwrap().into_keys().collect()
}

#[test]
fn a_snapshot_arrives_in_another_store_as_it_is() {
    let bed = bed();
    let bytes = pack(&bed.here, &[bed.id], HashSet::new());
    let mut last = None;
    let done = unpack(&*bytes, Path::new("p"), &bed.there, &mut |progress| {
        last = Some(progress)
    });
    let done = done.unwrap();
    let total = 15 * 4096;
    assert_eq!(last, Some(Progress { done: total, total }));
    assert_eq!(done.snapshots, [bed.id]);
    assert_eq!((done.written.len(), done.present.len()), (3, 0));
    assert_eq!(bed.there.resolve("template").unwrap(), bed.id);
    let opened = bed.there.open_snapshot(&bed.id).unwrap();
    let stacks = std::iter::once(&opened.memory).chain(&opened.disks);
    for layer in stacks.flat_map(|stack| stack.layers()) {
        layer.verify(&mut |_| {}).unwrap();
    }
    assert_eq!(layers(&bed.here), layers(&bed.there));
    let again = unpacked(&bytes, &bed.there).unwrap();
    assert_eq!((again.written.len(), again.present.len()), (0, 3));
}

#[test]
fn what_the_other_side_has_can_be_left_out() {
    let bed = bed();
    let other = put(&bed.here, &bed.dir.path().join("other"), 8);
    unpacked(&pack(&bed.here, &[bed.id], HashSet::new()), &bed.there).unwrap();
    let small = pack(&bed.here, &[other], layers(&bed.there));
    let empty = Store::open(&bed.dir.path().join("empty")).unwrap();
    let error = unpacked(&small, &empty).unwrap_err();
    assert!(
        matches!(&error, PackError::Missing { names, .. } if names.len() == 1),
        "{error}"
    );
    assert!(
        layers(&empty).is_empty(),
        "nothing was written before it was known"
    );
    let done = unpacked(&small, &bed.there).unwrap();
    assert_eq!(done.written.len(), 2);
    bed.there.open_snapshot(&other).unwrap();
}

#[test]
fn files_that_are_in_no_store_are_packed_as_a_store_would_keep_them() {
    let bed = bed();
    let mut packer = Packer::default();
    let path = bed.dir.path().join("made/snapshot");
    packer.add(Source::file(&path).unwrap()).unwrap();
    packer
        .add(Source::in_store(&bed.here, &bed.id).unwrap())
        .unwrap();
    let mut bytes = Vec::new();
    packer.write(&mut bytes, &path, 3, &mut |_| {}).unwrap();
    let done = unpacked(&bytes, &bed.there).unwrap();
    assert_eq!(done.snapshots, [bed.id, bed.id]);
    assert_eq!(done.written.len(), 3);
}

#[test]
fn a_tag_that_another_snapshot_has_stays_there() {
    let bed = bed();
    let other = put(&bed.there, &bed.dir.path().join("other"), 8);
    let tag = "template".parse().unwrap();
    bed.there.tag(&other, &tag).unwrap();
    let done = unpacked(&pack(&bed.here, &[bed.id], HashSet::new()), &bed.there).unwrap();
    assert_eq!(done.taken, [(tag, other)]);
    assert_eq!(bed.there.resolve("template").unwrap(), other);
}

#[test]
fn no_part_of_a_pack_passes_for_one() {
    let bed = bed();
    let bytes = pack(&bed.here, &[bed.id], HashSet::new());
    for len in 0..bytes.len() {
        let error = unpacked(&bytes[..len], &bed.there).unwrap_err();
        assert!(
            matches!(
                error,
                PackError::NotAPack { .. } | PackError::Damaged { .. }
            ),
            "{error}"
        );
        assert_eq!(bed.there.ids().unwrap(), []);
    }
    let plain = zstd::decode_all(&*bytes).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        if unpacked(&flipped, &bed.there).is_ok() {
            // Some bits of zstd's header say nothing about the content.
            assert_eq!(zstd::decode_all(&*flipped).unwrap(), plain);
            bed.there.remove(&bed.id).unwrap();
        }
        assert_eq!(bed.there.ids().unwrap(), []);
    }
    let mut longer = plain;
    longer.push(0);
    let error = unpacked(&zstd::encode_all(&*longer, 1).unwrap(), &bed.there).unwrap_err();
    assert!(error.to_string().contains("more behind its end"), "{error}");
}

/// The stream inside can say anything: nothing panics, no count makes anything
/// allocate, and what is not as its name says does not enter the store.
#[test]
fn nothing_in_a_pack_is_believed() {
    let bed = bed();
    let plain = zstd::decode_all(&*pack(&bed.here, &[bed.id], HashSet::new())).unwrap();
    for at in (0..plain.len().min(2500)).chain(plain.len() - 8..plain.len()) {
        for value in [0xff, plain[at] ^ 1] {
            let mut changed = plain.clone();
            changed[at] = value;
            if changed == plain {
                continue;
            }
            // Only what progress counts can be wrong without being noticed.
            let packed = zstd::encode_all(&*changed, 1).unwrap();
            if let Ok(done) = unpacked(&packed, &bed.there) {
                assert_eq!(done.snapshots, [bed.id]);
            }
        }
    }
    let mut future = plain;
    future[8] = 2;
    let error = unpacked(&zstd::encode_all(&*future, 1).unwrap(), &bed.there).unwrap_err();
    assert!(
        matches!(error, PackError::Version { version: 2, .. }),
        "{error}"
    );
    let error = unpacked(b"{}", &bed.there).unwrap_err();
    assert!(matches!(error, PackError::NotAPack { .. }), "{error}");
}

#[test]
fn a_damaged_layer_is_not_packed() {
    let bed = bed();
    let (name, _) = bed.here.layers().unwrap().pop_first().unwrap();
    let path = bed.here.dir().join("layers").join(name.to_string());
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.iter().position(|&byte| byte != 0).unwrap();
    let mut bytes = bytes;
    bytes[at] ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let mut packer = Packer::default();
    packer
        .add(Source::in_store(&bed.here, &bed.id).unwrap())
        .unwrap();
    let error = packer
        .write(Vec::new(), Path::new("p"), 3, &mut |_| {})
        .unwrap_err();
    assert!(
        error.to_string().contains("does not match its name"),
        "{error}"
    );
}
