//! File operations that the standard library lacks: vectored I/O straight into
//! guest memory, locks that do not wait, and holes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use vm_memory::VolatileSlice;

/// The most ranges that one system call takes (UIO_MAXIOV).
const MAX_RANGES: usize = 1024;

/// Fills all of `slices` from `file`, beginning at byte `offset`.
///
/// # Errors
/// The file ends early (`UnexpectedEof`), or the system call fails.
pub fn read_vectored_at(file: &File, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
    transfer(slices, offset, |ranges, offset| {
        // SAFETY: the ranges are those of `slices`, which are valid for writes
        // while borrowed; guest memory has no references into it, so the kernel
        // may write there.
        unsafe {
            libc::preadv(
                file.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len() as i32,
                offset,
            )
        }
    })
}

/// Writes all of `slices` to `file`, beginning at byte `offset`.
///
/// # Errors
/// The file system is full, or the system call fails otherwise.
pub fn write_vectored_at(file: &File, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
    transfer(slices, offset, |ranges, offset| {
        // SAFETY: the ranges are those of `slices`, which are valid for reads
        // while borrowed.
        unsafe {
            libc::pwritev(
                file.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len() as i32,
                offset,
            )
        }
    })
}

/// Calls `io` with what is left to do until nothing is.
fn transfer(
    slices: &[VolatileSlice<'_>],
    offset: u64,
    mut io: impl FnMut(&[libc::iovec], i64) -> isize,
) -> io::Result<()> {
    let guards: Vec<_> = slices.iter().map(VolatileSlice::ptr_guard_mut).collect();
    let mut ranges: Vec<_> = guards
        .iter()
        .filter(|guard| guard.len() > 0)
        .map(|guard| libc::iovec {
            iov_base: guard.as_ptr().cast(),
            iov_len: guard.len(),
        })
        .collect();
    let mut offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut rest = ranges.as_mut_slice();
    while !rest.is_empty() {
        let done = match io(&rest[..rest.len().min(MAX_RANGES)], offset) {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            done => done as usize,
        };
        offset += done as i64;
        rest = skip(rest, done);
    }
    Ok(())
}

/// What is left of `ranges` after their first `done` bytes.
fn skip(mut ranges: &mut [libc::iovec], mut done: usize) -> &mut [libc::iovec] {
    while let Some(first) = ranges.first_mut() {
        if done < first.iov_len {
            first.iov_base = first.iov_base.wrapping_byte_add(done);
            first.iov_len -= done;
            break;
        }
        done -= first.iov_len;
        ranges = &mut ranges[1..];
    }
    ranges
}

/// Locks `file` (flock(2)) against other processes until it is closed: alone if
/// `exclusive`, otherwise together with other holders that are not. Does not wait.
///
/// # Errors
/// Another process holds a lock that excludes this one (`WouldBlock`), or the
/// file system has no locks.
pub fn try_lock(file: &File, exclusive: bool) -> io::Result<()> {
    let kind = if exclusive {
        libc::LOCK_EX
    } else {
        libc::LOCK_SH
    };
    // SAFETY: the descriptor is open; no memory is involved.
    check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
}

/// Frees the storage behind `len` bytes at `offset`, which then read as zeroes.
/// The file's size stays.
///
/// # Errors
/// The file system cannot do that (`Unsupported`), or the call fails otherwise.
pub fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(file, mode, offset, len)
}

/// Makes `len` bytes at `offset` read as zeroes and keeps storage for them.
/// The file's size stays.
///
/// # Errors
/// The file system cannot do that (`Unsupported`), or the call fails otherwise.
pub fn zero_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(file, mode, offset, len)
}

fn allocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    let number = |n| i64::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    let (offset, len) = (number(offset)?, number(len)?);
    loop {
        // SAFETY: the descriptor is open; no memory is involved.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fills `out` with random bytes of the kernel (getrandom(2)).
///
/// # Errors
/// The system call fails; after the host has booted Linux documents no reason.
pub fn random(out: &mut [u8]) -> io::Result<()> {
    let mut rest = out;
    while !rest.is_empty() {
        // SAFETY: the pointer and length are those of a writable slice.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => rest = &mut rest[got..],
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "file_test.rs"]
mod tests;
