//! Virtio: virtqueues, the MMIO transport and what a device has to offer.

mod device;
mod interrupt;
mod queue;

pub use device::{DeviceEnv, DeviceFault, Identity, VirtioDevice};
pub use interrupt::Interrupt;
pub use queue::Virtqueue;
