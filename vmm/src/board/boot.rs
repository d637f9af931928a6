//! Fills guest memory with everything that a kernel finds when it starts.

use linux_loader::bootparam::boot_params;
use vm_memory::{ByteValued, Bytes, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion};

use super::command_line::{CommandLineTooLong, command_line};
use super::kernel::{BootError, load_initrd, load_kernel};
use crate::arch::acpi::AcpiSpec;
use crate::arch::{acpi, boot_params as zero_page, layout, mptable, registers};
use crate::devices::vmgenid::{self, VmGenIdError};
use crate::memory::GuestMemory;
use crate::spec::{BootSource, DriveConfig};
use crate::units::Gpa;

/// Boot data that could not be put in place.
#[derive(Debug, thiserror::Error)]
pub enum BootImageError {
    /// The kernel or the initrd.
    #[error(transparent)]
    File(#[from] BootError),
    /// The command line.
    #[error(transparent)]
    CommandLine(#[from] CommandLineTooLong),
    /// The machine's first generation identifier.
    #[error(transparent)]
    Generation(#[from] VmGenIdError),
    /// Guest memory does not reach as far as the boot data.
    #[error("boot data could not be written to guest memory ({0}): raise mem_size_mib")]
    Memory(#[from] GuestMemoryError),
}

/// Loads kernel and initrd, and writes command line, boot parameters and
/// tables. Returns the kernel's entry point.
///
/// # Errors
/// A file is unusable or something does not fit; see [`BootImageError`].
pub fn load(
    memory: &GuestMemory,
    source: &BootSource,
    root: Option<&DriveConfig>,
    tables: &AcpiSpec,
) -> Result<u64, BootImageError> {
    let line = command_line(source.boot_args.as_deref(), root, &tables.virtio)?;
    let regions: Vec<(Gpa, u64)> = memory.iter().map(|r| (r.start_addr(), r.len())).collect();
    let low_end = regions.first().map_or(0, |(_, len)| *len);
    let kernel = load_kernel(memory, low_end, &source.kernel_image_path)?;
    let initrd = match &source.initrd_path {
        Some(path) => Some(load_initrd(memory, low_end, &kernel, path)?),
        None => None,
    };

    let mut line = line.into_bytes();
    line.push(0);
    memory.write_slice(&line, layout::COMMAND_LINE)?;
    let params = zero_page::boot_params(kernel.header, line.len() as u32, initrd, &regions);
    memory.write_slice(ZeroPage(params).as_slice(), layout::BOOT_PARAMS)?;
    memory.write_slice(&mptable::mp_table(tables.vcpus), layout::MP_TABLE)?;
    memory.write_slice(&acpi::tables(tables), layout::ACPI_TABLES)?;
    vmgenid::write_fresh(memory, layout::GENERATION)?;
    write_words(memory, &registers::GDT, layout::GDT)?;
    write_words(memory, &[0], layout::IDT)?;
    write_words(memory, &registers::page_tables(), layout::PAGE_TABLES)?;
    Ok(kernel.entry.0)
}

fn write_words(memory: &GuestMemory, words: &[u64], at: Gpa) -> Result<(), GuestMemoryError> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write_slice(&bytes, at)
}

/// The boot parameters as bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct ZeroPage(boot_params);

// SAFETY: the kernel's structure is packed integers and arrays of integers, so
// it has no padding and every pattern of bits is valid.
unsafe impl ByteValued for ZeroPage {}
