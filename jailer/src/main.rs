//! The launcher: builds the jail and execs the VMM in it.
//!
//! It is not built yet. This program exists so that scripts that name it fail
//! with a sentence instead of running a machine without a jail.

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!(
        "coppice-jailer: the jail is not available yet in this version; \
         start coppice-vmm directly, and only for guests that you trust"
    );
    ExitCode::FAILURE
}
