//! The system calls that the rest of the crate reaches the kernel through.
// UNSAFETY: signal handlers and KVM's memory registration cannot be expressed
// in safe Rust; each unsafe block is one call with its proof beside it.

pub mod file;
pub mod fork;
pub mod host;
pub mod kick;
pub mod kvm;
pub mod leave;
pub mod map;
pub mod pagemap;
pub mod userfault;
