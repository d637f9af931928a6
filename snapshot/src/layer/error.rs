//! Why a layer cannot be had.

use std::io;
use std::path::{Path, PathBuf};

use super::footer::VERSION;
use super::name::LayerName;
use crate::remedy::Remedy;

/// Why a layer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The host refused.
    #[error("the layer {} could not be {what} ({source}){}", path.display(), Remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// "opened", "read", "written" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The file does not end as a layer does.
    #[error(
        "{} is no layer, or it is truncated: its {len} bytes do not end with a layer's footer; \
         copy it again from where it was complete",
        path.display()
    )]
    NotALayer {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// It was made by a later version.
    #[error(
        "the layer {} has version {version} of the format, and this program reads only version \
         {VERSION}: use a newer coppice",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Footer or index contradict themselves, their checksums or the file.
    #[error(
        "the layer {} is damaged: {what}; copy it again from where it was complete",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is another layer than the one that was asked for.
    #[error("{} is the layer {found}, but {wanted} is needed", path.display())]
    OtherName {
        /// The file.
        path: PathBuf,
        /// The name in its footer.
        found: LayerName,
        /// The name that was asked for.
        wanted: LayerName,
    },
    /// No random bytes for a unique id.
    #[error("the host gives no random bytes for the name of a layer ({0})")]
    Random(getrandom::Error),
}

pub(crate) fn io_error(path: &Path, what: &'static str) -> impl Fn(io::Error) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::Io {
        path: path.clone(),
        what,
        source,
    }
}
