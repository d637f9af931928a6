//! What a guest is made of, as plain wishes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::initrd::Initrd;
use crate::machine::Machine;
use crate::place;
use crate::scratch::Scratch;

/// A kernel file.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// The built ELF file.
    Vmlinux,
    /// The built compressed image.
    BzImage,
    /// Any file.
    File(PathBuf),
}

/// A guest that has yet to be booted.
pub struct Guest {
    pub(crate) scratch: Scratch,
    config: Value,
    boot_args: String,
    /// It is no Linux, so that any KVM will do.
    bare: bool,
}

impl Guest {
    /// A guest with one vCPU, 128 MiB, a vsock device and an initrd whose first
    /// process runs `script` in busybox's shell.
    pub fn running(script: &str) -> Self {
        Self::with_initrd(Initrd::with_script(script))
    }

    /// The same whose script starts the agent, for [`Machine::exec`]. The shell
    /// on the console runs on as process 1.
    pub fn serving() -> Self {
        Self::running("coppice-agent serve --vsock 1024 & exec sh")
    }

    /// The same with any initrd.
    pub fn with_initrd(initrd: Initrd) -> Self {
        let scratch = Scratch::new();
        let initrd = initrd.write(scratch.path("initrd"));
        let mut guest = Self::without_initrd(scratch);
        guest.config["boot-source"]["initrd_path"] = json!(initrd);
        guest
    }

    /// The same without initrd: the kernel mounts the image at `path` as its
    /// root, changes it, and runs the agent in it.
    pub fn from_image(path: &Path) -> Self {
        let scratch = Scratch::new();
        let root = scratch.path("root");
        std::fs::copy(path, &root).expect("the image can be copied");
        let mut guest = Self::without_initrd(scratch);
        guest.add_drive("root", &root, false, true);
        guest
    }

    /// The same on a stack of `layers`, topmost first, which are not changed, and
    /// the delta at `delta`.
    pub fn from_stack(layers: &[PathBuf], delta: &Path) -> Self {
        let mut guest = Self::without_initrd(Scratch::new());
        guest.config["drives"] = json!([{
            "drive_id": "root",
            "stack": { "layers": layers, "delta": delta },
            "is_root_device": true,
            "cache_type": "Writeback",
        }]);
        guest
    }

    fn without_initrd(scratch: Scratch) -> Self {
        let config = json!({
            "machine-config": { "vcpu_count": 1, "mem_size_mib": 128 },
            "boot-source": { "kernel_image_path": place::kernel("vmlinux") },
            "drives": [],
            "vsock": { "guest_cid": 3, "uds_path": scratch.path("vsock") },
            "entropy": {},
        });
        Self {
            scratch,
            config,
            boot_args: "console=ttyS0 quiet panic=-1 reboot=k".into(),
            bare: false,
        }
    }

    /// One whose kernel is the file `kernel` in its directory and no Linux.
    pub(crate) fn without_linux() -> Self {
        let scratch = Scratch::new();
        let config = json!({
            "machine-config": { "vcpu_count": 1, "mem_size_mib": 48 },
            "boot-source": { "kernel_image_path": scratch.path("kernel") },
            "drives": [],
            "vsock": { "guest_cid": 3, "uds_path": scratch.path("vsock") },
        });
        let guest = Self {
            scratch,
            config,
            boot_args: String::new(),
            bare: true,
        };
        let disk = guest.scratch.file("disk", vec![0; 1 << 20]);
        guest.drive(&disk, true)
    }

    fn require_kvm(&self) {
        if !self.bare {
            place::require_kvm();
        }
    }

    /// With another kernel.
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.config["boot-source"]["kernel_image_path"] = match kernel {
            Kernel::Vmlinux => json!(place::kernel("vmlinux")),
            Kernel::BzImage => json!(place::kernel("bzImage")),
            Kernel::File(path) => json!(path),
        };
        self
    }

    /// With so many vCPUs.
    pub fn vcpus(mut self, count: u64) -> Self {
        self.config["machine-config"]["vcpu_count"] = json!(count);
        self
    }

    /// With so much memory.
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.config["machine-config"]["mem_size_mib"] = json!(mib);
        self
    }

    /// With more words on the kernel's command line.
    pub fn boot_args(mut self, words: &str) -> Self {
        self.boot_args = format!("{} {words}", self.boot_args);
        self
    }

    /// With a drive.
    pub fn drive(mut self, path: &Path, read_only: bool) -> Self {
        let id = format!(
            "data{}",
            self.config["drives"].as_array().map_or(0, Vec::len)
        );
        self.add_drive(&id, path, read_only, false);
        self
    }

    /// With a drive of `len` zeroes in a new file `name`.
    pub fn new_drive(self, name: &str, len: u64) -> Self {
        let path = self.scratch.path(name);
        let file = std::fs::File::create(&path).expect("a file can be made");
        file.set_len(len).expect("it can be as long");
        self.drive(&path, false)
    }

    fn add_drive(&mut self, id: &str, path: &Path, read_only: bool, is_root: bool) {
        let drives = self.config["drives"].as_array_mut().expect("an array");
        drives.push(json!({
            "drive_id": id,
            "path_on_host": path,
            "is_root_device": is_root,
            "is_read_only": read_only,
            "cache_type": "Writeback",
        }));
    }

    /// With a change to the configuration that no other verb makes.
    pub fn change(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.config);
        self
    }

    /// The path of `name` in the guest's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// The configuration file's content.
    pub fn config(&self) -> Value {
        let mut config = self.config.clone();
        if config["boot-source"]["boot_args"].is_null() {
            config["boot-source"]["boot_args"] = json!(self.boot_args);
        }
        config
    }

    /// Boots it from a configuration file, with an API socket beside.
    pub fn boot(self) -> Machine {
        self.require_kvm();
        Machine::start(self, true)
    }

    /// Starts its process with an API socket and no configuration.
    pub fn idle(self) -> Machine {
        Machine::start(self, false)
    }

    /// Boots it by requests to the API socket.
    pub fn boot_by_api(self) -> Machine {
        self.require_kvm();
        let config = self.config();
        let machine = Machine::start(self, false);
        machine.configure(&config);
        machine.put("/actions", &json!({ "action_type": "InstanceStart" }));
        machine
    }
}
