//! What a machine costs beside the pages that it shares.

use std::path::Path;

use coppice_benches::Fallible;

/// Memory of the process `pid` outside the pages that restored machines share, in
/// KiB: the PSS of its mappings (proc_pid_smaps(5)), in which a page that several
/// processes have counts in parts; but of the mappings of `memory`, the file of the
/// guest's memory, only the pages that the process has copied.
pub fn outside(pid: i32, memory: &Path) -> Fallible<f64> {
    let memory = std::fs::canonicalize(memory)?;
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    Ok(sum(&smaps, &memory.to_string_lossy()) as f64)
}

fn sum(smaps: &str, memory: &str) -> u64 {
    let mut of_memory = false;
    let mut total = 0;
    for line in smaps.lines() {
        let Some((word, rest)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        let counted = if of_memory { "Anonymous:" } else { "Pss:" };
        if !word.ends_with(':') {
            // A mapping's first line: its addresses, and in the end its file.
            of_memory = rest.ends_with(memory);
        } else if word == counted {
            let kib = rest.trim().trim_end_matches(" kB").parse();
            total += kib.unwrap_or(0);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_guests_memory_only_what_was_copied_counts() {
        let smaps = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/vmm
Rss:                 100 kB
Pss:                  50 kB
Pss_Dirty:             5 kB
Anonymous:             7 kB
7f0000000000-7f0008000000 rw-p 00000000 08:02 17  /a b/memory1
Pss:                4000 kB
Anonymous:            12 kB
7f0010000000-7f0010001000 rw-p 00000000 00:00 0
Pss:                   4 kB
Anonymous:             4 kB
VmFlags: rd wr mr
";
        assert_eq!(sum(smaps, "/a b/memory1"), 50 + 12 + 4);
        assert_eq!(sum(smaps, "/elsewhere"), 50 + 4000 + 4);
    }
}
