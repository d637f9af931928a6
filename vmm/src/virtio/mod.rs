//! Virtio: virtqueues, the MMIO transport and what a device has to offer.

mod chain;
mod config_space;
mod device;
mod interrupt;
mod mmio;
#[cfg(any(test, feature = "test-utils"))]
pub mod mock_driver;
mod queue;
mod turn;

pub use chain::{Buffers, Chain, MAX_DESCRIPTORS};
pub use config_space::read_config_space;
pub use device::{DeviceEnv, DeviceFault, Identity, VirtioDevice};
pub use interrupt::Interrupt;
pub use mmio::{MmioTransport, QueueV1, TransportState, TransportSubscriber, TransportV1};
pub use queue::{QueuePosition, QueueSetup, Virtqueue};
pub use turn::{NextTurn, TURN_BYTES, TURN_REQUESTS};
