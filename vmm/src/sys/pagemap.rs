//! Which pages of this process are its own: the anonymous ones, in memory or in
//! swap, as opposed to pages of a file that it has only read.
//!
//! `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`) tells
//! in one call for gibibytes; older kernels have 64 bits for each page in
//! /proc/self/pagemap. Nothing here allocates, so that a process between fork
//! and exit may call it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::userfault::WriteMarks;
use crate::units::PAGE_SIZE;

/// Bits of `page_region.categories` (`include/uapi/linux/fs.h`).
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// Marks the reported pages as not written, in the same step.
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// Bits of an entry of /proc/PID/pagemap.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE_OR_SHARED: u64 = 1 << 61;

/// Entries or regions that one call reports at most.
const BATCH: usize = 512;

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Which of a range's pages are wanted.
#[derive(Clone, Copy)]
pub enum Wanted<'a> {
    /// All that are in memory, those of files included.
    Present,
    /// All anonymous ones.
    Anonymous,
    /// Those of them that were written since the marks were last set.
    Written(&'a WriteMarks),
    /// The same, and the marks are set again in one step with the looking.
    WrittenAndMark(&'a WriteMarks),
}

/// A process's map of pages, of the process that opened it.
pub struct Pagemap {
    fd: OwnedFd,
    /// The kernel has no `PAGEMAP_SCAN`, or it is not to be used.
    entries_only: bool,
}

impl Pagemap {
    /// Opens the map of the calling process. Async-signal-safe.
    ///
    /// # Errors
    /// There is no /proc, or it does not show this process.
    pub fn open() -> io::Result<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a NUL-terminated constant.
        let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            entries_only: false,
        })
    }

    /// Uses the way that older kernels offer, which cannot tell
    /// [`Wanted::Written`].
    pub fn entries_only(mut self) -> Self {
        self.entries_only = true;
        self
    }

    /// Calls `found` with ranges of wanted pages in `[start, start + len)` of
    /// the address space, each as `(offset from start, length)` in bytes, in
    /// order. Async-signal-safe if `found` is.
    ///
    /// # Errors
    /// The kernel cannot tell.
    pub fn scan(
        &self,
        start: usize,
        len: usize,
        wanted: Wanted<'_>,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        if !self.entries_only {
            match self.scan_regions(start, len, wanted, found) {
                // The ioctl is unknown: nothing was reported.
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
                result => return result,
            }
        }
        match wanted {
            Wanted::Present => {
                self.scan_entries(start, len, |entry| entry & ENTRY_PRESENT != 0, found)
            }
            Wanted::Anonymous => self.scan_entries(start, len, is_anonymous, found),
            Wanted::Written(_) | Wanted::WrittenAndMark(_) => {
                Err(io::Error::from_raw_os_error(libc::ENOTTY))
            }
        }
    }

    fn scan_regions(
        &self,
        start: usize,
        len: usize,
        wanted: Wanted<'_>,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let mut regions = [Region::default(); BATCH];
        let (start, end) = (start as u64, start as u64 + len as u64);
        let (not, any) = match wanted {
            Wanted::Present => (PAGE_IS_PFNZERO, PAGE_IS_PRESENT),
            _ => (
                PAGE_IS_FILE | PAGE_IS_PFNZERO,
                PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ),
        };
        let (flags, written) = match wanted {
            Wanted::Present | Wanted::Anonymous => (0, 0),
            Wanted::Written(_) => (PM_SCAN_CHECK_WPASYNC, PAGE_IS_WRITTEN),
            Wanted::WrittenAndMark(_) => {
                (PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, PAGE_IS_WRITTEN)
            }
        };
        let mut at = start;
        while at < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: BATCH as u64,
                category_inverted: not,
                category_mask: not | written,
                category_anyof_mask: any,
                return_mask: PAGE_IS_PRESENT,
                ..Default::default()
            };
            // SAFETY: the argument is a pm_scan_arg whose vector is `regions`
            // with its true length; both outlive the call. With WP_MATCHING the
            // kernel changes marks of the range, which were asked for by
            // `WriteMarks` and change nothing that the program can see.
            let count = unsafe { libc::ioctl(self.fd.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let Ok(count) = usize::try_from(count) else {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                }
            };
            for region in regions.iter().take(count) {
                found(
                    region.start.saturating_sub(start),
                    region.end.saturating_sub(region.start),
                );
            }
            // The walk ends early when the vector is full.
            if arg.walk_end <= at {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            at = arg.walk_end;
        }
        Ok(())
    }

    fn scan_entries(
        &self,
        start: usize,
        len: usize,
        wanted: fn(u64) -> bool,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let mut entries = [0u64; BATCH];
        let pages = len as u64 / PAGE_SIZE;
        let first = start as u64 / PAGE_SIZE;
        let mut page = 0;
        let mut run = 0..0;
        while page < pages {
            let want = (pages - page).min(BATCH as u64) as usize;
            let offset = ((first + page) * 8) as i64;
            // SAFETY: at most `want` entries of 8 bytes are written, and there
            // is room for BATCH.
            let got = unsafe {
                libc::pread(
                    self.fd.as_raw_fd(),
                    entries.as_mut_ptr().cast(),
                    want * 8,
                    offset,
                )
            };
            let got = match usize::try_from(got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => got / 8,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                },
            };
            for entry in entries.iter().take(got) {
                let wanted = wanted(*entry);
                if wanted && run.end == page {
                    run.end = page + 1;
                } else if wanted {
                    report(&run, found);
                    run = page..page + 1;
                }
                page += 1;
            }
        }
        report(&run, found);
        Ok(())
    }
}

fn is_anonymous(entry: u64) -> bool {
    entry & ENTRY_SWAPPED != 0 || entry & ENTRY_PRESENT != 0 && entry & ENTRY_FILE_OR_SHARED == 0
}

fn report(run: &std::ops::Range<u64>, found: &mut dyn FnMut(u64, u64)) {
    if !run.is_empty() {
        found(run.start * PAGE_SIZE, (run.end - run.start) * PAGE_SIZE);
    }
}

#[cfg(test)]
#[path = "pagemap_test.rs"]
mod tests;
