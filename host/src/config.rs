//! The machine as the VMM's configuration file describes it.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::MachineArgs;
use crate::error::Error;
use crate::image::Image;

/// The guest's vsock address. It is only seen inside, so all can have the same.
const GUEST_CID: u32 = 3;

/// Files of a machine.
#[derive(Debug)]
pub struct Files<'a> {
    /// vmlinux or bzImage.
    pub kernel: &'a Path,
    /// The initrd with the agent.
    pub initrd: &'a Path,
    /// The root file system.
    pub image: &'a Image,
    /// The socket for connections to the guest.
    pub vsock: &'a Path,
}

/// What the machine's serial console is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleUse {
    /// What went wrong. More would cost an exit for each character.
    Errors,
    /// Somebody who watches: all messages, and a shell in the end.
    Shell,
}

/// The configuration file's contents.
pub fn config(args: &MachineArgs, files: &Files<'_>, console: ConsoleUse) -> Result<Value, Error> {
    let Image { path, writable, .. } = files.image;
    Ok(json!({
        "machine-config": {
            "vcpu_count": args.vcpus,
            "mem_size_mib": args.memory,
        },
        "boot-source": {
            "kernel_image_path": text(files.kernel)?,
            "initrd_path": text(files.initrd)?,
            "boot_args": boot_args(files.image, console, args.boot_args.as_deref()),
        },
        "drives": [{
            "drive_id": "root",
            "path_on_host": text(path)?,
            // The agent mounts it; the kernel stays in the initrd.
            "is_root_device": false,
            "is_read_only": !writable,
            "cache_type": if *writable { "Writeback" } else { "Unsafe" },
        }],
        "vsock": { "guest_cid": GUEST_CID, "uds_path": text(files.vsock)? },
        "entropy": {},
    }))
}

/// The kernel's command line. What the user gives comes last, because the last
/// of two equal parameters wins.
fn boot_args(image: &Image, console: ConsoleUse, more: Option<&str>) -> String {
    let mut words = vec![
        "console=ttyS0".into(),
        // A panic ends the machine at once, by the keyboard controller's reset.
        "panic=-1".into(),
        "reboot=k".into(),
        "random.trust_cpu=on".into(),
        "coppice.root=/dev/vda".into(),
        format!("coppice.rootfstype={}", image.file_system),
    ];
    if !image.writable {
        words.push("coppice.overlay=tmpfs".into());
    }
    words.push(match console {
        ConsoleUse::Errors => "quiet".into(),
        ConsoleUse::Shell => "coppice.console=shell".into(),
    });
    words.extend(more.map(Into::into));
    words.join(" ")
}

fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::File {
        what: "path",
        path: path.to_path_buf(),
        source: io::Error::new(io::ErrorKind::InvalidFilename, "it is not UTF-8"),
    })
}
