//! Machines that have a name and stay.
//!
//! Each has a directory of its name (`dir.rs`) in the user's runtime directory.
//! While a command starts or stops it, that command holds the lock in there.
//! Once the machine is up a record (`record.rs`) says which process it is; the
//! machine lives as long as that process does, and nothing watches over it.
//! What is left of dead ones is kept for their last words until the next start.
//!
//! A machine can also grow (`grow.rs`) from a snapshot: of a store (`restore.rs`),
//! or of one that runs (`running.rs`, `fork.rs`), which lies beside the machines'
//! directories as long as one of them needs it (`frozen.rs`).

mod chorus;
mod dir;
mod exec;
mod fork;
mod frozen;
mod grow;
mod list;
mod logs;
mod name;
mod record;
mod restore;
mod running;
mod sharing;
mod start;
mod stop;

pub use dir::Place;
pub use exec::exec;
pub use fork::fork;
pub use list::list;
pub use logs::logs;
pub use name::Name;
pub use restore::restore;
pub use running::Running;
pub use start::start;
pub use stop::stop;
