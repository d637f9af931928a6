//! Bounds the lines that a guest can cause.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets a few lines through in a stretch of time and counts the others.
///
/// One belongs to one place in the program; [`guest_warn!`](crate::guest_warn)
/// makes it.
pub struct Throttle {
    /// Elapsed time is counted from the first line.
    started: OnceLock<Instant>,
    state: Mutex<State>,
}

struct State {
    window: u64,
    passed: u32,
    held_back: u64,
}

impl Throttle {
    const WINDOW: Duration = Duration::from_secs(5);
    const LINES_PER_WINDOW: u32 = 10;

    /// A throttle that has seen nothing.
    pub const fn new() -> Throttle {
        let state = State {
            window: 0,
            passed: 0,
            held_back: 0,
        };
        Throttle {
            started: OnceLock::new(),
            state: Mutex::new(state),
        }
    }

    /// Whether a line may be written now, and if so how many were held back
    /// since the last one that was.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(self.started.get_or_init(Instant::now).elapsed())
    }

    fn admit_at(&self, elapsed: Duration) -> Option<u64> {
        let window = elapsed.as_secs() / Self::WINDOW.as_secs();
        let mut state = self.state.lock();
        if state.window != window {
            state.window = window;
            state.passed = 0;
        }
        if state.passed == Self::LINES_PER_WINDOW {
            state.held_back += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.held_back))
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Throttle::new()
    }
}

/// Logs a warning about something that the guest did, at most ten times in five
/// seconds for each place that uses it: a guest must not be able to fill a disk.
#[macro_export]
macro_rules! guest_warn {
    ($($message:tt)+) => {{
        static THROTTLE: $crate::logger::Throttle = $crate::logger::Throttle::new();
        match THROTTLE.admit() {
            None => (),
            Some(0) => ::log::warn!($($message)+),
            Some(held_back) => ::log::warn!(
                "{} ({held_back} more such lines were held back)",
                ::core::format_args!($($message)+)
            ),
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_the_next_window_says_so() {
        let throttle = Throttle::new();
        let at = |seconds| throttle.admit_at(Duration::from_secs(seconds));
        assert!((0..10).all(|_| at(1) == Some(0)));
        assert!((0..500).all(|_| at(4).is_none()));
        assert_eq!(at(5), Some(500));
        assert_eq!(at(6), Some(0));
    }
}
