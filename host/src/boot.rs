//! A machine from the start of its VMM until its agent has called.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use coppice_agent_protocol::AgentHello;
use nix::poll::{PollFd, PollFlags};

use crate::error::{Error, LastWords};
use crate::guest::Ready;
use crate::probe::probe;
use crate::signals::{Arrived, Signals};
use crate::vmm::Vmm;
use crate::wait;

/// A guest that has said nothing for so long may be one that cannot run here.
const SILENCE: Duration = Duration::from_secs(5);

/// A VMM whose guest's agent has yet to call.
#[derive(Debug)]
pub struct Boot {
    /// The VMM.
    pub vmm: Vmm,
    /// Its program, which can also say what this host lacks.
    pub program: PathBuf,
    /// Where the agent calls.
    pub ready: Ready,
}

impl Boot {
    /// Waits until the agent has called.
    pub fn wait_ready(&mut self, signals: &Signals, limit: Duration) -> Result<AgentHello, Error> {
        let deadline = Instant::now().checked_add(limit);
        let mut look = Some(Instant::now() + SILENCE);
        loop {
            let mut fds = [self.ready.as_fd(), self.vmm.exited(), signals.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let next = [look, deadline].into_iter().flatten().min();
            let ready = wait::until(&mut fds, next).map_err(Error::host("waiting failed"))?;
            let [called, exited, signalled] = fds.map(|fd| wait::is_ready(&fd));
            if !ready {
                let said = self.last_words(false);
                if said.host.is_some() {
                    return Err(Error::HostUnfit(said));
                }
                // Looked once. From here on only the deadline counts.
                look = None;
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(Error::NeverReady { after: limit, said });
                }
                continue;
            }
            if called && let Some(hello) = self.ready.take()? {
                return Ok(hello);
            }
            if signalled {
                let next = signals
                    .next()
                    .map_err(Error::host("signals cannot be read"))?;
                if let Some(Arrived::End(signal)) = next {
                    return Err(Error::Signalled(signal));
                }
            }
            if exited {
                let status = self
                    .vmm
                    .wait(Duration::ZERO)
                    .map_err(Error::host("the VMM cannot be waited for"))?;
                return Err(match status {
                    Some(status) => Error::DidNotStart {
                        status,
                        said: self.last_words(true),
                    },
                    None => continue,
                });
            }
        }
    }

    /// What was last heard; if the guest never said a word, also whether this
    /// host is to blame.
    fn last_words(&self, ended: bool) -> LastWords {
        let mut said = self.vmm.last_words(ended);
        if said.console.is_empty()
            && let Ok(probe) = probe(&self.program)
        {
            said.host = probe.obstacle();
        }
        said
    }
}
