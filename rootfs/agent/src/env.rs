//! What sessions share.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use coppice_agent_protocol::{AgentHello, MAX_PAYLOAD, PowerAction};
use nix::errno::Errno;
use nix::unistd::{Pid, read};

use crate::cgroup::{Cgroup, Cgroups};
use crate::poll::{Poller, Token};
use crate::renew::Underway;
use crate::slab::{Key, Slab};

/// Output on its way to the host, all sessions together. It bounds the
/// agent's memory, so that sparing the agent when memory runs out is safe.
const OUTPUT_BUDGET: usize = 8 * 1024 * 1024;

/// Outputs of left-over processes that are read for their sake.
const MAX_SINKS: usize = 1024;

/// What sessions share.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) poller: Poller,
    pub(crate) cgroups: Option<Cgroups>,
    /// Which session runs which process.
    pub(crate) children: HashMap<Pid, Key>,
    /// Pipes of processes that outlived their command: read and dropped.
    sinks: Slab<OwnedFd>,
    pub(crate) scratch: Box<[u8]>,
    /// Open sessions.
    pub(crate) sessions: usize,
    /// Bytes of requests that are not complete, all sessions together.
    pub(crate) pending: usize,
    pub(crate) hello: AgentHello,
    /// What the host asked this machine to do.
    pub(crate) power: Option<PowerAction>,
    /// Where the guest's files are.
    pub(crate) root: PathBuf,
    /// The renewal that has not ended.
    pub(crate) renewal: Option<Underway>,
    /// Types of SSH host keys that were removed and not made again yet.
    pub(crate) ssh_keys_due: BTreeSet<String>,
}

impl Env {
    pub(crate) fn new(
        poller: Poller,
        cgroups: Option<Cgroups>,
        hello: AgentHello,
        root: PathBuf,
    ) -> Self {
        Self {
            poller,
            cgroups,
            children: HashMap::new(),
            sinks: Slab::new(),
            scratch: vec![0; 64 * 1024].into_boxed_slice(),
            sessions: 0,
            pending: 0,
            hello,
            power: None,
            root,
            renewal: None,
            ssh_keys_due: BTreeSet::new(),
        }
    }

    /// How long a frame of output may be, so that all sessions' buffers
    /// together stay within the budget.
    pub(crate) fn frame_size(&self) -> usize {
        (OUTPUT_BUDGET / self.sessions.max(1)).clamp(4096, MAX_PAYLOAD)
    }

    /// Takes back a command's control group.
    pub(crate) fn release(&mut self, cgroup: Option<Cgroup>) {
        if let (Some(groups), Some(cgroup)) = (&mut self.cgroups, cgroup) {
            groups.release(cgroup);
        }
    }

    /// Reads and drops what arrives at `pipe` until its last writer closes it.
    pub(crate) fn sink(&mut self, pipe: OwnedFd) {
        if self.sinks.len() >= MAX_SINKS {
            return;
        }
        let key = self.sinks.insert(pipe);
        if let Some(pipe) = self.sinks.get_mut(key)
            && self.poller.reassign(pipe, Token::Sink(key)).is_err()
        {
            self.sinks.remove(key);
        }
    }

    /// Empties a sink; tells whether there is more.
    pub(crate) fn drain(&mut self, key: Key) -> bool {
        let Some(pipe) = self.sinks.get_mut(key) else {
            return false;
        };
        for _ in 0..16 {
            match read(&*pipe, &mut self.scratch) {
                Ok(0) => {
                    self.sinks.remove(key);
                    return false;
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return false,
                Err(_) => {
                    self.sinks.remove(key);
                    return false;
                }
            }
        }
        true
    }

    /// Descriptors that this process holds.
    pub(crate) fn count_fds() -> io::Result<usize> {
        // Less the one that reads the directory.
        Ok(std::fs::read_dir("/proc/self/fd")?
            .count()
            .saturating_sub(1))
    }
}
