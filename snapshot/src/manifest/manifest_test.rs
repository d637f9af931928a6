use super::*;

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn layer(first: u8, by_content: bool, path: &str) -> LayerRef {
    LayerRef {
        name: LayerName::from_parts([first; 32], by_content),
        path: path.into(),
    }
}

fn sample() -> Manifest {
    Manifest {
        info: Info {
            created_ms: 1_800_000_000_000,
            version: "0.1.0".into(),
            parent: Some(SnapshotId([7; 32])),
            cpu: raw(r#"{"vendor":"X"}"#),
            machine: raw(r#"{ "vcpu_count": 1 }"#),
        },
        memory: StackRef {
            blocks: 32768,
            layers: vec![layer(1, false, "/a/mem"), layer(2, true, "")],
        },
        disks: vec![DiskRef {
            drive_id: "rootfs".into(),
            stack: StackRef {
                blocks: 100,
                layers: vec![layer(3, true, "/b/disk")],
            },
        }],
        state: vec![9; 300],
    }
}

/// The id of `bytes` with `change` and a checksum that fits it.
fn decode_changed(
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<(Manifest, SnapshotId), ManifestError> {
    let (mut bytes, _) = sample().encode();
    change(&mut bytes);
    bytes[24..56].fill(0);
    let checksum = *blake3::hash(&bytes).as_bytes();
    bytes[24..56].copy_from_slice(&checksum);
    Manifest::decode(&bytes, Path::new("/s/manifest"))
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest");
    let written = sample();
    let id = written.write(&path).unwrap();
    let (read, found) = Manifest::read(&path).unwrap();
    assert_eq!(id, found);
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(read.info.parent, written.info.parent);
    assert_eq!(read.info.machine.get(), r#"{ "vcpu_count": 1 }"#);
    assert_eq!(read.memory, written.memory);
    assert_eq!(read.disks, written.disks);
    assert_eq!(read.state, written.state);
    assert_eq!(read.encode().0, std::fs::read(&path).unwrap());
    assert_eq!(read.layers().count(), 3);
}

#[test]
fn no_beginning_of_a_manifest_passes_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest");
    let (bytes, _) = sample().encode();
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let error = Manifest::read(&path).unwrap_err();
        assert!(matches!(error, ManifestError::Truncated { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("copy it again"));
        Manifest::decode(&bytes[..len], &path).unwrap_err();
    }
}

#[test]
fn no_bit_can_change() {
    let (bytes, _) = sample().encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = Manifest::decode(&flipped, Path::new("/s/manifest")).unwrap_err();
        assert!(error.to_string().contains("/s/manifest"));
    }
}

#[test]
fn a_manifest_of_the_future_is_refused_by_its_version() {
    let error = decode_changed(|bytes| bytes[8] = 2).unwrap_err();
    assert!(matches!(error, ManifestError::Version { version: 2, .. }));
    assert!(error.to_string().contains("use a newer coppice"));
}

#[test]
fn other_files_are_no_manifests() {
    for other in [&b"{\"magic\": 1}"[..], b"x", &[0; 4096]] {
        let error = Manifest::decode(other, Path::new("/s/other")).unwrap_err();
        assert!(
            matches!(error, ManifestError::NotAManifest { .. }),
            "{error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    Manifest::read(dir.path()).unwrap_err();
    Manifest::read(&dir.path().join("missing")).unwrap_err();
}

/// Every byte of a manifest whose checksum is right may still say anything:
/// nothing panics, and no count makes it allocate.
#[test]
fn nothing_in_a_manifest_is_believed() {
    let (bytes, _) = sample().encode();
    for at in (0..bytes.len()).filter(|at| !(24..56).contains(at)) {
        for value in [0, 0xff, bytes[at] ^ 1] {
            let decoded = decode_changed(|bytes| bytes[at] = value);
            if let Ok((manifest, _)) = decoded {
                manifest.encode();
            }
        }
    }
    for (at, what) in [
        (56, "reserved"),
        (12, "sections"),
        (64, "\"info\""),
        (68, "\"info\""),
        (72, "\"info\""),
    ] {
        let error = decode_changed(|bytes| bytes[at] ^= 0x10).unwrap_err();
        assert!(error.to_string().contains(what), "{at}: {error}");
    }
}

#[test]
fn drives_have_one_stack_each() {
    let mut twice = sample();
    twice.disks.push(twice.disks[0].clone());
    let error = Manifest::decode(&twice.encode().0, Path::new("m")).unwrap_err();
    assert!(error.to_string().contains("\"rootfs\""), "{error}");
}
