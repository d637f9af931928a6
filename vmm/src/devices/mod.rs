//! The devices that a machine is made of, one folder each.

pub mod block;
pub mod rng;
pub mod vsock;
