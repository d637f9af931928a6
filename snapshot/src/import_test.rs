use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;

fn image(dir: &Path, len: u64, parts: &[(u64, &[u8])]) -> PathBuf {
    let path = dir.join("image");
    let file = File::create(&path).unwrap();
    file.set_len(len).unwrap();
    for (at, bytes) in parts {
        file.write_all_at(bytes, *at).unwrap();
    }
    path
}

#[test]
fn a_layer_has_what_the_image_has_and_no_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let (ones, zeroes) = ([1; 10_000], vec![0; 3 << 20]);
    // A hole, data that ends within blocks, stored zeroes, a last block cut short.
    let len = (8 << 20) + 512;
    let parts: [(u64, &[u8]); 3] = [(5000, &ones), (1 << 20, &zeroes), (8 << 20, &[7; 512])];
    let path = image(dir.path(), len, &parts);
    let target = dir.path().join("layer");
    let mut told = Vec::new();
    let layer = import(&path, &target, &mut |progress| told.push(progress)).unwrap();
    assert_eq!((layer.kind(), layer.blocks()), (Kind::Disk, 2049));
    let held: Vec<_> = layer
        .held()
        .iter()
        .flat_map(|extent| extent.range())
        .collect();
    assert_eq!(held, [1, 2, 3, 2048]);
    assert!(layer.zero().is_empty());
    layer.verify(&mut |_| {}).unwrap();
    let mut expected = fs::read(&path).unwrap();
    expected.resize(2049 * 4096, 0);
    assert_eq!(&fs::read(&target).unwrap()[..expected.len()], expected);
    assert!(target.metadata().unwrap().blocks() < 200, "it is sparse");
    let last = told.last().unwrap();
    assert_eq!(last.done, last.total);
    assert!(last.total >= 3 << 20 && last.total < 5 << 20, "{last:?}");

    // The same content has the same name, however it is stored.
    fs::write(&path, &expected).unwrap();
    let again = import(&path, &dir.path().join("again"), &mut |_| {}).unwrap();
    assert_eq!(again.name(), layer.name());
    let text = import(&target, &path, &mut |_| {}).unwrap_err().to_string();
    assert!(text.contains("it is a layer already"), "{text}");
}

#[test]
fn what_is_no_raw_image_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("layer");
    let refused = |path: &Path, words: &str| {
        let text = import(path, &target, &mut |_| {}).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    };
    refused(&dir.path().join("missing"), "No such file");
    refused(dir.path(), "neither a regular file");
    refused(Path::new("/dev/null"), "neither a regular file");
    let path = image(dir.path(), 0, &[]);
    refused(&path, "it is empty");
    fs::write(&path, b"QFI\xfb\0\0\0\x03 and more").unwrap();
    refused(&path, "qemu-img convert");
    fs::write(&path, [1; 4096]).unwrap();
    let nowhere = dir.path().join("no/such/layer");
    let text = import(&path, &nowhere, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(text.contains("no/such/layer cannot be written"), "{text}");
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1, "only the image is there");
}
