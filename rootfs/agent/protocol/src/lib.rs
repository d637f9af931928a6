//! The protocol between the host and `coppice-agent`.
//!
//! One stream carries one request. The host connects to [`AGENT_PORT`] of the
//! guest, sends [`ToAgent::Hello`] and may send its request right behind it
//! without waiting: an exec costs one round trip. The agent answers with
//! [`ToHost::Hello`], then with what the request asks for:
//!
//! ```text
//! host                                agent
//! Hello, Exec ─────────────────────▶
//!             ◀───────────────────── Hello, Started{pid}      (or Error: it did not start)
//! Stdin* Signal* Resize* StdinClose ▶
//!             ◀───────────────────── Stdout* Stderr* StdinCredit*
//!             ◀───────────────────── Exit                     (last frame; then end of stream)
//! Hello, Info ─────────────────────▶
//!             ◀───────────────────── Hello, Info
//! Hello, Shutdown ─────────────────▶
//!             ◀───────────────────── Hello, ShuttingDown
//! Hello, Resumed ──────────────────▶
//!             ◀───────────────────── Hello, Renewed
//! ```
//!
//! [`ToHost::Error`] may take the place of any answer, is always the last
//! frame, and carries an [`ErrorKind`] that programs can rely on. A stream that
//! ends without `Exit` or `Error` means that the agent or its machine is gone.
//! If the host ends its stream before `Exit`, the agent kills the command;
//! closing only the command's standard input is `StdinClose`.
//!
//! **Flow.** The host may have at most [`STDIN_WINDOW`] bytes of standard input
//! that the process has not taken yet; `StdinCredit` gives bytes back. So the
//! agent never stops reading the stream, and a signal is never stuck behind
//! input that nobody reads. Output has no credit: when the stream is full the
//! agent stops reading the command's pipes, and the command waits.
//!
//! **Ready.** A machine's agent also connects once to [`READY_PORT`] of the
//! host (CID 2), sends [`ToHost::Hello`] and closes. A host that does not
//! listen there loses nothing.
//!
//! Everything here is pure: bytes in, messages out. [`Decoder`] takes bytes cut
//! anywhere; [`MessageReader`] and [`write_message`] serve blocking streams.
//! The bytes are specified in `docs/agent-protocol.md`.

mod decoder;
mod error;
mod exec;
mod frame;
mod hello;
mod io;
mod message;
mod renew;
mod wire;

pub use decoder::Decoder;
pub use error::{DecodeError, EncodeError, ReadError};
pub use exec::{Cleanup, Command, ExecRequest, ExitStatus, Outcome, Stdio, WindowSize};
pub use frame::{DataFrame, HEADER_LEN, MAX_ITEMS, MAX_MESSAGE, MAX_PAYLOAD};
pub use hello::{AgentHello, BootTimes, HostHello, Info};
pub use io::{MessageReader, write_message};
pub use message::{AgentError, ErrorKind, Message, PowerAction, ToAgent, ToHost};
pub use renew::{GENERATION_LEN, Renewed, Resumed, SEED_LEN, Seed, Step, StepState};

/// Version of everything that follows the hello. Both sides must have the same.
pub const PROTOCOL_VERSION: u16 = 1;

/// First bytes of both hellos.
pub const MAGIC: [u8; 8] = *b"coppice\0";

/// The vsock port on which the agent listens in the guest.
pub const AGENT_PORT: u32 = 1024;

/// The vsock port of the host (CID 2) that the agent tells that it listens.
pub const READY_PORT: u32 = 1025;

/// Bytes of standard input that the host may send before any credit arrives.
pub const STDIN_WINDOW: u32 = 128 * 1024;
