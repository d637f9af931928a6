//! The two VMMs that are measured. They are driven alike, through the same API;
//! only Coppice can also restore a machine from its command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use coppice_benches::Fallible;
use serde_json::{Value, json};

use crate::process::{Marks, Process, unique};
use crate::tools::Guest;

/// The image that every machine has.
pub const DISK: &str = "disk";

/// A VMM's program.
pub struct Vmm {
    program: PathBuf,
}

/// A snapshot's files.
#[derive(Clone)]
pub struct Snapshot {
    /// The state, or the manifest.
    pub state: PathBuf,
    /// The memory, or its topmost layer.
    pub memory: PathBuf,
}

impl Snapshot {
    /// Names for a new one.
    pub fn new() -> Self {
        Self {
            state: unique("state"),
            memory: unique("memory"),
        }
    }

    /// Removes the files.
    pub fn remove(&self) -> Fallible<()> {
        std::fs::remove_file(&self.state)?;
        Ok(std::fs::remove_file(&self.memory)?)
    }

    fn load(&self, vsock: &Path) -> Value {
        json!({
            "snapshot_path": self.state,
            "mem_backend": { "backend_type": "File", "backend_path": self.memory },
            "track_dirty_pages": false,
            "resume_vm": true,
            "vsock_override": { "uds_path": vsock },
        })
    }
}

/// A machine whose VMM has an API.
pub struct Machine {
    process: Process,
    socket: PathBuf,
    /// What its guest writes.
    pub marks: Marks,
}

impl Vmm {
    /// The VMM whose program is in this file.
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Boots a machine and waits for the first mark of its guest.
    pub fn boot(&self, guest: &Guest, mib: u64) -> Fallible<Machine> {
        let (mut process, socket, vsock) = self.start()?;
        let machine = json!({ "vcpu_count": 1, "mem_size_mib": mib });
        let boot = json!({ "kernel_image_path": guest.elf, "boot_args": "x" });
        let drive = json!({
            "drive_id": "disk", "path_on_host": DISK, "is_root_device": false, "is_read_only": true,
        });
        let requests = [
            ("/machine-config", machine),
            ("/boot-source", boot),
            ("/drives/disk", drive),
            ("/vsock", json!({ "guest_cid": 3, "uds_path": vsock })),
            ("/actions", json!({ "action_type": "InstanceStart" })),
        ];
        for (path, body) in &requests {
            process.request(&socket, "PUT", path, Some(body))?;
        }
        Machine::of(process, socket)
    }

    /// Boots a machine, makes a snapshot of it and ends it.
    pub fn snapshot(&self, guest: &Guest, mib: u64) -> Fallible<Snapshot> {
        let mut machine = self.boot(guest, mib)?;
        machine.pause()?;
        let snapshot = Snapshot::new();
        machine.create("Full", &snapshot)?;
        Ok(snapshot)
    }

    /// Restores `snapshot` through the API; its guest runs when this returns.
    pub fn restore(&self, snapshot: &Snapshot) -> Fallible<Process> {
        let (mut process, socket, vsock) = self.start()?;
        process.request(
            &socket,
            "PUT",
            "/snapshot/load",
            Some(&snapshot.load(&vsock)),
        )?;
        Ok(process)
    }

    /// Restores `snapshot` through the API; its guest does not run.
    pub fn load(&self, snapshot: &Snapshot) -> Fallible<Process> {
        let (mut process, socket, vsock) = self.start()?;
        let mut load = snapshot.load(&vsock);
        load["resume_vm"] = false.into();
        process.request(&socket, "PUT", "/snapshot/load", Some(&load))?;
        Ok(process)
    }

    /// Restores `snapshot` by what is on Coppice's command line.
    pub fn restore_directly(&self, snapshot: &Snapshot) -> Fallible<Process> {
        let (load, vsock) = (unique("load"), unique("vsock"));
        std::fs::write(&load, snapshot.load(&vsock).to_string())?;
        let mut command = Command::new(&self.program);
        command.args(["--no-api", "--restore"]).arg(&load);
        Process::start(&mut command, vec![load, vsock])
    }

    /// Restores `snapshot` so that another snapshot can be made of it, of what
    /// has changed since, and waits for the guest's first mark.
    pub fn restore_to_save(&self, snapshot: &Snapshot) -> Fallible<Machine> {
        let (mut process, socket, vsock) = self.start()?;
        let mut load = snapshot.load(&vsock);
        load["track_dirty_pages"] = true.into();
        process.request(&socket, "PUT", "/snapshot/load", Some(&load))?;
        Machine::of(process, socket)
    }

    /// The process, the socket of its API, and a path for that of its vsock.
    fn start(&self) -> Fallible<(Process, PathBuf, PathBuf)> {
        let (socket, vsock) = (unique("api"), unique("vsock"));
        let mut command = Command::new(&self.program);
        // Coppice has no filters yet, so the peer goes without them as well.
        command.arg("--no-seccomp").arg("--api-sock").arg(&socket);
        let process = Process::start(&mut command, vec![socket.clone(), vsock.clone()])?;
        Ok((process, socket, vsock))
    }
}

impl Machine {
    fn of(mut process: Process, socket: PathBuf) -> Fallible<Self> {
        process.first_mark()?;
        let marks = process.watch()?;
        Ok(Self {
            process,
            socket,
            marks,
        })
    }

    /// Pauses it.
    pub fn pause(&mut self) -> Fallible<()> {
        let body = json!({ "state": "Paused" });
        self.process
            .request(&self.socket, "PATCH", "/vm", Some(&body))?;
        Ok(())
    }

    /// Makes a snapshot of the paused machine; returns how long that took, in
    /// milliseconds.
    pub fn create(&mut self, kind: &str, snapshot: &Snapshot) -> Fallible<f64> {
        self.create_with(json!({
            "snapshot_type": kind,
            "snapshot_path": snapshot.state,
            "mem_file_path": snapshot.memory,
        }))
    }

    /// Makes a snapshot of the running machine, for forks only; returns for how
    /// long the machine was paused, in milliseconds.
    pub fn create_live(&mut self, snapshot: &Snapshot) -> Fallible<f64> {
        self.create_with(json!({
            "snapshot_type": "Diff",
            "snapshot_path": snapshot.state,
            "mem_file_path": snapshot.memory,
            "live": true,
            "local": true,
        }))?;
        let pause = &self.report()?["pause_us"];
        Ok(pause.as_f64().ok_or("there is no pause_us")? / 1000.0)
    }

    /// What Coppice says of the last snapshot.
    pub fn report(&mut self) -> Fallible<Value> {
        let (answer, _) = self
            .process
            .request(&self.socket, "GET", "/snapshot", None)?;
        let mut answer: Value = serde_json::from_str(&answer)?;
        Ok(answer["last"].take())
    }

    fn create_with(&mut self, body: Value) -> Fallible<f64> {
        let (_, took) =
            self.process
                .request(&self.socket, "PUT", "/snapshot/create", Some(&body))?;
        Ok(took)
    }
}
