//! Child processes for tests, and faults in them: one that is killed, or whose disk is full, at a
//! chosen one of the system calls with which it changes files.

use libc::{SYS_copy_file_range, SYS_fallocate, SYS_fchmod, SYS_fdatasync, SYS_fsync};
use libc::{SYS_ftruncate, SYS_linkat, SYS_mkdir, SYS_mkdirat, SYS_open, SYS_openat};
use libc::{SYS_pwrite64, SYS_rename, SYS_rmdir, SYS_unlink, SYS_unlinkat, SYS_write};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL before the call has begun.
    Kill,
    /// The call does nothing and says that there is no space.
    Full,
}

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It did all that it had to do, with this result, before the chosen call.
    Finished(i32),
    /// The fault came, and it ended with this result.
    Faulted(i32),
    /// The fault came and killed it.
    Killed,
}

/// Runs `work` in a child of this process, with `fault` at the `n`th call that
/// changes files, from 0. The result is what `work` gives.
pub fn with_fault(n: usize, fault: Fault, work: impl FnOnce() -> i32) -> End {
    follow(traced(work), n, fault)
}

/// A process that runs on by itself.
pub struct Child(Pid);

impl Child {
    /// Waits for its end; 0 if nothing panicked.
    pub fn wait(self) -> i32 {
        match waitpid(self.0, None).unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }
}

/// Does `work` in a child of this process.
pub fn in_child(work: impl FnOnce()) -> Child {
    in_child_that(|| {
        work();
        0
    })
}

fn in_child_that(work: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child runs on as a copy of this thread, and nothing of what it
    // does in `work` waits for a lock that another thread may have held: the
    // C library keeps its allocator usable in the child of a process with threads.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => Child(child),
        ForkResult::Child => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(result.unwrap_or(101)) }
        }
    }
}

/// The calls with which `work` changes files, in order.
pub fn calls(work: impl FnOnce() -> i32) -> Vec<i64> {
    let child = traced(work);
    let mut calls = Vec::new();
    while step(child).is_none() {
        let registers = ptrace::getregs(child).unwrap();
        if changes_files(&registers, Fault::Kill) {
            calls.push(registers.orig_rax as i64);
        }
        if step(child).is_some() {
            break;
        }
    }
    calls
}

/// A child that waits to be followed.
fn traced(work: impl FnOnce() -> i32) -> Pid {
    let Child(child) = in_child_that(|| {
        ptrace::traceme().unwrap();
        raise(Signal::SIGSTOP).unwrap();
        work()
    });
    waitpid(child, None).unwrap();
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(child, options).unwrap();
    child
}

fn follow(child: Pid, n: usize, fault: Fault) -> End {
    let mut seen = 0;
    loop {
        // To the beginning of the next call.
        if let Some(code) = step(child) {
            return End::Finished(code);
        }
        let mut registers = ptrace::getregs(child).unwrap();
        if changes_files(&registers, fault) {
            seen += 1;
        }
        if seen == n + 1 {
            if fault == Fault::Kill {
                kill(child, Signal::SIGKILL).unwrap();
                while waitpid(child, None).unwrap()
                    != WaitStatus::Signaled(child, Signal::SIGKILL, false)
                {}
                return End::Killed;
            }
            registers.orig_rax = u64::MAX;
            ptrace::setregs(child, registers).unwrap();
            assert_eq!(step(child), None);
            registers.rax = -i64::from(libc::ENOSPC) as u64;
            ptrace::setregs(child, registers).unwrap();
            ptrace::cont(child, None).unwrap();
            match waitpid(child, None).unwrap() {
                WaitStatus::Exited(_, code) => return End::Faulted(code),
                other => panic!("{other:?}"),
            }
        }
        // To its end.
        if let Some(code) = step(child) {
            return End::Finished(code);
        }
    }
}

/// Lets the child run until a call begins or ends; its exit code, if it has.
fn step(child: Pid) -> Option<i32> {
    ptrace::syscall(child, None).unwrap();
    match waitpid(child, None).unwrap() {
        WaitStatus::PtraceSyscall(_) => None,
        WaitStatus::Exited(_, code) => Some(code),
        other => panic!("{other:?}"),
    }
}

/// Whether the call that begins changes files, or for want of space could not.
fn changes_files(registers: &libc::user_regs_struct, fault: Fault) -> bool {
    let creates = |flags: u64| flags & libc::O_CREAT as u64 != 0;
    let removes = fault == Fault::Kill;
    #[expect(non_upper_case_globals, reason = "names of the C library")]
    match registers.orig_rax as i64 {
        SYS_open => creates(registers.rsi),
        SYS_openat => creates(registers.rdx),
        SYS_write | SYS_pwrite64 | SYS_ftruncate | SYS_fallocate | SYS_copy_file_range => true,
        SYS_fsync | SYS_fdatasync | SYS_rename | SYS_linkat | SYS_mkdir | SYS_mkdirat => true,
        SYS_unlink | SYS_unlinkat | SYS_rmdir | SYS_fchmod => removes,
        _ => false,
    }
}
