//! Many machines of one snapshot, and stores that are collected meanwhile.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use coppice_snapshot::store::Take;
use coppice_snapshot::{Manifest, Places, SnapshotId, Store};
use coppice_tests::{Guest, Machine, Scratch, Snapshot};
use nix::sys::signal::Signal;
use serde_json::json;

/// Machines of one snapshot in all, and at a time.
const MACHINES: usize = 100;
const BATCH: usize = 25;

#[test]
fn machines_of_one_snapshot_come_and_go_by_the_hundred_and_leave_nothing() {
    let parent = Guest::bare(64).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    let before = fs::read(snapshot.memory()).expect("it is there");
    let files = fs::read_dir(snapshot.dir()).expect("it is there").count();
    parent.set_state("Paused");
    let own = || fs::read_dir("/proc/self/fd").expect("it is there").count();
    let mut descriptors = None;
    for _ in 0..MACHINES / BATCH {
        let mut machines: Vec<Machine> = (0..BATCH)
            .map(|_| {
                let machine = snapshot.restore_at_start();
                machine.goes_on();
                // The next one is to have the processor to itself.
                machine.signal(Signal::SIGSTOP);
                machine
            })
            .collect();
        for machine in &machines {
            machine.signal(Signal::SIGTERM);
            machine.signal(Signal::SIGCONT);
        }
        for machine in &mut machines {
            assert_eq!(machine.end().code, Some(0));
        }
        drop(machines);
        assert_eq!(*descriptors.get_or_insert_with(own), own());
    }
    assert_eq!(
        fs::read_dir(snapshot.dir()).expect("it is there").count(),
        files
    );
    assert!(fs::read(snapshot.memory()).expect("it is there") == before);
    parent.set_state("Resumed");
    parent.goes_on();
}

/// Puts the snapshot into the store.
fn put(store: &Store, snapshot: &Snapshot) -> SnapshotId {
    let path = snapshot.manifest();
    let (manifest, _) = Manifest::read(&path).expect("it is whole");
    let places = Places::beside(&path);
    let id = store.put(&manifest, &places, Take::Keep, &mut |_| {});
    id.expect("there is room")
}

#[test]
fn machines_are_restored_while_the_store_is_collected() {
    let parent = Guest::bare(64).boot();
    parent.goes_on();
    let (first, place) = (parent.snapshot("Full"), Scratch::new());
    let store = Store::open(&place.path("store")).expect("a store can be made");
    put(&store, &first);
    // On the layer of the first.
    let kept = put(&store, &parent.snapshot("Diff"));
    let others: Vec<_> = (0..3).map(|_| parent.snapshot("Diff")).collect();
    let done = AtomicBool::new(false);
    let restores = || {
        for _ in 0..40 {
            let machine = Machine::empty();
            let load = json!({
                "snapshot_path": store.manifest_path(&kept),
                "store_path": store.dir(),
                "vsock_override": { "uds_path": machine.path("vsock") },
                "resume_vm": true,
            });
            machine.put("/snapshot/load", &load);
            machine.goes_on();
        }
    };
    let collections = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut collections = 0;
            while !done.load(Ordering::Relaxed) {
                let other = put(&store, &others[collections % others.len()]);
                store.remove(&other).expect("it is there");
                store.collect().expect("the store is whole");
                collections += 1;
            }
            collections
        });
        let result = catch_unwind(AssertUnwindSafe(restores));
        done.store(true, Ordering::Relaxed);
        let collections = collector.join().expect("it collects");
        result.map_or_else(|panic| resume_unwind(panic), |()| collections)
    });
    assert!(collections > 3, "{collections} collections");
    assert_eq!(store.collect().expect("the store is whole").bytes(), 0);
}

#[test]
fn memory_on_both_sides_of_the_gap_goes_through_generations() {
    let parent = Guest::bare_around_the_gap(100).boot();
    parent.goes_on();
    let mut snapshots = vec![parent.snapshot("Full")];
    for kind in ["Diff", "Diff", "Full", "Diff"] {
        let machine = snapshots[snapshots.len() - 1].restore();
        machine.goes_on();
        // Of what has changed since the restore, and then since that.
        snapshots.push(machine.snapshot(kind));
        machine.goes_on();
        snapshots.push(machine.snapshot("Diff"));
        machine.goes_on();
    }
    for snapshot in &snapshots {
        snapshot.restore().goes_on();
    }
}

#[test]
fn forks_of_one_machine_write_different_things_to_the_same_pages() {
    let parent = Guest::bare(512).boot();
    parent.goes_on();
    let snapshot = parent.snapshot("Full");
    let one = snapshot.restore();
    one.goes_on();
    let two = snapshot.restore();
    // Each is in another round, and each page has the number of the round.
    for _ in 0..5 {
        for machine in [&parent, &one, &two] {
            machine.goes_on();
        }
        snapshot.restore().goes_on();
    }
    for machine in [&parent, &one, &two] {
        machine.snapshot("Diff").restore().goes_on();
    }
}
