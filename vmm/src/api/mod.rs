//! HTTP/1.1 with JSON over a Unix socket: how a machine is configured and driven.
//!
//! ```text
//! server ── connection ── http          bytes → requests, answers → bytes
//!    │
//!    ▼ each request, in the order of arrival
//! router                                method, path and body → Request
//!    │
//!    ▼
//! controller                            Request → what it does to the machine
//! ```
//!
//! Nothing here has a thread. The event loop is told when the server has work
//! and then calls [`Server::serve`], which never waits for a client. A
//! configuration file is no other path: [`file`](mod@file) turns it into the
//! same requests.

mod connection;
pub mod controller;
pub mod file;
pub mod http;
mod machine;
pub mod router;
mod server;
mod socket;
mod wake;

pub use controller::{Controller, MachineControl, StartError};
pub use machine::ControlError;
pub use router::Request;
pub use server::Server;
pub use socket::SocketError;
pub use wake::Wake;

/// What a request comes to. Whoever handles a request may also have no answer
/// yet: then it comes by [`Server::answer_later`], the client's next request waits
/// for it, and only one request at a time may be in that state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done, and there is nothing to say: status 204.
    Done,
    /// What was asked for, as JSON: status 200.
    Json(String),
    /// It was refused for this reason and nothing has changed: status 400.
    Fault(String),
}

#[cfg(test)]
mod doc_test;
