//! Can this host run Linux guests? Facts on KVM, each with a remedy.
//!
//! That /dev/kvm exists does not answer it: some hosts offer a KVM that runs a
//! guest kernel through an instruction emulator with gaps. So the probe boots a
//! tiny guest that executes what a kernel executes (see `guest`). It takes a few
//! milliseconds, and two seconds if it hangs; then it is tried twice more, since
//! on a host that is busy beyond measure that may mean nothing.

mod facts;
mod findings;
mod guest;
mod run;

use std::fmt;
use std::io;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm as KvmFd};
use serde::Serialize;

pub use facts::HostFacts;
pub use findings::{Finding, Severity};

/// The device that KVM is reached through.
pub const KVM_DEVICE: &str = "/dev/kvm";

/// How often a test guest that hangs is tried.
const ATTEMPTS: u32 = 3;

/// The API version that every KVM since Linux 2.6.22 reports.
const API_VERSION: i32 = 12;

/// What a machine cannot do without, by the names of KVM's header.
const REQUIRED: [(Cap, &str); 11] = [
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::MpState, "KVM_CAP_MP_STATE"),
    (Cap::Irqfd, "KVM_CAP_IRQFD"),
    (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
    (Cap::Pit2, "KVM_CAP_PIT2"),
    (Cap::Xsave, "KVM_CAP_XSAVE"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
];
/// What makes a machine better where it is there.
const WELCOME: [(Cap, &str); 5] = [
    (Cap::TscDeadlineTimer, "KVM_CAP_TSC_DEADLINE_TIMER"),
    (Cap::GetTscKhz, "KVM_CAP_GET_TSC_KHZ"),
    (Cap::AdjustClock, "KVM_CAP_ADJUST_CLOCK"),
    (Cap::Xcrs, "KVM_CAP_XCRS"),
    (Cap::Xsave2, "KVM_CAP_XSAVE2"),
];

/// Everything the probe found out.
#[derive(Debug, Serialize)]
pub struct Probe {
    /// What is behind /dev/kvm.
    pub kvm: Kvm,
    /// Whether it runs Linux guests.
    pub linux: Linux,
    /// The processor and the kernel of this host.
    pub host: HostFacts,
    /// What the test guest cost; `None` if it could not be started.
    pub cost: Option<Cost>,
    /// The same in sentences, each with what to do about it.
    pub findings: Vec<Finding>,
}

/// What is behind /dev/kvm.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Kvm {
    /// There is no such file.
    Missing,
    /// It cannot be opened.
    NoPermission {
        /// Why, as errno.
        errno: i32,
    },
    /// It is not KVM, or one whose API this program does not speak.
    NotKvm {
        /// What it answered.
        why: String,
    },
    /// It is KVM.
    Present {
        /// The version of its API.
        api_version: i32,
        /// The most vCPUs that one machine may have.
        max_vcpus: usize,
        /// Capabilities that a machine needs and this KVM lacks.
        missing: Vec<&'static str>,
        /// Capabilities that a machine would use and this KVM lacks.
        missing_optional: Vec<&'static str>,
    },
}

/// Whether Linux guests run here.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Linux {
    /// The test guest executed everything that it should.
    Usable,
    /// It did not.
    Unusable {
        /// What the guest was executing, if it got as far as to execute.
        instruction: Option<String>,
        /// What happened.
        why: String,
    },
}

/// What the test guest cost.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Microseconds to make a machine with one vCPU.
    pub create_us: u64,
    /// Plain instructions a second in supervisor mode. Hardware does billions;
    /// a KVM that emulates does a few million.
    pub supervisor_instructions_per_second: Option<u64>,
}

impl Probe {
    /// Whether Linux guests run here.
    pub fn is_usable(&self) -> bool {
        self.linux == Linux::Usable
    }
}

/// Looks at this host's KVM and tries it.
pub fn probe() -> Probe {
    probe_at(Path::new(KVM_DEVICE))
}

fn probe_at(device: &Path) -> Probe {
    let host = HostFacts::gather();
    let (kvm, linux, cost) = match open(device) {
        Ok(fd) => {
            let kvm = describe(&fd);
            let (linux, cost) = try_guest(&fd, &kvm);
            (kvm, linux, cost)
        }
        Err(kvm) => {
            let linux = Linux::Unusable {
                instruction: None,
                why: "there is no KVM that could be tried".into(),
            };
            (kvm, linux, None)
        }
    };
    let findings = findings::findings(device, &kvm, &linux, &host, cost.as_ref());
    Probe {
        kvm,
        linux,
        host,
        cost,
        findings,
    }
}

fn open(device: &Path) -> Result<KvmFd, Kvm> {
    // `File` sets O_CLOEXEC; KVM is content with any file of its device.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(device)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Kvm::Missing,
            _ => match error.raw_os_error() {
                // The node is there and no driver is behind it.
                Some(libc::ENXIO | libc::ENODEV) => Kvm::Missing,
                errno => Kvm::NoPermission {
                    errno: errno.unwrap_or(0),
                },
            },
        })?;
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor was just given up by its file, so the new object
    // is its only owner.
    let kvm = unsafe { <KvmFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    match kvm.get_api_version() {
        API_VERSION => Ok(kvm),
        -1 => Err(Kvm::NotKvm {
            why: format!("KVM_GET_API_VERSION failed: {}", io::Error::last_os_error()),
        }),
        other => Err(Kvm::NotKvm {
            why: format!("its API has version {other}, not {API_VERSION}"),
        }),
    }
}

fn describe(kvm: &KvmFd) -> Kvm {
    let missing = |caps: &[(Cap, &'static str)]| {
        caps.iter()
            .filter(|(cap, _)| !kvm.check_extension(*cap))
            .map(|&(_, name)| name)
            .collect()
    };
    Kvm::Present {
        api_version: API_VERSION,
        max_vcpus: kvm.get_max_vcpus(),
        missing: missing(&REQUIRED),
        missing_optional: missing(&WELCOME),
    }
}

fn try_guest(fd: &KvmFd, kvm: &Kvm) -> (Linux, Option<Cost>) {
    let unusable = |instruction: Option<&str>, why| Linux::Unusable {
        instruction: instruction.map(Into::into),
        why,
    };
    if let Kvm::Present { missing, .. } = kvm
        && !missing.is_empty()
    {
        return (
            unusable(None, format!("this KVM lacks {}", missing.join(", "))),
            None,
        );
    }
    let hung = |run: &Result<run::Run, _>| {
        matches!(
            run,
            Ok(run::Run {
                end: run::End::Hung { .. },
                ..
            })
        )
    };
    let mut attempt = run::run(fd);
    for _ in 1..ATTEMPTS {
        if hung(&attempt) {
            attempt = run::run(fd);
        }
    }
    match attempt {
        Err(error) => (unusable(None, error.to_string()), None),
        Ok(run) => {
            let cost = Cost {
                create_us: u64::try_from(run.create.as_micros()).unwrap_or(u64::MAX),
                supervisor_instructions_per_second: run.instructions_per_second,
            };
            let linux = match run.end {
                run::End::Done => Linux::Usable,
                run::End::Failed { step, why } | run::End::Hung { step, why } => {
                    unusable(step, why)
                }
            };
            (linux, Some(cost))
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "probe_test.rs"]
mod tests;
