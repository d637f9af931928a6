//! One control group for each command, so that killing a command reaches
//! every process that it started, also those that made sessions of their own,
//! and so that a kill for want of memory is seen.
//!
//! Groups are used again: making and removing one for each command would cost
//! more, and a removed group stays in the kernel as long as its page cache.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

/// Groups kept for later commands.
const KEPT: usize = 16;

/// For killed processes to leave their groups when the agent stops.
const GONE_TIME: Duration = Duration::from_millis(500);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The control group of one command.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    dir: OwnedFd,
    /// Kills for want of memory that earlier users of the group suffered.
    oom_kills_before: u64,
    /// Linux compares the count of kills of the group that a process is forked
    /// into with that of its parent's group, and kills the child if they
    /// differ (`kill_seq`, seen in 6.18). So no process can be started in a
    /// group that was killed once.
    killed: bool,
}

impl Cgroup {
    fn create(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_PATH | OFlag::O_CLOEXEC;
        let dir = open(&path, flags, Mode::empty())?;
        Ok(Self {
            path,
            dir,
            oom_kills_before: 0,
            killed: false,
        })
    }

    /// For starting a process in it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let file = openat(
            &self.dir,
            name,
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let mut text = String::new();
        fs::File::from(file).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Whether a living process is in it.
    pub(crate) fn populated(&self) -> bool {
        self.read("cgroup.events")
            .is_ok_and(|text| field(&text, "populated") == Some(1))
    }

    /// Kills every process in it, also those that are being forked.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.killed = true;
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.dir, "cgroup.kill", flags, Mode::empty())?;
        nix::unistd::write(file, b"1")?;
        Ok(())
    }

    /// Whether a process of this command was killed for want of memory.
    pub(crate) fn oom_killed(&self) -> bool {
        self.oom_kills() > self.oom_kills_before
    }

    /// 0 where the kernel counts no memory by group.
    fn oom_kills(&self) -> u64 {
        let text = self.read("memory.events").unwrap_or_default();
        field(&text, "oom_kill").unwrap_or(0)
    }
}

/// The value of a line `NAME VALUE`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .and_then(|value| value.parse().ok())
}

/// All of the agent's groups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    base: PathBuf,
    made: u64,
    free: Vec<Cgroup>,
    /// Groups whose command ended but left processes behind.
    lingering: Vec<Cgroup>,
}

impl Cgroups {
    /// A directory for the groups below the agent's own, or nothing where
    /// this agent cannot make groups that can be killed.
    pub(crate) fn open() -> Option<Self> {
        let mount = mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let parent = mount.join(own_group(&own)?.trim_start_matches('/'));
        let base = parent.join(format!("coppice-{}", std::process::id()));
        // The root group may delegate although the agent is in it; elsewhere
        // the kernel refuses, and memory is simply not counted by command.
        let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        fs::create_dir(&base).ok()?;
        let _ = fs::write(base.join("cgroup.subtree_control"), "+memory");
        let mut groups = Self {
            base,
            made: 0,
            free: Vec::new(),
            lingering: Vec::new(),
        };
        // cgroup.kill is newer (Linux 5.14) than control groups.
        let first = groups.take()?;
        let killable = first.path.join("cgroup.kill").exists();
        groups.release(first);
        killable.then_some(groups)
    }

    /// An empty group for a new command.
    pub(crate) fn take(&mut self) -> Option<Cgroup> {
        if let Some(mut group) = self.free.pop() {
            group.oom_kills_before = group.oom_kills();
            return Some(group);
        }
        self.made += 1;
        Cgroup::create(self.base.join(self.made.to_string())).ok()
    }

    /// Takes back the group of a command that has ended.
    pub(crate) fn release(&mut self, group: Cgroup) {
        if group.populated() {
            self.lingering.push(group);
        } else if !group.killed && self.free.len() < KEPT {
            self.free.push(group);
        } else if fs::remove_dir(&group.path).is_err() {
            self.lingering.push(group);
        }
    }

    /// Looks again at groups with processes that outlived their command.
    pub(crate) fn settle(&mut self) {
        for group in std::mem::take(&mut self.lingering) {
            self.release(group);
        }
    }

    /// Removes every group, also those of commands that were still running.
    fn remove_all(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.base)?.flatten() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir(entry.path())?;
            }
        }
        fs::remove_dir(&self.base)
    }

    /// Kills what commands left behind.
    pub(crate) fn kill_lingering(&mut self) {
        for group in &mut self.lingering {
            let _ = group.kill();
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let until = Instant::now() + GONE_TIME;
        while self.remove_all().is_err() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Where the v2 hierarchy is mounted, from proc_pid_mountinfo(5).
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let kind = kind.split(' ').next()?;
        let path = place.split(' ').nth(4)?;
        (kind == "cgroup2").then(|| Path::new(path).to_owned())
    })
}

/// The agent's own v2 group, from cgroups(7).
fn own_group(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_hierarchy_among_older_ones() {
        let mountinfo = "25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            26 25 0:23 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
            27 25 0:24 / /sys/fs/cgroup/unified rw shared:2 master:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            mount_point(mountinfo),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(mount_point("nothing\n"), None);
        assert_eq!(own_group("5:cpu:/a\n0::/b/c\n"), Some("/b/c"));
    }

    #[test]
    fn reads_a_field_by_its_whole_name() {
        let text = "oom 3\noom_kill 2\noom_group_kill 9\n";
        assert_eq!(field(text, "oom_kill"), Some(2));
        assert_eq!(field(text, "oom_k"), None);
    }
}
