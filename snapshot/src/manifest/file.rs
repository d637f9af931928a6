//! The frame of a manifest's file: header, table of sections, sections.

use std::ops::Range;
use std::path::Path;

use super::{MAX_LEN, ManifestError};
use crate::bytes::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"COPPSNAP";
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 64;
/// Where the header has the file's length and its checksum. These, the magic
/// and the version keep their places in every version.
const LENGTH: usize = 16;
const CHECKSUM: Range<usize> = 24..56;
/// One entry of the table: id, nothing, offset, length.
const ENTRY: usize = 24;

/// The sections of a version 1 manifest: exactly these, in this order.
const SECTIONS: [(u32, &str); 3] = [(1, "info"), (2, "stacks"), (3, "state")];
const TABLE_END: usize = HEADER + SECTIONS.len() * ENTRY;

/// What a manifest's file consists of.
pub(super) struct Parts<'a> {
    pub info: &'a [u8],
    pub stacks: &'a [u8],
    pub state: &'a [u8],
    pub checksum: [u8; 32],
}

pub(super) fn encode(info: &[u8], stacks: &[u8], state: &[u8]) -> (Vec<u8>, [u8; 32]) {
    let sections = [info, stacks, state];
    let len = TABLE_END + sections.iter().map(|bytes| bytes.len()).sum::<usize>();
    let mut file = Vec::with_capacity(len);
    file.extend(MAGIC);
    file.extend(VERSION.to_le_bytes());
    file.extend((SECTIONS.len() as u32).to_le_bytes());
    file.extend((len as u64).to_le_bytes());
    file.resize(HEADER, 0);
    let mut offset = TABLE_END;
    for ((id, _), bytes) in SECTIONS.iter().zip(sections) {
        file.extend(id.to_le_bytes());
        file.extend([0; 4]);
        file.extend((offset as u64).to_le_bytes());
        file.extend((bytes.len() as u64).to_le_bytes());
        offset += bytes.len();
    }
    sections.iter().for_each(|bytes| file.extend(*bytes));
    let checksum = checksum(&file);
    file[CHECKSUM].copy_from_slice(&checksum);
    (file, checksum)
}

/// BLAKE3 over the whole file, with zeroes in the place of the checksum.
fn checksum(file: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file[..CHECKSUM.start]);
    hasher.update(&[0; 32]);
    hasher.update(&file[CHECKSUM.end..]);
    hasher.finalize().into()
}

/// Checks what the beginning of a file of `len` bytes tells: whether it is a
/// manifest and has its whole length.
pub(super) fn check_header(bytes: &[u8], len: u64, path: &Path) -> Result<(), ManifestError> {
    let truncated = |expected: u64| ManifestError::Truncated {
        path: path.to_owned(),
        len,
        expected,
    };
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if *magic != MAGIC[..magic.len()] {
        return Err(ManifestError::NotAManifest {
            path: path.to_owned(),
        });
    }
    if bytes.len() < HEADER {
        return Err(truncated(HEADER as u64));
    }
    let expected = u64_at(bytes, LENGTH);
    if len < expected {
        return Err(truncated(expected));
    }
    let damaged = |what: String| ManifestError::Damaged {
        path: path.to_owned(),
        what,
    };
    if len > expected {
        return Err(damaged(format!(
            "it has {len} bytes where its header speaks of {expected}"
        )));
    }
    if len > MAX_LEN {
        return Err(damaged(format!(
            "its {len} bytes are more than a manifest may have ({MAX_LEN})"
        )));
    }
    Ok(())
}

pub(super) fn decode<'a>(bytes: &'a [u8], path: &Path) -> Result<Parts<'a>, ManifestError> {
    let damaged = |what: String| ManifestError::Damaged {
        path: path.to_owned(),
        what,
    };
    check_header(bytes, bytes.len() as u64, path)?;
    let checksum = checksum(bytes);
    if bytes[CHECKSUM] != checksum {
        return Err(damaged("its content does not match its checksum".into()));
    }
    // After the checksum, so that a damaged version is not taken for a new one.
    match u32_at(bytes, 8) {
        VERSION => {}
        version => {
            return Err(ManifestError::Version {
                path: path.to_owned(),
                version,
            });
        }
    }
    let count = u32_at(bytes, 12);
    if count as usize != SECTIONS.len() || bytes.len() < TABLE_END {
        return Err(damaged(format!(
            "it has {count} sections where version {VERSION} has {}",
            SECTIONS.len()
        )));
    }
    if bytes[CHECKSUM.end..HEADER].iter().any(|&byte| byte != 0) {
        return Err(damaged("its header has bytes that are reserved".into()));
    }
    let mut sections = [&[][..]; SECTIONS.len()];
    let mut free = TABLE_END as u64;
    for (at, (&(id, name), section)) in SECTIONS.iter().zip(&mut sections).enumerate() {
        let entry = &bytes[HEADER + at * ENTRY..][..ENTRY];
        let (offset, len) = (u64_at(entry, 8), u64_at(entry, 16));
        let end = offset.checked_add(len);
        let end = end.filter(|&end| end <= bytes.len() as u64);
        // The sections lie without gaps: there is one way to write a manifest.
        let (Some(end), true) = (end, u64_at(entry, 0) == u64::from(id) && offset == free) else {
            return Err(damaged(format!(
                "its section \"{name}\" is not in its place"
            )));
        };
        *section = &bytes[offset as usize..end as usize];
        free = end;
    }
    if free != bytes.len() as u64 {
        return Err(damaged("there is more behind its last section".into()));
    }
    let [info, stacks, state] = sections;
    Ok(Parts {
        info,
        stacks,
        state,
        checksum,
    })
}
