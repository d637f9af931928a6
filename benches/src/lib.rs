//! What the measurements have in common.

pub mod spread;

/// Whatever goes wrong ends a measurement, with a sentence on what it was.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
