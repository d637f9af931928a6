//! Initial RAM disks made for a test: busybox, the agent and a script.

use std::fs;
use std::path::{Path, PathBuf};

use crate::place::program;

/// File types and permissions (`st_mode`).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Runs before the test's own script: process 1 is busybox's shell.
const PROLOGUE: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
export PATH=/bin HOME=/
";

/// An archive that the kernel unpacks into its first file system
/// (Documentation/driver-api/early-userspace/buffer-format.rst, "newc").
#[derive(Default)]
pub struct Initrd {
    bytes: Vec<u8>,
    files: u32,
}

impl Initrd {
    /// Busybox, the agent, and `script` as process 1.
    pub fn with_script(script: &str) -> Self {
        let mut archive = Self::default();
        for directory in ["bin", "dev", "proc", "sys", "tmp", "mnt"] {
            archive.entry(directory, DIRECTORY, (0, 0), &[]);
        }
        // Without it the first process has no standard streams.
        archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), &[]);
        let busybox = Path::new("/bin/busybox");
        let busybox = if busybox.exists() {
            busybox.to_owned()
        } else {
            program("busybox")
        };
        archive.program("bin/busybox", &busybox);
        archive.program("bin/coppice-agent", &program("coppice-agent"));
        archive.entry(
            "init",
            PROGRAM,
            (0, 0),
            format!("{PROLOGUE}{script}\n").as_bytes(),
        );
        archive
    }

    /// A file of `len` zeroes.
    pub fn padding(&mut self, len: usize) {
        self.entry("padding", PROGRAM, (0, 0), &vec![0; len]);
    }

    /// Writes the archive to `path`.
    pub fn write(mut self, path: PathBuf) -> PathBuf {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        fs::write(&path, self.bytes).expect("the initrd can be written");
        path
    }

    fn program(&mut self, name: &str, file: &Path) {
        let content = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.entry(name, PROGRAM, (0, 0), &content);
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.files += 1;
        let len = |bytes: usize| u32::try_from(bytes).expect("a small file");
        let header = [
            self.files, // inode
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            len(content.len()),
            0, // device of the file system
            0,
            device.0,
            device.1,
            len(name.len() + 1),
            0, // checksum, unused
        ];
        self.bytes.extend(b"070701");
        for field in header {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
