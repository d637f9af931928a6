//! What an image holds. That nobody else writes to it is the VMM's to see to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// An image to run on.
#[derive(Debug)]
pub struct Image {
    /// Its file.
    pub path: PathBuf,
    /// The kernel's name for the file system in it.
    pub file_system: &'static str,
    /// The machine may write to it.
    pub writable: bool,
}

impl Image {
    /// Opens and recognises the image at `path`.
    pub fn open(path: PathBuf, writable: bool) -> Result<Self, Error> {
        let unusable = |source| Error::File {
            what: "image",
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(&path)
            .map_err(unusable)?;
        let file_system = recognise(&file)
            .map_err(unusable)?
            .ok_or_else(|| Error::UnknownFileSystem(path.clone()))?;
        Ok(Self {
            path,
            file_system,
            writable,
        })
    }
}

/// Offset, magic bytes, and the kernel's name of each file system that a guest
/// can have as its root. The ext4 driver serves ext2 and ext3.
const MAGICS: [(u64, &[u8], &str); 5] = [
    (1024 + 56, &0xef53_u16.to_le_bytes(), "ext4"),
    (0, b"hsqs", "squashfs"),
    (1024, &0xe0f5_e1e2_u32.to_le_bytes(), "erofs"),
    (0, b"XFSB", "xfs"),
    (0x1_0040, b"_BHR", "btrfs"),
];

fn recognise(file: &File) -> io::Result<Option<&'static str>> {
    for (offset, magic, name) in MAGICS {
        let mut found = [0; 4];
        let found = &mut found[..magic.len()];
        match file.read_exact_at(found, offset) {
            Ok(()) if found == magic => return Ok(Some(name)),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether the file can be opened for reading.
pub fn check_readable(what: &'static str, path: &Path) -> Result<(), Error> {
    File::open(path).map(drop).map_err(|source| Error::File {
        what,
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(offset: u64, magic: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().write_all_at(magic, offset).expect("written");
        file
    }

    #[test]
    fn file_systems_are_recognised() {
        for (offset, magic, name) in MAGICS {
            let file = image(offset, magic);
            let image = Image::open(file.path().into(), false).expect("known");
            assert_eq!(image.file_system, name);
        }
    }

    #[test]
    fn other_contents_are_refused() {
        for (offset, bytes) in [
            (0, &b""[..]),
            (0, b"hs"),
            (510, &[0x55, 0xaa]),
            (4000, b"x"),
        ] {
            let file = image(offset, bytes);
            let error = Image::open(file.path().into(), false).expect_err("unknown");
            assert!(matches!(error, Error::UnknownFileSystem(_)), "{error}");
        }
    }
}
