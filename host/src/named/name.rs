//! What machines are called.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name, which is also the VMM's limit.
const NAME_MAX: usize = 64;

/// A machine's name: up to 64 ASCII letters, digits and hyphens, the first of
/// them no hyphen. It is a file name, a host name and an option's value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let good = (1..=NAME_MAX).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
            && !text.starts_with('-');
        match good {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "`{text}` cannot be a machine's name; use 1 to {NAME_MAX} letters, digits and \
                 hyphens, the first of them no hyphen"
            )),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_host_names() {
        for good in ["a", "web-1", "0", &"x".repeat(64)] {
            assert_eq!(good.parse::<Name>().expect("good").as_str(), good);
        }
        for bad in [
            "",
            "-a",
            ".",
            "..",
            "a/b",
            "a.b",
            "a_b",
            "ä",
            "a b",
            "a\n",
            &"x".repeat(65),
        ] {
            let error = bad.parse::<Name>().expect_err(bad);
            assert!(error.contains("letters, digits and hyphens"), "{error}");
        }
    }
}
