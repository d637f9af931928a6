//! The name of a layer.

use std::fmt;
use std::str::FromStr;

/// The name of a layer, which is also the name of its file in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerName {
    bytes: [u8; 32],
    by_content: bool,
}

const LOCAL: &str = "local-";

impl LayerName {
    pub(crate) fn from_parts(bytes: [u8; 32], by_content: bool) -> Self {
        Self { bytes, by_content }
    }

    /// The hash or the unique id.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    pub(super) fn unique() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self {
            bytes,
            by_content: false,
        })
    }

    /// Whether the name is the hash of the content.
    pub fn is_by_content(&self) -> bool {
        self.by_content
    }
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.by_content {
            f.write_str(LOCAL)?;
        }
        crate::hex::write(&self.bytes, f)
    }
}

impl fmt::Debug for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that names no layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a layer: it has 64 hexadecimal digits, after \"local-\" or nothing")]
pub struct BadName(String);

impl FromStr for LayerName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let local = text.strip_prefix(LOCAL);
        let bytes = crate::hex::parse(local.unwrap_or(text))
            .ok_or_else(|| BadName(text.chars().take(100).collect()))?;
        Ok(Self {
            bytes,
            by_content: local.is_none(),
        })
    }
}
