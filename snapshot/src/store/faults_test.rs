//! Whatever is interrupted, and wherever, a store has its snapshots whole.

use std::collections::BTreeSet;

use super::*;
use crate::testing::snapshot;
use crate::trace::{End, Fault, calls, with_fault};

/// A store with one snapshot, and the files of another.
struct Bed {
    dir: tempfile::TempDir,
    store: Store,
    old: SnapshotId,
    /// What the other one's id will be.
    new: SnapshotId,
}

impl Bed {
    fn new() -> Self {
        // Nothing is lost with this memory but time.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let put = |store: &Store, name: &str, byte| {
            let (_, manifest, places) = snapshot(&dir.path().join(name), byte);
            store
                .put(&manifest, &places, Take::Keep, &mut |_| {})
                .unwrap()
        };
        let old = put(&store, "old", 1);
        let elsewhere = Store::open(&dir.path().join("elsewhere")).unwrap();
        let new = put(&elsewhere, "new", 2);
        Self {
            dir,
            store,
            old,
            new,
        }
    }

    fn put(&self) -> Result<(), StoreError> {
        let path = self.dir.path().join("new/snapshot");
        let (manifest, _) = Manifest::read(&path)?;
        let places = Places::beside(&path);
        let put = self.store.put(&manifest, &places, Take::Keep, &mut |_| {});
        put.map(|id| assert_eq!(id, self.new))
    }

    /// All that is visible is whole.
    fn check(&self) -> BTreeSet<SnapshotId> {
        for (id, manifest) in self.store.list().unwrap() {
            manifest.unwrap();
            let opened = self.store.open_snapshot(&id).unwrap();
            let stacks = std::iter::once(&opened.memory).chain(&opened.disks);
            for layer in stacks.flat_map(Stack::layers) {
                layer.verify(&mut |_| {}).unwrap();
            }
        }
        for (_, id) in self.store.tags().unwrap() {
            assert!(self.store.read(&id).is_ok(), "a tag of nothing");
        }
        self.store.ids().unwrap().into_iter().collect()
    }

    fn drafts(&self) -> usize {
        let dirs = ["layers", "snapshots", "tags"].map(|dir| self.store.dir.join(dir));
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.as_encoded_bytes()[0] == b'.')
            .count()
    }
}

/// Does `work` with a fault at each of its calls that change files, and lets
/// `check` see what it leaves. Gives the number of calls.
fn everywhere(
    fault: Fault,
    work: impl Fn(&Bed) -> Result<(), StoreError>,
    check: impl Fn(&Bed, End),
) -> usize {
    for n in 0.. {
        let bed = Bed::new();
        let end = with_fault(n, fault, || match work(&bed) {
            Ok(()) => 0,
            Err(error) if error.to_string().contains("make room") => 1,
            Err(error) => {
                eprintln!("{error}");
                2
            }
        });
        check(&bed, end);
        if end == End::Finished(0) {
            return n;
        }
    }
    unreachable!("there is an end to it");
}

#[test]
fn a_snapshot_is_put_whole_or_not_at_all() {
    let calls = everywhere(Fault::Kill, Bed::put, |bed, end| {
        let visible = bed.check();
        assert!(visible.contains(&bed.old));
        assert!(end == End::Killed || visible.contains(&bed.new));
        // What is left is in nobody's way, and the collection's.
        bed.store.collect().unwrap();
        assert_eq!(bed.drafts(), 0);
        assert_eq!(bed.check(), visible);
        bed.put().unwrap();
        assert_eq!(bed.check(), BTreeSet::from([bed.old, bed.new]));
        assert_eq!(bed.store.layers().unwrap().len(), 5);
    });
    // Two layers and a manifest, each of them written, synced and renamed.
    assert!(calls >= 9, "{calls}");
}

/// A power cut takes what was not synced, in any order.
#[test]
fn what_gets_a_name_is_synced_before_and_its_directory_after() {
    let bed = Bed::new();
    let calls = calls(|| i32::from(bed.put().is_err()));
    let names = |call: &i64| [libc::SYS_rename, libc::SYS_linkat].contains(call);
    let named: Vec<usize> = (0..calls.len()).filter(|&n| names(&calls[n])).collect();
    assert_eq!(named.len(), 3, "two layers, then the manifest: {calls:?}");
    for n in named {
        assert_eq!(calls[n - 1], libc::SYS_fsync, "{calls:?}");
        assert_eq!(calls[n + 1], libc::SYS_fsync, "{calls:?}");
    }
    assert!(bed.check().contains(&bed.new));
}

#[test]
fn a_full_disk_leaves_nothing_half_done() {
    let calls = everywhere(Fault::Full, Bed::put, |bed, end| {
        let visible = bed.check();
        assert!(visible.contains(&bed.old));
        assert_eq!(bed.drafts(), 0);
        match end {
            End::Finished(0) | End::Faulted(0) => assert!(visible.contains(&bed.new)),
            // Only its directory may not have been synced then.
            End::Faulted(1) => bed.put().unwrap(),
            other => panic!("{other:?}"),
        }
        assert_eq!(bed.check(), BTreeSet::from([bed.old, bed.new]));
    });
    assert!(calls >= 9, "{calls}");
}

#[test]
fn removal_may_stop_anywhere() {
    let work = |bed: &Bed| {
        bed.put()?;
        bed.store.tag(&bed.old, &"old".parse()?)?;
        bed.store.remove(&bed.old).map(drop)
    };
    everywhere(Fault::Kill, work, |bed, _| {
        bed.check();
        bed.store.collect().unwrap();
        let visible = bed.check();
        let needed = match visible.len() {
            1 => 3,
            _ => 5,
        };
        assert_eq!(bed.store.layers().unwrap().len(), needed);
    });
}

#[test]
fn a_collection_may_stop_anywhere() {
    let work = |bed: &Bed| {
        fs::write(bed.store.dir.join("layers/.x.0123456789abcdef.draft"), "x").unwrap();
        fs::remove_file(bed.store.manifest_path(&bed.old)).unwrap();
        bed.store.collect().map(drop)
    };
    everywhere(Fault::Kill, work, |bed, _| {
        bed.store.collect().unwrap();
        assert_eq!(bed.drafts(), 0);
        let needed = bed.check().len() * 3;
        assert_eq!(bed.store.layers().unwrap().len(), needed);
    });
}

#[test]
fn flattening_may_stop_anywhere() {
    for fault in [Fault::Kill, Fault::Full] {
        let work = |bed: &Bed| bed.store.flatten(&bed.old, &mut |_| {}).map(drop);
        everywhere(fault, work, |bed, end| {
            assert!(
                matches!(end, End::Killed | End::Faulted(1) | End::Finished(0)),
                "{end:?}"
            );
            assert!(bed.check().contains(&bed.old));
            bed.store.flatten(&bed.old, &mut |_| {}).unwrap();
            assert_eq!(bed.check().len(), 2);
        });
    }
}

#[test]
fn a_store_may_be_made_by_several_attempts() {
    let work = |bed: &Bed| Store::open(&bed.dir.path().join("a/b")).map(drop);
    everywhere(Fault::Kill, work, |bed, _| {
        let store = Store::open(&bed.dir.path().join("a/b")).unwrap();
        let again = Bed {
            store,
            ..Bed::new()
        };
        again.put().unwrap();
        again.check();
    });
}

/// What a VMM writes where it is told to: a manifest in the place of another.
#[test]
fn a_manifest_is_replaced_whole() {
    let target = |bed: &Bed| bed.dir.path().join("old/snapshot");
    let new = |bed: &Bed| Manifest::read(&bed.dir.path().join("new/snapshot")).unwrap();
    for fault in [Fault::Kill, Fault::Full] {
        let work = |bed: &Bed| new(bed).0.write(&target(bed)).map(drop).map_err(Into::into);
        everywhere(fault, work, |bed, end| {
            let (_, id) = Manifest::read(&target(bed)).unwrap();
            let is_new = id == new(bed).1;
            assert!(is_new || end != End::Finished(0));
            new(bed).0.write(&target(bed)).unwrap();
            let names = fs::read_dir(target(bed).parent().unwrap()).unwrap();
            assert_eq!(names.count(), 4, "the drafts of the dead are gone");
        });
    }
}
