//! Log lines: what is written, in which form, and never late.
//!
//! A line is written by one system call when it is logged, so that a supervisor
//! that follows the log knows at once, and so that the last words before an end
//! are not lost in a buffer. A log that cannot take a line (a pipe that nobody
//! reads, a full disk) loses it: lines are counted as lost rather than waited
//! for, because the event loop and the vCPUs write them.

mod line;
mod sink;

use parking_lot::{Mutex, RwLock};

pub use sink::LogError;

use crate::spec::LoggerConfig;
use line::format_line;
use sink::Sink;

/// The process's logger.
pub struct Logger {
    settings: RwLock<Settings>,
    sink: Mutex<Sink>,
}

/// What is written and how.
struct Settings {
    id: String,
    level: log::LevelFilter,
    show_level: bool,
    show_origin: bool,
    module: Option<String>,
}

impl Logger {
    /// A logger that writes to standard error for the machine called `id`.
    pub fn new(id: impl Into<String>) -> Logger {
        Logger {
            settings: RwLock::new(Settings {
                id: id.into(),
                level: log::LevelFilter::Info,
                show_level: false,
                show_origin: false,
                module: None,
            }),
            sink: Mutex::new(Sink::stderr()),
        }
    }

    /// Makes this the logger behind the macros of the `log` crate. Only the
    /// first one that is installed counts.
    pub fn install(self) -> &'static Logger {
        let logger: &'static Logger = Box::leak(Box::new(self));
        if log::set_logger(logger).is_ok() {
            log::set_max_level(logger.settings.read().level);
        }
        logger
    }

    /// Changes what `config` names and keeps the rest.
    ///
    /// # Errors
    /// The log file cannot be opened. Nothing has changed then.
    pub fn configure(&self, config: &LoggerConfig) -> Result<(), LogError> {
        if let Some(path) = &config.log_path {
            let sink = Sink::open(path)?;
            *self.sink.lock() = sink;
        }
        let mut settings = self.settings.write();
        if let Some(level) = config.level {
            settings.level = level.into();
            // Spares the work of making lines that would be thrown away.
            log::set_max_level(settings.level);
        }
        settings.show_level = config.show_level.unwrap_or(settings.show_level);
        settings.show_origin = config.show_log_origin.unwrap_or(settings.show_origin);
        if let Some(module) = &config.module {
            settings.module = Some(module.clone());
        }
        Ok(())
    }

    /// Lines that could not be written so far.
    pub fn lost_lines(&self) -> u64 {
        self.sink.lock().lost()
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let settings = self.settings.read();
        let wanted = |module: &String| metadata.target().starts_with(module.as_str());
        metadata.level() <= settings.level && settings.module.as_ref().is_none_or(wanted)
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = format_line(&self.settings.read(), record);
        self.sink.lock().write(&line);
    }

    fn flush(&self) {}
}

#[cfg(test)]
#[path = "logger_test.rs"]
mod tests;
