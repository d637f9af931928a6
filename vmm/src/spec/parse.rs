//! From JSON text to the types of the specification.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use super::SpecError;
use super::error::shortened;

/// Parses one JSON object. The error names the field, if one is at fault.
///
/// # Errors
/// The text is no JSON object of the expected form.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, SpecError> {
    let failed = |text: String| Err(SpecError::Json(shortened(text)));
    match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return failed("the body is empty; a JSON object is needed".to_owned()),
        // A derived struct would also take an array of its fields in order.
        Some(b'[') => return failed("the body is an array; a JSON object is needed".to_owned()),
        Some(_) => (),
    }
    let mut json = serde_json::Deserializer::from_slice(json);
    let value = match serde_path_to_error::deserialize(&mut json) {
        Ok(value) => value,
        Err(error) => {
            let path = error.path().to_string();
            let text = error.into_inner().to_string();
            return match path.as_str() {
                "." => failed(text),
                path if text.contains(path) => failed(text),
                path => failed(format!("{path}: {text}")),
            };
        }
    };
    match json.end() {
        Ok(()) => Ok(value),
        Err(error) => failed(format!("after the JSON object: {error}")),
    }
}

/// For optional fields: `null` stands for the default value.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Checks that `path` can be handed to the kernel at all.
pub(super) fn check_path(field: &'static str, path: &Path) -> Result<(), SpecError> {
    /// `PATH_MAX` counts the final NUL.
    const MAX_PATH: usize = libc::PATH_MAX as usize - 1;
    let bytes = path.as_os_str().as_bytes();
    let rule = if bytes.is_empty() {
        "a path is needed".to_owned()
    } else if bytes.contains(&0) {
        "a path cannot contain a NUL byte".to_owned()
    } else if bytes.len() > MAX_PATH {
        format!("a path has at most {MAX_PATH} bytes")
    } else {
        return Ok(());
    };
    Err(SpecError::new(field, path, rule))
}
