//! A place to run `coppice` in: its own cache, run directory and stand-ins.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const COPPICE: &str = env!("CARGO_BIN_EXE_coppice");

/// The place. Checks at its end that nothing was left behind.
pub struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    /// An image, a kernel, a static program that passes for an agent, and the
    /// stand-in VMM.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let bed = Self { dir };
        for sub in ["run", "cache/images", "cache/kernels/default"] {
            fs::create_dir_all(bed.path(sub)).expect("directory");
        }
        fs::write(bed.path("cache/kernels/default/vmlinux"), b"kernel").expect("kernel");
        fs::write(
            bed.path("cache/images/base.ext4"),
            b"hsqs, to be recognised",
        )
        .expect("image");
        let mut agent = vec![0; 64];
        agent[..6].copy_from_slice(b"\x7fELF\x02\x01");
        agent[18] = 62;
        fs::write(bed.path("agent"), agent).expect("agent");
        bed
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `coppice` with these arguments, yet to be started.
    pub fn coppice<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let stand_in = Path::new(COPPICE).with_file_name("examples/stand-in-vmm");
        assert!(
            stand_in.exists(),
            "{} is missing: build it with `cargo build -p coppice --examples`",
            stand_in.display()
        );
        let mut command = Command::new(COPPICE);
        command
            .args(args)
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("COPPICE_CACHE", self.path("cache"))
            .env("COPPICE_AGENT", self.path("agent"))
            .env("COPPICE_VMM", stand_in)
            .env_remove("STAND_IN")
            .stdin(Stdio::null());
        command
    }

    /// `coppice run` with these arguments.
    pub fn run(&self, args: &[&str]) -> Command {
        self.coppice(["run"].iter().chain(args).copied())
    }

    /// The same on a stand-in of which something goes wrong.
    pub fn run_on(&self, mode: &str, args: &[&str]) -> Command {
        let mut command = self.run(args);
        command.env("STAND_IN", mode);
        command
    }

    /// Directories of machines that there are now.
    pub fn machines(&self) -> Vec<PathBuf> {
        let runs = directories(&self.path("run/coppice"));
        let runs = runs.into_iter().filter(|path| !path.ends_with("m"));
        runs.chain(directories(&self.path("run/coppice/m")))
            .collect()
    }

    /// `coppice` with these arguments, to its end.
    pub fn end<'a>(
        &self,
        args: impl IntoIterator<Item = &'a str>,
    ) -> (Option<i32>, String, String) {
        outcome(self.coppice(args))
    }

    /// Number of the VMM of the only machine, once it is there.
    pub fn vmm(&self) -> i32 {
        let mut found = None;
        eventually("a VMM", || {
            let machine = self.machines().pop()?;
            let text = fs::read_to_string(machine.join("vmm.pid")).ok()?;
            found = text.split_once(' ')?.0.parse().ok();
            found
        })
    }

    /// A script in the VMM's place.
    pub fn script(&self, body: &str) -> PathBuf {
        let path = self.path("vmm.sh");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        path
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(
                self.machines(),
                Vec::<PathBuf>::new(),
                "machines were left behind"
            );
        }
    }
}

fn directories(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| entry.expect("read").path());
    entries.filter(|path| path.is_dir()).collect()
}

/// What it says on standard error and how it ends.
pub fn outcome(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("coppice starts");
    texts(&output)
}

pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Asks again until there is an answer, for ten seconds.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "{what} did not come in ten seconds"
        );
        std::thread::yield_now();
    }
}

/// Whether there is a process of this number that has not ended.
pub fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.starts_with('Z'));
    state == Some(false)
}

/// Sends a signal to a child.
pub fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, signal).expect("the child is there");
}
