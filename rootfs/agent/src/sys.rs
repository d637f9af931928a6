// UNSAFETY: what no safe crate offers in the form that is needed here: a fork
// straight into a control group, and a handful of ioctls of terminals, pipes,
// interfaces and the random number generator.
//! The agent's own system calls.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use coppice_agent_protocol::{Outcome, SEED_LEN, WindowSize};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::pty::Winsize;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

mod ioctls {
    use std::ffi::c_int;

    use nix::pty::Winsize;

    nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, Winsize);
    nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);
    nix::ioctl_read_bad!(readable_bytes, libc::FIONREAD, c_int);
    nix::ioctl_read_bad!(get_interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);
    nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);

    /// `struct rand_pool_info` of `<linux/random.h>` with its buffer.
    #[repr(C)]
    pub(super) struct Entropy {
        pub(super) bits: c_int,
        pub(super) bytes: c_int,
        pub(super) buffer: [u8; super::SEED_LEN],
    }

    nix::ioctl_write_ptr_bad!(
        add_entropy,
        nix::request_code_write!(b'R', 0x03, size_of::<[c_int; 2]>()),
        Entropy
    );
    nix::ioctl_none_bad!(reseed, nix::request_code_none!(b'R', 0x07));
}

/// `CLONE_INTO_CGROUP` of `<linux/sched.h>`, Linux 5.7.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks; the child starts in `cgroup` if there is one. Returns the child's
/// id, or nothing in the child.
///
/// This process never starts a thread. So the child is a whole copy of it, no
/// lock is held by a thread that the copy lacks, and the child may do anything
/// that the parent may.
pub(crate) fn fork(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Pid>> {
    let Some(cgroup) = cgroup else {
        // SAFETY: fork has no requirement in a process with one thread, and
        // this process has one (see above).
        return match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
            nix::unistd::ForkResult::Child => Ok(None),
        };
    };
    // SAFETY: `clone_args` is plain integers, for which zero is valid, and
    // means "nothing of that" in each field.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: `args` is a valid clone_args of the size that is passed. Without
    // CLONE_VM the child runs on its own copy of this stack, so both returns
    // are as those of fork. The C library's fork handlers are skipped: they
    // guard locks against other threads, and there are none.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    match Errno::result(result)? {
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid as i32))),
    }
}

/// Gives a terminal this size; its foreground group gets SIGWINCH.
pub(crate) fn set_window_size(terminal: &OwnedFd, size: WindowSize) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads one Winsize, which lives until the call ends.
    unsafe { ioctls::set_window_size(terminal.as_raw_fd(), &window_size(size)) }?;
    Ok(())
}

/// The kernel's form of a terminal's size.
pub(crate) fn window_size(size: WindowSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Makes `terminal` the controlling terminal of the calling session leader.
pub(crate) fn set_controlling_terminal(terminal: impl AsFd) -> Result<(), Errno> {
    let fd = terminal.as_fd().as_raw_fd();
    // SAFETY: TIOCSCTTY takes an integer and touches no memory of ours.
    unsafe { ioctls::set_controlling_terminal(fd, 0) }?;
    Ok(())
}

/// Adds secret random bytes to the kernel's pool and counts them as such
/// (RNDADDENTROPY), then has the kernel draw from the new pool at once
/// (RNDRESEEDCRNG) instead of within a minute.
pub(crate) fn reseed(random: &fs::File, seed: &[u8; SEED_LEN]) -> io::Result<()> {
    let entropy = ioctls::Entropy {
        bits: 8 * SEED_LEN as i32,
        bytes: SEED_LEN as i32,
        buffer: *seed,
    };
    // SAFETY: RNDADDENTROPY reads two ints and as many bytes as the second one
    // says; all of them are fields of `entropy`, in this order.
    unsafe { ioctls::add_entropy(random.as_raw_fd(), &raw const entropy) }?;
    // SAFETY: RNDRESEEDCRNG takes no argument and touches no memory of ours.
    unsafe { ioctls::reseed(random.as_raw_fd()) }?;
    Ok(())
}

/// Fills `out` with random bytes of the kernel.
pub(crate) fn random(out: &mut [u8]) -> io::Result<()> {
    // SAFETY: the pointer and length are those of a writable slice.
    let got = unsafe { libc::getrandom(out.as_mut_ptr().cast(), out.len(), 0) };
    // Up to 256 bytes come whole, and a signal does not interrupt them.
    match usize::try_from(got) {
        Ok(got) if got == out.len() => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many bytes a read could have now.
pub(crate) fn readable_bytes(fd: &OwnedFd) -> usize {
    let mut count = 0;
    // SAFETY: FIONREAD writes one int, and `count` is one.
    let result = unsafe { ioctls::readable_bytes(fd.as_raw_fd(), &raw mut count) };
    result.map_or(0, |_| usize::try_from(count).unwrap_or(0))
}

/// Marks every descriptor from `first` on to be closed by execve.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now, so no
    // descriptor's owner is affected.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Errno::result(result)?;
    Ok(())
}

/// Sets how this process takes a signal: by default, or not at all.
pub(crate) fn set_disposition(signal: Signal, handler: SigHandler) -> Result<(), Errno> {
    debug_assert!(matches!(handler, SigHandler::SigDfl | SigHandler::SigIgn));
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler function is installed, only "default" or "ignore".
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

/// Ends this process at once: no exit handlers, no flushing of buffers that
/// are copies of the parent's.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no requirement and does not return.
    unsafe { libc::_exit(code) }
}

/// Sends any of the kernel's 64 signals to a process group.
pub(crate) fn signal_group(group: Pid, number: u8) -> io::Result<()> {
    // SAFETY: killpg touches no memory of ours.
    Errno::result(unsafe { libc::killpg(group.as_raw(), i32::from(number)) })?;
    Ok(())
}

/// A child that has ended, without reaping it. (The safe wrapper knows no
/// real-time signals, and a child that one of them killed must be reaped too.)
pub(crate) fn ended_child() -> Option<(Pid, Outcome)> {
    // SAFETY: siginfo_t is plain data, for which zero is valid.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: waitid writes one siginfo_t, and `info` is one.
        let result = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) };
        match Errno::result(result) {
            Err(Errno::EINTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    // SAFETY: waitid filled the fields of SIGCHLD, or left the id zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let outcome = match info.si_code {
        libc::CLD_EXITED => Outcome::Code(status as u8),
        _ => Outcome::Signal(status as u8),
    };
    (pid != 0).then(|| (Pid::from_raw(pid), outcome))
}

/// Adopts the orphans among this process's descendants, as process 1 does.
pub(crate) fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    Ok(())
}

/// Switches a network interface on.
pub(crate) fn bring_up(name: &str) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // SAFETY: ifreq is plain data, for which zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // One byte is left zero, to end the name.
    let limit = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..limit].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: both calls take an ifreq with a terminated name; the first fills
    // its flags, which are therefore the union's valid member.
    unsafe {
        ioctls::get_interface_flags(socket.as_raw_fd(), &raw mut request)?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        ioctls::set_interface_flags(socket.as_raw_fd(), &raw const request)?;
    }
    Ok(())
}

/// Lets this process have as many descriptors as all of its streams need.
pub(crate) fn raise_open_files() {
    const NEEDED: u64 = 65_536;
    if setrlimit(Resource::RLIMIT_NOFILE, NEEDED, NEEDED.max(524_288)).is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(NEEDED), hard);
    }
}

/// Whether the next descriptor would be one of the standard streams.
pub(crate) fn lowest_free_fd_is_standard() -> bool {
    // SAFETY: F_GETFD only looks at a number, open or not.
    (0..=2).any(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0)
}

/// Opens a path for reading and writing, for the rest of the process's life.
pub(crate) fn open_and_keep(path: &CStr) -> bool {
    let opened = open(path, OFlag::O_RDWR | OFlag::O_NOCTTY, Mode::empty());
    opened.map(IntoRawFd::into_raw_fd).is_ok()
}
