//! The moment from which a snapshot is completed even if its machine ends.

use std::fs::File;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

/// Shared by the thread that writes a snapshot and the machine that may end.
#[derive(Clone)]
pub(super) struct Commit {
    state: Arc<Mutex<State>>,
    draft: Arc<File>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Appearing,
    Abandoned,
}

impl Commit {
    /// For a snapshot whose memory goes into `draft`.
    pub(super) fn of(draft: &File) -> io::Result<Self> {
        Ok(Self {
            state: Arc::new(Mutex::new(State::Writing)),
            draft: Arc::new(draft.try_clone()?),
        })
    }

    /// The layer is complete and about to appear. False if nobody wants it any
    /// more.
    pub(super) fn make(&self) -> bool {
        let mut state = self.state.lock();
        if *state == State::Writing {
            *state = State::Appearing;
        }
        *state == State::Appearing
    }

    /// Nobody wants the snapshot any more. Unless it is about to appear, the draft
    /// is emptied, so that nobody reads, hashes or flushes gibibytes for nothing.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        if *state == State::Appearing {
            return;
        }
        *state = State::Abandoned;
        if let Err(error) = self.draft.set_len(0) {
            log::debug!("an abandoned snapshot takes as long as a complete one: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn written() -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        file
    }

    #[test]
    fn what_is_abandoned_is_emptied_and_never_appears() {
        let file = written();
        let commit = Commit::of(&file).unwrap();
        commit.abandon();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert!(!commit.make());
    }

    #[test]
    fn what_is_about_to_appear_is_left_alone() {
        let file = written();
        let commit = Commit::of(&file).unwrap();
        assert!(commit.make());
        commit.abandon();
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }
}
