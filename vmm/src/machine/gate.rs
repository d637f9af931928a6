//! The gate between the thread that drives a machine and its vCPU threads.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Rest,
    Run,
    End,
}

#[derive(Debug)]
struct State {
    wanted: Wanted,
    /// Threads that wait at the gate or have ended.
    parked: usize,
}

/// What is wanted of the vCPU threads, and how many of them are at rest.
///
/// A thread asks at the gate before it enters the guest and whenever it has
/// been kicked out. So after changing what is wanted, kick every thread.
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
}

impl Gate {
    /// A closed gate for `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            state: Mutex::new(State {
                wanted: Wanted::Rest,
                parked: 0,
            }),
            changed: Condvar::new(),
            threads,
        }
    }

    /// Called by a vCPU thread: waits while rest is wanted, calling `at_rest`
    /// before it first does. Returns false when the thread is to end.
    pub(super) fn pass(&self, at_rest: impl FnOnce()) -> bool {
        let mut state = self.state.lock();
        if state.wanted == Wanted::Rest {
            at_rest();
            state.parked += 1;
            self.changed.notify_all();
            self.changed
                .wait_while(&mut state, |state| state.wanted == Wanted::Rest);
            state.parked -= 1;
        }
        state.wanted == Wanted::Run
    }

    /// Called by a vCPU thread that will not come back.
    pub(super) fn leave(&self) {
        self.state.lock().parked += 1;
        self.changed.notify_all();
    }

    /// Whether threads may run.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().wanted == Wanted::Run
    }

    pub(super) fn run(&self) {
        self.set(Wanted::Run);
    }

    pub(super) fn rest(&self) {
        self.set(Wanted::Rest);
    }

    pub(super) fn end(&self) {
        self.set(Wanted::End);
    }

    /// Waits until every thread is at rest, or `limit` has passed; returns how
    /// many are.
    pub(super) fn wait_parked(&self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.parked < self.threads {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.parked
    }

    fn set(&self, wanted: Wanted) {
        self.state.lock().wanted = wanted;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn threads_rest_until_they_may_run_and_end_when_told() {
        let gate = Arc::new(Gate::new(3));
        let turns = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, turns) = (gate.clone(), turns.clone());
                thread::spawn(move || {
                    while gate.pass(|| {}) {
                        turns.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                    }
                    gate.leave();
                })
            })
            .collect();
        assert_eq!(gate.wait_parked(Duration::from_secs(10)), 3);
        assert_eq!(turns.load(Ordering::SeqCst), 0);
        for _ in 0..1000 {
            gate.run();
            gate.rest();
            assert_eq!(gate.wait_parked(Duration::from_secs(10)), 3);
            let at_rest = turns.load(Ordering::SeqCst);
            assert_eq!(turns.load(Ordering::SeqCst), at_rest);
        }
        gate.end();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(gate.wait_parked(Duration::ZERO), 3);
    }

    #[test]
    fn waiting_ends_at_the_limit() {
        let gate = Gate::new(1);
        assert_eq!(gate.wait_parked(Duration::from_millis(1)), 0);
    }
}
