//! What makes a restored machine another one than its siblings.

use std::fmt;
use std::time::Duration;

use crate::error::DecodeError;
use crate::message::cut;
use crate::wire::{Reader, Writer};

/// Bytes of a [`Seed`]: as many as the kernel's entropy pool holds.
pub const SEED_LEN: usize = 32;

/// Bytes of a generation identifier.
pub const GENERATION_LEN: usize = 16;

/// Random bytes for the kernel's entropy pool. They are secret, so that they
/// are not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed(pub [u8; SEED_LEN]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(…)")
    }
}

/// The guest runs on from a snapshot, as another machine.
///
/// Sending it twice does no harm: everything is renewed once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// Names this machine among all that grew from the snapshot. The
    /// machine-id is made of it.
    pub generation: [u8; GENERATION_LEN],
    /// For the kernel's entropy pool.
    pub seed: Seed,
    /// The wall clock when this was sent, in nanoseconds since 1970; without
    /// it the guest's clock stays.
    pub wall_clock_ns: Option<u64>,
    /// The host name; without it the guest's stays.
    pub hostname: Option<String>,
    /// Renew the machine-id and the kernel's boot id.
    pub machine_id: bool,
    /// Renew the SSH host keys.
    pub ssh_keys: bool,
    /// Run the hooks.
    pub hooks: bool,
}

impl Resumed {
    /// A request that renews everything, and sets clock and host name if they
    /// are given.
    pub fn everything(generation: [u8; GENERATION_LEN], seed: Seed) -> Self {
        Self {
            generation,
            seed,
            wall_clock_ns: None,
            hostname: None,
            machine_id: true,
            ssh_keys: true,
            hooks: true,
        }
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        let Self {
            generation,
            seed,
            wall_clock_ns,
            hostname,
            machine_id,
            ssh_keys,
            hooks,
        } = self;
        w.raw(generation)
            .raw(&seed.0)
            .option(*wall_clock_ns, |w, v| w.u64(v))
            .option(hostname.as_ref(), |w, v| w.bytes(v.as_bytes()))
            .bool(*machine_id)
            .bool(*ssh_keys)
            .bool(*hooks);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            generation: r.array("generation")?,
            seed: Seed(r.array("seed")?),
            wall_clock_ns: r.option("wall_clock_ns", Reader::u64)?,
            hostname: r.option("hostname", Reader::string)?,
            machine_id: r.bool("machine_id")?,
            ssh_keys: r.bool("ssh_keys")?,
            hooks: r.bool("hooks")?,
        })
    }
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StepState {
    /// It is done.
    Done = 0,
    /// The guest has nothing to be renewed here.
    Absent = 1,
    /// What is old has gone; what is new is being made.
    Pending = 2,
    /// It failed; the other steps were taken all the same.
    Failed = 3,
}

/// One step of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// As `docs/agent-protocol.md` lists them: `entropy`, `clock` …, `hook NAME`.
    pub name: String,
    /// What became of it.
    pub state: StepState,
    /// More for people; why, if it failed.
    pub detail: String,
    /// Microseconds that it took.
    pub elapsed_us: u64,
}

impl Step {
    /// The most bytes of a name or a detail; what is longer is cut.
    pub const MAX_TEXT: usize = 2048;

    /// A step that took so long.
    pub fn new(
        name: impl Into<String>,
        state: StepState,
        detail: impl Into<String>,
        took: Duration,
    ) -> Self {
        Self {
            name: cut(name.into(), Self::MAX_TEXT),
            state,
            detail: cut(detail.into(), Self::MAX_TEXT),
            elapsed_us: took.as_micros().try_into().unwrap_or(u64::MAX),
        }
    }

    fn write(&self, w: &mut Writer) {
        w.bytes(self.name.as_bytes())
            .u8(self.state as u8)
            .bytes(self.detail.as_bytes())
            .u64(self.elapsed_us);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: r.string("step name")?,
            state: match r.u8("step state")? {
                0 => StepState::Done,
                1 => StepState::Absent,
                2 => StepState::Pending,
                3 => StepState::Failed,
                _ => return Err(r.bad("step state")),
            },
            detail: r.string("step detail")?,
            elapsed_us: r.u64("step elapsed_us")?,
        })
    }
}

/// What was renewed, in the order in which it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Renewed {
    /// The steps that were asked for.
    pub steps: Vec<Step>,
    /// Microseconds from the request to this answer.
    pub elapsed_us: u64,
}

impl Renewed {
    /// The steps that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Step> {
        let failed = |step: &&Step| step.state == StepState::Failed;
        self.steps.iter().filter(failed)
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.count(self.steps.len());
        for step in &self.steps {
            step.write(w);
        }
        w.u64(self.elapsed_us);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            steps: r.list("steps", |r, _| Step::read(r))?,
            elapsed_us: r.u64("elapsed_us")?,
        })
    }
}
