//! Snapshots: the on-disk format, layers and the store.
//!
//! Not built yet. The crate marks the border that `vmm` and `host` will share:
//! it speaks of offsets within a layer, never of guest addresses, and names
//! neither a device nor a KVM type.
