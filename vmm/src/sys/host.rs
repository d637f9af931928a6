//! Facts about the host.

use std::io;

/// Memory and swap of the host in bytes (sysinfo(2)).
///
/// # Errors
/// The system call fails, which Linux does not document for valid arguments.
pub fn memory_and_swap() -> io::Result<u64> {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: the pointer is to writable memory of the right size and type.
    if unsafe { libc::sysinfo(info.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let info = unsafe { info.assume_init() };
    let unit = u64::from(info.mem_unit.max(1));
    Ok(info
        .totalram
        .saturating_add(info.totalswap)
        .saturating_mul(unit))
}
