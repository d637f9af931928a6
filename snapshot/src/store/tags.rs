//! Names that people give to snapshots.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::{StoreError, io_error};
use super::{Store, sync, write};
use crate::manifest::SnapshotId;

/// Characters of a tag, at most.
const MAX: usize = 100;

/// A name for a snapshot. It is the name of a file, too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(String);

impl Tag {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Tag {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = (1..=MAX).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(is_plain)
            && !text.chars().all(|c| c.is_ascii_hexdigit());
        match good {
            true => Ok(Self(text.to_owned())),
            false => Err(StoreError::BadTag(text.chars().take(MAX).collect())),
        }
    }
}

impl Store {
    /// Gives `tag` to a snapshot; another that had it has it no longer.
    ///
    /// # Errors
    /// There is no such snapshot, or the host cannot write.
    pub fn tag(&self, id: &SnapshotId, tag: &Tag) -> Result<(), StoreError> {
        let _share = self.share()?;
        self.read(id)?;
        write(&self.tag_path(tag), format!("{id}\n").as_bytes())
    }

    /// Takes `tag` away from the snapshot that has it.
    ///
    /// # Errors
    /// None has it, or the host cannot remove it.
    pub fn untag(&self, tag: &Tag) -> Result<(), StoreError> {
        let path = self.tag_path(tag);
        match fs::remove_file(&path) {
            Ok(()) => sync(&self.dir.join("tags")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::NoTag {
                dir: self.dir.clone(),
                tag: tag.to_string(),
            }),
            Err(error) => Err(io_error(&path, "removed")(error)),
        }
    }

    /// All tags, sorted, with the snapshots that have them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tags(&self) -> Result<Vec<(Tag, SnapshotId)>, StoreError> {
        let mut tags = Vec::new();
        for name in self.names("tags")? {
            let Ok(tag) = name.parse::<Tag>() else {
                continue;
            };
            // One that was taken away just now is none.
            if let Some(id) = self.tagged(tag.as_str())? {
                tags.push((tag, id));
            }
        }
        tags.sort_unstable();
        Ok(tags)
    }

    /// The snapshot that has the tag `name`, if that is one.
    pub(crate) fn tagged(&self, name: &str) -> Result<Option<SnapshotId>, StoreError> {
        let Ok(tag) = name.parse::<Tag>() else {
            return Ok(None);
        };
        let path = self.tag_path(&tag);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim_end().parse() {
                Ok(id) => Ok(Some(id)),
                Err(error) => Err(io_error(&path, "read")(io::Error::other(error))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&path, "read")(error)),
        }
    }

    pub(super) fn tag_path(&self, tag: &Tag) -> PathBuf {
        self.dir.join("tags").join(&tag.0)
    }
}
