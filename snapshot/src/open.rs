//! Opening files whose paths come from elsewhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. Anything else is refused, and a FIFO that
/// nobody writes to does not hold up the caller.
pub(crate) fn regular(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}
