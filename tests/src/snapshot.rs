//! Snapshots of machines, and machines of snapshots.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::scratch::Scratch;

/// A snapshot in files of its own, removed with it.
pub struct Snapshot {
    scratch: Scratch,
    load: Value,
    deltas: &'static [&'static str],
}

impl Snapshot {
    /// Where a snapshot is about to be made.
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let load = json!({
            "snapshot_path": scratch.path("manifest"),
            "mem_file_path": scratch.path("memory"),
            "resume_vm": true,
        });
        Self {
            scratch,
            load,
            deltas: &[],
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> PathBuf {
        self.scratch.path("manifest")
    }

    /// The new memory layer.
    pub fn memory(&self) -> PathBuf {
        self.scratch.path("memory")
    }

    /// The body of the request that makes it, also of a machine that runs.
    pub fn create(&self, kind: &str) -> Value {
        json!({
            "snapshot_type": kind,
            "snapshot_path": self.manifest(),
            "mem_file_path": self.memory(),
            "live": true,
        })
    }

    /// The directory that it is in.
    pub fn dir(&self) -> &Path {
        self.scratch.dir()
    }

    /// The body of the request that loads it.
    pub fn load(&self) -> &Value {
        &self.load
    }

    /// With a change to the request that loads it.
    pub fn change(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.load);
        self
    }

    /// Gives each machine that is restored a delta of its own for these drives.
    pub fn with_deltas(mut self, drives: &'static [&str]) -> Self {
        self.deltas = drives;
        self
    }

    /// The request that loads it into `machine`, which has nothing yet.
    pub fn load_into(&self, machine: &Machine) -> Value {
        self.load_in(&machine.scratch)
    }

    /// The request that loads it into a machine with its files in `scratch`.
    fn load_in(&self, scratch: &Scratch) -> Value {
        let mut load = self.load.clone();
        load["vsock_override"] = json!({ "uds_path": scratch.path("vsock") });
        let deltas = self.deltas.iter().map(|drive| {
            let path = scratch.path(&format!("{drive}.delta"));
            json!({ "drive_id": drive, "path_on_host": path })
        });
        load["drive_overrides"] = deltas.collect();
        load
    }

    /// Restores its machine in a new process, which is told so by the API.
    pub fn restore(&self) -> Machine {
        let scratch = Scratch::new();
        let load = self.load_in(&scratch);
        let machine = Machine::idle(scratch);
        machine.put("/snapshot/load", &load);
        machine
    }

    /// The same straight from the command line.
    pub fn restore_at_start(&self) -> Machine {
        let scratch = Scratch::new();
        let load = self.load_in(&scratch);
        let file = scratch.file("load.json", load.to_string());
        Machine::spawn(scratch, &["--restore".into(), file.into()])
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// Makes a snapshot while the machine runs.
    pub fn snapshot(&self, kind: &str) -> Snapshot {
        let snapshot = Snapshot::new();
        self.put("/snapshot/create", &snapshot.create(kind));
        snapshot
    }

    /// What the API says of the last snapshot.
    pub fn last_snapshot(&self) -> Value {
        let answer = self.request("GET", "/snapshot", None);
        let answer: Value = serde_json::from_str(&answer.body).expect("is JSON");
        answer["last"].clone()
    }
}
