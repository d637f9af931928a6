//! Makes a thread leave KVM_RUN, without a window in which a kick is lost.
//!
//! A signal that lands between a thread's last check and KVM_RUN would only
//! run its handler. So the handler also sets `immediate_exit` in the thread's
//! own kvm_run page, and a KVM_RUN that starts after it returns at once with
//! EINTR (`Documentation/virt/kvm/api.rst`, section 5).

use std::cell::Cell;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::thread::JoinHandle;

use kvm_bindings::kvm_run;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// `immediate_exit` of the vCPU that this thread runs, if any.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: the pointer was set by `Kickable::new` on this very thread
        // and is cleared when the guard is dropped, while the page is mapped.
        // The handler runs on the same thread, so nothing races with it.
        unsafe { flag.write_volatile(1) };
    }
}

/// Installs the handler for the whole process. Calling it again is harmless.
///
/// # Errors
/// The kernel refuses the handler.
pub fn install() -> io::Result<()> {
    register_signal_handler(SIGRTMIN(), on_kick).map_err(Into::into)
}

/// While it lives, a kick of the current thread ends the KVM_RUN to come.
pub struct Kickable {
    /// The guard belongs to the thread that made it.
    _not_send: std::marker::PhantomData<*mut u8>,
}

impl Kickable {
    /// Makes the current thread kickable out of the vCPU whose page is `run`.
    ///
    /// # Safety
    /// `run` must stay mapped for as long as the guard lives.
    pub unsafe fn new(run: *mut kvm_run) -> Self {
        // SAFETY: the caller gives a valid pointer; no reference is made.
        let flag = unsafe { &raw mut (*run).immediate_exit };
        IMMEDIATE_EXIT.set(flag);
        Self {
            _not_send: std::marker::PhantomData,
        }
    }
}

impl Drop for Kickable {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }
}

/// Kicks `thread`. A thread that has already ended is left alone.
pub fn kick<T>(thread: &JoinHandle<T>) {
    // SAFETY: a JoinHandle that is neither joined nor dropped keeps the thread
    // id valid, even after the thread has ended.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), SIGRTMIN()) };
}
