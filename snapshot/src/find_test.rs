use super::*;
use crate::{Content, Extents, Naming};
use std::os::unix::fs::FileExt;

/// A layer of four blocks, of which the second is full of `byte`.
fn layer(path: &Path, kind: Kind, byte: u8) -> LayerName {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.write_all_at(&[byte; 4096], 4096).unwrap();
    let mut held = Extents::new();
    held.push(1, 1);
    let content = Content {
        kind,
        blocks: 4,
        held,
        zero: Extents::new(),
    };
    content.seal(file, path, Naming::Content).unwrap().name()
}

fn reference(name: LayerName, path: &Path) -> LayerRef {
    LayerRef {
        name,
        path: path.to_owned(),
    }
}

#[test]
fn a_layer_is_found_wherever_it_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("memory");
    let name = layer(&at, Kind::Memory, 1);
    let store = dir.path().join("store");
    let other = dir.path().join("other");
    std::fs::create_dir_all(store.join("layers")).unwrap();
    std::fs::create_dir_all(&other).unwrap();
    let places = Places {
        dirs: vec![other.clone()],
        store: Some(store.clone()),
        ..Places::default()
    };
    let reference = reference(name, &at);
    assert_eq!(places.find(&reference).unwrap().path(), at);
    let mut before = at;
    for next in [
        other.join("memory"),
        other.join(name.to_string()),
        store.join("layers").join(name.to_string()),
    ] {
        std::fs::rename(&before, &next).unwrap();
        assert_eq!(places.find(&reference).unwrap().path(), next);
        before = next;
    }
    std::fs::remove_file(&before).unwrap();
    let error = places.find(&reference).unwrap_err().to_string();
    for place in [&dir.path().join("memory"), &other.join("memory"), &before] {
        assert!(
            error.contains(&format!("There is no {}.", place.display())),
            "{error}"
        );
    }
}

#[test]
fn what_has_the_file_name_but_is_another_layer_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (hint, right) = (dir.path().join("hint"), dir.path().join("right"));
    let found = layer(&hint, Kind::Memory, 1);
    let name = layer(&right, Kind::Memory, 2);
    let mut places = Places::default();
    let error = places
        .find(&reference(name, &hint))
        .unwrap_err()
        .to_string();
    assert!(error.contains(&format!("is the layer {found}")), "{error}");
    std::fs::rename(&right, dir.path().join(name.to_string())).unwrap();
    places.dirs.push(dir.path().to_owned());
    places.find(&reference(name, &hint)).unwrap();
}

#[test]
fn the_named_memory_file_has_to_be_the_right_one() {
    let dir = tempfile::tempdir().unwrap();
    let (top, base) = (dir.path().join("top"), dir.path().join("base"));
    let stack = StackRef {
        blocks: 4,
        layers: vec![
            reference(layer(&top, Kind::Memory, 1), &top),
            reference(layer(&base, Kind::Memory, 2), &base),
        ],
    };
    let mut places = Places {
        memory: Some(top.clone()),
        ..Places::default()
    };
    assert_eq!(places.open(Kind::Memory, &stack).unwrap().layers().len(), 2);
    places.memory = Some(base);
    let error = places.open(Kind::Memory, &stack).unwrap_err();
    assert!(
        matches!(error, FindError::Named(LayerError::OtherName { .. })),
        "{error}"
    );
    let error = places.open(Kind::Disk, &stack).unwrap_err();
    assert!(
        matches!(error, FindError::Stack(StackError::Kind { .. })),
        "{error}"
    );
}

#[test]
fn a_fifo_in_the_place_of_a_layer_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let error = Layer::open(&fifo).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
}
