use super::*;
use std::os::unix::fs::PermissionsExt;

/// A layer of ten blocks: block 2 has ones, block 3 is zero, block 7 has twos.
fn sample(dir: &Path, naming: Naming) -> Layer {
    let path = dir.join("layer");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all_at(&[1; 4096], 2 * 4096).unwrap();
    file.write_all_at(&[2; 4096], 7 * 4096).unwrap();
    let (mut held, mut zero) = (Extents::new(), Extents::new());
    held.push(2, 2);
    held.push(7, 1);
    zero.push(3, 1);
    let content = Content {
        kind: Kind::Memory,
        blocks: 10,
        held,
        zero,
    };
    content.seal(file, &path, naming).unwrap()
}

#[test]
fn a_sealed_layer_is_what_was_written_and_cannot_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = sample(dir.path(), Naming::Content);
    let layer = Layer::open_named(sealed.path(), &sealed.name()).unwrap();
    assert_eq!((layer.kind(), layer.blocks()), (Kind::Memory, 10));
    assert_eq!(layer.held().blocks(), 3);
    assert_eq!(layer.data().blocks(), 2);
    assert_eq!(
        layer.path().metadata().unwrap().permissions().mode() & 0o222,
        0
    );
    let mut told = 0;
    layer.verify(&mut |bytes| told += bytes).unwrap();
    assert_eq!(told, 2 * 4096);
    let other = sample(tempfile::tempdir().unwrap().path(), Naming::Content);
    assert_eq!(
        other.name(),
        layer.name(),
        "equal content has an equal name"
    );
}

#[test]
fn names_survive_their_text_form() {
    let dir = tempfile::tempdir().unwrap();
    let local = sample(dir.path(), Naming::Unique).name();
    assert!(!local.is_by_content());
    let content = sample(tempfile::tempdir().unwrap().path(), Naming::Content).name();
    for name in [local, content] {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    for bad in [
        "",
        "local-",
        "../../etc/passwd",
        &"A".repeat(64),
        &"é".repeat(32),
    ] {
        assert!(bad.parse::<LayerName>().is_err(), "{bad}");
    }
}

#[test]
fn an_open_layer_is_locked_against_removal() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("published");
    let draft = crate::Draft::beside(&target).unwrap();
    let content = Content {
        kind: Kind::Disk,
        blocks: 1,
        held: Extents::new(),
        zero: Extents::new(),
    };
    let published = content.publish(draft, Naming::Content).unwrap();
    let opened = Layer::open(&target).unwrap();
    let remove = || {
        let file = File::open(&target).unwrap();
        lock(file, FlockArg::LockExclusiveNonblock)
    };
    remove().unwrap_err();
    drop(published);
    remove().unwrap_err();
    drop(opened);
    let removing = remove().unwrap();
    let error = Layer::open(&target).unwrap_err().to_string();
    assert!(error.contains("could not be locked"), "{error}");
    drop(removing);
    Layer::open(&target).unwrap();
}
