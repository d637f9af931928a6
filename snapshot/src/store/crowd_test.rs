//! Many processes that use one store at once.

use super::*;
use crate::testing::snapshot;
use crate::trace::in_child;

const ROUNDS: usize = 40;

/// Puts snapshots, of which the others put some, too.
fn put(store: &Store, dir: &Path, n: usize) {
    for round in 0..ROUNDS {
        let made = dir.join(format!("{n}-{round}"));
        let (_, manifest, places) = snapshot(&made, (round % 5) as u8);
        let staging = store.staging().unwrap();
        let take = [Take::Keep, Take::Move][round % 2];
        let id = store.put(&manifest, &places, take, &mut |_| {}).unwrap();
        store.tag(&id, &format!("tag-{n}").parse().unwrap()).ok();
        assert!(staging.dir().exists(), "a collection took what is in use");
        fs::remove_dir_all(&made).unwrap();
    }
}

/// Opens whatever there is: each snapshot is whole, or gone.
fn read(store: &Store) {
    for _ in 0..ROUNDS {
        for id in store.ids().unwrap() {
            match store.open_snapshot(&id) {
                Ok(opened) => {
                    let stacks = std::iter::once(&opened.memory).chain(&opened.disks);
                    for layer in stacks.flat_map(Stack::layers) {
                        layer.verify(&mut |_| {}).unwrap();
                    }
                }
                Err(StoreError::NoSnapshot { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        store.list().unwrap();
        store.tags().unwrap();
    }
}

fn remove(store: &Store) {
    for round in 0..ROUNDS {
        let ids = store.ids().unwrap();
        if let Some(id) = ids.get(round % ids.len().max(1)) {
            store.remove(id).unwrap();
        }
    }
}

fn collect(store: &Store) {
    for _ in 0..ROUNDS {
        store.collect().unwrap();
    }
}

#[test]
fn a_crowd_finds_every_snapshot_whole_or_gone() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = &Store::open(&dir.path().join("store")).unwrap();
    let path = dir.path();
    let children = [
        in_child(|| put(store, path, 1)),
        in_child(|| put(store, path, 2)),
        in_child(|| put(store, path, 3)),
        in_child(|| read(store)),
        in_child(|| read(store)),
        in_child(|| remove(store)),
        in_child(|| collect(store)),
    ];
    let ends = children.map(|child| child.wait());
    assert_eq!(ends, [0; 7]);
    read(store);
    store.collect().unwrap();
    for id in store.ids().unwrap() {
        store.remove(&id).unwrap();
    }
    assert!(store.layers().unwrap().is_empty());
}

#[test]
fn a_limit_of_file_sizes_is_named_with_its_remedy() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let dir = tempfile::tempdir().unwrap();
    let store = &Store::open(&dir.path().join("store")).unwrap();
    let (_, manifest, places) = snapshot(&dir.path().join("made"), 1);
    let child = in_child(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 6000, hard).unwrap();
        // SAFETY: no handler runs; the calls then fail with EFBIG.
        unsafe {
            nix::sys::signal::signal(
                nix::sys::signal::SIGXFSZ,
                nix::sys::signal::SigHandler::SigIgn,
            )
        }
        .unwrap();
        let error = store
            .put(&manifest, &places, Take::Keep, &mut |_| {})
            .unwrap_err();
        assert!(error.to_string().contains("raise the limit"), "{error}");
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(store.ids().unwrap(), []);
    store
        .put(&manifest, &places, Take::Keep, &mut |_| {})
        .unwrap();
}
