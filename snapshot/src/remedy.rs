//! What can be done about an answer of the host.

use std::fmt;
use std::io::{self, ErrorKind};

/// Appends to an error's text what can be done about it, if anything can.
pub(crate) struct Remedy<'a>(pub &'a io::Error);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; make room on its file system and try again"
            }
            ErrorKind::FileTooLarge => "; raise the limit of a file's size and try again",
            ErrorKind::ReadOnlyFilesystem => "; choose a place that can be written",
            ErrorKind::PermissionDenied => "; give this user access to it",
            ErrorKind::WouldBlock => "; it is being removed by a collection",
            _ => "",
        })
    }
}
