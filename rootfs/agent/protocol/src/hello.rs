//! Who is there: the hellos, and facts about the guest.

use crate::error::DecodeError;
use crate::wire::{Reader, Writer};
use crate::{MAGIC, PROTOCOL_VERSION};

/// The host's first message.
///
/// The magic and the version keep their place in every version of the
/// protocol; what follows them is only read if the versions agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostHello {
    /// The protocol that the host speaks.
    pub protocol: u16,
}

impl Default for HostHello {
    fn default() -> Self {
        Self {
            protocol: PROTOCOL_VERSION,
        }
    }
}

impl HostHello {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.raw(&MAGIC).u16(self.protocol);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let protocol = read_version(r)?;
        if protocol != PROTOCOL_VERSION {
            r.skip_rest();
        }
        Ok(Self { protocol })
    }
}

/// When the agent reached its milestones, in microseconds since the guest's
/// kernel started; 0 for one that this agent did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BootTimes {
    /// The agent's first instruction.
    pub started_us: u64,
    /// The root file system was mounted and entered.
    pub root_us: u64,
    /// The agent listened.
    pub ready_us: u64,
}

/// The agent's first message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentHello {
    /// The protocol that the agent speaks.
    pub protocol: u16,
    /// The agent's own version; empty if its protocol is another one.
    pub agent_version: String,
    /// The agent is process 1 of its machine.
    pub init: bool,
    /// How long the machine took to come up.
    pub boot: BootTimes,
}

impl AgentHello {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.raw(&MAGIC)
            .u16(self.protocol)
            .bytes(self.agent_version.as_bytes())
            .bool(self.init)
            .u64(self.boot.started_us)
            .u64(self.boot.root_us)
            .u64(self.boot.ready_us);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let protocol = read_version(r)?;
        if protocol != PROTOCOL_VERSION {
            r.skip_rest();
            return Ok(Self {
                protocol,
                ..Self::default()
            });
        }
        Ok(Self {
            protocol,
            agent_version: r.string("agent_version")?,
            init: r.bool("init")?,
            boot: BootTimes {
                started_us: r.u64("started_us")?,
                root_us: r.u64("root_us")?,
                ready_us: r.u64("ready_us")?,
            },
        })
    }
}

fn read_version(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    if r.array("magic")? != MAGIC {
        return Err(DecodeError::BadMagic);
    }
    r.u16("protocol")
}

/// Facts about the guest, asked for with [`crate::ToAgent::Info`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Info {
    /// Release of the kernel, as in `uname -r`.
    pub kernel_release: String,
    /// `PRETTY_NAME` of `/etc/os-release`; empty if there is none.
    pub os_name: String,
    /// The host name.
    pub hostname: String,
    /// Processors online.
    pub cpus: u32,
    /// Memory that the kernel manages, in bytes.
    pub memory_bytes: u64,
    /// Memory that programs could still have, in bytes.
    pub memory_available_bytes: u64,
    /// Microseconds since the kernel started.
    pub uptime_us: u64,
    /// The wall clock, in nanoseconds since 1970.
    pub wall_clock_ns: u64,
    /// Commands that are running.
    pub execs: u32,
    /// File descriptors that the agent holds.
    pub agent_fds: u32,
    /// Each command has a control group of its own.
    pub cgroups: bool,
}

impl Info {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.bytes(self.kernel_release.as_bytes())
            .bytes(self.os_name.as_bytes())
            .bytes(self.hostname.as_bytes())
            .u32(self.cpus)
            .u64(self.memory_bytes)
            .u64(self.memory_available_bytes)
            .u64(self.uptime_us)
            .u64(self.wall_clock_ns)
            .u32(self.execs)
            .u32(self.agent_fds)
            .bool(self.cgroups);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            kernel_release: r.string("kernel_release")?,
            os_name: r.string("os_name")?,
            hostname: r.string("hostname")?,
            cpus: r.u32("cpus")?,
            memory_bytes: r.u64("memory_bytes")?,
            memory_available_bytes: r.u64("memory_available_bytes")?,
            uptime_us: r.u64("uptime_us")?,
            wall_clock_ns: r.u64("wall_clock_ns")?,
            execs: r.u32("execs")?,
            agent_fds: r.u32("agent_fds")?,
            cgroups: r.bool("cgroups")?,
        })
    }
}
