//! Loads a kernel and an initrd into guest memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use linux_loader::bootparam::setup_header;
use linux_loader::elf::{Elf64_Ehdr, Elf64_Phdr, PT_LOAD, PT_NOTE};
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use vm_memory::{ByteValued, Bytes};

use crate::arch::boot_params::Initrd;
use crate::arch::layout;
use crate::memory::GuestMemory;
use crate::units::{Gpa, MIB, PAGE_SIZE};

/// A kernel or initrd that cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The file cannot be read.
    #[error("the {what} {path:?} cannot be read ({source})")]
    Read {
        /// "kernel" or "initrd".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{path:?} is no kernel that can be booted: {why}; give an x86-64 vmlinux or bzImage")]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file ends too early.
    #[error(
        "the kernel {path:?} is truncated: it has {len} bytes, but its headers speak of {needed}; \
         copy it again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The length that its headers imply.
        needed: u64,
    },
    /// The kernel does not fit.
    #[error(
        "the kernel {path:?} needs memory up to {needed_mib} MiB, but only {have_mib} MiB lie \
         below the device gap: raise mem_size_mib"
    )]
    KernelTooLarge {
        /// The file.
        path: PathBuf,
        /// End of the kernel in MiB.
        needed_mib: u64,
        /// End of the memory below the gap in MiB.
        have_mib: u64,
    },
    /// The initrd is empty.
    #[error("the initrd {path:?} is empty: give a cpio archive or leave initrd_path out")]
    InitrdEmpty {
        /// The file.
        path: PathBuf,
    },
    /// The initrd does not fit.
    #[error(
        "the initrd {path:?} of {len} bytes does not fit beside the kernel, which ends at \
         {kernel_end:#x}, in the memory below {limit:#x}: raise mem_size_mib or use a smaller one"
    )]
    InitrdTooLarge {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// End of the kernel.
        kernel_end: u64,
        /// Where an initrd has to end.
        limit: u64,
    },
}

/// A kernel in guest memory.
#[derive(Debug)]
pub struct Kernel {
    /// Its 64-bit entry point.
    pub entry: Gpa,
    /// The addresses that it takes while it starts.
    pub extent: Range<u64>,
    /// The set-up header of a bzImage.
    pub header: Option<setup_header>,
}

/// An opened file with what errors need to say of it.
struct Source<'a> {
    what: &'static str,
    path: &'a Path,
    file: File,
    len: u64,
}

impl<'a> Source<'a> {
    fn open(what: &'static str, path: &'a Path) -> Result<Self, BootError> {
        let read = |source| BootError::Read {
            what,
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        if !metadata.is_file() {
            return Err(read(io::Error::other("it is not a regular file")));
        }
        Ok(Self {
            what,
            path,
            file,
            len: metadata.len(),
        })
    }

    fn read_error(&self, source: io::Error) -> BootError {
        BootError::Read {
            what: self.what,
            path: self.path.to_owned(),
            source,
        }
    }

    fn not_a_kernel(&self, why: impl Into<String>) -> BootError {
        BootError::NotAKernel {
            path: self.path.to_owned(),
            why: why.into(),
        }
    }

    /// Checks that `end` bytes are there.
    fn reaches(&self, end: u64) -> Result<(), BootError> {
        if end <= self.len {
            return Ok(());
        }
        Err(BootError::Truncated {
            path: self.path.to_owned(),
            len: self.len,
            needed: end,
        })
    }

    /// Reads a plain structure at `offset`, which must be in the file.
    fn read_at<T: ByteValued + Default>(&mut self, offset: u64) -> Result<T, BootError> {
        self.reaches(offset.saturating_add(size_of::<T>() as u64))?;
        let mut value = T::default();
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.read_exact(value.as_mut_slice()))
            .map_err(|e| self.read_error(e))?;
        Ok(value)
    }

    /// Checks that a kernel that takes `extent` fits in low memory.
    fn fits(&self, extent: &Range<u64>, low_end: u64) -> Result<(), BootError> {
        if extent.start < layout::HIGH_MEMORY.0 {
            let why = format!("it wants to be loaded at {:#x}, below 1 MiB", extent.start);
            return Err(self.not_a_kernel(why));
        }
        if extent.end <= low_end {
            return Ok(());
        }
        Err(BootError::KernelTooLarge {
            path: self.path.to_owned(),
            needed_mib: extent.end.div_ceil(MIB),
            have_mib: low_end / MIB,
        })
    }
}

/// Offset of the set-up header in a bzImage, and of the magic in it
/// (`Documentation/arch/x86/boot.rst`).
const SETUP_HEADER: u64 = 0x1f1;
const SETUP_MAGIC: u64 = 0x202;

/// Loads the kernel at `path`, an ELF vmlinux or a bzImage, below `low_end`.
///
/// # Errors
/// The file is unreadable, no kernel for this machine, truncated or too large.
pub fn load_kernel(memory: &GuestMemory, low_end: u64, path: &Path) -> Result<Kernel, BootError> {
    let mut source = Source::open("kernel", path)?;
    if source.len < 4 {
        return Err(source.not_a_kernel(format!("it has {} bytes", source.len)));
    }
    let magic: [u8; 4] = source.read_at(0)?;
    if &magic == b"\x7fELF" {
        return load_elf(memory, low_end, source);
    }
    let setup_magic: [u8; 4] = source.read_at(SETUP_MAGIC).unwrap_or_default();
    if &setup_magic == b"HdrS" {
        return load_bzimage(memory, low_end, source);
    }
    let arm_magic: [u8; 4] = source.read_at(0x38).unwrap_or_default();
    Err(match (&arm_magic, &magic) {
        (b"ARM\x64", _) => source.not_a_kernel("it is built for arm64"),
        (_, [0x1f, 0x8b, ..]) => source.not_a_kernel("it is a gzip file (decompress it first)"),
        _ => source.not_a_kernel(format!("it begins with the bytes {magic:02x?}")),
    })
}

fn load_elf(
    memory: &GuestMemory,
    low_end: u64,
    mut source: Source<'_>,
) -> Result<Kernel, BootError> {
    /// ELFCLASS64, ELFDATA2LSB; EM_X86_64 (ELF specification).
    const CLASS_64_LITTLE: [u8; 2] = [2, 1];
    const MACHINE_X86_64: u16 = 62;
    let header: Elf64_Ehdr = source.read_at(0)?;
    if header.e_ident[4..6] != CLASS_64_LITTLE {
        return Err(source.not_a_kernel("it is not a 64-bit little-endian ELF file"));
    }
    if header.e_machine != MACHINE_X86_64 {
        let machine = header.e_machine;
        return Err(source.not_a_kernel(format!("it is built for ELF machine {machine}, not 62")));
    }
    if usize::from(header.e_phentsize) != size_of::<Elf64_Phdr>() {
        return Err(source.not_a_kernel("it has no program headers"));
    }
    let (mut start, mut end) = (u64::MAX, 0);
    for index in 0..u64::from(header.e_phnum) {
        let at = header
            .e_phoff
            .saturating_add(index * size_of::<Elf64_Phdr>() as u64);
        let segment: Elf64_Phdr = source.read_at(at)?;
        if matches!(segment.p_type, PT_LOAD | PT_NOTE) {
            source.reaches(segment.p_offset.saturating_add(segment.p_filesz))?;
        }
        if segment.p_type == PT_LOAD && segment.p_memsz > 0 {
            let len = segment.p_memsz.max(segment.p_filesz);
            start = start.min(segment.p_paddr);
            end = end.max(segment.p_paddr.saturating_add(len));
        }
    }
    let extent = start..end;
    if extent.is_empty() {
        return Err(source.not_a_kernel("it has nothing to load"));
    }
    source.fits(&extent, low_end)?;
    if !extent.contains(&header.e_entry) {
        let why = format!(
            "its entry {:#x} is outside of what it loads",
            header.e_entry
        );
        return Err(source.not_a_kernel(why));
    }
    let loaded = Elf::load(memory, None, &mut source.file, None)
        .map_err(|e| source.not_a_kernel(e.to_string()))?;
    Ok(Kernel {
        entry: loaded.kernel_load,
        extent,
        header: None,
    })
}

fn load_bzimage(
    memory: &GuestMemory,
    low_end: u64,
    mut source: Source<'_>,
) -> Result<Kernel, BootError> {
    /// Protocol 2.12 brought `xloadflags`, whose bit 0 says that there is a
    /// 64-bit entry, at 0x200 from the start of the protected-mode code.
    const PROTOCOL: u16 = 0x020c;
    const XLF_KERNEL_64: u16 = 1;
    const ENTRY_64: u64 = 0x200;
    let header: setup_header = source.read_at(SETUP_HEADER)?;
    let (version, flags) = (header.version, header.xloadflags);
    if version < PROTOCOL || flags & XLF_KERNEL_64 == 0 {
        let why = format!("it has no 64-bit entry (boot protocol {version:#x}, flags {flags:#x})");
        return Err(source.not_a_kernel(why));
    }
    let setup_sectors = match header.setup_sects {
        0 => 4, // what the protocol says of very old kernels
        sectors => u64::from(sectors),
    };
    let code = (setup_sectors + 1) * 512;
    source.reaches(code + u64::from(header.syssize) * 16)?;
    // A kernel loaded at its preferred address decompresses in place.
    let load = header.pref_address;
    let extent = load..load.saturating_add(u64::from(header.init_size).max(source.len - code));
    source.fits(&extent, low_end)?;
    let loaded = BzImage::load(memory, Some(Gpa(load)), &mut source.file, None)
        .map_err(|e| source.not_a_kernel(e.to_string()))?;
    Ok(Kernel {
        entry: Gpa(load + ENTRY_64),
        extent,
        header: loaded.setup_header,
    })
}

/// Loads the initrd at `path` as high as the kernel allows below `low_end`.
///
/// # Errors
/// The file is unreadable, empty, or does not fit beside the kernel.
pub fn load_initrd(
    memory: &GuestMemory,
    low_end: u64,
    kernel: &Kernel,
    path: &Path,
) -> Result<Initrd, BootError> {
    /// What kernels that say nothing can take (`initrd_addr_max` of x86 Linux).
    const DEFAULT_HIGHEST: u32 = 0x7fff_ffff;
    let mut source = Source::open("initrd", path)?;
    let len = source.len;
    if len == 0 {
        return Err(BootError::InitrdEmpty {
            path: path.to_owned(),
        });
    }
    let highest = kernel
        .header
        .map_or(DEFAULT_HIGHEST, |header| header.initrd_addr_max);
    let limit = low_end.min(u64::from(highest) + 1);
    let start = limit
        .checked_sub(len)
        .map(|start| start - start % PAGE_SIZE);
    let start = start.filter(|start| *start >= kernel.extent.end);
    let (Some(start), Ok(len)) = (start, u32::try_from(len)) else {
        return Err(BootError::InitrdTooLarge {
            path: path.to_owned(),
            len,
            kernel_end: kernel.extent.end,
            limit,
        });
    };
    memory
        .read_exact_volatile_from(Gpa(start), &mut source.file, len as usize)
        .map_err(|e| source.read_error(io::Error::other(e)))?;
    Ok(Initrd {
        start: Gpa(start),
        len,
    })
}

#[cfg(test)]
#[path = "kernel_test.rs"]
mod tests;
