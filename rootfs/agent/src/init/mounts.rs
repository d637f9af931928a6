//! The file systems that programs expect besides the root.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::InitError;

/// A file system of the kernel's own.
struct Virtual {
    kind: &'static str,
    at: &'static str,
    flags: MsFlags,
    data: &'static str,
}

const SAFE: MsFlags = MsFlags::MS_NOSUID
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC);

/// What the agent itself cannot do without.
const BASIC: [Virtual; 3] = [
    Virtual {
        kind: "proc",
        at: "/proc",
        flags: SAFE,
        data: "",
    },
    Virtual {
        kind: "sysfs",
        at: "/sys",
        flags: SAFE,
        data: "",
    },
    Virtual {
        kind: "devtmpfs",
        at: "/dev",
        flags: MsFlags::MS_NOSUID,
        data: "mode=0755",
    },
];

/// What programs expect; a machine without one still runs.
const FURTHER: [Virtual; 5] = [
    Virtual {
        kind: "devpts",
        at: "/dev/pts",
        flags: MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC),
        // 5 is the group `tty` of every distribution.
        data: "gid=5,mode=620,ptmxmode=666",
    },
    Virtual {
        kind: "tmpfs",
        at: "/dev/shm",
        flags: MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV),
        data: "mode=1777",
    },
    Virtual {
        kind: "mqueue",
        at: "/dev/mqueue",
        flags: SAFE,
        data: "",
    },
    Virtual {
        kind: "tmpfs",
        at: "/run",
        flags: MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV),
        data: "mode=0755",
    },
    Virtual {
        kind: "cgroup2",
        at: "/sys/fs/cgroup",
        flags: SAFE,
        data: "nsdelegate",
    },
];

/// Names in `/dev` that shells rely on and the kernel does not make.
const DEV_LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

impl Virtual {
    fn mount(&self) -> Result<(), Errno> {
        let _ = fs::DirBuilder::new().mode(0o755).create(self.at);
        let data = (!self.data.is_empty()).then_some(self.data);
        match mount(Some(self.kind), self.at, Some(self.kind), self.flags, data) {
            // The kernel or an earlier init was faster.
            Err(Errno::EBUSY) => Ok(()),
            result => result,
        }
    }
}

/// Proof that `/proc`, `/sys` and `/dev` are there.
#[derive(Debug)]
pub(crate) struct Kernel(());

impl Kernel {
    /// Mounts them.
    pub(crate) fn mount() -> Result<Self, InitError> {
        for file_system in &BASIC {
            file_system.mount().map_err(|errno| InitError::Mount {
                what: file_system.kind.into(),
                at: file_system.at.into(),
                why: errno.desc().into(),
            })?;
        }
        Ok(Self(()))
    }

    /// Takes them along to a new root.
    pub(crate) fn move_to(&self, root: &Path) -> Result<(), InitError> {
        for Virtual { at, kind, .. } in &BASIC {
            let target = root.join(at.trim_start_matches('/'));
            let _ = fs::create_dir(&target);
            let none = None::<&str>;
            mount(Some(*at), &target, none, MsFlags::MS_MOVE, none).map_err(|errno| {
                InitError::Mount {
                    what: (*kind).into(),
                    at: at.to_string(),
                    why: match errno {
                        Errno::ENOENT => {
                            "the image has no such directory, and its root is read-only".into()
                        }
                        errno => errno.desc().into(),
                    },
                }
            })?;
        }
        Ok(())
    }
}

/// The device nodes alone, for a process without standard streams.
pub(crate) fn device_nodes() -> Result<(), Errno> {
    BASIC[2].mount()
}

/// Mounts what programs expect, in the root where the agent stays.
pub(crate) fn populate() {
    for file_system in &FURTHER {
        if let Err(errno) = file_system.mount() {
            // mqueue and others are options of the kernel's build.
            if errno != Errno::ENODEV {
                let Virtual { kind, at, .. } = file_system;
                eprintln!("coppice-agent: {kind} is not mounted at {at}: {errno}");
            }
        }
    }
    for (target, link) in DEV_LINKS {
        let _ = symlink(target, link);
    }
    let _ = fs::create_dir("/run/lock");
    if let Err(error) = temporary_files() {
        eprintln!("coppice-agent: /tmp cannot be used: {error}");
    }
}

/// Programs need a `/tmp`. Where the root can be written it is the image's
/// own, on the disk and as large; otherwise it is in memory.
fn temporary_files() -> io::Result<()> {
    let read_only = statvfs("/")?.flags().contains(FsFlags::ST_RDONLY);
    if !read_only {
        if !Path::new("/tmp").exists() {
            fs::create_dir("/tmp")?;
            fs::set_permissions("/tmp", std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
        }
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(
        Some("tmpfs"),
        "/tmp",
        Some("tmpfs"),
        flags,
        Some("mode=1777"),
    )?)
}
