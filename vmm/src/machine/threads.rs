//! The vCPU threads of a machine.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::MachineError;
use super::gate::Gate;
use super::outcome::{Ending, Outcome};
use crate::bus::Effect;
use crate::sys::kick;
use crate::vcpu::{Buses, Supervisor, Turn, Vcpu, run_loop};

/// How long vCPUs may take to come to rest. They need microseconds; a vCPU that
/// waits for a page from a slow disk needs as long as the disk.
const PAUSE_LIMIT: Duration = Duration::from_secs(5);

/// One thread for each vCPU. They are made when the vCPUs run for the first
/// time: until then nobody shares the vCPUs, or the locks of the process's
/// memory, with whoever fills them.
pub(super) struct VcpuThreads {
    gate: Arc<Gate>,
    vcpus: Vec<Arc<Mutex<Vcpu>>>,
    threads: Vec<JoinHandle<()>>,
    buses: Arc<Buses>,
    ending: Arc<Ending>,
}

impl VcpuThreads {
    /// For `vcpus`, none of which runs yet.
    pub(super) fn new(vcpus: Vec<Vcpu>, buses: &Arc<Buses>, ending: &Arc<Ending>) -> Self {
        Self {
            gate: Arc::new(Gate::new(vcpus.len())),
            vcpus: vcpus
                .into_iter()
                .map(|vcpu| Arc::new(Mutex::new(vcpu)))
                .collect(),
            threads: Vec::new(),
            buses: buses.clone(),
            ending: ending.clone(),
        }
    }

    /// Makes the threads that are not there yet.
    fn spawn(&mut self) -> io::Result<()> {
        for vcpu in &self.vcpus[self.threads.len()..] {
            let index = vcpu.lock().index();
            let (vcpu, buses) = (vcpu.clone(), self.buses.clone());
            let mut supervisor = Supervision {
                gate: self.gate.clone(),
                ending: self.ending.clone(),
            };
            let thread = Builder::new()
                .name(format!("vcpu {index}"))
                .spawn(move || {
                    run_loop(&vcpu, &buses, &mut supervisor);
                    supervisor.gate.leave();
                })?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// The vCPUs. Their locks are free while they are at rest.
    pub(super) fn vcpus(&self) -> &[Arc<Mutex<Vcpu>>] {
        &self.vcpus
    }

    /// Whether the vCPUs may run.
    pub(super) fn running(&self) -> bool {
        self.gate.is_open()
    }

    pub(super) fn resume(&mut self) -> Result<(), MachineError> {
        // Before the threads, so that none of them waits.
        self.gate.run();
        self.spawn().map_err(|source| {
            self.gate.rest();
            MachineError::Host {
                what: "start a vCPU thread",
                source,
            }
        })
    }

    pub(super) fn pause(&self) -> Result<(), MachineError> {
        self.gate.rest();
        if self.threads.is_empty() {
            return Ok(());
        }
        self.kick();
        let parked = self.gate.wait_parked(PAUSE_LIMIT);
        if parked == self.threads.len() {
            return Ok(());
        }
        self.gate.run();
        Err(MachineError::PauseTimeout {
            parked,
            vcpus: self.threads.len(),
            limit_ms: PAUSE_LIMIT.as_millis() as u64,
        })
    }

    /// Ends and joins all threads. Calling it again does nothing.
    pub(super) fn stop(&mut self) {
        self.gate.end();
        self.kick();
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }

    fn kick(&self) {
        self.threads.iter().for_each(kick::kick);
    }
}

impl Drop for VcpuThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What one vCPU thread shares with the machine.
struct Supervision {
    gate: Arc<Gate>,
    ending: Arc<Ending>,
}

impl Supervisor for Supervision {
    fn may_run(&mut self, vcpu: &Mutex<Vcpu>) -> bool {
        self.gate.pass(|| vcpu.lock().tell_paused())
    }

    fn panicked(&mut self) {
        Ending::panicked(&self.ending);
    }

    fn ended(&mut self, vcpu: &Vcpu, turn: Turn) {
        let outcome = match turn {
            Turn::Effect(Effect::Reset) => Outcome::Reset,
            Turn::Effect(Effect::PowerOff) => Outcome::PowerOff,
            Turn::Failed(what) => Outcome::VcpuFailed {
                vcpu: vcpu.index(),
                what,
            },
            // The loop goes on after these and never ends with them.
            Turn::Again | Turn::Kicked | Turn::Effect(Effect::None | Effect::GuestPanic) => return,
        };
        self.ending.report(outcome);
    }
}
