//! `/logger`: where log lines go and which.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::SpecError;
use super::parse::check_path;

/// Changes to logging; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoggerConfig {
    /// A file or named pipe to write lines to; standard error at first.
    pub log_path: Option<PathBuf>,
    /// The most detailed kind of line to write.
    pub level: Option<LogLevel>,
    /// Whether lines show their level.
    pub show_level: Option<bool>,
    /// Whether lines show the source file and line that they come from.
    pub show_log_origin: Option<bool>,
    /// Only lines from modules whose path begins so are written.
    pub module: Option<String>,
}

impl LoggerConfig {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        self.log_path
            .as_ref()
            .map_or(Ok(()), |path| check_path("log_path", path))
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What went wrong.
    Error,
    /// And what looks wrong.
    Warning,
    /// And what happened.
    Info,
    /// And how.
    Debug,
    /// And every step.
    Trace,
}

impl LogLevel {
    /// The level with this name in any mixture of upper and lower case.
    ///
    /// # Errors
    /// There is no such level.
    pub fn from_name(name: &str) -> Result<LogLevel, SpecError> {
        match name.to_ascii_lowercase().as_str() {
            "off" => Ok(LogLevel::Off),
            "error" => Ok(LogLevel::Error),
            "warn" | "warning" => Ok(LogLevel::Warning),
            "info" => Ok(LogLevel::Info),
            "debug" => Ok(LogLevel::Debug),
            "trace" => Ok(LogLevel::Trace),
            _ => {
                let rule = "it must be Off, Error, Warning, Info, Debug or Trace";
                Err(SpecError::new("level", name, rule))
            }
        }
    }
}

impl From<LogLevel> for log::LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => log::LevelFilter::Off,
            LogLevel::Error => log::LevelFilter::Error,
            LogLevel::Warning => log::LevelFilter::Warn,
            LogLevel::Info => log::LevelFilter::Info,
            LogLevel::Debug => log::LevelFilter::Debug,
            LogLevel::Trace => log::LevelFilter::Trace,
        }
    }
}

impl<'de> Deserialize<'de> for LogLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        LogLevel::from_name(&name).map_err(serde::de::Error::custom)
    }
}
