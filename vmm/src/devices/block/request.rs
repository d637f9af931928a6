//! Requests (virtio 1.2 §5.2.6): parsed from chains and carried out on a backend.

use std::io;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};

use super::config::{DISCARD, MAX_TRANSFER, RangeLimits, WRITE_ZEROES};
use crate::backends::disk::DiskBackend;
use crate::units::SECTOR_SIZE;
use crate::virtio::{Buffers, Chain, DeviceFault};

/// Bytes of a request's header: type, reserved, sector.
const HEADER: usize = 16;
/// Bytes that describe one range of a discard or write-zeroes request: sector,
/// number of sectors, flags.
const RANGE: usize = 16;

/// Why a request is answered with something else than "OK".
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The type of request is unknown, was not negotiated, or has unknown flags.
    #[error("a request of type {kind} with flags {flags:#x} is not supported")]
    Unsupported {
        /// Type of the request.
        kind: u32,
        /// Flags of one of its ranges, 0 if it has none.
        flags: u32,
    },
    /// The driver asked for something that cannot be.
    #[error("the driver {0}")]
    Refused(String),
    /// The chain is too short for the request.
    #[error(transparent)]
    Short(#[from] DeviceFault),
    /// The storage failed.
    #[error("the storage failed: {0}")]
    Storage(#[from] io::Error),
}

impl Failure {
    fn status(&self) -> u32 {
        match self {
            Self::Unsupported { .. } => VIRTIO_BLK_S_UNSUPP,
            Self::Refused(_) | Self::Short(_) | Self::Storage(_) => VIRTIO_BLK_S_IOERR,
        }
    }
}

/// A disk as requests see it.
pub struct Disk {
    /// The content.
    pub backend: Box<dyn DiskBackend>,
    /// No request may change the content.
    pub read_only: bool,
    /// Flushes are offered to the driver.
    pub write_back: bool,
    /// The serial number.
    pub id: [u8; VIRTIO_BLK_ID_BYTES as usize],
    /// Something was written that is not durable yet.
    pub dirty: bool,
}

/// What became of a chain.
#[derive(Debug)]
pub struct Served {
    /// Bytes written to it.
    pub written: u32,
    /// Why it was not answered "OK".
    pub failure: Option<Failure>,
}

impl Disk {
    /// Carries out the request in `chain` as far as `features`, which the driver
    /// accepted, allow, and writes its status.
    pub fn serve(&mut self, chain: Chain, features: u64) -> Served {
        let mut writable = chain.writable;
        let Some(room) = writable.len().checked_sub(1) else {
            let failure = Failure::Refused("left no room for a status".into());
            return Served {
                written: 0,
                failure: Some(failure),
            };
        };
        // The driver may put data and status into one descriptor (§5.2.6.4).
        let answer = writable.take(room);
        let (status, written, failure) = match self.execute(chain.readable, answer, features) {
            Ok(written) => (VIRTIO_BLK_S_OK, written, None),
            Err(failure) => (failure.status(), 0, Some(failure)),
        };
        match writable.write_all(&[status as u8]) {
            Ok(()) => Served {
                written: written + 1,
                failure,
            },
            Err(fault) => Served {
                written: 0,
                failure: Some(fault.into()),
            },
        }
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The storage cannot promise that; it is still to be done.
    pub fn flush(&mut self) -> io::Result<()> {
        self.backend.flush()?;
        self.dirty = false;
        Ok(())
    }

    /// Returns the number of bytes of data written to `answer`.
    fn execute(
        &mut self,
        mut readable: Buffers,
        mut answer: Buffers,
        features: u64,
    ) -> Result<u32, Failure> {
        let mut header = [0; HEADER];
        readable.read_exact(&mut header)?;
        let (kind, sector) = (u32_at(&header, 0), u64_at(&header, 8));
        let accepted = |feature: u32| features & 1 << feature != 0;
        match kind {
            VIRTIO_BLK_T_IN => {
                let offset = self.data_offset(sector, answer.len())?;
                self.backend.read_vectored_at(&answer.slices(), offset)?;
                // No truncation: a chain's length fits in 32 bits.
                return Ok(answer.len() as u32);
            }
            VIRTIO_BLK_T_OUT => {
                self.refuse_if_read_only()?;
                let offset = self.data_offset(sector, readable.len())?;
                self.dirty = true;
                self.backend.write_vectored_at(&readable.slices(), offset)?;
            }
            VIRTIO_BLK_T_FLUSH if accepted(VIRTIO_BLK_F_FLUSH) => {
                self.flush()?;
                return Ok(0);
            }
            VIRTIO_BLK_T_GET_ID => {
                answer.write_all(&self.id)?;
                return Ok(VIRTIO_BLK_ID_BYTES);
            }
            VIRTIO_BLK_T_DISCARD if accepted(VIRTIO_BLK_F_DISCARD) => {
                for range in self.ranges(kind, readable, DISCARD)? {
                    if range.unmap {
                        let flags = VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
                        return Err(Failure::Unsupported { kind, flags });
                    }
                    self.dirty = true;
                    self.backend.discard(range.offset, range.len)?;
                }
            }
            VIRTIO_BLK_T_WRITE_ZEROES if accepted(VIRTIO_BLK_F_WRITE_ZEROES) => {
                for range in self.ranges(kind, readable, WRITE_ZEROES)? {
                    self.dirty = true;
                    let Range { offset, len, unmap } = range;
                    self.backend.write_zeroes(offset, len, unmap)?;
                }
            }
            _ => return Err(Failure::Unsupported { kind, flags: 0 }),
        }
        // A driver that was offered flushes and did not take them expects what
        // it wrote to be stable (§5.2.6.2).
        if self.write_back && !accepted(VIRTIO_BLK_F_FLUSH) {
            self.flush()?;
        }
        Ok(0)
    }

    fn refuse_if_read_only(&self) -> Result<(), Failure> {
        match self.read_only {
            true => Err(Failure::Refused("wrote to a read-only disk".into())),
            false => Ok(()),
        }
    }

    /// Where `len` bytes of data at `sector` are on the disk.
    fn data_offset(&self, sector: u64, len: usize) -> Result<u64, Failure> {
        let len = len as u64;
        if !len.is_multiple_of(SECTOR_SIZE) || len > MAX_TRANSFER {
            let what = format!("asked for {len} bytes of data in one request");
            return Err(Failure::Refused(what));
        }
        self.offset(sector, len)
    }

    fn offset(&self, sector: u64, len: u64) -> Result<u64, Failure> {
        let disk = self.backend.len();
        sector
            .checked_mul(SECTOR_SIZE)
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= disk))
            .ok_or_else(|| {
                Failure::Refused(format!(
                    "asked for {len} bytes at sector {sector} of a disk of {disk} bytes"
                ))
            })
    }

    /// The ranges of a discard or write-zeroes request, all of them checked
    /// before the first is acted on.
    fn ranges(
        &self,
        kind: u32,
        mut data: Buffers,
        limits: RangeLimits,
    ) -> Result<Vec<Range>, Failure> {
        self.refuse_if_read_only()?;
        let count = data.len() / RANGE;
        if !data.len().is_multiple_of(RANGE) || count == 0 || count > limits.ranges as usize {
            let what = format!(
                "gave {} bytes of ranges where 16 to {} are right",
                data.len(),
                limits.ranges as usize * RANGE
            );
            return Err(Failure::Refused(what));
        }
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let mut raw = [0; RANGE];
            data.read_exact(&mut raw)?;
            let flags = u32_at(&raw, 12);
            if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 {
                return Err(Failure::Unsupported { kind, flags });
            }
            let len = u64::from(u32_at(&raw, 8)) * SECTOR_SIZE;
            if len > limits.len {
                let what = format!("gave a range of {len} bytes, over the limit");
                return Err(Failure::Refused(what));
            }
            let offset = self.offset(u64_at(&raw, 0), len)?;
            if len > 0 {
                let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
                ranges.push(Range { offset, len, unmap });
            }
        }
        Ok(ranges)
    }
}

/// A part of the disk, in bytes.
#[derive(Debug)]
struct Range {
    offset: u64,
    len: u64,
    unmap: bool,
}

fn u32_at(raw: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; 16], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}

#[cfg(test)]
#[path = "request_test.rs"]
mod tests;
