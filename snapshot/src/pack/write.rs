//! Packing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::{END, INCLUDED, MAGIC, PackError, VERSION};
use crate::blocks;
use crate::layer::{Kind, Layer, LayerError, LayerName, io_error};
use crate::manifest::{Manifest, SnapshotId};
use crate::progress::Progress;
use crate::stack::Stack;
use crate::store::{Store, StoreError, Tag, stored};

/// A snapshot that is to be packed.
#[derive(Debug)]
pub struct Source {
    manifest: Manifest,
    tags: Vec<Tag>,
    layers: Vec<Arc<Layer>>,
}

impl Source {
    /// A snapshot in a store, with its tags.
    ///
    /// # Errors
    /// It or something of it is missing or damaged.
    pub fn in_store(store: &Store, id: &SnapshotId) -> Result<Self, PackError> {
        let snapshot = store.open_snapshot(id)?;
        let tags = store.tags()?.into_iter().filter(|(_, of)| of == id);
        let stacks = std::iter::once(&snapshot.memory).chain(&snapshot.disks);
        Ok(Self {
            layers: stacks.flat_map(Stack::layers).cloned().collect(),
            tags: tags.map(|(tag, _)| tag).collect(),
            manifest: snapshot.manifest,
        })
    }

    /// The snapshot whose manifest is the file at `path`.
    ///
    /// # Errors
    /// It or something of it is missing or damaged.
    pub fn file(path: &Path) -> Result<Self, PackError> {
        let (manifest, _) = Manifest::read(path)?;
        let places = crate::find::Places::beside(path);
        let open = |kind, stack| places.open(kind, stack).map_err(StoreError::from);
        let mut layers = open(Kind::Memory, &manifest.memory)?.layers().to_vec();
        for disk in &manifest.disks {
            layers.extend_from_slice(open(Kind::Disk, &disk.stack)?.layers());
        }
        Ok(Self {
            manifest,
            tags: Vec::new(),
            layers,
        })
    }
}

/// What goes into a pack.
#[derive(Debug, Default)]
pub struct Packer {
    snapshots: Vec<(Manifest, Vec<Tag>)>,
    layers: BTreeMap<LayerName, Arc<Layer>>,
    without: HashSet<LayerName>,
}

impl Packer {
    /// A pack that leaves out the content of the layers `without`.
    pub fn new(without: HashSet<LayerName>) -> Self {
        Self {
            without,
            ..Self::default()
        }
    }

    /// Adds a snapshot. A layer without a name by content is read to find one.
    ///
    /// # Errors
    /// A layer cannot be read.
    pub fn add(&mut self, source: Source) -> Result<(), PackError> {
        let mut names = HashMap::new();
        for layer in source.layers {
            let name = match names.get(&layer.name()) {
                Some(_) => continue,
                None if layer.name().is_by_content() => layer.name(),
                None => layer.hash(&mut |_| {})?,
            };
            names.insert(layer.name(), name);
            self.layers.insert(name, layer);
        }
        let manifest = stored(&source.manifest, &names);
        self.snapshots.push((manifest, source.tags));
        Ok(())
    }

    /// Writes the pack to `to`, which errors call `path`, compressed at the zstd
    /// `level`. The content of layers is checked on the way.
    ///
    /// # Errors
    /// A layer is damaged or unreadable, or `to` cannot be written. What was
    /// written is then no pack.
    pub fn write(
        &self,
        to: impl Write,
        path: &Path,
        level: i32,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), PackError> {
        let failed = |source: io::Error| PackError::Io {
            path: path.to_owned(),
            what: "written",
            source,
        };
        let included = |(name, _): &(&LayerName, &Arc<Layer>)| !self.without.contains(name);
        let layers = || self.layers.iter().filter(included);
        let total = layers().map(|(_, layer)| layer.data_len()).sum();
        let mut progress = Progress::counter(total, progress);
        let mut out = encoder(to, level).map_err(failed)?;
        out.write_all(&self.beginning()).map_err(failed)?;
        for (name, layer) in layers() {
            write_layer(&mut out, name, layer, &mut progress)
                .map_err(io_error(layer.path(), "packed"))??;
        }
        out.write_all(&END).map_err(failed)?;
        let mut to = out.finish().map_err(failed)?;
        to.flush().map_err(failed)
    }

    /// All that comes before the content of layers.
    fn beginning(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put = |out: &mut Vec<u8>, value: u64| out.extend(value.to_le_bytes());
        let put_bytes = |out: &mut Vec<u8>, bytes: &[u8]| {
            put(out, bytes.len() as u64);
            out.extend(bytes);
        };
        out.extend(MAGIC);
        put(&mut out, u64::from(VERSION));
        put(&mut out, self.snapshots.len() as u64);
        for (manifest, tags) in &self.snapshots {
            put_bytes(&mut out, &manifest.encode().0);
            put(&mut out, tags.len() as u64);
            for tag in tags {
                put_bytes(&mut out, tag.as_str().as_bytes());
            }
        }
        put(&mut out, self.layers.len() as u64);
        for (name, layer) in &self.layers {
            out.extend(name.as_bytes());
            let is_included = !self.without.contains(name);
            put(&mut out, if is_included { INCLUDED } else { 0 });
            put(&mut out, layer.data_len());
        }
        out
    }
}

fn encoder<W: Write>(to: W, level: i32) -> io::Result<zstd::Encoder<'static, W>> {
    let mut encoder = zstd::Encoder::new(to, level)?;
    encoder.include_checksum(true)?;
    let cpus = std::thread::available_parallelism();
    encoder.multithread(cpus.map_or(1, |cpus| cpus.get() as u32))?;
    Ok(encoder)
}

/// Writes what the layer's name is the hash of.
fn write_layer(
    out: &mut impl Write,
    name: &LayerName,
    layer: &Layer,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Result<(), LayerError>> {
    let (footer, index) = layer.end();
    let mut hasher = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| {
        hasher.update(bytes);
        out.write_all(bytes)
    };
    put(&footer.head())?;
    put(&index)?;
    blocks::read(layer.file(), &layer.data(), |_, chunk| {
        progress(chunk.len() as u64);
        put(chunk).map(|()| true)
    })?;
    Ok(match hasher.finalize() == *name.as_bytes() {
        true => Ok(()),
        false => Err(LayerError::Damaged {
            path: layer.path().to_owned(),
            what: "its content does not match its name".into(),
        }),
    })
}
