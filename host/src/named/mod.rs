//! Machines that have a name and stay.
//!
//! Each has a directory of its name (`dir.rs`) in the user's runtime directory.
//! While a command starts or stops it, that command holds the lock in there.
//! Once the machine is up a record (`record.rs`) says which process it is; the
//! machine lives as long as that process does, and nothing watches over it.
//! What is left of dead ones is kept for their last words until the next start.

mod dir;
mod exec;
mod list;
mod logs;
mod name;
mod record;
mod start;
mod stop;

pub use exec::exec;
pub use list::list;
pub use logs::logs;
pub use name::Name;
pub use start::start;
pub use stop::stop;
