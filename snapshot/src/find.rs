//! Where the layers are that a manifest names.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::layer::{Kind, Layer, LayerError, LayerName};
use crate::manifest::{LayerRef, StackRef};
use crate::stack::{Stack, StackError};

/// Where to look for layers.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The file that was named for the topmost layer of the memory. If there is
    /// one, that layer is there, or beside it under its own name: a snapshot that
    /// was to take its place was not completed.
    pub memory: Option<PathBuf>,
    /// Directories: the manifest's, the memory file's.
    pub dirs: Vec<PathBuf>,
    /// The directory of a store.
    pub store: Option<PathBuf>,
}

/// Why a snapshot's layers cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The file that was named is not the layer that the snapshot needs.
    #[error(transparent)]
    Named(LayerError),
    /// The layer is nowhere.
    #[error(
        "the layer {name} is missing. {}Copy its file to one of these places, or unpack the \
         snapshot into a store",
        Looked(tried)
    )]
    Missing {
        /// The layer.
        name: LayerName,
        /// Where it is not, and what is there instead.
        tried: Vec<(PathBuf, LayerError)>,
    },
    /// The layers do not belong together.
    #[error(transparent)]
    Stack(#[from] StackError),
}

struct Looked<'a>(&'a [(PathBuf, LayerError)]);

impl fmt::Display for Looked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, error) in self.0 {
            match error {
                LayerError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                    write!(f, "There is no {}. ", path.display())?;
                }
                error => {
                    let text = error.to_string();
                    let mut letters = text.chars();
                    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
                    write!(f, "{}{}. ", first.unwrap_or_default(), letters.as_str())?;
                }
            }
        }
        Ok(())
    }
}

impl Places {
    /// The places that belong to the manifest at `path`: its directory and, if
    /// that is a store's, the store.
    pub fn beside(path: &Path) -> Self {
        let dir = crate::draft::parent(path);
        let in_store = dir.file_name() == Some("snapshots".as_ref());
        Self {
            memory: None,
            dirs: vec![dir.to_owned()],
            store: dir.parent().filter(|_| in_store).map(Path::to_owned),
        }
    }

    /// Opens the layers of `stack` and puts them together.
    ///
    /// # Errors
    /// A layer is missing, damaged, or of another kind or size.
    pub fn open(&self, kind: Kind, stack: &StackRef) -> Result<Stack, FindError> {
        let mut layers = Vec::with_capacity(stack.layers.len());
        for (depth, reference) in stack.layers.iter().enumerate() {
            let layer = match &self.memory {
                Some(path) if kind == Kind::Memory && depth == 0 => {
                    let beside = path.with_file_name(reference.name.to_string());
                    Layer::open_named(path, &reference.name)
                        .or_else(|error| {
                            Layer::open_named(&beside, &reference.name).map_err(|_| error)
                        })
                        .map_err(FindError::Named)?
                }
                _ => self.find(reference)?,
            };
            layers.push(Arc::new(layer));
        }
        Ok(Stack::new(kind, stack.blocks, layers)?)
    }

    /// Opens the layer that `reference` names: where it was when the snapshot
    /// was made, in the directories under the name that its file had or under
    /// its own, or in the store.
    ///
    /// # Errors
    /// It is in none of these places.
    pub fn find(&self, reference: &LayerRef) -> Result<Layer, FindError> {
        let mut tried: Vec<(PathBuf, LayerError)> = Vec::new();
        for path in self.candidates(reference) {
            if tried.iter().any(|(before, _)| *before == path) {
                continue;
            }
            match Layer::open_named(&path, &reference.name) {
                Ok(layer) => return Ok(layer),
                Err(error) => tried.push((path, error)),
            }
        }
        Err(FindError::Missing {
            name: reference.name,
            tried,
        })
    }

    fn candidates<'a>(&'a self, reference: &'a LayerRef) -> impl Iterator<Item = PathBuf> + 'a {
        let hint = Some(&reference.path).filter(|hint| !hint.as_os_str().is_empty());
        let file_name = hint.and_then(|hint| hint.file_name());
        let in_dir = move |dir: &'a PathBuf| {
            let by_hint = file_name.map(|name| dir.join(name));
            by_hint
                .into_iter()
                .chain([dir.join(reference.name.to_string())])
        };
        let in_dirs = self.dirs.iter().flat_map(in_dir);
        let in_store = self
            .store
            .iter()
            .map(|store| in_store(store, &reference.name));
        hint.cloned().into_iter().chain(in_dirs).chain(in_store)
    }
}

/// Where the store at `dir` has the layer called `name`.
pub(crate) fn in_store(dir: &Path, name: &LayerName) -> PathBuf {
    dir.join("layers").join(name.to_string())
}

#[cfg(test)]
#[path = "find_test.rs"]
mod tests;
