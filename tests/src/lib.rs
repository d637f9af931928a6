//! A harness for tests with real guests, whose verbs read aloud:
//!
//! ```no_run
//! use coppice_tests::Guest;
//!
//! let mut machine = Guest::running("echo hello from inside; reboot -f").boot();
//! machine.console().wait_for("hello from inside");
//! assert_eq!(machine.end().code, Some(0));
//! ```
//!
//! The tests drive the built programs as users do: `coppice-vmm` by its
//! configuration file and its socket, `coppice` by its command line. They need a
//! KVM that runs Linux and fail where there is none: `./dev test` and
//! `./dev host -- CMD` find or make one.

mod agent;
mod api;
mod bare;
mod coppice;
mod guest;
mod initrd;
mod machine;
mod output;
mod place;
mod scratch;
mod snapshot;

pub use agent::Done;
pub use api::{Answer, request};
pub use bare::{LOST, ROUND};
pub use coppice::{Ended, Run, coppice, coppice_in, run};
pub use guest::{Guest, Kernel};
pub use initrd::Initrd;
pub use machine::{End, Machine, refusal};
pub use output::{Output, PATIENCE};
pub use place::{image, kernel, program, require_kvm};
pub use scratch::{Scratch, processes_with};
pub use snapshot::Snapshot;
