//! The command line as its users see it, on machines that are stand-ins.

mod bed;
mod console;
mod failures;
mod named;
mod signals;
mod snapshots;
mod streams;
mod terminal;
mod usage;
