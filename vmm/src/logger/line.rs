//! The form of a line:
//! `2026-01-31T12:00:00.123456789 [id:thread:LEVEL:file:line] message`,
//! with level and origin on request. Time is UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Settings;

/// What a pipe takes in one piece or not at all (`PIPE_BUF`).
const MAX_LINE: usize = 4096;

/// The line for `record`, with its line end.
pub fn format_line(settings: &Settings, record: &log::Record<'_>) -> String {
    let mut line = String::with_capacity(160);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    write_time(&mut line, now.as_secs(), now.subsec_nanos());

    // Writing to a String cannot fail.
    let thread = std::thread::current();
    let _ = write!(line, " [{}:{}", settings.id, thread.name().unwrap_or("-"));
    if settings.show_level {
        let _ = write!(line, ":{}", record.level());
    }
    if settings.show_origin {
        let file = record.file().unwrap_or("-");
        let _ = write!(line, ":{file}:{}", record.line().unwrap_or(0));
    }
    let _ = write!(line, "] {}", record.args());

    // One record is one line, whatever a guest or client managed to put in it.
    if line.contains(|c: char| c.is_control()) {
        line = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
    }
    let fits = (0..MAX_LINE).rev().find(|&end| line.is_char_boundary(end));
    line.truncate(fits.unwrap_or(0));
    line.push('\n');
    line
}

/// Appends date and time of day for `seconds` since 1970.
fn write_time(line: &mut String, seconds: u64, nanoseconds: u32) {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(
        line,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}"
    );
}

/// The Gregorian date `days` after 1970-01-01. Years are counted from March, so
/// that the leap day is the last of its year.
pub(super) fn civil_date(days: u64) -> (u64, u64, u64) {
    const DAYS_IN_ERA: u64 = 146_097; // 400 years
    let since_march_0000 = days + 719_468;
    let era = since_march_0000 / DAYS_IN_ERA;
    let day_of_era = since_march_0000 % DAYS_IN_ERA;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 {
        months_since_march + 3
    } else {
        months_since_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}
