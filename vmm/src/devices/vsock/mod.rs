//! Sockets between guest and host (virtio 1.2 §5.10), with Unix sockets on the
//! host's side.
//!
//! - A program on the host connects to the device's socket, writes
//!   `CONNECT <port>\n` and reads `OK <host port>\n` once the guest accepted.
//!   If nobody listens in the guest, or no driver runs, its connection is closed
//!   without an answer.
//! - A program in the guest connects to CID 2, port P, and reaches the socket
//!   that listens at `<path>_P` on the host, or is refused.
//!
//! ```text
//! packet      the header, bytes to fields and back
//! credit      who may send how much
//! backlog     what a slow host did not take yet
//! connection  one connection: packets and socket events in, packets out
//! handshake   the CONNECT line
//! watch       the one descriptor that the event loop watches
//! muxer       all connections, and how they come about
//! endings     what is kept of those that ended
//! reset       after a restore: tells the guest that they are all gone
//! device      the queues
//! ```
//!
//! Promises, whatever the guest and the host's programs do:
//!
//! - No call waits, and one wake-up does a bounded amount of work.
//! - Nothing that was accepted is lost: what a slow host does not take is kept,
//!   within the guest's credit, also after the guest has closed its end.
//! - Memory and descriptors are bounded: by the number of connections, and for
//!   each of them by its buffer. Past a bound the newcomer is refused, not made
//!   to wait.
//! - Nothing spins: sockets are watched for edges, so one that cannot be served
//!   now (no credit, no receive buffers) stays silent until it can be.
//! - A guest that breaks a rule loses the connection in question, not others.

mod backlog;
mod connection;
mod credit;
mod device;
mod endings;
#[cfg(test)]
mod fake_stream;
mod handshake;
#[cfg(test)]
mod mock_guest;
mod muxer;
mod packet;
mod reset;
mod state;
mod watch;

pub use device::{Vsock, VsockError};
