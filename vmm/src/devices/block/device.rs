//! The device around the requests: features, configuration, one queue.

use std::os::fd::BorrowedFd;
use std::{cmp, io};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

use super::config;
use super::request::{Disk, Failure};
use super::state::{BlockState, BlockV1};
use crate::backends::disk::DiskBackend;
use crate::backends::disk_file::{DiskError, DiskFile};
use crate::backends::disk_stack::{DiskStack, DiskStackError};
use crate::spec::{CacheType, DriveConfig, DriveStack, IoEngine};
use crate::state::{self, StateError};
use crate::units::SECTOR_SIZE;
use crate::virtio::{
    DeviceEnv, DeviceFault, Identity, NextTurn, VirtioDevice, Virtqueue, read_config_space,
};

/// Why a drive cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// Its image is unusable.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its stack is unusable.
    #[error(transparent)]
    Stack(#[from] Box<DiskStackError>),
    /// The host has no event descriptor left.
    #[error("no event descriptor can be had: {0}")]
    Event(io::Error),
}

/// A block device.
pub struct Block {
    drive_id: String,
    disk: Disk,
    turn: NextTurn,
    env: Option<DeviceEnv>,
    /// Requests that failed.
    failures: u64,
}

impl Block {
    /// Opens the image or the stack that `config` names and locks what is written.
    ///
    /// # Errors
    /// A file is unusable; the text names it.
    pub fn new(config: &DriveConfig) -> Result<Self, BlockError> {
        if config.io_engine == IoEngine::Async {
            log::info!(
                "drive {:?}: io_engine Async is served by the Sync engine",
                config.drive_id
            );
        }
        let backend: Box<dyn DiskBackend> = match &config.stack {
            Some(DriveStack { layers, delta }) => {
                Box::new(DiskStack::open(layers, delta.as_deref()).map_err(Box::new)?)
            }
            None => Box::new(DiskFile::open(&config.path_on_host, config.is_read_only)?),
        };
        Self::with_backend(config, backend)
    }

    /// A device on storage that is open already. The paths in `config` are ignored.
    ///
    /// # Errors
    /// The host has no event descriptor left.
    pub fn with_backend(
        config: &DriveConfig,
        backend: Box<dyn DiskBackend>,
    ) -> Result<Self, BlockError> {
        let drive_id = config.drive_id.clone();
        let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
        let len = cmp::min(id.len(), drive_id.len());
        id[..len].copy_from_slice(&drive_id.as_bytes()[..len]);
        let turn = NextTurn::new().map_err(BlockError::Event)?;
        let disk = Disk {
            backend,
            read_only: config.is_read_only,
            write_back: config.cache_type == CacheType::Writeback,
            id,
            dirty: false,
        };
        Ok(Self {
            drive_id,
            disk,
            turn,
            env: None,
            failures: 0,
        })
    }

    /// The storage, to freeze it. Nothing is in flight there between two events.
    pub fn backend_mut(&mut self) -> &mut dyn DiskBackend {
        self.disk.backend.as_mut()
    }

    /// What the drive is called in messages about its state.
    fn name(&self) -> String {
        format!("drive {:?}", self.drive_id)
    }

    /// Serves requests for one turn.
    fn serve(&mut self) -> Result<(), DeviceFault> {
        let Some(env) = &mut self.env else {
            return Ok(());
        };
        let (disk, features) = (&mut self.disk, env.features);
        let (drive_id, failures) = (&self.drive_id, &mut self.failures);
        self.turn
            .serve(&mut env.queues[0], &env.interrupt, |chain| {
                let served = disk.serve(chain, features);
                if let Some(failure) = served.failure {
                    report(drive_id, &failure, failures);
                }
                served.written
            })
    }
}

/// Tells of a failed request, ever more rarely: a driver can cause as many as it
/// likes.
fn report(drive_id: &str, failure: &Failure, failures: &mut u64) {
    *failures = failures.saturating_add(1);
    if failures.is_power_of_two() {
        log::warn!("drive {drive_id:?}: failed request number {failures}: {failure}");
    }
}

impl VirtioDevice for Block {
    fn identity(&self) -> Identity {
        let mut features = 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_SIZE_MAX;
        if self.disk.read_only {
            features |= 1 << VIRTIO_BLK_F_RO;
        } else {
            features |= 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        }
        if self.disk.write_back {
            features |= 1 << VIRTIO_BLK_F_FLUSH;
        }
        Identity {
            device_id: VIRTIO_ID_BLOCK,
            features,
            queue_sizes: &[config::QUEUE_SIZE],
        }
    }

    fn read_config(&self, offset: u64, out: &mut [u8]) {
        let space = config::space(self.disk.backend.len(), !self.disk.read_only);
        read_config_space(&space, offset, out);
    }

    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault> {
        self.env = Some(env);
        Ok(())
    }

    /// Nothing is ever in flight between turns. What the driver wrote is made
    /// durable if the drive promises durability at all: the machine may be over.
    fn stop(&mut self) {
        self.env = None;
        if self.disk.dirty
            && self.disk.write_back
            && let Err(error) = self.disk.flush()
        {
            let drive_id = &self.drive_id;
            log::error!("drive {drive_id:?}: what was written may not be durable: {error}");
        }
    }

    fn queues(&self) -> &[Virtqueue] {
        self.env.as_ref().map_or(&[], |env| &env.queues)
    }

    /// What the driver wrote has reached the backend, which has a state of its own.
    fn save(&self) -> Result<Vec<u8>, StateError> {
        let state = BlockState::V1(BlockV1 {
            sectors: self.disk.backend.len() / SECTOR_SIZE,
            dirty: self.disk.dirty,
        });
        state::encode(self.name(), &state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let BlockState::V1(BlockV1 { sectors, dirty }) = state::decode(self.name(), state)?;
        let found = self.disk.backend.len() / SECTOR_SIZE;
        if found != sectors {
            return Err(StateError::refused(
                self.name(),
                format_args!(
                    "the guest knows a disk of {sectors} sectors, but this one has {found}: attach the disk that was saved with the machine, or a copy"
                ),
            ));
        }
        self.disk.dirty = dirty;
        Ok(())
    }

    fn queue_notified(&mut self, _index: usize) -> Result<(), DeviceFault> {
        self.serve()
    }

    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.turn.fd())
    }

    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        self.turn.taken();
        self.serve()
    }
}

#[cfg(test)]
#[path = "device_test.rs"]
mod tests;
