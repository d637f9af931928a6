//! The devices that a machine is made of, one folder each.

pub mod block;
pub mod i8042;
pub mod power;
pub mod pvpanic;
pub mod rng;
pub mod serial;
pub mod vmgenid;
pub mod vsock;
