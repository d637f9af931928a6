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

/// The id that the kernel gave this boot of the host (random(4)), or nothing if
/// there is no /proc.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().to_owned()
}

/// Has all threads allocate from one arena (mallopt(3)). A process of few threads
/// that hardly allocate saves the set-up of an arena for each, and its memory.
pub fn share_one_arena() {
    // SAFETY: the call takes integers and is made before there are threads.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}
