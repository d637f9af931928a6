//! From the initial ramdisk into the root file system.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::InitError;
use super::modules::Modules;
use super::mounts::Kernel;
use super::params::Params;

/// For the root device to appear.
const DEVICE_TIME: Duration = Duration::from_secs(10);

/// Between two looks for it.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Where the new root is put together; names of the initial ramdisk.
const NEW_ROOT: &str = "/coppice-root";
const LOWER: &str = "/coppice-lower";
const CHANGES: &str = "/coppice-changes";

/// Of the machine's memory, for changes to a root that is kept unchanged.
const CHANGES_OPTIONS: &str = "size=90%,mode=0755";

/// Mounts the root file system that the command line names and moves into it.
pub(crate) fn enter(params: &Params, kernel: &Kernel, modules: &Modules) -> Result<(), InitError> {
    let Some(device) = &params.root else {
        return Ok(());
    };
    wait_for(device)?;
    let kind = root_type(device, params)?;
    modules.load(&kind);
    if params.overlay {
        modules.load("overlay");
        make_dir(LOWER)?;
        mount_device(device, LOWER, &kind, true, params)?;
        lay_changes_over(LOWER)?;
    } else {
        make_dir(NEW_ROOT)?;
        mount_device(device, NEW_ROOT, &kind, params.read_only, params)?;
    }
    kernel.move_to(Path::new(NEW_ROOT))?;
    switch().map_err(InitError::io("the new root cannot be entered"))
}

fn make_dir(path: &str) -> Result<(), InitError> {
    fs::create_dir_all(path).map_err(InitError::io(format!("{path} cannot be made")))
}

fn wait_for(device: &str) -> Result<(), InitError> {
    let until = Instant::now() + DEVICE_TIME;
    while !Path::new(device).exists() {
        if Instant::now() >= until {
            let present = fs::read_dir("/sys/class/block").map_or_else(
                |_| "no block devices".into(),
                |entries| {
                    let names: Vec<String> = entries
                        .flatten()
                        .map(|entry| entry.file_name().to_string_lossy().into_owned())
                        .collect();
                    match names.as_slice() {
                        [] => "no block device; is its driver built in?".into(),
                        names => names.join(", "),
                    }
                },
            );
            return Err(InitError::NoDevice {
                device: device.into(),
                seconds: DEVICE_TIME.as_secs(),
                present,
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn root_type(device: &str, params: &Params) -> Result<String, InitError> {
    if let Some(kind) = &params.root_type {
        return Ok(kind.clone());
    }
    let kind = detect(device).map_err(InitError::io(format!("{device} cannot be read")))?;
    kind.map(str::to_owned).ok_or_else(|| InitError::Mount {
        what: device.into(),
        at: "the root".into(),
        why: "it holds no file system of a known type (ext4, squashfs, erofs, xfs, btrfs); name it with coppice.rootfstype=".into(),
    })
}

fn mount_device(
    device: &str,
    at: &str,
    kind: &str,
    read_only: bool,
    params: &Params,
) -> Result<(), InitError> {
    let flags = if read_only {
        MsFlags::MS_RDONLY
    } else {
        MsFlags::empty()
    };
    let asked = params.root_flags.as_deref();
    let attempt = |flags, data| mount(Some(device), at, Some(kind), flags, data);
    let result = match attempt(flags, asked) {
        // A device that cannot be written: its root cannot be either. An
        // unclean ext4 on it is only mounted without a look at its journal.
        Err(Errno::EROFS | Errno::EACCES) => {
            if !read_only {
                eprintln!("coppice-agent: {device} is read-only, and so is the root");
            }
            attempt(MsFlags::MS_RDONLY, asked).or_else(|errno| match kind {
                "ext4" => attempt(MsFlags::MS_RDONLY, Some("noload")),
                _ => Err(errno),
            })
        }
        result => result,
    };
    result.map_err(|errno| InitError::Mount {
        what: device.into(),
        at: "the root".into(),
        why: match errno {
            Errno::ENODEV => format!("the kernel has no file system `{kind}`"),
            errno => format!("as {kind}: {}", errno.desc()),
        },
    })
}

/// The type of the file system on a device, by its magic number.
fn detect(device: &str) -> io::Result<Option<&'static str>> {
    let mut head = Vec::new();
    fs::File::open(device)?
        .take(0x11000)
        .read_to_end(&mut head)?;
    Ok(detect_in(&head))
}

fn detect_in(head: &[u8]) -> Option<&'static str> {
    let magics: [(usize, &[u8], &str); 5] = [
        (1024 + 56, &[0x53, 0xef], "ext4"),
        (0, b"hsqs", "squashfs"),
        (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
        (0, b"XFSB", "xfs"),
        (0x10040, b"_BHRfS_M", "btrfs"),
    ];
    let holds = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let found = magics.iter().find(|(at, magic, _)| holds(*at, magic));
    found.map(|(_, _, kind)| *kind)
}

/// Puts a tmpfs for changes over a root that stays as it is.
fn lay_changes_over(lower: &str) -> Result<(), InitError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: Errno| InitError::Mount {
            why: match errno {
                Errno::ENODEV => format!("the kernel has no {what}"),
                errno => errno.desc().into(),
            },
            what,
            at: "the root".into(),
        }
    };
    make_dir(NEW_ROOT)?;
    make_dir(CHANGES)?;
    let flags = MsFlags::empty();
    mount(
        Some("tmpfs"),
        CHANGES,
        Some("tmpfs"),
        flags,
        Some(CHANGES_OPTIONS),
    )
    .map_err(failed("tmpfs"))?;
    let (upper, work) = (format!("{CHANGES}/upper"), format!("{CHANGES}/work"));
    make_dir(&upper)?;
    make_dir(&work)?;
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    mount(
        Some("overlay"),
        NEW_ROOT,
        Some("overlay"),
        flags,
        Some(options.as_str()),
    )
    .map_err(failed("overlay"))
}

/// Makes the new root the root. The initial ramdisk stays mounted beneath it,
/// out of sight, as it cannot be unmounted.
fn switch() -> io::Result<()> {
    let none = None::<&str>;
    std::env::set_current_dir(NEW_ROOT)?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none)?;
    std::os::unix::fs::chroot(".")?;
    std::env::set_current_dir("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_their_magic() {
        let mut head = vec![0; 0x11000];
        assert_eq!(detect_in(&head), None);
        head[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(detect_in(&head), Some("ext4"));
        assert_eq!(detect_in(b"hsqs and nothing else"), Some("squashfs"));
        assert_eq!(detect_in(b""), None);
    }
}
