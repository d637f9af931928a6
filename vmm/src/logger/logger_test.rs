//! Lines and where they end up.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use log::Log;
use nix::sys::stat::Mode;
use vmm_sys_util::tempdir::TempDir;

use super::line::civil_date;
use super::*;
use crate::spec::LogLevel;

fn say(logger: &Logger, level: log::Level, target: &str, text: &str) {
    let mut record = log::Record::builder();
    record
        .level(level)
        .target(target)
        .file(Some("vmm/src/x.rs"))
        .line(Some(7));
    logger.log(&record.args(format_args!("{text}")).build());
}

fn to_file(path: &Path) -> Logger {
    let logger = Logger::new("vm1");
    let log_path = Some(path.to_owned());
    logger
        .configure(&LoggerConfig {
            log_path,
            ..LoggerConfig::default()
        })
        .expect("opens");
    logger
}

#[test]
fn each_line_is_there_at_once() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.as_path().join("log");
    let logger = to_file(&path);
    say(&logger, log::Level::Info, "a", "first");
    let text = fs::read_to_string(&path).expect("reads");
    assert!(text.ends_with("] first\n"), "{text}");
    assert!(text.contains(" [vm1:"), "{text}");
    assert_eq!(text.as_bytes()[..5].last(), Some(&b'-'), "{text}");

    say(&logger, log::Level::Debug, "a", "not at this level");
    logger
        .configure(&LoggerConfig {
            level: Some(LogLevel::Debug),
            show_level: Some(true),
            show_log_origin: Some(true),
            module: Some("coppice_vmm::api".to_owned()),
            ..LoggerConfig::default()
        })
        .expect("nothing to open");
    say(
        &logger,
        log::Level::Debug,
        "coppice_vmm::api::http",
        "two\nlines\0",
    );
    say(
        &logger,
        log::Level::Error,
        "coppice_vmm::vcpu",
        "from elsewhere",
    );
    let text = fs::read_to_string(&path).expect("reads");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[1].ends_with(":DEBUG:vmm/src/x.rs:7] two lines "),
        "{text}"
    );
}

#[test]
fn long_lines_are_cut() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.as_path().join("log");
    let logger = to_file(&path);
    say(&logger, log::Level::Info, "a", &"ä".repeat(10_000));
    let text = fs::read_to_string(&path).expect("reads");
    assert!((4000..=4096).contains(&text.len()), "{}", text.len());
    assert!(text.ends_with("ä\n"));
}

#[test]
fn a_full_pipe_loses_lines_and_says_how_many() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.as_path().join("pipe");
    nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("a pipe");
    // No reader is there, and opening does not wait for one.
    let logger = to_file(&path);
    for _ in 0..2000 {
        say(&logger, log::Level::Info, "a", &"x".repeat(100));
    }
    let lost = logger.lost_lines();
    assert!(lost > 0 && lost < 2000, "{lost}");

    let mut reader = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .expect("opens");
    let mut text = vec![0; 1 << 20];
    let count = reader.read(&mut text).expect("reads");
    assert_eq!(
        text[..count].iter().filter(|&&byte| byte == b'\n').count() as u64,
        2000 - lost
    );

    say(&logger, log::Level::Info, "a", "back again");
    let count = reader.read(&mut text).expect("reads");
    let text = String::from_utf8_lossy(&text[..count]);
    assert!(
        text.starts_with(&format!("{lost} log lines were lost here\n")),
        "{text}"
    );
    assert!(text.ends_with("back again\n"), "{text}");
    assert_eq!(logger.lost_lines(), lost);
}

#[test]
fn a_full_disk_is_no_trouble() {
    let logger = to_file(Path::new("/dev/full"));
    for _ in 0..3 {
        say(&logger, log::Level::Error, "a", "x");
    }
    assert_eq!(logger.lost_lines(), 3);
}

#[test]
fn a_log_that_cannot_be_opened_changes_nothing() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.as_path().join("log");
    let logger = to_file(&path);
    let error = logger
        .configure(&LoggerConfig {
            log_path: Some("/nowhere/log".into()),
            level: Some(LogLevel::Off),
            ..LoggerConfig::default()
        })
        .expect_err("there is no such folder");
    assert!(error.to_string().contains("/nowhere/log"), "{error}");
    say(&logger, log::Level::Info, "a", "still here");
    assert!(
        fs::read_to_string(&path)
            .expect("reads")
            .contains("still here")
    );
}

#[test]
fn dates() {
    for (days, date) in [
        (0, (1970, 1, 1)),
        (58, (1970, 2, 28)),
        (789, (1972, 2, 29)),
        (11_016, (2000, 2, 29)),
        (11_017, (2000, 3, 1)),
        (20_787, (2026, 11, 30)),
        (47_540, (2100, 2, 28)),
        (47_541, (2100, 3, 1)),
    ] {
        assert_eq!(civil_date(days), date);
    }
}
