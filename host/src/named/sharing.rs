//! How much memory machines have, and how much of it for themselves.

use std::fs;
use std::io;
use std::iter::Sum;

use serde::Serialize;

/// A process's memory in KiB (smaps_rollup in proc_pid_smaps(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All that is mapped and present.
    pub rss_kib: u64,
    /// The same, where each page counts for one n-th if n processes map it.
    pub pss_kib: u64,
}

impl Memory {
    /// That of the process `pid`.
    pub fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(Self {
            rss_kib: field("Rss:")?,
            pss_kib: field("Pss:")?,
        })
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, memory| Self {
            rss_kib: sum.rss_kib + memory.rss_kib,
            pss_kib: sum.pss_kib + memory.pss_kib,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_sums_are_read() {
        let text = "00400000-7ffd rollup\nRss:   2048 kB\nPss:  1024 kB\nPss_Dirty: 4 kB\n";
        let memory = Memory {
            rss_kib: 2048,
            pss_kib: 1024,
        };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("Rss: 1 kB\n"), None);
        let own = Memory::of(std::process::id() as i32).expect("readable");
        assert!(own.rss_kib >= own.pss_kib && own.pss_kib > 0);
    }
}
