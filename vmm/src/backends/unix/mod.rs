//! Unix stream sockets that never make the event loop wait.
//!
//! [`Listener`] owns a path in the file system and hands out the connections
//! that programs make to it; [`Stream`] is one connection, made by either side.

mod listener;
mod stream;

pub use listener::{ListenError, Listener};
pub use stream::{ByteStream, Stream};

/// The longest path of a Unix socket, in bytes. The address holds 108, of
/// which the kernel wants one for the terminating NUL (unix(7)).
pub const PATH_MAX: usize = 107;
