//! `coppice snapshot create`, `restore` and `fork`, with real guests.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coppice_tests::{
    Ended, Output, PATIENCE, Scratch, coppice_in, image, processes_with, require_kvm,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A user with machines and a store; in the end all machines are gone.
struct User(Scratch);

impl User {
    fn new() -> Self {
        require_kvm();
        Self(Scratch::new())
    }

    /// `coppice` with these arguments, to its end.
    fn coppice(&self, args: &[&str]) -> Ended {
        let mut command = coppice_in(&self.0, args);
        command.env("COPPICE_STORE", self.0.path("store"));
        Ended::of(command.output().expect("coppice starts"))
    }

    /// The same, which has to succeed; its standard output.
    fn done(&self, args: &[&str]) -> String {
        let ended = self.coppice(args);
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        ended.stdout
    }

    /// The same; its standard output is JSON.
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.done(args)).expect("JSON")
    }

    /// The same, which has to fail and say why.
    fn refused(&self, args: &[&str], why: &str) {
        let ended = self.coppice(args);
        assert_eq!(ended.code, Some(125), "{args:?}: {}", ended.stdout);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }

    fn start(&self, name: &str) {
        self.done(&["start", "--image", "minimal", "--memory", "128M", name]);
    }

    /// A script's output in a machine.
    fn shell(&self, name: &str, script: &str) -> String {
        let text = self.done(&["exec", name, "--", "sh", "-c", script]);
        text.trim().to_owned()
    }

    /// What must differ between two machines.
    fn identity(&self, name: &str) -> Vec<String> {
        let script = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; \
                      head -c 16 /dev/urandom | md5sum";
        let text = self.shell(name, script);
        text.lines().map(str::to_owned).collect()
    }

    /// All machines, as `coppice ls` has them.
    fn list(&self) -> Vec<Value> {
        let list = self.json(&["ls", "--json"]);
        list.as_array().expect("a list").clone()
    }

    fn names(&self) -> Vec<String> {
        let text = |machine: &Value| machine["name"].as_str().expect("text").to_owned();
        self.list().iter().map(text).collect()
    }

    /// Ends all machines, after which nothing of them may be left.
    fn stop_all(&self) {
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.done(&[&["stop", "--force"], &names[..]].concat());
        let processes = processes_with(self.0.dir());
        assert!(processes.is_empty(), "processes were left: {processes:?}");
        assert_eq!(entries(&self.0.path("coppice/m")), [".forks", ".lock"]);
        assert_eq!(entries(&self.0.path("coppice/m/.forks")), [""; 0]);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let Ok(machines) = fs::read_dir(self.0.path("coppice/m")) else {
            return;
        };
        let names = machines.flatten().map(|entry| entry.file_name());
        let names = names.filter(|name| !name.as_encoded_bytes().starts_with(b"."));
        let mut stop = coppice_in(&self.0, &["stop", "--force"]);
        let _ = stop.args(names).output();
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("it can be listed");
    let names = entries.map(|entry| entry.expect("listed").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("UTF-8")).collect();
    names.sort();
    names
}

fn pid(machine: &Value) -> Pid {
    Pid::from_raw(machine["pid"].as_i64().expect("a number") as i32)
}

fn wait_for_end(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while kill(pid, None).is_ok() {
        assert!(Instant::now() < deadline, "{pid} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_kept_snapshot_grows_into_machines_of_their_own() {
    let user = User::new();
    user.start("a");
    user.shell(
        "a",
        "echo before > /root/file; echo x > /etc/machine-id; date -s @1000000000",
    );
    let made = user.json(&["snapshot", "create", "a", "--tag", "base", "--json"]);
    assert!(made["pause_ms"].as_f64().expect("a number") > 0.0, "{made}");
    assert!(
        made["bytes"].as_u64().expect("a number") > 1 << 20,
        "{made}"
    );
    let first = user.identity("a");
    user.shell("a", "echo after > /root/file");

    let restored = user.done(&["restore", "base", "b", "--", "cat", "/root/file"]);
    assert_eq!(restored, "before\n");
    let id = made["id"].as_str().expect("text");
    // The first machine of it has told the next what to read ahead.
    let advice = user.0.path("store/working-sets").join(id);
    let set = coppice_snapshot::WorkingSet::read(&advice).expect("it is recorded");
    assert!(set.touched.blocks() > 100, "{set:?}");
    user.done(&["restore", &id[..12], "c"]);
    assert_eq!(user.shell("a", "cat /root/file"), "after");
    let (second, third) = (user.identity("b"), user.identity("c"));
    assert_eq!((&*second[0], &*third[0]), ("b", "c"));
    for (index, of_first) in first.iter().enumerate() {
        assert_ne!(*of_first, second[index]);
        assert_ne!(*of_first, third[index]);
        assert_ne!(second[index], third[index]);
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let clock: u64 = user.shell("b", "date +%s").parse().expect("a number");
    assert!(now.as_secs().abs_diff(clock) < 60, "{clock}");

    // A snapshot of what was restored holds only what has changed.
    let next = user.json(&["snapshot", "create", "c", "--json"]);
    assert!(next["bytes"].as_u64() < made["bytes"].as_u64(), "{next}");
    let shown = user.json(&[
        "snapshot",
        "inspect",
        "--json",
        next["id"].as_str().expect("text"),
    ]);
    assert_eq!(shown["parent"], made["id"]);
    let manifest = user
        .0
        .path("store/snapshots")
        .join(next["id"].as_str().expect("text"));
    user.done(&["restore", manifest.to_str().expect("UTF-8"), "d"]);
    assert_eq!(user.shell("d", "hostname"), "d");
    assert_eq!(user.coppice(&["snapshot", "verify"]).code, Some(0));
    assert_eq!(entries(&user.0.path("store/staging")), [""; 0]);

    user.refused(&["restore", "nothing", "e"], "nothing");
    user.refused(&["restore", "base", "b"], "is there already");
    user.refused(&["restore", "./nothing", "e"], "nothing");
    user.refused(&["snapshot", "create", "e"], "no machine named `e`");
    assert_eq!(user.names(), ["a", "b", "c", "d"]);
    user.done(&["stop", "a", "b", "c", "d"]);
    assert_eq!(user.names(), [""; 0]);
}

#[test]
fn forks_do_different_work_and_leave_their_parent_alone() {
    let user = User::new();
    user.start("a");
    user.shell("a", "echo parent > /root/file");
    let script =
        "cat /root/file; echo $COPPICE_FORK > /root/file; hostname; exit $((COPPICE_FORK - 1))";
    let args = ["fork", "a", "-n", "3", "--", "sh", "-c", script];
    let ended = user.coppice(&args);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for number in 1..=3 {
        for line in ["parent", &format!("a-{number}")] {
            let line = format!("a-{number}: {line}\n");
            assert!(ended.stdout.contains(&line), "{}", ended.stdout);
        }
        let file = user.shell(&format!("a-{number}"), "cat /root/file");
        assert_eq!(file, number.to_string());
    }
    assert_eq!(user.shell("a", "cat /root/file"), "parent");
    assert!(ended.stderr.contains("was paused for"), "{}", ended.stderr);
    for machine in user.list() {
        let is_fork = machine["name"] != "a";
        assert_eq!(machine["parent"].as_str(), is_fork.then_some("a"));
    }

    // A fork of a fork, and a kept snapshot of it, which needs nothing but the store.
    let report = user.json(&[
        "fork", "a-2", "--prefix", "g", "-n", "2", "--json", "--", "true",
    ]);
    assert_eq!(report["children"][0]["name"], "g-1");
    let memory = &report["memory"];
    assert!(
        memory["pss_kib"].as_u64() < memory["rss_kib"].as_u64(),
        "{report}"
    );
    user.done(&["stop", "--force", "a-1", "a-2", "a-3", "g-1"]);
    assert_eq!(user.shell("g-2", "cat /root/file; hostname"), "2\ng-2");
    user.done(&["snapshot", "create", "g-2", "--tag", "kept"]);
    user.stop_all();
    let restored = user.done(&["restore", "kept", "r", "--", "cat", "/root/file"]);
    assert_eq!(restored, "2\n");
    // Both what is in the store and what only a fork knows is below a fork of it.
    user.done(&["fork", "r"]);
    let gone = user.done(&["fork", "r-1", "--rm", "--", "cat", "/root/file"]);
    assert_eq!(gone, "r-1-1: 2\n");
    assert_eq!(user.names(), ["r", "r-1"]);
    user.stop_all();
}

#[test]
fn a_death_concerns_nobody_else() {
    let user = User::new();
    user.start("a");
    user.done(&["fork", "a", "-n", "2"]);
    let list = user.list();
    kill(pid(&list[0]), Signal::SIGKILL).expect("it runs");
    kill(pid(&list[1]), Signal::SIGKILL).expect("it runs");
    wait_for_end(pid(&list[0]));
    wait_for_end(pid(&list[1]));
    // Its layers stay for the one that lives, also when the dead are swept.
    user.refused(&["fork", "a"], "has ended");
    let output = user.done(&["fork", "a-2", "--", "hostname"]);
    assert_eq!(output, "a-2-1: a-2-1\n");
    assert_eq!(user.names(), ["a-2", "a-2-1"]);
    user.stop_all();
}

#[test]
fn what_cannot_be_forked_or_kept_is_said_and_changes_nothing() {
    let user = User::new();
    user.start("a");
    user.refused(&["fork", "b"], "no machine named `b`");
    for count in ["0", "-1", "1001", "many"] {
        let ended = user.coppice(&["fork", "a", &format!("--count={count}")]);
        assert_eq!(ended.code, Some(125), "{}", ended.stderr);
        assert!(ended.stderr.contains("--count"), "{}", ended.stderr);
    }
    user.done(&["fork", "a", "--prefix", "x"]);
    user.refused(
        &["fork", "a", "-n", "2", "--prefix", "x"],
        "`x-1` is there already",
    );
    user.refused(&["fork", "a", "--prefix", &"x".repeat(63)], "--prefix");
    assert_eq!(user.names(), ["a", "x-1"]);

    let own = user.0.path("own.ext4");
    fs::copy(image("minimal"), &own).expect("copied");
    let own = own.to_str().expect("UTF-8");
    user.done(&[
        "start",
        "--image",
        own,
        "--memory",
        "128M",
        "--writable",
        "w",
    ]);
    user.refused(&["fork", "w"], "without --writable");
    user.done(&["stop", "w"]);

    // The store has a file system that is too small.
    let store = user.0.path("store");
    fs::create_dir(&store).expect("made");
    let mount = |args: &[&str]| {
        let status = Command::new(args[0]).args(&args[1..]).arg(&store).status();
        assert!(status.expect("it can be run").success(), "{args:?}");
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=1M", "none"]);
    user.refused(&["snapshot", "create", "a"], "No space left on device");
    assert_eq!(user.done(&["snapshot", "ls"]), "");
    assert_eq!(entries(&store.join("staging")), [""; 0]);
    assert_eq!(entries(&store.join("layers")), [""; 0]);
    mount(&["umount"]);
    user.done(&["snapshot", "create", "a"]);
    assert_eq!(user.shell("a", "echo well"), "well");
    user.stop_all();
}

#[test]
fn a_signal_ends_the_work_and_the_forks_that_are_not_to_stay() {
    let user = User::new();
    user.start("a");
    let args = [
        "fork",
        "a",
        "-n",
        "2",
        "--rm",
        "--",
        "sh",
        "-c",
        "echo up; exec sleep 1000",
    ];
    let mut fork = coppice_in(&user.0, &args);
    let mut child = fork.spawn().expect("coppice starts");
    let output = Output::follow(child.stdout.take().expect("a pipe"));
    output.wait_for("a-1: up\n");
    output.wait_for("a-2: up\n");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
    let status = child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(128 + Signal::SIGINT as i32));
    assert_eq!(user.names(), ["a"]);
    // One that is killed before its forks are up takes them along.
    let mut child = coppice_in(&user.0, &["fork", "a"])
        .spawn()
        .expect("coppice starts");
    let log = user.0.path("coppice/m/a-1/vmm.log");
    let deadline = Instant::now() + PATIENCE;
    while !log.exists() {
        assert!(Instant::now() < deadline, "no VMM was started");
        std::thread::yield_now();
    }
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    // The next fork sweeps what is left.
    user.done(&["fork", "a", "--prefix", "b"]);
    assert_eq!(user.names(), ["a", "b-1"]);
    user.stop_all();
}
