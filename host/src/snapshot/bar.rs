//! Progress for people who watch.

use std::time::Duration;

use coppice_snapshot::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, if that is a terminal. It is gone when this is
/// dropped.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that is called `what`.
    pub fn new(what: &'static str) -> Self {
        // Hides by itself what is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(template).expect("a constant");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        Self(bar)
    }

    /// A sign of life of something whose end nobody knows.
    pub fn spinner(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Takes what an operation reports.
    pub fn report(&self, progress: Progress) {
        self.0.set_length(progress.total);
        self.0.set_position(progress.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
