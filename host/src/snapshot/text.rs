//! Text for people, and JSON for programs.

use std::time::{SystemTime, UNIX_EPOCH};

use coppice_snapshot::SnapshotId;
use serde::Serialize;

/// One line of JSON.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("maps with keys that are strings") + "\n"
}

/// Columns that are as wide as their widest cell.
pub fn table<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths);
        let row: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes with three digits that count.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
    let digits = match value {
        _ if unit == "B" => 0,
        0.0..9.995 => 2,
        0.0..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// How long ago something was.
pub fn ago(ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_millis() as u64);
    match now.saturating_sub(ms) / 1000 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// How many there are of something.
pub fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// As much of an id as people want to see.
pub fn short(id: &SnapshotId) -> String {
    id.to_string().chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (4096, "4.00 KiB"),
            (15 << 10, "15.0 KiB"),
            (512 << 20, "512 MiB"),
            (4 << 30, "4.00 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let lines = [["A".into(), "B".into()], ["long".into(), "x".into()]];
        assert_eq!(table(&lines), "A     B\nlong  x\n");
    }
}
