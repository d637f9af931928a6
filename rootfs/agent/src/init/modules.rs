//! Drivers of kernels that come with modules, such as a distribution's.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::stat::Mode;

/// What a microVM's devices need.
const DEVICES: [&str; 5] = [
    "virtio_mmio",
    "virtio_pci",
    "virtio_blk",
    "virtio_rng",
    "vmw_vsock_virtio_transport",
];

/// `MODULE_INIT_COMPRESSED_FILE` of `<linux/module.h>`, Linux 5.17.
const COMPRESSED: u32 = 4;

/// The modules beside the running kernel, with what each needs.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    dir: PathBuf,
    /// By name: the module's file, and the files that it needs, nearest first.
    table: HashMap<String, Vec<String>>,
}

impl Modules {
    /// Reads the table for the running kernel; it is empty where there is
    /// none, as with a kernel that has everything built in.
    pub(crate) fn find() -> Self {
        let Ok(uname) = nix::sys::utsname::uname() else {
            return Self::default();
        };
        let dir = PathBuf::from("/lib/modules").join(uname.release());
        let table = fs::read_to_string(dir.join("modules.dep")).unwrap_or_default();
        Self {
            dir,
            table: parse(&table),
        }
    }

    /// Loads the drivers of a microVM's devices.
    pub(crate) fn load_devices(&self) {
        for name in DEVICES {
            self.load(name);
        }
    }

    /// Loads a module and what it needs. One that is not in the table is built
    /// in, or missing; then whoever needs it says so.
    pub(crate) fn load(&self, name: &str) {
        let Some(files) = self.table.get(name) else {
            return;
        };
        for file in files.iter().rev() {
            let path = self.dir.join(file);
            let loaded = open(&path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
                .and_then(|module| insert(&module, !file.ends_with(".ko")));
            if let Err(errno) = loaded {
                eprintln!("coppice-agent: module {file} is not loaded: {errno}");
                return;
            }
        }
    }
}

fn insert(module: &OwnedFd, compressed: bool) -> Result<(), Errno> {
    let flags = if compressed { COMPRESSED } else { 0 };
    let none: &CStr = c"";
    match finit_module(module, none, ModuleInitFlags::from_bits_retain(flags)) {
        Err(Errno::EEXIST) => Ok(()),
        result => result,
    }
}

/// Reads modules.dep(5): `FILE: FILE...`, where what a file needs comes after
/// what needs it.
fn parse(text: &str) -> HashMap<String, Vec<String>> {
    let line = |line: &str| {
        let (file, needs) = line.split_once(':')?;
        let base = file.rsplit('/').next()?;
        let name = base.split(".ko").next()?.replace('-', "_");
        let files = std::iter::once(file).chain(needs.split_ascii_whitespace());
        Some((name, files.map(str::to_owned).collect()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_depmod_writes() {
        let table = parse(
            "kernel/fs/overlayfs/overlay.ko:\n\
             kernel/net/virtio-transport.ko.xz: kernel/net/common.ko.xz kernel/net/vsock.ko.xz\n",
        );
        assert_eq!(table["overlay"], ["kernel/fs/overlayfs/overlay.ko"]);
        assert_eq!(
            table["virtio_transport"],
            [
                "kernel/net/virtio-transport.ko.xz",
                "kernel/net/common.ko.xz",
                "kernel/net/vsock.ko.xz"
            ]
        );
    }
}
