//! A reader that is not kept waiting.

/// Gives the calling thread a real-time priority, so that it takes note of a
/// guest's output when it comes: a guest that runs on would otherwise make it wait
/// for its turn on a busy host, and a floor program that has ended would not. What
/// the thread starts does not inherit it. Does nothing if it is not allowed.
pub fn be_prompt() {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are a valid structure, of which the kernel takes a
    // copy; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
