//! Renewals on a real agent, whose guest is a directory. Clock and host name are
//! this machine's own, so that they are left to the tests with real guests.

mod harness;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use coppice_agent_protocol::*;
use harness::{Agent, eventually, is_alive};

/// A guest's files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let root = Self(tempfile::tempdir().expect("a directory"));
        root.write("etc/machine-id", "0123\n", 0o444);
        root
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: &str, mode: u32) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn hook(&self, name: &str, script: &str) {
        let script = format!("#!/bin/sh\n{script}\n");
        self.write(&format!("etc/coppice/resumed.d/{name}"), &script, 0o755);
    }

    /// A stand-in for ssh-keygen: the last argument names the key's file.
    fn keygen(&self, script: &str) {
        let script = format!("#!/bin/sh\nfor key; do :; done\n{script}\n");
        self.write("usr/bin/ssh-keygen", &script, 0o755);
    }
}

fn request(byte: u8) -> Resumed {
    Resumed::everything([byte; GENERATION_LEN], Seed([byte; SEED_LEN]))
}

fn ask(agent: &Agent, request: Resumed) -> ToHost {
    agent.request(ToAgent::Resumed(Box::new(request))).next()
}

fn renew(agent: &Agent, request: Resumed) -> Renewed {
    let mut call = agent.request(ToAgent::Resumed(Box::new(request)));
    let renewed = match call.next() {
        ToHost::Renewed(renewed) => *renewed,
        other => panic!("{other:?} instead of a confirmation"),
    };
    let after = call.reader.next_message().expect("a clean end");
    assert_eq!(after, None, "the answer is the last message");
    renewed
}

fn step<'a>(renewed: &'a Renewed, name: &str) -> &'a Step {
    let found = renewed.steps.iter().find(|step| step.name == name);
    found.unwrap_or_else(|| panic!("no step {name} in {renewed:?}"))
}

fn state(renewed: &Renewed, name: &str) -> StepState {
    step(renewed, name).state
}

#[test]
fn everything_is_renewed_and_renewed_again() {
    let files = Files::new();
    files.hook("10-first", "echo one $COPPICE_GENERATION; env >> $0.env");
    files.hook("20-second", "echo two; cat; echo no input is waited for");
    let agent = Agent::below(files.path());
    let mut ids = Vec::new();
    for byte in [1, 2] {
        let renewed = renew(&agent, request(byte));
        let names: Vec<_> = renewed
            .steps
            .iter()
            .map(|step| step.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "entropy",
                "generation",
                "machine-id",
                "boot-id",
                "ssh-keys",
                "hook 10-first",
                "hook 20-second"
            ]
        );
        assert_eq!(state(&renewed, "ssh-keys"), StepState::Absent);
        let generation = format!("0{byte}").repeat(16);
        assert_eq!(files.read("run/coppice/generation").trim(), generation);
        let hook = step(&renewed, "hook 10-first");
        assert_eq!(
            (hook.state, &hook.detail),
            (StepState::Done, &format!("one {generation}"))
        );
        let hook = step(&renewed, "hook 20-second");
        assert_eq!(hook.detail, "two\nno input is waited for");
        assert!(hook.elapsed_us > 0 && renewed.elapsed_us >= hook.elapsed_us);
        ids.push(files.read("etc/machine-id"));
    }
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.trim_end().len() == 32), "{ids:?}");
    let environment = files.read("etc/coppice/resumed.d/10-first.env");
    assert!(
        environment.contains("PATH=/usr/local/sbin"),
        "{environment}"
    );
    assert!(!environment.contains("COPPICE_HOSTNAME"), "{environment}");
    assert_eq!(
        agent.shell("echo alive").expect("it runs").text(),
        "alive\n"
    );
}

#[test]
fn only_what_was_asked_for_is_renewed() {
    let files = Files::new();
    files.hook("10-never", "exit 1");
    let agent = Agent::below(files.path());
    let renewed = renew(
        &agent,
        Resumed {
            machine_id: false,
            ssh_keys: false,
            hooks: false,
            ..request(1)
        },
    );
    let names: Vec<_> = renewed
        .steps
        .iter()
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(names, ["entropy", "generation"]);
    assert_eq!(files.read("etc/machine-id"), "0123\n");
}

#[test]
fn a_step_that_fails_is_named_and_stops_no_other() {
    let files = Files::new();
    files.hook("10-fails", "echo why >&2; exit 3");
    files.hook("20-killed", "kill -9 $$");
    files.write(
        "etc/coppice/resumed.d/30-no-interpreter",
        "#!/nowhere/sh\n",
        0o755,
    );
    files.hook("40-runs", "yes | head -c 100000; echo end");
    files.write("run", "no directory", 0o644);
    let agent = Agent::below(files.path());
    let renewed = renew(
        &agent,
        Resumed {
            hostname: Some("not a name".into()),
            ..request(1)
        },
    );
    let failed: Vec<_> = renewed
        .failures()
        .filter(|step| step.name != "entropy")
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(
        failed,
        [
            "hostname",
            "generation",
            "hook 10-fails",
            "hook 20-killed",
            "hook 30-no-interpreter"
        ]
    );
    assert_eq!(step(&renewed, "hook 10-fails").detail, "exit code 3: why");
    let killed = &step(&renewed, "hook 20-killed").detail;
    assert!(killed.contains("signal 9"), "{killed}");
    let missing = &step(&renewed, "hook 30-no-interpreter").detail;
    assert!(missing.contains("interpreter"), "{missing}");
    let ran = step(&renewed, "hook 40-runs");
    assert_eq!(ran.state, StepState::Done);
    assert!(ran.detail.len() <= 1024 && ran.detail.ends_with("y\nend"));
    assert_eq!(state(&renewed, "machine-id"), StepState::Done);
}

#[test]
fn ssh_keys_that_nobody_serves_are_made_after_the_answer() {
    let files = Files::new();
    files.write("etc/ssh/ssh_host_rsa_key", "old", 0o600);
    files.write("etc/ssh/ssh_host_rsa_key.pub", "old", 0o644);
    // It ends only when the answer has come.
    files.keygen(r#"while ! [ -e "$key.go" ]; do sleep 0.01; done; echo "new $*" > "$key""#);
    let agent = Agent::below(files.path());
    let renewed = renew(&agent, request(1));
    assert_eq!(state(&renewed, "ssh-keys"), StepState::Pending);
    assert_eq!(step(&renewed, "ssh-keys").detail, "rsa");
    let key = files.path().join("etc/ssh/ssh_host_rsa_key");
    assert!(!key.exists(), "the old key is still served");
    files.write("etc/ssh/ssh_host_rsa_key.go", "", 0o644);
    eventually("a new key", || {
        fs::read_to_string(&key).is_ok_and(|text| text.starts_with("new -q -t rsa"))
    });
}

#[test]
fn a_second_request_ends_the_first_and_makes_the_keys_that_it_owed() {
    let files = Files::new();
    files.write("etc/ssh/ssh_host_rsa_key", "old", 0o600);
    files.keygen("echo half > \"$key\"; exec sleep 1000");
    let agent = Agent::below(files.path());
    let renewed = renew(&agent, request(1));
    assert_eq!(state(&renewed, "ssh-keys"), StepState::Pending);
    let key = files.path().join("etc/ssh/ssh_host_rsa_key");
    eventually("half a key", || {
        fs::read_to_string(&key).is_ok_and(|text| text == "half\n")
    });

    files.keygen("echo \"new $*\" > \"$key\"");
    let mut busy = 0;
    let renewed = loop {
        match ask(&agent, request(2)) {
            ToHost::Renewed(renewed) => break renewed,
            ToHost::Error(error) if error.kind == ErrorKind::Busy => busy += 1,
            other => panic!("{other:?}"),
        }
    };
    assert!(busy > 0, "the first was still under way");
    assert_eq!(step(&renewed, "ssh-keys").detail, "rsa");
    eventually("a whole key", || {
        fs::read_to_string(&key).is_ok_and(|text| text.starts_with("new"))
    });
}

#[test]
fn ssh_keys_that_a_server_holds_are_made_before_the_answer() {
    let files = Files::new();
    files.write("etc/ssh/ssh_host_ed25519_key", "old", 0o600);
    files.keygen("echo new > \"$key\"");
    // A process that is told to read its keys again, and a table of processes.
    let mut server = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("it starts");
    let id = server.id();
    files.write(
        &format!("proc/{id}/stat"),
        &format!("{id} (sshd) S 1 {id} {id}"),
        0o444,
    );
    let agent = Agent::below(files.path());
    let renewed = renew(&agent, request(1));
    let names: Vec<_> = renewed
        .steps
        .iter()
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(
        names[names.len() - 3..],
        ["ssh-keys", "ssh-key ed25519", "ssh-server"]
    );
    assert_eq!(state(&renewed, "ssh-keys"), StepState::Done);
    assert_eq!(state(&renewed, "ssh-server"), StepState::Done);
    assert_eq!(files.read("etc/ssh/ssh_host_ed25519_key"), "new\n");
    // `sleep` knows no SIGHUP, and ends by it.
    let status = server.wait().expect("it is our child");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(1)
    );
}

#[test]
fn a_renewal_whose_host_has_gone_is_still_whole() {
    let files = Files::new();
    files.hook("10-slow", "while ! [ -e $0.go ]; do sleep 0.01; done");
    files.hook("20-after", "echo ran > $0.done");
    let agent = Agent::below(files.path());
    let call = agent.request(ToAgent::Resumed(Box::new(request(1))));
    drop(call);
    assert_eq!(
        agent.shell("echo alive").expect("it runs").text(),
        "alive\n"
    );
    files.write("etc/coppice/resumed.d/10-slow.go", "", 0o644);
    let done = files.path().join("etc/coppice/resumed.d/20-after.done");
    eventually("the last hook ran", || done.exists());
}

#[test]
fn a_hook_that_hangs_is_ended_with_all_that_it_started() {
    let files = Files::new();
    files.hook(
        "10-hangs",
        "setsid sleep 1000 & echo $! > $0.pid; sleep 1000",
    );
    files.hook("20-runs", "exit 0");
    let agent = Agent::below(files.path());
    let renewed = renew(&agent, request(1));
    let hung = step(&renewed, "hook 10-hangs");
    assert_eq!(hung.state, StepState::Failed);
    assert!(hung.detail.contains("too long"), "{hung:?}");
    assert!(
        (10_000_000..30_000_000).contains(&hung.elapsed_us),
        "{hung:?}"
    );
    assert_eq!(state(&renewed, "hook 20-runs"), StepState::Done);
    if agent.info().cgroups {
        let left = files.read("etc/coppice/resumed.d/10-hangs.pid");
        let left = left.trim().parse().expect("a process id");
        eventually("nothing of it is left", || !is_alive(left));
    }
}
