//! What the child of a fork does until it is the program.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{self, Gid, Uid};

use crate::spawn::{ChildStdio, Cwd, Failure, Plan, Step};
use crate::sys;

/// Descriptors that a command may open, soft and hard: what service managers
/// give. The agent's own limit is higher.
const OPEN_FILES: (u64, u64) = (1024, 524_288);

/// Becomes the program, or reports why not and ends.
pub(crate) fn run(plan: &Plan, stdio: &ChildStdio, report: &OwnedFd) -> ! {
    let failure = match prepare(plan, stdio) {
        Ok(()) => execute(plan),
        Err(failure) => failure,
    };
    // A parent that is gone cannot be told.
    let _ = unistd::write(report, &failure.to_bytes());
    sys::exit_now(127)
}

fn prepare(plan: &Plan, stdio: &ChildStdio) -> Result<(), Failure> {
    let step = |step| move |errno| Failure { step, errno };

    unistd::setsid().map_err(step(Step::Setup))?;
    if stdio.terminal {
        sys::set_controlling_terminal(&stdio.stdout).map_err(step(Step::Terminal))?;
    }
    connect(stdio).map_err(step(Step::Setup))?;
    reset_signals().map_err(step(Step::Setup))?;
    umask(Mode::from_bits_truncate(0o022));
    // The agent may be spared when memory runs out, its commands not. Without
    // /proc, or where the agent could not spare itself, there is nothing to do.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    limit_open_files();
    become_user(plan).map_err(step(Step::User))?;
    enter(&plan.cwd).map_err(step(Step::Cwd))?;
    // Every descriptor is opened close-on-exec; this holds even if one is not.
    // Kernels before 5.11 lack the call.
    let _ = sys::close_on_exec_from(3);
    Ok(())
}

/// Puts the child's ends in the places of the standard streams. The agent
/// keeps its own 0 to 2 open, so none of the ends is one of these.
fn connect(stdio: &ChildStdio) -> Result<(), Errno> {
    unistd::dup2_stdin(stdio.stdin.as_fd())?;
    unistd::dup2_stdout(stdio.stdout.as_fd())?;
    unistd::dup2_stderr(stdio.stderr.as_ref().unwrap_or(&stdio.stdout))
}

/// execve keeps blocked and ignored signals; a program expects neither.
fn reset_signals() -> Result<(), Errno> {
    sys::set_disposition(Signal::SIGPIPE, SigHandler::SigDfl)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}

fn limit_open_files() {
    let (soft, hard) = OPEN_FILES;
    if setrlimit(Resource::RLIMIT_NOFILE, soft, hard).is_err() {
        // The hard limit is lower and this process may not raise it.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft, soft);
    }
}

/// Groups before user, because the user may no longer change groups. An agent
/// that is not root can only run commands as itself.
fn become_user(plan: &Plan) -> Result<(), Errno> {
    let account = &plan.account;
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if !unistd::geteuid().is_root() && unistd::geteuid() == uid {
        return Ok(());
    }
    let groups: Vec<Gid> = account.groups.iter().copied().map(Gid::from_raw).collect();
    unistd::setgroups(&groups)?;
    unistd::setresgid(gid, gid, gid)?;
    unistd::setresuid(uid, uid, uid)
}

fn enter(cwd: &Cwd) -> Result<(), Errno> {
    match cwd {
        Cwd::Asked(path) => unistd::chdir(path.as_c_str()),
        Cwd::Home(path) => unistd::chdir(path.as_c_str()).or_else(|_| unistd::chdir("/")),
    }
}

/// Tries the candidates as execvp(3) does: a program that may not be executed
/// does not hide one further on, but it is what went wrong if there is none.
fn execute(plan: &Plan) -> Failure {
    let mut errno = Errno::ENOENT;
    for candidate in &plan.candidates {
        let Err(error) = unistd::execve(candidate, &plan.argv, &plan.env);
        match error {
            Errno::ENOENT | Errno::ENOTDIR => {}
            Errno::EACCES => errno = error,
            _ => {
                errno = error;
                break;
            }
        }
    }
    Failure {
        step: Step::Exec,
        errno,
    }
}
