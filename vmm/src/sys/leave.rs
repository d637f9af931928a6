//! Ends this process at once, and lets another take down what takes long.
//!
//! Destroying a virtual machine waits for the kernel to be sure that nobody uses
//! it any more: some ten milliseconds, for which whoever waits for the end of the
//! process would wait as well. So the last descriptors of KVM and the guest's
//! memory are left open, and a child that shares them outlives this process by
//! as long as that takes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Room for a few system calls.
const STACK: usize = 16 << 10;

/// Ends the process with `code`. Everything that others may want once it has
/// ended (files, locks, sockets) must be closed already: what is open stays so
/// for a moment.
pub fn exit(code: u8) -> ! {
    if let Err(error) = leave_behind() {
        log::debug!("the virtual machine is taken down before the end: {error}");
    }
    // SAFETY: ends all threads of the process; there is nobody to be surprised.
    unsafe { libc::_exit(code.into()) }
}

/// Keeps what `descriptor` stands for until the process ends, even if everybody
/// closes it.
pub fn keep_until_exit(descriptor: &impl AsRawFd) {
    // SAFETY: the descriptor is open while it is borrowed.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor.as_raw_fd()) };
    // Without a second descriptor it just ends earlier.
    if let Ok(second) = descriptor.try_clone_to_owned() {
        std::mem::forget(second);
    }
}

/// Makes a child that shares memory and descriptors, and ends when this process
/// does.
fn leave_behind() -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: a new mapping; nothing is replaced. It is never unmapped, since the
    // child needs it to its end.
    let stack = unsafe { libc::mmap(ptr::null_mut(), STACK, access, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let top = stack.wrapping_byte_add(STACK);
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::SIGCHLD;
    // SAFETY: getpid takes nothing.
    let parent = unsafe { libc::getpid() } as usize as *mut libc::c_void;
    // SAFETY: the stack is the child's own and large enough for `linger`, which
    // makes system calls only. The parent ends without touching memory again.
    match unsafe { libc::clone(linger, top, flags, parent) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits for the signal by which the kernel tells of the parent's end.
extern "C" fn linger(parent: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the calls take integers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        while libc::getppid() as usize == parent as usize {
            libc::pause();
        }
    }
    0
}
