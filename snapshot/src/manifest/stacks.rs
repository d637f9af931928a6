//! The section "stacks": the memory's stack, then those of the disks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{DiskRef, LayerRef, StackRef};
use crate::bytes::u64_at;
use crate::extents::BLOCK_SIZE;
use crate::layer::LayerName;

/// Flag of a layer: its name is the hash of its content.
const BY_CONTENT: u64 = 1;

pub(super) fn encode(memory: &StackRef, disks: &[DiskRef]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, 1 + disks.len() as u64);
    put_stack(&mut out, "", memory);
    for disk in disks {
        put_stack(&mut out, &disk.drive_id, &disk.stack);
    }
    out
}

fn put_stack(out: &mut Vec<u8>, drive_id: &str, stack: &StackRef) {
    put(out, stack.blocks);
    put_bytes(out, drive_id.as_bytes());
    put(out, stack.layers.len() as u64);
    for LayerRef { name, path } in &stack.layers {
        put(out, if name.is_by_content() { BY_CONTENT } else { 0 });
        out.extend(name.as_bytes());
        put_bytes(out, path.as_os_str().as_bytes());
    }
}

fn put(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

pub(super) fn decode(bytes: &[u8]) -> Result<(StackRef, Vec<DiskRef>), String> {
    let mut cursor = Cursor(bytes);
    let count = cursor.number()?;
    let (id, memory) = cursor.stack()?;
    if count == 0 || !id.is_empty() {
        return Err("the first stack is not the memory's".into());
    }
    let mut disks: Vec<DiskRef> = Vec::new();
    // A count that is too high soon meets the end of the section.
    for _ in 1..count {
        let (drive_id, stack) = cursor.stack()?;
        if drive_id.is_empty() || disks.iter().any(|disk| disk.drive_id == drive_id) {
            return Err(format!(
                "the drive's id {drive_id:?} is empty or not unique"
            ));
        }
        disks.push(DiskRef { drive_id, stack });
    }
    match cursor.0 {
        [] => Ok((memory, disks)),
        rest => Err(format!("there are {} bytes too many", rest.len())),
    }
}

/// What has not been read yet.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], String> {
        let (taken, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.0.split_at_checked(len))
            .ok_or_else(|| format!("{} bytes are left where {len} are wanted", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, String> {
        Ok(u64_at(self.take(8)?, 0))
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let len = self.number()?;
        self.take(len)
    }

    fn stack(&mut self) -> Result<(String, StackRef), String> {
        let blocks = self.number()?;
        if blocks > i64::MAX as u64 / BLOCK_SIZE {
            return Err(format!("a stack of {blocks} blocks is too large"));
        }
        let drive_id = std::str::from_utf8(self.bytes()?)
            .map_err(|_| "a drive's id is not UTF-8".to_owned())?
            .to_owned();
        let count = self.number()?;
        let mut layers = Vec::new();
        for _ in 0..count {
            layers.push(self.layer()?);
        }
        Ok((drive_id, StackRef { blocks, layers }))
    }

    fn layer(&mut self) -> Result<LayerRef, String> {
        let by_content = match self.number()? {
            0 => false,
            BY_CONTENT => true,
            flags => return Err(format!("a layer has unknown flags {flags:#x}")),
        };
        let mut name = [0; 32];
        name.copy_from_slice(self.take(32)?);
        Ok(LayerRef {
            name: LayerName::from_parts(name, by_content),
            path: PathBuf::from(OsStr::from_bytes(self.bytes()?)),
        })
    }
}
