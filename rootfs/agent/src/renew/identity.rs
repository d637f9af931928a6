//! The steps that take no program: random numbers, clock, names, ids.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coppice_agent_protocol::{GENERATION_LEN, Seed};
use nix::mount::{MsFlags, mount};
use nix::time::{ClockId, clock_settime};

use super::files::{replace, replace_existing};
use crate::sys;

/// What was done, for people; nothing if there was nothing to do.
pub(super) type Result = io::Result<Option<String>>;

/// A 128-bit id.
type Id = [u8; GENERATION_LEN];

/// The longest host name that Linux takes (`__NEW_UTS_LEN`).
const HOSTNAME_MAX: usize = 64;

/// Where programs read the machine's id: machine-id(5), and D-Bus where that is
/// no link to it.
const MACHINE_IDS: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];

/// Where programs learn which of its siblings the machine is.
const TOLD: &str = "run/coppice/generation";

/// The kernel's id of this boot, which it does not change, and ours over it.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
const OWN_BOOT_ID: &str = "run/coppice/boot_id";

/// Makes the kernel's random numbers others than its siblings'.
pub(super) fn reseed(seed: &Seed) -> Result {
    sys::reseed(&File::open("/dev/urandom")?, &seed.0)?;
    Ok(Some(String::new()))
}

/// Sets the wall clock to what the host's was when it asked, and what has
/// passed since the request was `received`.
pub(super) fn set_clock(sent_ns: u64, received: Instant) -> Result {
    let was = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = Duration::from_nanos(sent_ns).saturating_add(received.elapsed());
    clock_settime(ClockId::CLOCK_REALTIME, now.into())?;
    // A clock before 1970 has not been set.
    let was = was.unwrap_or_default();
    let (sign, moved) = match now.checked_sub(was) {
        Some(moved) => ('+', moved),
        None => ('-', was.saturating_sub(now)),
    };
    Ok(Some(format!("{sign}{:.6} s", moved.as_secs_f64())))
}

/// Sets the host name, and the one of later boots.
pub(super) fn set_hostname(root: &Path, name: &str) -> Result {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || name.len() > HOSTNAME_MAX || !name.chars().all(allowed) {
        let text = format!(
            "`{name}` is no host name: it takes 1 to {HOSTNAME_MAX} letters, digits, `-`, `.` and `_`"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    nix::unistd::sethostname(name)?;
    replace_existing(&root.join("etc/hostname"), &format!("{name}\n"))
        .map_err(|error| context("it is set, but /etc/hostname is not", error))?;
    Ok(Some(name.to_owned()))
}

/// Tells programs of the generation.
pub(super) fn tell(root: &Path, generation: &Id) -> Result {
    let path = root.join(TOLD);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let text = hex(generation);
    replace(&path, &format!("{text}\n"), 0o644)?;
    Ok(Some(text))
}

/// Makes the machine-id of the generation.
pub(super) fn set_machine_id(root: &Path, generation: &Id) -> Result {
    let id = hex(&version_4(*generation));
    let mut found = false;
    for path in MACHINE_IDS {
        found |= replace_existing(&root.join(path), &format!("{id}\n"))
            .map_err(|error| context(path, error))?;
    }
    Ok(found.then_some(id))
}

/// Lays a new boot id over the kernel's.
pub(super) fn set_boot_id(root: &Path) -> Result {
    let (kernels, own) = (root.join(BOOT_ID), root.join(OWN_BOOT_ID));
    let Ok(old) = fs::metadata(&kernels) else {
        return Ok(None);
    };
    let mut id = [0; GENERATION_LEN];
    sys::random(&mut id)?;
    let digits = hex(&version_4(id));
    let groups = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let id = groups.map(|(from, to)| &digits[from..to]).join("-");
    // In place: once it is mounted, it is this very file that is seen.
    fs::write(&own, format!("{id}\n"))?;
    let ours = fs::metadata(&own)?;
    if (old.dev(), old.ino()) != (ours.dev(), ours.ino()) {
        let none = None::<&str>;
        mount(Some(&own), &kernels, none, MsFlags::MS_BIND, none)?;
    }
    Ok(Some(id))
}

/// Marks an id as random (RFC 9562 §5.4), as those who make machine-ids do.
fn version_4(mut id: Id) -> Id {
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Lower-case digits, two a byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn context(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: Id = [0xff; GENERATION_LEN];

    fn read(root: &Path, name: &str) -> String {
        fs::read_to_string(root.join(name)).expect("it is there")
    }

    #[test]
    fn the_machine_id_is_renewed_where_there_is_one() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        assert_eq!(set_machine_id(root, &GENERATION).expect("looked"), None);
        for directory in ["etc", "var/lib/dbus"] {
            fs::create_dir_all(root.join(directory)).expect("made");
        }
        // An image that is meant to be booted first has an empty one.
        fs::write(root.join("etc/machine-id"), "").expect("written");
        let id = set_machine_id(root, &GENERATION).expect("set");
        assert_eq!(id.as_deref(), Some("ffffffffffff4fffbfffffffffffffff"));
        assert_eq!(read(root, "etc/machine-id").trim_end(), id.expect("set"));
        assert!(!root.join("var/lib/dbus/machine-id").exists());
        fs::write(root.join("var/lib/dbus/machine-id"), "old\n").expect("written");
        set_machine_id(root, &[1; GENERATION_LEN]).expect("set");
        assert_eq!(
            read(root, "var/lib/dbus/machine-id"),
            read(root, "etc/machine-id")
        );
    }

    #[test]
    fn the_generation_is_told_and_told_again() {
        let root = tempfile::tempdir().expect("a directory");
        for byte in [1, 2] {
            tell(root.path(), &[byte; GENERATION_LEN]).expect("told");
            let told = read(root.path(), TOLD);
            assert_eq!(told, format!("{}\n", format!("0{byte}").repeat(16)));
        }
    }

    #[test]
    fn what_is_no_host_name_is_refused_before_it_is_set() {
        let root = Path::new("/nowhere");
        let long = "x".repeat(65);
        for name in ["", "a b", "a/b", "a\nb", "größe", &long] {
            let error = set_hostname(root, name).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }

    #[test]
    fn a_guest_without_the_kernels_boot_id_is_left_alone() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(set_boot_id(root.path()).expect("looked"), None);
    }
}
