//! Unpacking.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{END, INCLUDED, MAGIC, PackError, VERSION};
use crate::extents::BLOCK_SIZE;
use crate::layer::footer::{Footer, FooterError, HEAD};
use crate::layer::{Content, LayerName};
use crate::manifest::{MAX_LEN, Manifest, SnapshotId};
use crate::progress::Progress;
use crate::store::{Store, StoreError, Tag};

/// What every zstd frame begins with (RFC 8878, 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that are read and written at once.
const CHUNK: u64 = 1 << 20;
/// Bytes that a decoder may keep, as a power of two: what zstd's levels up to 19
/// need.
const WINDOW: u32 = 27;

/// What was in a pack.
#[derive(Debug)]
pub struct Unpacked {
    /// The snapshots, which are now in the store.
    pub snapshots: Vec<SnapshotId>,
    /// The tags that they got.
    pub tags: Vec<(Tag, SnapshotId)>,
    /// Tags that other snapshots in the store have, and keep.
    pub taken: Vec<(Tag, SnapshotId)>,
    /// Layers that were written.
    pub written: Vec<LayerName>,
    /// Layers that were there before.
    pub present: Vec<LayerName>,
}

/// Reads a pack from `from`, which errors call `path`, and puts its snapshots
/// into `store`. Only layers that the store lacks are written, and each is
/// checked. A snapshot is visible when it is whole.
///
/// # Errors
/// The pack is truncated, damaged, no pack, or too new; layers are missing that
/// were left out of it; or the host is out of space. Layers that were already
/// unpacked stay until the next collection.
pub fn unpack(
    from: impl Read,
    path: &Path,
    store: &Store,
    progress: &mut dyn FnMut(Progress),
) -> Result<Unpacked, PackError> {
    let not_a_pack = || PackError::NotAPack {
        path: path.to_owned(),
    };
    let mut from = from;
    let mut start = ZSTD;
    // What is shorter than that is something else, too.
    let begins = from.read_exact(&mut start).is_ok() && start == ZSTD;
    let decoder = begins.then(|| zstd::Decoder::new(start.chain(from)));
    let mut decoder = decoder.and_then(Result::ok).ok_or_else(not_a_pack)?;
    decoder.window_log_max(WINDOW).map_err(|_| not_a_pack())?;
    let mut pack = Pack {
        input: decoder,
        path,
    };
    if pack.array()? != MAGIC {
        return Err(not_a_pack());
    }
    let version = pack.number()?;
    if version != u64::from(VERSION) {
        return Err(PackError::Version {
            path: path.to_owned(),
            version: u32::try_from(version).unwrap_or(u32::MAX),
        });
    }
    let snapshots = pack.snapshots()?;
    let layers = pack.layers()?;

    // From here on no collection may take away what the manifests will need.
    let _share = store.share()?;
    let absent = |name: &&LayerName| !store.has(name);
    let included = |name: &LayerName| {
        layers
            .iter()
            .any(|entry| entry.included && entry.name == *name)
    };
    let needed = snapshots.iter().flat_map(|(manifest, _)| manifest.layers());
    let needed: BTreeSet<LayerName> = needed.map(|layer| layer.name).collect();
    let missing = needed.iter().filter(|name| !included(name)).filter(absent);
    let missing: Vec<LayerName> = missing.copied().collect();
    if !missing.is_empty() {
        return Err(PackError::Missing {
            path: path.to_owned(),
            names: missing,
        });
    }
    let mut unpacked = Unpacked {
        snapshots: Vec::new(),
        tags: Vec::new(),
        taken: Vec::new(),
        written: Vec::new(),
        present: Vec::new(),
    };
    let content = layers.iter().filter(|entry| entry.included);
    let total = content
        .clone()
        .map(|entry| entry.bytes)
        .fold(0, u64::saturating_add);
    let mut progress = Progress::counter(total, progress);
    for Entry { name, .. } in content {
        if store.has(name) {
            pack.layer(name, None, &mut progress)?;
            unpacked.present.push(*name);
        } else {
            pack.layer(name, Some(store), &mut progress)?;
            unpacked.written.push(*name);
        }
    }
    pack.end()?;
    for (manifest, tags) in &snapshots {
        let id = store.put_manifest(manifest)?;
        unpacked.snapshots.push(id);
        for tag in tags {
            match store.tagged(tag.as_str())? {
                Some(other) if other != id => unpacked.taken.push((tag.clone(), other)),
                _ => {
                    store.tag(&id, tag)?;
                    unpacked.tags.push((tag.clone(), id));
                }
            }
        }
    }
    Ok(unpacked)
}

/// A layer in the table of contents.
struct Entry {
    name: LayerName,
    included: bool,
    /// What progress counts; nothing depends on it.
    bytes: u64,
}

/// The part of a pack that has not been read yet.
struct Pack<'a, R: io::BufRead> {
    input: zstd::Decoder<'static, R>,
    path: &'a Path,
}

impl<R: io::BufRead> Pack<'_, R> {
    fn damaged(&self, what: impl Into<String>) -> PackError {
        PackError::Damaged {
            path: self.path.to_owned(),
            what: what.into(),
        }
    }

    /// What an error of reading means.
    fn failed(&self, error: io::Error) -> PackError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it is truncated"),
            // What zstd says of its stream has no error of the host in it.
            _ if error.raw_os_error().is_none() => self.damaged(error.to_string()),
            _ => PackError::Io {
                path: self.path.to_owned(),
                what: "read",
                source: error,
            },
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn number(&mut self) -> Result<u64, PackError> {
        self.array().map(u64::from_le_bytes)
    }

    /// As many bytes as the next number says, which is `max` at most. No more
    /// memory is used than there are bytes.
    fn bytes(&mut self, max: u64) -> Result<Vec<u8>, PackError> {
        match self.number()? {
            len if len <= max => self.exactly(len),
            len => Err(self.damaged(format!("a part of it has {len} bytes"))),
        }
    }

    fn exactly(&mut self, len: u64) -> Result<Vec<u8>, PackError> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(len).read_to_end(&mut bytes);
        match read {
            Ok(read) if read as u64 == len => Ok(bytes),
            Ok(_) => Err(self.damaged("it is truncated")),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn snapshots(&mut self) -> Result<Vec<(Manifest, Vec<Tag>)>, PackError> {
        let mut snapshots = Vec::new();
        for _ in 0..self.number()? {
            let bytes = self.bytes(MAX_LEN)?;
            let (manifest, _) = Manifest::decode(&bytes, self.path)?;
            let is_stored = |layer: &crate::manifest::LayerRef| {
                layer.name.is_by_content() && layer.path.as_os_str().is_empty()
            };
            if !manifest.layers().all(is_stored) {
                return Err(self.damaged("a snapshot in it is not as stores keep them"));
            }
            let mut tags = Vec::new();
            for _ in 0..self.number()? {
                let tag = String::from_utf8(self.bytes(1000)?)
                    .ok()
                    .and_then(|tag| tag.parse().ok())
                    .ok_or_else(|| self.damaged("a tag in it is none"))?;
                tags.push(tag);
            }
            snapshots.push((manifest, tags));
        }
        Ok(snapshots)
    }

    fn layers(&mut self) -> Result<Vec<Entry>, PackError> {
        let mut layers: Vec<Entry> = Vec::new();
        for _ in 0..self.number()? {
            let name = LayerName::from_parts(self.array()?, true);
            let included = match self.number()? {
                0 => false,
                INCLUDED => true,
                flags => return Err(self.damaged(format!("a layer has unknown flags {flags:#x}"))),
            };
            if layers.last().is_some_and(|last| last.name >= name) {
                return Err(self.damaged("its layers are out of order"));
            }
            let bytes = self.number()?;
            layers.push(Entry {
                name,
                included,
                bytes,
            });
        }
        Ok(layers)
    }

    /// Reads a layer's content, and writes it to `store` if that is wanted.
    fn layer(
        &mut self,
        name: &LayerName,
        store: Option<&Store>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), PackError> {
        let head: [u8; HEAD] = self.array()?;
        let footer = Footer::decode_head(&head).map_err(|error| match error {
            FooterError::None => self.damaged(format!("the layer {name} is none")),
            FooterError::Version(version) => PackError::Version {
                path: self.path.to_owned(),
                version,
            },
            FooterError::Damaged(what) => self.damaged(format!("of the layer {name}, {what}")),
        })?;
        let (Some(len), Some(_)) = (footer.index_len(), footer.file_len()) else {
            return Err(self.damaged(format!("the layer {name} speaks of too many bytes")));
        };
        let index = self.exactly(len)?;
        let (held, zero) = footer
            .decode_index(&index)
            .map_err(|what| self.damaged(format!("of the layer {name}, {what}")))?;
        let content = Content {
            kind: footer.kind,
            blocks: footer.blocks,
            held,
            zero,
        };
        let draft = store.map(|store| store.draft_layer(name)).transpose()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head);
        hasher.update(&index);
        let file = draft.as_ref().map(|draft| draft.file());
        self.blocks(&content, file, &mut hasher, progress)?;
        if hasher.finalize() != *name.as_bytes() {
            return Err(self.damaged(format!("the layer {name} does not match its name")));
        }
        if let (Some(store), Some(draft)) = (store, draft) {
            store.put_named(content, draft, *name)?;
        }
        Ok(())
    }

    fn blocks(
        &mut self,
        content: &Content,
        file: Option<&File>,
        hasher: &mut blake3::Hasher,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), PackError> {
        let mut chunk = vec![0; CHUNK as usize];
        for extent in &content.held.minus(&content.zero) {
            let (mut at, end) = (extent.start * BLOCK_SIZE, extent.end() * BLOCK_SIZE);
            while at < end {
                let chunk = &mut chunk[..CHUNK.min(end - at) as usize];
                self.input
                    .read_exact(chunk)
                    .map_err(|error| self.failed(error))?;
                hasher.update(chunk);
                if let Some(file) = file {
                    let written = file.write_all_at(chunk, at);
                    written.map_err(|source| StoreError::Io {
                        path: self.path.to_owned(),
                        what: "unpacked",
                        source,
                    })?;
                }
                at += chunk.len() as u64;
                progress(chunk.len() as u64);
            }
        }
        Ok(())
    }

    /// Nothing may follow the last layer.
    fn end(&mut self) -> Result<(), PackError> {
        if self.array::<8>()? != END {
            return Err(self.damaged("it does not end where it ought to"));
        }
        let mut rest = [0];
        match self.input.read(&mut rest) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("there is more behind its end")),
            Err(error) => Err(self.failed(error)),
        }
    }
}
