//! Why a specification is refused.

use std::fmt::Debug;

/// A rule of the specification that a value breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A field has a value that it cannot have.
    #[error("{field} is {value}; {rule}")]
    Value {
        /// The field's name as in the request.
        field: &'static str,
        /// What it was set to, shortened if long.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// A field or value that is known, but cannot be honoured by this version.
    #[error("{what} is not available yet in this version; {remedy}")]
    Unavailable {
        /// The thing that was asked for, with its value.
        what: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The text is not the JSON that was expected.
    #[error("{0}")]
    Json(String),
}

impl SpecError {
    /// `field` has `value`, which breaks `rule`.
    pub(super) fn new(
        field: &'static str,
        value: &(impl Debug + ?Sized),
        rule: impl Into<String>,
    ) -> Self {
        SpecError::Value {
            field,
            value: shortened(format!("{value:?}")),
            rule: rule.into(),
        }
    }

    /// `what` cannot be honoured by this version.
    pub(super) fn unavailable(what: impl Into<String>, remedy: &'static str) -> Self {
        SpecError::Unavailable {
            what: what.into(),
            remedy,
        }
    }
}

/// A client may send tens of kilobytes in one field; an answer need not carry
/// them all back.
pub(super) fn shortened(mut text: String) -> String {
    const KEPT: usize = 500;
    if text.len() > KEPT {
        let length = text.len();
        let end = (0..=KEPT).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push_str(&format!("… ({length} bytes)"));
    }
    text
}
