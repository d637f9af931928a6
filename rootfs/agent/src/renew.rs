//! A machine that runs on from a snapshot is one of many with the same memory:
//! what they must not share is renewed here, at the host's request.
//!
//! ```text
//! entropy, clock, hostname, generation, machine-id, boot-id     at once
//! ssh-keys                                                      the old ones go
//! ssh-key TYPE …, ssh-server                                    if a server runs
//! hook NAME …                                                   one after the other
//!   ── the host gets its answer ──
//! ssh-key TYPE …                                                if no server runs
//! ```
//!
//! A step that fails is told by name and stops no other. A renewal goes on when
//! its host has gone: half of a new identity is worse than none.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{
    AgentError, Cleanup, ErrorKind, ExecRequest, ExitStatus, Outcome, Renewed, Resumed, Step,
    StepState,
};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::env::Env;
use crate::exec::Exec;
use crate::slab::Key;
use crate::sys;

mod files;
mod hooks;
mod identity;
mod ssh_keys;

/// How long one hook may take.
const HOOK_LIMIT: Duration = Duration::from_secs(10);

/// How long one SSH key may take: RSA looks for primes.
const KEY_LIMIT: Duration = Duration::from_secs(60);

/// A renewal that has not ended, for who wants to begin another.
#[derive(Debug, Default)]
pub(crate) struct Underway {
    /// The program that it waits for.
    program: Option<Pid>,
    cancelled: bool,
}

/// Something that comes after the first steps.
#[derive(Debug)]
enum Job {
    /// Runs the hook of this name.
    Hook(String),
    /// Makes the SSH host key of this type.
    SshKey(String),
    /// Has SSH servers read the new keys.
    SshServer,
    /// Answers the host; what follows is done while the machine works.
    Answer,
}

/// A program that runs.
#[derive(Debug)]
struct Running {
    job: Job,
    step: String,
    began: Instant,
    exec: Box<Exec>,
    /// Why it did not become the program.
    refusal: Option<String>,
}

/// A renewal from its request to its last program.
#[derive(Debug)]
pub(crate) struct Renewal {
    began: Instant,
    /// What the hooks' environment says besides the defaults.
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    steps: Vec<Step>,
    jobs: VecDeque<Job>,
    running: Option<Running>,
    answer: Option<Renewed>,
    answered: bool,
    over: bool,
}

impl Renewal {
    /// Takes the steps that wait for nothing, and plans the others. The request
    /// arrived at `now`.
    pub(crate) fn begin(
        request: &Resumed,
        now: Instant,
        env: &mut Env,
    ) -> Result<Self, AgentError> {
        if let Some(underway) = &mut env.renewal {
            // A snapshot may have been taken while an SSH key was being made. It
            // would be the same in every machine that grows from it.
            underway.cancelled = true;
            if let Some(program) = underway.program
                && sys::signal_group(program, Signal::SIGKILL as u8).is_err()
            {
                let _ = nix::sys::signal::kill(program, Signal::SIGKILL);
            }
            let message = "an earlier renewal is being ended; ask again";
            return Err(AgentError::new(ErrorKind::Busy, message));
        }
        env.renewal = Some(Underway::default());
        let mut renewal = Self {
            began: now,
            variables: hooks::variables(request),
            steps: Vec::new(),
            jobs: VecDeque::new(),
            running: None,
            answer: None,
            answered: false,
            over: false,
        };
        renewal.plan(request, env);
        Ok(renewal)
    }

    fn plan(&mut self, request: &Resumed, env: &mut Env) {
        let (root, generation) = (env.root.clone(), &request.generation);
        self.step("entropy", || identity::reseed(&request.seed));
        if let Some(sent_ns) = request.wall_clock_ns {
            let received = self.began;
            self.step("clock", || identity::set_clock(sent_ns, received));
        }
        if let Some(name) = &request.hostname {
            self.step("hostname", || identity::set_hostname(&root, name));
        }
        self.step("generation", || identity::tell(&root, generation));
        if request.machine_id {
            self.step("machine-id", || identity::set_machine_id(&root, generation));
            self.step("boot-id", || identity::set_boot_id(&root));
        }
        let served = request.ssh_keys && self.drop_ssh_keys(env);
        let keys: Vec<Job> = env.ssh_keys_due.iter().cloned().map(Job::SshKey).collect();
        if served {
            self.jobs.extend(keys);
            self.jobs.push_back(Job::SshServer);
            self.plan_hooks(request, env);
            self.jobs.push_back(Job::Answer);
        } else {
            self.plan_hooks(request, env);
            self.jobs.push_back(Job::Answer);
            self.jobs.extend(keys);
        }
    }

    /// Removes the SSH host keys; tells whether a server may still hold them.
    fn drop_ssh_keys(&mut self, env: &mut Env) -> bool {
        let (root, due) = (env.root.clone(), &mut env.ssh_keys_due);
        self.step("ssh-keys", || ssh_keys::remove(&root, due));
        // Looking at every process takes its time, and is only worth it then.
        let served = !due.is_empty() && !ssh_keys::servers(&root).is_empty();
        if let Some(step) = self.steps.last_mut()
            && step.state == StepState::Done
            && !served
        {
            step.state = StepState::Pending;
        }
        served
    }

    fn plan_hooks(&mut self, request: &Resumed, env: &Env) {
        if !request.hooks {
            return;
        }
        match hooks::list(&env.root) {
            Ok(names) => self.jobs.extend(names.into_iter().map(Job::Hook)),
            Err(error) => self.step("hooks", || Err(error)),
        }
    }

    fn step(&mut self, name: &str, take: impl FnOnce() -> identity::Result) {
        let began = Instant::now();
        let (state, detail) = match take() {
            Ok(Some(detail)) => (StepState::Done, detail),
            Ok(None) => (StepState::Absent, String::new()),
            Err(error) => (StepState::Failed, error.to_string()),
        };
        self.note(name, state, detail, began.elapsed());
    }

    fn note(&mut self, name: &str, state: StepState, detail: String, took: Duration) {
        if state == StepState::Failed && self.answered {
            // The console is slow, but there is no other way to tell now.
            eprintln!("coppice-agent: renewal: {name}: {detail}");
        }
        self.steps.push(Step::new(name, state, detail, took));
    }

    /// The program that runs now.
    pub(crate) fn program(&mut self) -> Option<&mut Exec> {
        self.running.as_mut().map(|running| &mut *running.exec)
    }

    /// The next time at which the program has to be looked at.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.running.as_ref()?.exec.deadline()
    }

    /// Learns whether the child that was forked has become the program.
    pub(crate) fn check_start(&mut self) {
        if let Some(running) = &mut self.running
            && let Err(error) = running.exec.check_start(None)
        {
            running.refusal = Some(error.message);
        }
    }

    /// Goes on as far as possible; tells whether anything was done.
    pub(crate) fn pump(&mut self, key: Key, env: &mut Env) -> bool {
        let mut moved = false;
        while !self.over {
            if let Some(running) = &mut self.running {
                moved |= running.exec.pump(None, env);
                let Some(status) = running.exec.finished() else {
                    return moved;
                };
                self.conclude(status, env);
            } else if let Some(job) = self.jobs.pop_front() {
                self.start(job, key, env);
            } else {
                env.renewal = None;
                self.over = true;
            }
            moved = true;
        }
        moved
    }

    fn start(&mut self, job: Job, key: Key, env: &mut Env) {
        let (step, argv, limit) = match &job {
            Job::Answer => {
                self.answer = Some(Renewed {
                    steps: std::mem::take(&mut self.steps),
                    elapsed_us: micros(self.began.elapsed()),
                });
                self.answered = true;
                return;
            }
            Job::SshServer => {
                let root = env.root.clone();
                return self.step("ssh-server", || ssh_keys::reload(&root));
            }
            Job::SshKey(kind) => (
                format!("ssh-key {kind}"),
                ssh_keys::command(&env.root, kind),
                KEY_LIMIT,
            ),
            Job::Hook(name) => (
                format!("hook {name}"),
                hooks::command(&env.root, name),
                HOOK_LIMIT,
            ),
        };
        let mut request = ExecRequest::argv(argv);
        request.timeout_ms = Some(limit.as_millis() as u64);
        request.cwd = Some(b"/".to_vec());
        if matches!(job, Job::Hook(_)) {
            request.env.clone_from(&self.variables);
        } else {
            request.cleanup = Cleanup::Always;
        }
        let began = Instant::now();
        match Exec::start(&request, key, env) {
            Ok(mut exec) => {
                exec.keep_tail();
                if let Some(underway) = &mut env.renewal {
                    underway.program = Some(exec.pid());
                }
                self.running = Some(Running {
                    job,
                    step,
                    began,
                    exec: Box::new(exec),
                    refusal: None,
                });
            }
            Err(error) => self.note(&step, StepState::Failed, error.message, began.elapsed()),
        }
    }

    /// The program has ended.
    fn conclude(&mut self, status: ExitStatus, env: &mut Env) {
        let Some(running) = self.running.take() else {
            return;
        };
        let said = running.exec.tail();
        let succeeded = status.outcome == Outcome::Code(0) && !status.timed_out;
        let (state, detail) = match (running.refusal, succeeded) {
            (Some(refusal), _) => (StepState::Failed, refusal),
            (None, true) => (StepState::Done, said),
            (None, false) => (StepState::Failed, failure(&status, &said)),
        };
        if let (Job::SshKey(kind), StepState::Done) = (&running.job, state) {
            env.ssh_keys_due.remove(kind);
        }
        self.note(&running.step, state, detail, running.began.elapsed());
        running.exec.release(env);
        if let Some(underway) = &mut env.renewal {
            underway.program = None;
            if underway.cancelled {
                self.jobs.retain(|job| matches!(job, Job::Answer));
            }
        }
    }

    /// The agent is stopping: no further program is started.
    pub(crate) fn cancel(&mut self) {
        self.jobs.clear();
        if let Some(exec) = self.program() {
            exec.kill();
        }
    }

    /// The answer, once, when it can be given.
    pub(crate) fn answer(&mut self) -> Option<Renewed> {
        self.answer.take()
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

fn failure(status: &ExitStatus, said: &str) -> String {
    let how = match status.outcome {
        _ if status.timed_out => "it took too long and was ended".into(),
        Outcome::Code(code) => format!("exit code {code}"),
        Outcome::Signal(signal) => format!("ended by signal {signal}"),
    };
    match said {
        "" => how,
        said => format!("{how}: {said}"),
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
