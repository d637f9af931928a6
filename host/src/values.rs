//! Values of command-line options: sizes, durations, environment variables.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// An amount of guest memory in MiB: `512`, `512M`, `2G`, `1GiB`.
pub fn memory_mib(text: &str) -> Result<usize, String> {
    let wrong = || format!("`{text}` is no memory size; write MiB (512) or a unit (512M, 2G)");
    let (number, unit) = split_unit(text);
    let number: usize = number.parse().map_err(|_| wrong())?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => 1,
        "g" | "gb" | "gib" => 1024,
        "t" | "tb" | "tib" => 1024 * 1024,
        _ => return Err(wrong()),
    };
    match number.checked_mul(factor) {
        Some(0) => Err("a machine needs memory; 32M is the least that boots Linux".into()),
        Some(mib) => Ok(mib),
        None => Err(format!("`{text}` is more memory than a number can hold")),
    }
}

/// A duration: `30s`, `1.5s`, `500ms`, `2m`, `1h`; without a unit, seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write 30s, 500ms, 2m or 1h");
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration.as_millis() == 0 {
        return Err(format!("`{text}` leaves no time at all; give at least 1ms"));
    }
    Ok(duration)
}

/// A variable for the guest: `NAME=VALUE`, or `NAME` alone for the value that
/// it has here (nothing is passed on if it has none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: OsString,
    /// Its value, if the option gives one.
    pub value: Option<OsString>,
}

impl EnvVar {
    /// Takes `NAME=VALUE` or `NAME` apart.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.into())),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(format!(
                "`{text}` names no variable; write NAME=VALUE or NAME"
            ));
        }
        Ok(Self {
            name: name.into(),
            value,
        })
    }

    /// Name and value as the guest gets them.
    pub fn resolve(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let value = self
            .value
            .clone()
            .or_else(|| std::env::var_os(&self.name))?;
        Some((self.name.as_bytes().to_vec(), value.into_vec()))
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_units() {
        for (text, mib) in [
            ("512", 512),
            ("512M", 512),
            ("2G", 2048),
            ("1GiB", 1024),
            ("1T", 1 << 20),
        ] {
            assert_eq!(memory_mib(text), Ok(mib), "{text}");
        }
    }

    #[test]
    fn memory_that_is_none_is_refused() {
        for text in [
            "",
            "0",
            "0G",
            "-1",
            "M",
            "1.5G",
            "512K",
            "lots",
            "99999999999999999T",
        ] {
            assert!(memory_mib(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [
            ("30", 30_000),
            ("1.5s", 1500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn durations_that_are_none_are_refused() {
        for text in [
            "", "0", "0s", "s", "-1s", "1d", "1e400", "0.0001ms", "1s1s", "NaN", "inf",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn variables_are_taken_apart_at_the_first_sign() {
        let var = EnvVar::parse("A=b=c").expect("valid");
        assert_eq!(var.resolve(), Some((b"A".to_vec(), b"b=c".to_vec())));
        let var = EnvVar::parse("A=").expect("valid");
        assert_eq!(var.resolve(), Some((b"A".to_vec(), Vec::new())));
        assert!(EnvVar::parse("=x").is_err());
        assert!(EnvVar::parse("").is_err());
    }

    #[test]
    fn a_name_alone_takes_the_value_from_here() {
        let path = std::env::var_os("PATH").expect("tests have a PATH");
        let var = EnvVar::parse("PATH").expect("valid");
        assert_eq!(var.resolve(), Some((b"PATH".to_vec(), path.into_vec())));
        let var = EnvVar::parse("COPPICE_TEST_SURELY_UNSET").expect("valid");
        assert_eq!(var.resolve(), None);
    }
}
