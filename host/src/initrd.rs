//! The initial RAM disk that brings the agent into any image.
//!
//! It is a "newc" cpio archive (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst). The kernel
//! unpacks archives one after another into one tree, so ours goes behind an
//! initrd of the user and its `/init` wins. Same input, same bytes.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::error::Error;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Writes an initrd to `target` that starts `agent` as the first process,
/// behind the contents of `base` if there is one.
pub fn write(target: &Path, agent: &Path, base: Option<&Path>) -> Result<(), Error> {
    let program = read("agent", agent)?;
    check_static(agent, &program)?;
    let mut bytes = match base {
        Some(base) => read("initrd", base)?,
        None => Vec::new(),
    };
    // Each archive begins at a multiple of four; zeros in between are skipped.
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    archive(&program, &mut bytes).map_err(Error::host("packing the agent failed"))?;
    fs::write(target, bytes).map_err(Error::host("the initrd could not be written"))
}

/// Whether `agent` can be packed.
pub fn check_agent(agent: &Path) -> Result<(), Error> {
    check_static(agent, &read("agent", agent)?)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File {
        what,
        path: path.to_path_buf(),
        source,
    })
}

fn archive(agent: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut archive = Archive { out, inode: 0 };
    archive.entry("dev", DIRECTORY, (0, 0), b"")?;
    // The kernel opens it for the first process before anything is mounted.
    archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), b"")?;
    archive.entry("init", PROGRAM, (0, 0), agent)?;
    archive.entry("TRAILER!!!", 0, (0, 0), b"")
}

struct Archive<'a, W> {
    out: &'a mut W,
    inode: u32,
}

impl<W: Write> Archive<'_, W> {
    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "4 GiB is cpio's limit"))?;
        self.inode += 1;
        let (links, owner, group, time, checksum) = (1, 0, 0, 0, 0);
        let (on_major, on_minor) = (0, 0);
        let (major, minor) = device;
        let name_size = name.len() as u32 + 1;
        write!(self.out, "070701")?;
        for field in [
            self.inode, mode, owner, group, links, time, size, on_major, on_minor, major, minor,
            name_size, checksum,
        ] {
            write!(self.out, "{field:08x}")?;
        }
        self.padded(&[name.as_bytes(), b"\0"].concat(), HEADER_LEN)?;
        self.padded(data, 0)
    }

    /// Writes `data` and zeros up to a multiple of four, counted from `before`
    /// bytes earlier.
    fn padded(&mut self, data: &[u8], before: usize) -> io::Result<()> {
        let len = before + data.len();
        self.out.write_all(data)?;
        self.out.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }
}

const HEADER_LEN: usize = 6 + 13 * 8;

/// Refuses what could not start in an arbitrary image: the guest would panic
/// with an error that tells nothing.
fn check_static(path: &Path, program: &[u8]) -> Result<(), Error> {
    match names_interpreter(program) {
        Some(false) => Ok(()),
        Some(true) => Err(Error::AgentNotStatic(path.to_path_buf())),
        None => Err(Error::AgentNotProgram(path.to_path_buf())),
    }
}

/// Whether the x86-64 ELF file has a PT_INTERP segment; `None` if it is none.
fn names_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    const EM_X86_64: u16 = 62;
    let u16_at = |at: usize| Some(u16::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*elf.get(at..)?.first_chunk()?));

    if !elf.starts_with(b"\x7fELF\x02\x01") || u16_at(18)? != EM_X86_64 {
        return None;
    }
    let table = usize::try_from(u64_at(32)?).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for index in 0..count {
        let at = table.checked_add(index * size)?;
        if u32_at(at)? == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
#[path = "initrd_test.rs"]
mod tests;
