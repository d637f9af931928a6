//! The board: which device is at which address and interrupt.
//!
//! A board is built from a specification. It opens what the host lends (files,
//! sockets, the terminal) and puts each device on a bus; nothing runs yet.

mod boot;
mod command_line;
mod kernel;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, VmFd};
use parking_lot::Mutex;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use boot::{BootImageError, load as load_boot_image};
pub use command_line::{CommandLineTooLong, DEFAULT_ARGS};
pub use kernel::BootError;

use crate::arch::acpi::{AcpiSpec, PowerRegisters, VirtioWindow};
use crate::arch::layout;
use crate::backends::console::{Console, ConsoleError};
use crate::backends::disk_stack::DiskStack;
use crate::bus::BusError;
use crate::devices::block::{Block, BlockError};
use crate::devices::i8042::{self, I8042};
use crate::devices::power::{self, Power};
use crate::devices::pvpanic::{self, Pvpanic};
use crate::devices::rng::Rng;
use crate::devices::serial::Serial;
use crate::devices::vmgenid::VmGenId;
use crate::devices::vsock::{Vsock, VsockError};
use crate::memory::GuestMemory;
use crate::spec::Spec;
use crate::sys::kvm::KvmError;
use crate::units::{Gpa, Gsi};
use crate::vcpu::Buses;
use crate::virtio::{MmioTransport, VirtioDevice};

/// A device that could not be put on the board.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// A drive.
    #[error("drive {id:?}: {source}")]
    Drive {
        /// Its `drive_id`.
        id: String,
        /// What is wrong.
        source: BlockError,
    },
    /// The vsock device.
    #[error("vsock: {0}")]
    Vsock(#[from] VsockError),
    /// The entropy device.
    #[error("entropy: the host gives no random bytes ({source})")]
    Entropy {
        /// The host's answer.
        source: io::Error,
    },
    /// The serial console.
    #[error("serial: {0}")]
    Console(#[from] ConsoleError),
    /// More virtio devices than there are interrupts.
    #[error(
        "the machine has {count} virtio devices, but there are interrupts for {max}: remove drives",
        max = layout::VIRTIO_GSIS.len()
    )]
    TooManyDevices {
        /// Devices that were asked for.
        count: usize,
    },
    /// KVM refused to bind a device.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The host has no event descriptor left, most likely.
    #[error("the host gave no event descriptor ({0}): raise the limit of open files")]
    EventFd(#[from] io::Error),
    /// Two devices at one address: a fault of this program.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Disks that are open already, by the ids of their drives.
pub type Disks = HashMap<String, DiskStack>;

/// All devices of a machine.
pub struct Board {
    /// Where vCPUs find the devices.
    pub buses: Arc<Buses>,
    /// The virtio devices in the order of their windows.
    pub virtio: Vec<Arc<Mutex<MmioTransport>>>,
    /// The serial port.
    pub serial: Arc<Mutex<Serial>>,
    /// The keyboard controller.
    pub i8042: Arc<Mutex<I8042>>,
    /// The generation identifier, to be renewed after a restore.
    pub vmgenid: VmGenId,
    /// What firmware tables say of all this.
    pub tables: AcpiSpec,
}

impl Board {
    /// Builds the devices of `spec` and binds them to the interrupts of `vm`.
    /// Drives in `disks` are open already.
    ///
    /// # Errors
    /// The host cannot lend what a device needs, or KVM refuses.
    pub fn build(
        spec: &Spec,
        vm: &VmFd,
        memory: &GuestMemory,
        disks: Disks,
    ) -> Result<Self, BoardError> {
        let mut builder = Builder {
            vm,
            memory,
            buses: Buses::default(),
            windows: Vec::new(),
        };
        let serial = builder.serial(spec)?;
        let i8042 = builder.i8042()?;
        builder.notifiers()?;
        let vmgenid = VmGenId::new(layout::GENERATION, builder.line(layout::EVENT_GSI)?);
        let mut virtio = Vec::new();
        let devices = virtio_devices(spec, disks)?;
        if devices.len() > layout::VIRTIO_GSIS.len() {
            return Err(BoardError::TooManyDevices {
                count: devices.len(),
            });
        }
        for device in devices {
            virtio.push(builder.virtio(device)?);
        }
        let tables = AcpiSpec {
            vcpus: spec.machine.vcpu_count,
            virtio: builder.windows,
            power: PowerRegisters {
                control_port: power::PORT,
                status_port: power::PORT + power::SLEEP_STATUS_OFFSET,
                reset_value: power::RESET_VALUE,
                s5_type: power::S5_TYPE,
            },
            pvpanic_port: pvpanic::PORT,
        };
        Ok(Self {
            buses: Arc::new(builder.buses),
            virtio,
            serial,
            i8042,
            vmgenid,
            tables,
        })
    }
}

/// The virtio devices that `spec` asks for: drives first, so that the kernel's
/// names for them (vda, vdb …) follow their order.
fn virtio_devices(spec: &Spec, mut disks: Disks) -> Result<Vec<Box<dyn VirtioDevice>>, BoardError> {
    let mut devices: Vec<Box<dyn VirtioDevice>> = Vec::new();
    for drive in &spec.drives {
        let block = match disks.remove(&drive.drive_id) {
            Some(disk) => Block::with_backend(drive, Box::new(disk)),
            None => Block::new(drive),
        };
        let block = block.map_err(|source| BoardError::Drive {
            id: drive.drive_id.clone(),
            source,
        })?;
        devices.push(Box::new(block));
    }
    if let Some(vsock) = &spec.vsock {
        devices.push(Box::new(Vsock::new(vsock)?));
    }
    if spec.entropy.is_some() {
        let rng = Rng::new().map_err(|source| BoardError::Entropy { source })?;
        devices.push(Box::new(rng));
    }
    Ok(devices)
}

/// A board that is being built.
struct Builder<'a> {
    vm: &'a VmFd,
    memory: &'a GuestMemory,
    buses: Buses,
    windows: Vec<VirtioWindow>,
}

impl Builder<'_> {
    /// An event descriptor that raises `gsi` when written.
    fn line(&self, gsi: Gsi) -> Result<EventFd, BoardError> {
        let line = EventFd::new(EFD_NONBLOCK)?;
        self.vm
            .register_irqfd(&line, gsi.0)
            .map_err(KvmError::call("bind an interrupt"))?;
        Ok(line)
    }

    fn serial(&mut self, spec: &Spec) -> Result<Arc<Mutex<Serial>>, BoardError> {
        let path = spec
            .serial
            .as_ref()
            .and_then(|serial| serial.serial_out_path.as_deref());
        let console = open_console(path)?;
        let serial = Arc::new(Mutex::new(Serial::new(
            self.line(layout::SERIAL_GSI)?,
            console,
        )));
        self.buses
            .ports
            .insert(u64::from(layout::SERIAL_PORT), 8, serial.clone())?;
        Ok(serial)
    }

    fn i8042(&mut self) -> Result<Arc<Mutex<I8042>>, BoardError> {
        let i8042 = Arc::new(Mutex::new(I8042::new(self.line(layout::I8042_GSI)?)));
        self.buses.ports.insert(
            u64::from(layout::I8042_PORT),
            i8042::LEN.into(),
            i8042.clone(),
        )?;
        Ok(i8042)
    }

    /// The devices through which a guest says that it has ended.
    fn notifiers(&mut self) -> Result<(), BoardError> {
        let ports = &mut self.buses.ports;
        ports.insert(
            power::PORT.into(),
            power::LEN.into(),
            Arc::new(Mutex::new(Power)),
        )?;
        ports.insert(
            pvpanic::PORT.into(),
            pvpanic::LEN.into(),
            Arc::new(Mutex::new(Pvpanic)),
        )?;
        Ok(())
    }

    fn virtio(
        &mut self,
        device: Box<dyn VirtioDevice>,
    ) -> Result<Arc<Mutex<MmioTransport>>, BoardError> {
        let index = self.windows.len();
        let base = layout::VIRTIO_WINDOWS.0 + index as u64 * layout::VIRTIO_WINDOW_LEN;
        let gsi = Gsi(layout::VIRTIO_GSIS[index]);
        let transport = MmioTransport::new(device, self.memory.clone(), self.line(gsi)?)?;
        let notify = IoEventAddress::Mmio(base + MmioTransport::QUEUE_NOTIFY);
        for (queue, kick) in transport.notify_fds().iter().enumerate() {
            self.vm
                .register_ioevent(kick, &notify, queue as u32)
                .map_err(KvmError::call("bind a queue notification"))?;
        }
        let transport = Arc::new(Mutex::new(transport));
        self.buses
            .mmio
            .insert(base, MmioTransport::LEN, transport.clone())?;
        self.windows.push(VirtioWindow {
            base: Gpa(base),
            gsi,
        });
        Ok(transport)
    }
}

/// Where the serial port's output goes: to `path`, or to standard output with
/// standard input as its input.
fn open_console(path: Option<&Path>) -> Result<Console, ConsoleError> {
    match path {
        Some(path) => Console::file(path),
        None => Console::stdio(),
    }
}
